"""The first failing history of a target, found in this process.

It meets the histories that a campaign with the same seed would, in the same order, one by one.
"""

from __future__ import annotations

import functools
import re
import time
from typing import Any, Final, NamedTuple

from ringfold.fuzz.campaign import Budget, lots
from ringfold.fuzz.configurations import configurations, rows
from ringfold.fuzz.failures import as_failure
from ringfold.fuzz.frame import Dead
from ringfold.fuzz.generate import Plan, history
from ringfold.fuzz.mismatch import Mismatch
from ringfold.fuzz.target import Device, Target, refusal
from ringfold.fuzz.trace import Trace
from ringfold.fuzz.walk import walk

STEPS: Final = {"cpu": 30, "cuda": 24}
"""Steps of a random history."""


class Hunt(NamedTuple):
    """What a hunt found, if anything, and what it took."""

    failure: Trace | None
    """The failing history up to the operation that failed."""
    mismatches: list[Mismatch]
    windows: int
    """Row-windows verified, those of the failing history included."""
    histories: int
    seconds: float


def plans(
    target: Target,
    device: Device = "cpu",
    *,
    name: str = "",
    worst: Dead = "nan",
    **fixed: Any,
) -> list[Plan]:
    """What to run on a target: its configurations, one directed history for each (L, T).

    Args:
        target: under test, not opened.
        device: decides the configurations and how long a random history is.
        name: by which a worker process resolves the target; its own, unless given.
        worst: the worst that dead memory is filled with.
        fixed: as `configurations` has them.
    """
    emulated = re.match(r"sim\b", target.name) is not None
    setups = configurations(
        target.dialect.name,
        device,
        bfloat16=emulated,
        refuses=functools.partial(refusal, target),
        **fixed,
    )
    visited = set()
    made = []
    for setup in setups:
        # Heads do not move cursors, so one directed history a protocol is enough.
        directed = (setup.ring, setup.window) not in visited
        visited.add((setup.ring, setup.window))
        made.append(
            Plan(
                setup,
                name or target.name,
                target.operations,
                rows(setup, device),
                STEPS[device],
                directed,
                worst,
            )
        )
    return made


def hunt(
    target: Target,
    seed: int,
    *,
    windows_max: int | None = None,
    seconds_max: float | None = None,
    device: Device = "cpu",
) -> Hunt:
    """Walk histories until one fails, or the budget is spent."""
    start, windows, histories = time.perf_counter(), 0, 0

    def seconds() -> float:
        return time.perf_counter() - start

    def out_of_time() -> bool:
        return seconds_max is not None and seconds() > seconds_max

    for lot in lots(plans(target, device), seed, Budget(windows_max, None), device):
        for number in lot.numbers:
            if out_of_time():
                return Hunt(None, [], windows, histories, seconds())
            trace = history(lot.plan, seed, number)
            verdict = walk(trace, target, out_of_time=out_of_time)
            windows += verdict.windows
            histories += 1
            if verdict.mismatches:
                failure = as_failure(trace, verdict.mismatches, dict(target.identity()))
                return Hunt(failure, verdict.mismatches, windows, histories, seconds())
    return Hunt(None, [], windows, histories, seconds())
