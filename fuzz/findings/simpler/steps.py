"""Fewer and plainer steps: operations left out, written otherwise, or in another order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from ringfold.fuzz.findings.simpler.edits import (
    chunks,
    each,
    exchanged,
    put,
    tags,
    with_operations,
    with_setup,
)
from ringfold.fuzz.findings.simpler.requests import (
    batches,
    chosen,
    rebatched,
    renamed,
    slots_needed,
)
from ringfold.fuzz.histories.trace import (
    Admit,
    Commit,
    Decode,
    Idle,
    Operation,
    Repeat,
    Tagged,
    Trace,
    Verify,
    unroll,
)

UNROLLED_MAX: Final = 200
MOVED_MAX: Final = 8
"""Operations of a history in which each is tried everywhere."""


def fewer(trace: Trace) -> Iterator[Trace]:
    """Without some operations; a verify goes with its commit."""
    units: dict[object, list[int]] = {}
    for i, operation in enumerate(trace.operations):
        window = ("window", operation.tag) if isinstance(operation, Verify | Commit) else i
        units.setdefault(window, []).append(i)
    for chunk in chunks(list(units.values())):
        gone = set(itertools.chain(*chunk))
        yield with_operations(trace, [o for i, o in enumerate(trace.operations) if i not in gone])


def plain_steps(trace: Trace) -> Iterator[Trace]:
    """An idle batch of one row, or for one of padding; a decode step as a window of one."""
    for i, idle in each(trace, Idle):
        yield exchanged(trace, i, replace(idle, rows=1))
    for i, verify in each(trace, Verify):
        if not any(row is not None for row in verify.rows):
            rest = (o for o in trace.operations[i + 1 :] if getattr(o, "tag", None) != verify.tag)
            idle = Idle(rows=1, dead=verify.dead)
            yield with_operations(trace, (*trace.operations[:i], idle, *rest))
    yield with_operations(trace, itertools.chain(*map(_window, trace.operations)))


def _window(operation: Operation) -> tuple[Operation, ...]:
    if not isinstance(operation, Decode):
        return (operation,)
    tag, rows = operation.tag, operation.rows
    accepted = tuple(None if row is None else 1 for row in rows)
    return (
        Verify(tag=tag, rows=rows, lengths=(1,) * len(rows), profile=operation.profile),
        Commit(tag=tag, accepted=accepted, dead=operation.dead),
    )


def unrepeated(trace: Trace) -> Iterator[Trace]:
    """Repeats with fewer turns, then written out."""
    for i, repeat in each(trace, Repeat):
        for times in _fewer_times(repeat.times):
            yield exchanged(trace, i, replace(repeat, times=times))
    yield from written_out(trace)


def written_out(trace: Trace) -> Iterator[Trace]:
    """One repeat as the operations that it stands for, unless they are too many to read."""
    for i, repeat in each(trace, Repeat):
        turns = [
            operation for operation, _ in itertools.islice(unroll((repeat,)), 1 + UNROLLED_MAX)
        ]
        if len(turns) <= UNROLLED_MAX:
            yield exchanged(trace, i, *_fresh_tags(turns, trace))


def _fewer_times(times: int) -> Iterator[int]:
    yield 1
    yield from (times * eighths // 8 for eighths in (1, 2, 4, 6, 7) if times * eighths >= 16)
    if times > 2:
        yield times - 1


def _fresh_tags(operations: Iterable[Operation], trace: Trace) -> Iterator[Operation]:
    """Operations of several turns, so that no two windows share a tag."""
    unused = itertools.count(1 + max(tags(trace), default=0))
    fresh: dict[int, int] = {}
    for operation in operations:
        if isinstance(operation, Tagged | Admit):
            fresh[operation.tag] = next(unused)
        tag = getattr(operation, "tag", None)
        yield replace(operation, tag=fresh[tag]) if tag in fresh else operation


def reordered(trace: Trace) -> Iterator[Trace]:
    """Neighbouring operations, neighbouring rows, or both of these the other way round.

    With names in the new order too: whether that is the simpler one shows only then.
    """
    for rows in (trace, *_other_rows(trace)):
        for operations in (rows, *_other_operations(rows)):
            yield operations
            yield renamed(operations)


def _other_rows(trace: Trace) -> Iterator[Trace]:
    for tag, rows in batches(trace):
        for row in range(len(rows) - 1):
            order = [*range(row), row + 1, row, *range(row + 2, len(rows))]
            yield rebatched(trace, chosen(tag, order))


def _other_operations(trace: Trace) -> Iterator[Trace]:
    operations = trace.operations
    for i in range(len(operations) - 1):
        pair = operations[i : i + 2]
        yield with_operations(trace, (*operations[:i], *pair[::-1], *operations[i + 2 :]))


def moved(trace: Trace) -> Iterator[Trace]:
    """One operation elsewhere, without some of the others, in no more slots than that takes."""
    if len(trace.operations) <= MOVED_MAX:
        for left in (*fewer(trace), trace):
            for i, operation in enumerate(left.operations):
                rest = put(left.operations, i)
                for j in range(len(rest) + 1):
                    other = renamed(with_operations(trace, (*rest[:j], operation, *rest[j:])))
                    yield with_setup(other, slots=slots_needed(other))
                    yield other
