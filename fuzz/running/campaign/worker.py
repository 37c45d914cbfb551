"""What a worker of a campaign does: compile, walk a lot of histories, shrink a failure."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from ringfold.fuzz.findings import failures
from ringfold.fuzz.findings.shrink import NoFailureError, Shrunk, shrink
from ringfold.fuzz.histories.story import Plan
from ringfold.fuzz.histories.trace import Admit, Commit, Operation, PayloadSpec, Trace, Verify
from ringfold.fuzz.judging.walk import Verdict, walk
from ringfold.fuzz.running.course import Lot
from ringfold.fuzz.running.crew import Clock, target_of
from ringfold.fuzz.running.watch import Watch
from ringfold.fuzz.target import Device


class Walked(msgspec.Struct):
    """What came of one history."""

    configuration: int
    number: int
    verdict: Verdict
    failure: Trace | None = None
    flaky: bool = False
    """A second walk of the failing trace did not find the same."""


class Here(NamedTuple):
    """What this process knows of its campaign."""

    watch: Watch
    clock: Clock
    device: Device


_here: Here


def start(watch: Watch, clock: Clock, device: Device) -> None:
    """What a process begins with."""
    global _here  # noqa: PLW0603 - set once, when the process starts
    _here = Here(watch, clock, device)


def warm_up(plan: Plan) -> tuple[dict[str, str], float]:
    """Compile what the plan's setup needs; returns the target's identity and the seconds."""
    began = time.perf_counter()
    target, setup = target_of(plan.target, _here.device), plan.setup
    rows = tuple(range(min(plan.rows, setup.slots - 1)))
    step: list[Operation] = [
        *(Admit(request=row, tag=row) for row in rows),
        Verify(tag=len(rows), rows=rows, lengths=(setup.window,) * len(rows)),
        Commit(tag=len(rows), accepted=(1,) * len(rows)),
    ]
    payload = PayloadSpec(seed=0, profile="ordinary")
    walk(Trace(setup=setup, payload=payload, operations=tuple(step)), target)
    return dict(target.identity()), time.perf_counter() - began


def walk_lot(lot: Lot) -> list[Walked]:
    """Walk one history after the other; those that fail are walked again up to the failure."""
    target = target_of(lot.plan.target, _here.device)
    walked = list[Walked]()

    def walk_next(trace: Trace) -> Verdict:
        number = lot.first + len(walked)
        post = functools.partial(_post, lot.configuration, number)
        post()
        verdict = walk(trace, target, out_of_time=post, on_windows=_here.clock.count)
        result = Walked(lot.configuration, number, verdict)
        if verdict.mismatches:
            identity = dict(target.identity())
            result.failure = failures.as_failure(trace, verdict.mismatches, identity)
            again = {mismatch.key for mismatch in walk(result.failure, target).mismatches}
            result.flaky = verdict.mismatches[0].key not in again
        walked.append(result)
        return verdict

    try:
        for trace in lot.traces:
            if _here.clock.out_of_time():
                break
            walk_next(trace)
        if lot.windows:
            _let_hypothesis_tell(lot, walk_next)
    finally:
        _here.watch.done()
    return walked


def _let_hypothesis_tell(lot: Lot, walk_next: Callable[[Trace], Verdict]) -> None:
    from ringfold.fuzz.running.machine import examine

    def told(trace: Trace) -> Verdict:
        _here.watch.tell(trace)  # nobody else has it
        return walk_next(trace)

    out_of_time = _here.clock.out_of_time
    examine(lot.plan, lot.seed, told, windows_max=lot.windows, out_of_time=out_of_time)


def _post(configuration: int, number: int) -> bool:
    """Tell the parent that the next operation of this history begins; returns `out_of_time`."""
    _here.watch.begin(configuration, number)
    return _here.clock.out_of_time()


def shrunk(failure: Trace, seconds_max: float) -> Shrunk | None:
    """The smallest history that fails for the same cause; none where it fails no more."""
    try:
        return shrink(
            failure,
            target_of(failure.target or "", _here.device),
            seconds_max=seconds_max,
            stopped=lambda: bool(_here.clock.stopped.value),
        )
    except NoFailureError:
        return None
