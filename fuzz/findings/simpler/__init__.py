"""Simpler neighbours of a trace: what a person would try to leave out, one idea a function.

Each function takes a trace and yields traces that may be simpler (`order.py` says what that is);
none of them asks whether the failure is still there, and some of what they yield no scheduler could
do (`trace.validate` refuses it). `shrink` does the asking. The order within a function is from much
to little.
"""

from collections.abc import Callable, Iterator
from typing import Final

from ringfold.fuzz.findings.simpler.every_short import every_short
from ringfold.fuzz.findings.simpler.numbers import (
    larger_heads,
    living,
    other_names,
    other_shapes,
    plainer_payload,
    plainer_setup,
    smaller_geometry,
)
from ringfold.fuzz.findings.simpler.requests import fewer_rows, freed, joined, padded
from ringfold.fuzz.findings.simpler.reseeded import other_numbers, rare_numbers
from ringfold.fuzz.findings.simpler.seats import (
    fewer_records,
    nearer_bases,
    placed,
    simpler_places,
)
from ringfold.fuzz.findings.simpler.steps import fewer, moved, plain_steps, reordered, unrepeated
from ringfold.fuzz.findings.simpler.windows import (
    plainer_commits,
    plainer_stores,
    shorter_chunks,
    shorter_rings,
    shorter_windows,
    smaller_rings,
)
from ringfold.fuzz.histories.trace import Trace

Pass = Callable[[Trace], Iterator[Trace]]

QUICK: Final[tuple[Pass, ...]] = (
    placed, fewer, fewer_rows, unrepeated,
    plainer_setup, smaller_geometry, shorter_rings, simpler_places,
    fewer_records, nearer_bases, shorter_windows, plainer_commits, plainer_stores,
    shorter_chunks, living, plainer_payload, plain_steps, joined, freed, padded, reordered,
    other_names,
)  # fmt: skip
"""In the order in which they pay: what makes the next ones cheap comes first."""

THOROUGH: Final[tuple[Pass, ...]] = (
    moved, larger_heads, other_shapes, every_short, other_numbers, smaller_rings, rare_numbers,
)  # fmt: skip
"""Many candidates: for when nothing else helps."""
