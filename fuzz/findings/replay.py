"""Replaying a kept trace: does it still show what it showed, and if not, from where on?

Traces of targets that hang or kill their process are kept like any other, so many are replayed in
a process of their own, which is watched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from concurrent.futures.process import BrokenProcessPool
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from ringfold.fuzz.findings.known import KnownFailure
from ringfold.fuzz.findings.legality import Class, classify
from ringfold.fuzz.histories.trace import Trace, TraceError, load
from ringfold.fuzz.judging.mismatch import Mismatch, failed_checks
from ringfold.fuzz.judging.walk import Verdict, walk
from ringfold.fuzz.running.crew import POLL_SECONDS
from ringfold.fuzz.running.watch import HANG_SECONDS, Hang, HangingError, Watch
from ringfold.fuzz.running.workers import Workers
from ringfold.fuzz.target import Device, RefusedError
from ringfold.fuzz.targets.registry import MissingTargetError, UnknownTargetError, resolve
from ringfold.fuzz.targets.wheels import WheelError
from ringfold.sim.setup import SetupError

NOWHERE: Final = Hang(worker=0, configuration=0, number=0, operation=0)


class Outcome(StrEnum):
    """What became of a trace."""

    AGREES = "AGREES"
    """It was expected to agree, and does."""
    FIXED = "FIXED"
    """It showed a mismatch when it was written, and shows none now."""
    FAILED = "FAILED"
    """It shows a mismatch."""
    KNOWN = "KNOWN"
    """It shows the mismatch that it is known for, on a version that is known to have it."""
    GONE = "GONE"
    """It is known to fail, and does not: what is known is wrong, and nobody would be told."""
    ERROR = "ERROR"
    """It could not be read, or its target cannot walk it."""
    MISSING = "MISSING"
    """Its target is not on this machine."""


class Replayed(msgspec.Struct):
    """One trace's outcome."""

    trace: str
    target: str
    outcome: Outcome
    account: str
    """One sentence."""
    changed: str = ""
    """The first operation whose outcome is not the recorded one; empty if there is none."""
    mismatches: list[Mismatch] = []
    windows: int = 0
    largest: dict[str, float] = {}
    legality: Class | None = None
    """Who can meet what the trace does; none where the target is no release."""


def replay(
    path: Path,
    target_name: str | None,
    device: Device,
    known: Sequence[KnownFailure] = (),
    on_operation: Callable[[], None] = lambda: None,
) -> Replayed:
    """Walk the trace at `path` on its own target, or on the one called `target_name`.

    `on_operation` is called before the target is opened, and before each operation.
    """
    name = target_name or ""

    def begins() -> bool:
        on_operation()
        return False

    try:
        trace = load(path)
        name = target_name or trace.target or "sim"
        target = resolve(name, device)
        begins()
        verdict = walk(trace, target, folder=path.parent, out_of_time=begins)
    except (TraceError, UnknownTargetError, SetupError, RefusedError) as error:
        return Replayed(str(path), name, Outcome.ERROR, str(error))
    except MemoryError as error:
        wants = f"its setup wants more memory than there is here: {error}"
        return Replayed(str(path), name, Outcome.ERROR, wants)
    except (MissingTargetError, WheelError) as error:
        return Replayed(str(path), name, Outcome.MISSING, str(error))
    return judge(trace, verdict, str(path), name, known, device)


def replay_all(
    paths: Sequence[Path],
    target_name: str | None,
    device: Device,
    known: Sequence[KnownFailure] = (),
    *,
    hang_max: float = HANG_SECONDS,
    on_progress: Callable[[Path], None] = lambda path: None,
) -> list[Replayed]:
    """Replay each in a worker process; one that hangs for `hang_max` seconds, or dies, has failed.

    `on_progress` hears of each path before it is replayed. After Ctrl-C there are as many outcomes
    as there were by then.
    """
    replayed = list[Replayed]()
    with contextlib.suppress(KeyboardInterrupt):
        _replay_into(replayed, paths, target_name, device, known, hang_max, on_progress)
    return replayed


