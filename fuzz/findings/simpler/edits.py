"""A trace with one part of it exchanged: what all passes are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from ringfold.fuzz.histories.trace import (
    Batched,
    Decode,
    Fork,
    Operation,
    Trace,
    rewritten,
    unroll,
)

Item = TypeVar("Item")
Kind = TypeVar("Kind")
Rows = Sequence[int | None]


def with_operations(trace: Trace, operations: Iterable[Operation]) -> Trace:
    """The same setup and payload."""
    return replace(trace, operations=tuple(operations))


def with_setup(trace: Trace, **changes: object) -> Trace:
    """The same history in another setup."""
    return replace(trace, setup=replace(trace.setup, **changes))


def with_payload(trace: Trace, **changes: object) -> Trace:
    """The same history with other numbers."""
    return replace(trace, payload=replace(trace.payload, **changes))


def exchanged(trace: Trace, at: int, *operations: Operation) -> Trace:
    """Others in place of the operation at this index."""
    return with_operations(trace, put(trace.operations, at, *operations))


def changed(trace: Trace, change: Callable[[Operation], Operation]) -> Trace:
    """Every operation changed, those in repeats too."""
    return with_operations(trace, rewritten(trace.operations, lambda o: (change(o),)))


def each(trace: Trace, kind: type[Kind]) -> Iterator[tuple[int, Kind]]:
    """Operations of a kind, with their indices; not those in repeats."""
    return ((i, o) for i, o in enumerate(trace.operations) if isinstance(o, kind))


def tags(trace: Trace) -> Iterator[int]:
    """Those that windows and states have, those in repeats too."""
    return (o.tag for o, _ in unroll(trace.operations) if hasattr(o, "tag"))


def called(operation: Operation, names: Mapping[int | None, int]) -> Operation:
    """`operation` with other names for some of its requests."""
    changes: dict[str, object] = {}
    if hasattr(operation, "request"):
        changes["request"] = names.get(operation.request, operation.request)
    if isinstance(operation, Fork):
        changes["source"] = names.get(operation.source, operation.source)
    if isinstance(operation, Batched):
        changes["rows"] = tuple(names.get(row, row) for row in operation.rows)
    if isinstance(operation, Decode):
        changes["stores"] = tuple(names.get(row, row) for row in operation.stores)
    return replace(operation, **changes)


def put(values: Sequence[Item], at: int, *others: Item) -> tuple[Item, ...]:
    """Others in place of the value at this index."""
    return (*values[:at], *others, *values[at + 1 :])


def chunks(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """All items in pieces, first halves, then quarters, at last one by one from the end."""
    size = len(items)
    while size > 1:
        size = (size + 1) // 2
        for end in range(len(items), 0, -size):
            yield items[max(0, end - size) : end]


def powers(limit: int) -> list[int]:
    """1, 2, 4, ... and the limit itself."""
    return [*(1 << i for i in range(limit.bit_length()) if 1 << i < limit), limit]


def nearer(limit: int) -> Iterator[int]:
    """Below the limit: half of it, then nearer to it by halves."""
    gap = limit
    while gap > 1:
        gap = (gap + 1) // 2
        yield limit - gap
