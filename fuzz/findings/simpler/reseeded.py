"""Two things at once: a simpler history and the numbers of another seed.

A fault that only some numbers show keeps whatever it was found with: what is simpler may need
another seed, and another seed alone may be no simpler. No single edit leads from one such history
to the other, so here every edit is tried with every small seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ringfold.fuzz.findings.simpler.edits import with_payload, with_setup
from ringfold.fuzz.findings.simpler.numbers import (
    SEEDS,
    plainer_payload,
    plainer_setup,
    smaller_geometry,
)
from ringfold.fuzz.findings.simpler.order import PLAIN
from ringfold.fuzz.findings.simpler.requests import renamed
from ringfold.fuzz.findings.simpler.seats import fewer_records, one_record_fewer, placed, unflagged
from ringfold.fuzz.findings.simpler.steps import fewer
from ringfold.fuzz.findings.simpler.windows import shorter_rings, shorter_windows
from ringfold.fuzz.histories.trace import Trace
from ringfold.sim.setup import Geometry

EDITS: Final = (
    placed, fewer,
    plainer_setup, smaller_geometry, shorter_rings, shorter_windows, plainer_payload,
    fewer_records,
)  # fmt: skip
"""Each with few candidates: those that look at every state would take hundreds, times seeds."""

ONE: Final = Geometry(1, 1, 1, 1)
RARE_SEEDS: Final = range(64)
"""For a fault that one number in dozens shows."""


def other_numbers(trace: Trace) -> Iterator[Trace]:
    """One thing simpler, from another seed."""
    for simplify in EDITS:
        for candidate in simplify(trace):
            for seed in SEEDS:
                yield with_payload(candidate, seed=seed)


def rare_numbers(trace: Trace) -> Iterator[Trace]:
    """One head of one element, else the same shape, from any of many seeds; with plain names.

    In the plainest profile first, since that is worth more than a small seed. Where heads are that
    small, so that a walk costs next to nothing, also a place with one record fewer, or without its
    flag.
    """
    if trace.setup.geometry == ONE:
        for candidate in (*one_record_fewer(trace), *unflagged(trace)):
            for seed in RARE_SEEDS:
                yield with_payload(candidate, seed=seed)
    plain = renamed(trace)
    one = with_setup(plain, geometry=ONE)
    for profile in dict.fromkeys((PLAIN[0], trace.payload.profile)):
        for candidate in (one, plain):
            for seed in RARE_SEEDS:
                yield with_payload(candidate, seed=seed, profile=profile)