def _replay_into(
    replayed: list[Replayed],
    paths: Sequence[Path],
    target_name: str | None,
    device: Device,
    known: Sequence[KnownFailure],
    hang_max: float,
    on_progress: Callable[[Path], None],
) -> None:
    while len(replayed) < len(paths):
        with Workers(1, _start_worker, hang_max=hang_max) as workers:
            for number, path in enumerate(paths[len(replayed) :]):
                on_progress(path)
                future = workers.submit(_replay, number, path, target_name, device, known)
                try:
                    while not future.done():
                        wait([future], POLL_SECONDS)
                        workers.look()
                    replayed.append(future.result())
                except HangingError as hanging:
                    cut = hanging.hang.mismatch(load(path), hang_max)
                except BrokenProcessPool:
                    at = workers.watch.hanging(0.0) or NOWHERE
                    cut = msgspec.structs.replace(
                        at.mismatch(load(path), hang_max), symptom="the target's process died"
                    )
                else:
                    continue
                replayed.append(_cut_short(cut, path, target_name, known, device))
                break  # this worker is gone


def _cut_short(
    mismatch: Mismatch,
    path: Path,
    target_name: str | None,
    known: Sequence[KnownFailure],
    device: Device,
) -> Replayed:
    trace = load(path)
    verdict = Verdict(mismatches=[mismatch], complete=False)
    return judge(trace, verdict, str(path), target_name or trace.target or "sim", known, device)


_watch: Watch


def _start_worker(watch: Watch) -> None:
    global _watch  # noqa: PLW0603 - set once, when the process starts
    _watch = watch


def _replay(
    number: int,
    path: Path,
    target_name: str | None,
    device: Device,
    known: Sequence[KnownFailure],
) -> Replayed:
    try:
        return replay(path, target_name, device, known, lambda: _watch.begin(0, number))
    finally:
        _watch.done()


def judge(
    trace: Trace,
    verdict: Verdict,
    path: str,
    name: str,
    known: Sequence[KnownFailure],
    device: Device,
) -> Replayed:
    """Compare what was seen when the trace was written with what is seen now."""
    replayed = Replayed(
        path,
        name,
        Outcome.FAILED,
        "",
        mismatches=verdict.mismatches,
        windows=verdict.windows,
        largest=verdict.largest,
        legality=classify(trace, name),
    )
    before = failed_checks(trace.seen)
    now = failed_checks(map(msgspec.to_builtins, verdict.mismatches))
    for operation in sorted(before.keys() | now.keys()):
        was, is_now = before.get(operation, []), now.get(operation, [])
        if was != is_now:
            replayed.changed = (
                f"operation {operation}: {', '.join(was) or 'agreed'} when it was written, "
                f"{', '.join(is_now) or 'agrees'} now"
            )
            break
    failing = trace.expected != "agree"
    expected = [failure for failure in known if failure.concerns(Path(path), name, device)]
    if verdict.mismatches:
        replayed.account = verdict.mismatches[0].sentence()
        if all(any(f.excuses(m, trace) for f in expected) for m in verdict.mismatches):
            replayed.outcome = Outcome.KNOWN
            replayed.account += f" Known: {', '.join(f.reference for f in expected)}."
    elif expected:
        replayed.outcome = Outcome.GONE
        replayed.account = (
            f"{verdict.windows} row-windows agree, but it is known to fail: "
            f"{'; '.join(map(str, expected))}. Take {name} out of what is known, or find out why "
            "the trace no longer shows it"
        )
    elif failing:
        replayed.outcome = Outcome.FIXED
        replayed.account = f"{verdict.windows} row-windows agree; a mismatch was recorded"
    else:
        replayed.outcome = Outcome.AGREES
        replayed.account = f"{verdict.windows} row-windows agree, as expected"
    return replayed
