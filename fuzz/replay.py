"""Replaying a kept trace: does it still show what it showed, and if not, from where on?"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec

from ringfold.fuzz.mismatch import Mismatch, failed_checks
from ringfold.fuzz.payload import Payload, load_tensors
from ringfold.fuzz.target import Device, RefusedError, Target
from ringfold.fuzz.targets.registry import MissingTargetError, UnknownTargetError, resolve
from ringfold.fuzz.targets.wheels import WheelError
from ringfold.fuzz.trace import Trace, TraceError, load
from ringfold.fuzz.walk import Verdict, Walk
from ringfold.sim.setup import SetupError


class Outcome(StrEnum):
    """What became of a trace."""

    AGREES = "AGREES"
    """It was expected to agree, and does."""
    FIXED = "FIXED"
    """It showed a mismatch when it was written, and shows none now."""
    FAILED = "FAILED"
    """It shows a mismatch."""
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


def replay(path: Path, target_name: str | None, device: Device) -> Replayed:
    """Walk the trace at `path` on its own target, or on the one called `target_name`."""
    name = target_name or ""
    try:
        trace = load(path)
        name = target_name or trace.target or "sim"
        verdict = walk(trace, resolve(name, device), path.parent)
    except (TraceError, UnknownTargetError, SetupError, RefusedError) as error:
        return Replayed(str(path), name, Outcome.ERROR, str(error))
    except (MissingTargetError, WheelError) as error:
        return Replayed(str(path), name, Outcome.MISSING, str(error))
    return judge(trace, verdict, str(path), name)


def walk(trace: Trace, target: Target, folder: Path) -> Verdict:
    """Walk `trace`, whose explicit tensors, if any, lie in `folder`."""
    spec = trace.payload
    tensors = load_tensors(folder / spec.tensors, trace.setup) if spec.tensors else None
    return Walk(trace, target, Payload(trace.setup, spec.seed, spec.profile, tensors)).run()


def judge(trace: Trace, verdict: Verdict, path: str, name: str) -> Replayed:
    """Compare what was seen when the trace was written with what is seen now."""
    replayed = Replayed(
        path,
        name,
        Outcome.FAILED,
        "",
        mismatches=verdict.mismatches,
        windows=verdict.windows,
        largest=verdict.largest,
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
    if verdict.mismatches:
        replayed.account = verdict.mismatches[0].sentence()
    elif failing:
        replayed.outcome = Outcome.FIXED
        replayed.account = f"{verdict.windows} row-windows agree; a mismatch was recorded"
    else:
        replayed.outcome = Outcome.AGREES
        replayed.account = f"{verdict.windows} row-windows agree, as expected"
    return replayed
