"""Which histories a scheduler could make: names, sizes and tags; their order by a rehearsal."""

from __future__ import annotations

from typing import Final

from ringfold.fuzz.histories.profiles import PROFILES
from ringfold.fuzz.histories.trace.history import Trace, TraceError, shown
from ringfold.fuzz.histories.trace.operations import (
    OPERATIONS_MAX,
    Commit,
    Fork,
    Operation,
    Repeat,
    Tagged,
    kind,
)
from ringfold.fuzz.histories.trace.rehearsal import Rehearsal

REPEAT_DEPTH_MAX: Final = 3


def validate(trace: Trace) -> None:
    """Raise `TraceError`, with the operation's index, for a history that no scheduler could do."""
    _check_profile(trace.payload.profile, "payload.profile")
    name = trace.payload.tensors
    if name is not None and (name in {"", ".", ".."} or set(name) & set("/\\\0")):
        raise TraceError(
            f"payload.tensors is {shown(name)}, but must be a bare file name: "
            f"put the file into the trace's own folder"
        )
    _check_size(trace.operations)
    _check_tags(trace.operations, "operations", set())
    rehearsal = Rehearsal(trace.setup, with_cursors=_asks_for_cursors(trace.operations))
    rehearsal.run(trace.operations, "operations")


def _check_profile(profile: str, where: str) -> None:
    if profile not in PROFILES:
        raise TraceError(
            f"{where} is {shown(profile)}, but must be one of {', '.join(PROFILES)}: "
            f"name a profile from this list"
        )


def _check_size(operations: tuple[Operation, ...]) -> None:
    total = _count(operations, "operations", 0)
    if total > OPERATIONS_MAX:
        raise TraceError(
            f"the history has {total} operations with its repeats unrolled, "
            f"but at most {OPERATIONS_MAX} are allowed: repeat fewer times, or split the trace"
        )


def _count(operations: tuple[Operation, ...], where: str, depth: int) -> int:
    total = 0
    for i, operation in enumerate(operations):
        if isinstance(operation, Repeat):
            if depth == REPEAT_DEPTH_MAX:
                raise TraceError(
                    f"{where}[{i}] (repeat) is nested {depth + 1} deep, but at most "
                    f"{REPEAT_DEPTH_MAX} are allowed: multiply the inner `times` out"
                )
            inside = _count(operation.operations, f"{where}[{i}].operations", depth + 1)
            total += operation.times * inside
        else:
            total += 1
    return total


def _check_tags(operations: tuple[Operation, ...], where: str, used: set[int]) -> None:
    """A tag stands for one window, in the text of the trace; profiles are looked up on the way."""
    for i, operation in enumerate(operations):
        here = f"{where}[{i}]"
        if isinstance(operation, Repeat):
            _check_tags(operation.operations, f"{here}.operations", used)
        elif isinstance(operation, Tagged):
            if operation.tag in used:
                raise TraceError(
                    f"{here} ({kind(operation)}): tag {operation.tag} stands for an earlier "
                    f"window: give every verify, decode, prefill and place a tag of its own"
                )
            used.add(operation.tag)
            if operation.profile is not None:
                _check_profile(operation.profile, f"{here}.profile")


def _asks_for_cursors(operations: tuple[Operation, ...]) -> bool:
    """Whether a fork or a bound is there, which not every cursor allows."""
    return any(
        isinstance(op, Fork)
        or (isinstance(op, Commit) and op.bound is not None)
        or (isinstance(op, Repeat) and _asks_for_cursors(op.operations))
        for op in operations
    )
