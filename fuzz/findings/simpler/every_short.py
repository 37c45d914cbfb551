"""Every short history of one request: the end of a shrink is then the same wherever it started."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from ringfold.fuzz.findings.simpler.edits import with_operations, with_setup
from ringfold.fuzz.findings.simpler.order import DEAD
from ringfold.fuzz.findings.simpler.seats import placeable, seat
from ringfold.fuzz.histories.trace import Commit, Idle, Operation, Trace, Verify, unroll

SMALL_RINGS: Final = ((2, 1), (4, 1), (4, 2))
"""(L, T) at which every short history is looked at, beside the trace's own."""
STEPS_MAX: Final = 3
HISTORIES_MAX: Final = 1500

Window = tuple[int, int | None, int | None]
"""Its length, how much of it is accepted (none: it is not committed), and the bound."""


def every_short(trace: Trace) -> Iterator[Trace]:
    """With at most as many steps as the trace, in the smallest rings."""
    yield with_operations(trace, (Idle(rows=1),))
    steps = min(STEPS_MAX, sum(isinstance(o, Verify) for o, _ in unroll(trace.operations)))
    own = (trace.setup.ring, trace.setup.window)
    for L, T in dict.fromkeys((*SMALL_RINGS, own)):
        if own[0] >= L and own[1] >= T:
            base = with_setup(trace, ring=L, window=T)
            for count in range(1, steps + 1):
                if _count(base, count) <= HISTORIES_MAX:
                    yield from _of_length(base, count)


def _windows(trace: Trace) -> list[Window]:
    """All that are committed, with bounds only where the trace has some."""
    T = trace.setup.window
    bounded = any(isinstance(o, Commit) and o.bound for o, _ in unroll(trace.operations))
    bounds = (None, *range(1, T)) if bounded else (None,)
    return [(n, k, bound) for n in range(1, T + 1) for k in range(n + 1) for bound in bounds]


def _count(trace: Trace, steps: int) -> int:
    choices, states = len(_windows(trace)), len(placeable(trace.setup))
    return states * int(choices ** (steps - 1)) * (choices + trace.setup.window)


def _of_length(trace: Trace, steps: int) -> Iterator[Trace]:
    """Histories with exactly this many steps, the last one committed or not."""
    windows = _windows(trace)
    last: list[Window] = [(n, None, None) for n in range(1, trace.setup.window + 1)]
    for dead in DEAD:  # a fault may take a step less where memory is louder
        for cursors in placeable(trace.setup):
            for run in itertools.product(*[windows] * (steps - 1), [*last, *windows]):
                operations: list[Operation] = [seat(trace.setup, 0, 1, cursors, dead)]
                for tag, (length, n, bound) in enumerate(run, start=2):
                    operations.append(Verify(tag=tag, rows=(0,), lengths=(length,), dead=dead))
                    if n is not None:
                        operations.append(Commit(tag=tag, accepted=(n,), bound=bound, dead=dead))
                yield with_operations(trace, operations)
