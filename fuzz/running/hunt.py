"""The first failing history of a target, found in this process.

It meets the histories that a campaign with the same seed would, in the same order, one by one.
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from ringfold.fuzz.findings.failures import as_failure
from ringfold.fuzz.histories.configurations import configurations
from ringfold.fuzz.histories.story import Plan
from ringfold.fuzz.histories.trace import CHUNK, Trace
from ringfold.fuzz.judging.frame import Dead
from ringfold.fuzz.judging.mismatch import Mismatch
from ringfold.fuzz.judging.walk import Verdict, walk
from ringfold.fuzz.running.course import Course, Turns
from ringfold.fuzz.target import Device, Target, refusal
from ringfold.fuzz.targets.registry import TWIN
from ringfold.sim.setup import Setup, SetupError

STEPS: Final = {"cpu": 30, "cuda": 24}
"""Steps of a random history."""

HORIZON: Final = {"cpu": 64, "cuda": 2**16}
"""Row-windows of one repeat at most: where kernels are interpreted, some ten seconds."""

HORIZON_EMULATED: Final = 1024

SERVED: Final = 16
"""Rows of a server's batch at most."""

CONVOLUTION: Final = 4
"""Width of the convolution of all models."""


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
    quota: int = 0,
    **fixed: Any,
) -> list[Plan]:
    """What to run on a target: its configurations, one directed history for each (L, T).

    Args:
        target: under test, not opened.
        device: decides the configurations and how long a random history is.
        name: by which a worker process resolves the target; its own, unless given.
        worst: the worst that dead memory is filled with.
        quota: row-windows that each configuration is to have; 0: as many as there is time for.
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
    lockstep = bool(getattr(target, "lockstep", False))
    visited = set()
    made = []
    for setup in map(_served, setups) if lockstep else setups:
        # Heads do not move cursors, so one directed history a protocol is enough.
        directed = (setup.ring, setup.window) not in visited
        visited.add((setup.ring, setup.window))
        made.append(
            Plan(
                setup,
                name or target.name,
                target.operations,
                setup.slots - 2,
                STEPS[device],
                directed,
                worst,
                HORIZON_EMULATED if emulated else HORIZON[device],
                lockstep,
                quota,
                chunk=getattr(target, "tracked_chunk", None) or CHUNK,
            )
        )
    return made


def _served(setup: Setup) -> Setup:
    """With the convolution of a server's model, whatever else is chosen, and its small batches."""
    slots = min(setup.slots, SERVED + 2)
    return msgspec.structs.replace(setup, convolution=CONVOLUTION, slots=slots)


def plans_with_twin(
    target: Target, device: Device = "cpu", *, name: str = "", **options: Any
) -> list[Plan]:
    """The same, and one for the target's twin, whose outputs and snapshots nobody else looks at.

    A server's twin is the same server, with a snapshot kept for each token: it is left out.
    """
    made = plans(target, device, name=name, **options)
    name = f"{name or target.name}{TWIN}"
    twin = target.twin() if target.dialect.bitwise_fold else None
    if twin is not None and not getattr(twin, "lockstep", False):
        with contextlib.suppress(SetupError):  # the twin refuses what is asked for
            alike = plans(twin, device, name=name, **options)
            # The second has more than one head of either kind, and K is not V.
            made.append(alike[1 % len(alike)]._replace(directed=True))
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

    course = Course(plans_with_twin(target, device), seed, windows_max, device)
    while (lot := course.lot()) is not None:
        largest = list[Mapping[str, float]]()
        for trace in lot.traces:
            if out_of_time():
                return Hunt(None, [], windows, histories, seconds())
            walked = _walked(lot.plan, target)
            verdict = walk(trace, walked, out_of_time=out_of_time)
            windows += verdict.windows
            histories += 1
            if verdict.mismatches:
                failure = as_failure(trace, verdict.mismatches, dict(walked.identity()))
                return Hunt(failure, verdict.mismatches, windows, histories, seconds())
            largest.append(verdict.largest)
        course.hear(lot, largest)
    return Hunt(None, [], windows, histories, seconds())


def hunt_with_hypothesis(
    target: Target,
    seed: int,
    *,
    windows_max: int | None = None,
    seconds_max: float | None = None,
    device: Device = "cpu",
) -> Hunt:
    """The same, but Hypothesis makes the choices; it needs the package `hypothesis`."""
    from ringfold.fuzz.running.machine import examine

    start, windows, histories = time.perf_counter(), 0, 0
    failed: tuple[Trace, list[Mismatch]] | None = None
    walked_on = target

    def late() -> bool:
        return seconds_max is not None and time.perf_counter() - start > seconds_max

    def walked(trace: Trace) -> Verdict:
        nonlocal windows, histories, failed
        verdict = walk(trace, walked_on, out_of_time=late)
        windows += verdict.windows
        histories += 1
        if verdict.mismatches and failed is None:
            failed = as_failure(trace, verdict.mismatches, {}), verdict.mismatches
        return verdict

    turns = Turns(plans_with_twin(target, device), seed, windows_max)
    while failed is None and not late() and (lot := turns.lot()) is not None:
        walked_on = _walked(lot.plan, target)
        examine(lot.plan, lot.seed, walked, windows_max=lot.windows, out_of_time=late)
    seconds = time.perf_counter() - start
    failure, mismatches = failed or (None, [])
    return Hunt(failure, mismatches, windows, histories, seconds)


def _walked(plan: Plan, target: Target) -> Target:
    """Whom a plan is for: the target, or its twin."""
    twin = target.twin() if plan.target.endswith(TWIN) else None
    return twin or target
