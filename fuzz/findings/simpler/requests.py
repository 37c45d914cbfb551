"""Fewer requests and rows, and plainer names for those that are left."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator, Sequence

from msgspec.structs import replace

from ringfold.fuzz.findings.simpler.edits import (
    Item,
    Rows,
    called,
    changed,
    chunks,
    with_operations,
)
from ringfold.fuzz.histories import trace as ops
from ringfold.fuzz.histories.trace import Trace

Choose = Callable[[int, Rows], list[int]]
Leaves = ops.Free | ops.Save | ops.Donate


def alone(trace: Trace, suspect: int | None = None) -> Iterator[Trace]:
    """The failing request alone; else fewer requests, half of them first."""
    requests = seated(trace)
    if suspect in requests and len(requests) > 1:
        yield _only(trace, {suspect})
    for chunk in chunks(requests):
        yield _only(trace, set(requests) - set(chunk))


def fewer_rows(trace: Trace) -> Iterator[Trace]:
    """Batches without padding; then without any one row."""
    yield rebatched(trace, lambda tag, rows: _real(rows))
    for tag, rows in batches(trace):
        for gone in range(len(rows)):
            yield rebatched(trace, chosen(tag, [*range(gone), *range(gone + 1, len(rows))]))


def joined(trace: Trace) -> Iterator[Trace]:
    """One request that stays, in place of one that leaves and another that comes, or it again."""
    for i, leave in enumerate(trace.operations):
        if not isinstance(leave, Leaves):
            continue
        for j, seat in enumerate(trace.operations[i + 1 :], start=i + 1):
            if isinstance(seat, ops.Seats | ops.Restore):
                rest = [o for at, o in enumerate(trace.operations) if at not in {i, j}]
                stays: dict[int | None, int] = {seat.request: leave.request}
                yield with_operations(trace, [called(o, stays) for o in rest])


def padded(trace: Trace) -> Iterator[Trace]:
    """Padding in place of one request: in its rows, else an idle batch for when it was seated."""
    requests = seated(trace)
    for request in requests if len(requests) > 1 else ():
        others = set(requests) - {request}
        yield _blanked(_lives(trace, others), request)
        yield _only(_idled(trace, request), others)


def _idled(trace: Trace, request: int) -> Trace:
    """An idle batch, which leaves dead memory as the seat did, where this request is seated."""

    def change(operation: ops.Operation) -> ops.Operation:
        if isinstance(operation, ops.Seats) and operation.request == request:
            return ops.Idle(rows=1, dead=operation.dead)
        return operation

    return changed(trace, change)


def freed(trace: Trace) -> Iterator[Trace]:
    """A request that leaves nothing to the host or to the prefix cache; without what then lacks."""
    for i, leave in enumerate(trace.operations):
        if isinstance(leave, ops.Save | ops.Donate):
            free = ops.Free(request=leave.request, dead=leave.dead)
            behind = (o for o in trace.operations[i + 1 :] if not _takes_up(o, leave))
            yield with_operations(trace, (*trace.operations[:i], free, *behind))


def _takes_up(operation: ops.Operation, left: ops.Save | ops.Donate) -> bool:
    if isinstance(left, ops.Save):
        return isinstance(operation, ops.Restore) and operation.request == left.request
    return isinstance(operation, ops.Hit | ops.Evict) and operation.prefix == left.prefix


def renamed(trace: Trace) -> Trace:
    """Requests and prefixes 0, 1, ... and tags 1, 2, ... in the order in which they appear.

    A request that is seated again after it was freed gets a number of its own; so does a prefix.
    """
    names: dict[int | None, int] = {}
    prefixes: dict[int, int] = {}
    tags: dict[int, int] = {}
    requests, donations = itertools.count(), itertools.count()

    def change(operation: ops.Operation) -> ops.Operation:
        changes: dict[str, object] = {}
        if isinstance(operation, ops.Seats):
            names[operation.request] = next(requests)
        if isinstance(operation, ops.Donate):
            prefixes[operation.prefix] = next(donations)
        if hasattr(operation, "prefix"):
            changes["prefix"] = prefixes.get(operation.prefix, operation.prefix)
        if hasattr(operation, "tag"):
            changes["tag"] = tags.setdefault(operation.tag, len(tags) + 1)
        return replace(called(operation, names), **changes)

    return changed(trace, change)


def seated(trace: Trace) -> list[int]:
    """Requests that some operation seats, in order."""
    seats = (o.request for o, _ in ops.unroll(trace.operations) if isinstance(o, ops.Seats))
    return list(dict.fromkeys(seats))


def slots_needed(trace: Trace) -> int:
    """As many as are ever taken at once, and the null slot."""
    now = most = 1
    for operation, _ in ops.unroll(trace.operations):
        now += isinstance(operation, ops.Seats | ops.Restore)
        now -= isinstance(operation, ops.Free | ops.Save | ops.Evict)
        most = max(most, now)
    return max(2, most)


def batches(trace: Trace) -> Iterator[tuple[int, Rows]]:
    """Tag and rows of every batch with more than one row."""
    for operation, _ in ops.unroll(trace.operations):
        if isinstance(operation, ops.Batched) and len(operation.rows) > 1:
            yield operation.tag, operation.rows


def chosen(tag: int, order: list[int]) -> Choose:
    """Rows `order` of the batch called `tag`, and all rows of the others."""
    return lambda other, rows: order if other == tag else list(range(len(rows)))


def rebatched(trace: Trace, choose: Choose) -> Trace:
    """Batches of the rows `choose(tag, rows)`, in that order; none of padding alone is left."""
    left: dict[int, list[int]] = {}

    def change(operation: ops.Operation) -> Iterator[ops.Operation]:
        if isinstance(operation, ops.Batched):
            rows = operation.rows
            at = choose(operation.tag, rows)
            emptied = _real(rows) and not any(rows[i] is not None for i in at)
            left[operation.tag] = at = [] if emptied else at
            lengths = {} if isinstance(operation, ops.Decode) else {"lengths": operation.lengths}
            columns = {"rows": rows, **lengths}
        elif isinstance(operation, ops.Commit):
            at = left.get(operation.tag, [])
            columns = {"accepted": operation.accepted}
        else:
            yield operation
            return
        if at:
            taken = {name: _at(column, at) for name, column in columns.items()}
            yield _stored(replace(operation, **taken))

    return with_operations(trace, ops.rewritten(trace.operations, change))


def _only(trace: Trace, requests: Container[int]) -> Trace:
    """The history of some requests, in batches of nobody else."""
    return rebatched(
        _lives(trace, requests),
        lambda tag, rows: [i for i, row in enumerate(rows) if row is None or row in requests],
    )


def _lives(trace: Trace, requests: Container[int]) -> Trace:
    """How some requests come and go; those that are copies of others start afresh."""
    prefixes: set[int] = set()

    def change(operation: ops.Operation) -> Iterator[ops.Operation]:
        request = getattr(operation, "request", None)
        if request is not None and request not in requests:
            return
        match operation:
            case ops.Fork(request=request, source=source) if source not in requests:
                yield ops.Admit(request=request, tag=request, dead=operation.dead)
            case ops.Hit(request=request, prefix=prefix) if prefix not in prefixes:
                yield ops.Admit(request=request, tag=request, dead=operation.dead)
            case ops.Evict(prefix=prefix) if prefix not in prefixes:
                pass
            case _:
                if isinstance(operation, ops.Donate | ops.Evict):
                    prefixes.symmetric_difference_update({operation.prefix})
                yield operation

    return with_operations(trace, ops.rewritten(trace.operations, change))


def _blanked(trace: Trace, request: int) -> Trace:
    """Padding in the rows of one request."""
    left: dict[int, Rows] = {}

    def change(operation: ops.Operation) -> ops.Operation:
        if isinstance(operation, ops.Verify | ops.Decode):
            rows = tuple(None if row == request else row for row in operation.rows)
            left[operation.tag] = rows
            return _stored(replace(operation, rows=rows))
        if isinstance(operation, ops.Commit):
            counts = zip(left.get(operation.tag, ()), operation.accepted, strict=False)
            return replace(
                operation, accepted=tuple(None if row is None else n for row, n in counts)
            )
        return operation

    return changed(trace, change)


def _stored(operation: ops.Operation) -> ops.Operation:
    """A step stores states of its own rows alone."""
    if not isinstance(operation, ops.Decode):
        return operation
    return replace(operation, stores=tuple(r for r in operation.stores if r in operation.rows))


def _real(rows: Rows) -> list[int]:
    return [i for i, row in enumerate(rows) if row is not None]


def _at(values: Sequence[Item], places: Sequence[int]) -> tuple[Item, ...]:
    return tuple(values[i] for i in places)
