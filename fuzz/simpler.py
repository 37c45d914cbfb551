"""Simpler neighbours of a trace: what a person would try to leave out, one idea a function.

Each function takes a trace and yields traces that may be simpler; none of them asks whether the
failure is still there, and some of what they yield no scheduler could do (`trace.validate` refuses
it). `shrink` does the asking. The order within a function is from much to little.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from ringfold.fuzz.frame import Dead
from ringfold.fuzz.ledger import Ledger
from ringfold.fuzz.trace import (
    Admit,
    Commit,
    Decode,
    Fork,
    Free,
    Operation,
    Place,
    Repeat,
    Trace,
    Verify,
    unroll,
)
from ringfold.sim import cursors as rules
from ringfold.sim.cursors import Cursors, reachable
from ringfold.sim.dialects import DIALECTS
from ringfold.sim.setup import Dtypes, Geometry, Setup

Item = TypeVar("Item")
Operations = tuple[Operation, ...]

PROFILES_PLAIN: Final = ("slow-decay", "ordinary")
"""Simplest first: what nothing is forgotten in makes a lost token plain to see."""
SEEDS: Final = range(4)
UNROLLED_MAX: Final = 200
SMALL_RINGS: Final = ((2, 1), (4, 1), (4, 2))
"""(L, T) at which every short history is looked at, beside the trace's own."""
SHORT_STEPS_MAX: Final = 3
SHORT_HISTORIES_MAX: Final = 3000
DEAD: Final[tuple[Dead, ...]] = ("leave", "garbage", "nan")


# ------------------------------------------------------------------ requests, prefix, steps


def alone(trace: Trace, suspect: int | None = None) -> Iterator[Trace]:
    """The failing request alone; else fewer requests, half of them first."""
    requests = _requests(trace.operations)
    if suspect in requests and len(requests) > 1:
        yield _only(trace, {suspect})
    for chunk in _chunks(requests):
        yield _only(trace, set(requests) - set(chunk))


def placed(trace: Trace) -> Iterator[Trace]:
    """The prefix replaced by one place (or admission) a request, the longest prefix first."""
    operations = trace.operations
    before = list(_seated_before(trace))
    tag = 1 + max((o.tag for o in operations if hasattr(o, "tag")), default=0)
    for position in range(len(operations) - 1, 0, -1):
        worst: Dead = max((o.dead for o in operations[:position]), key=DEAD.index)
        for dead in dict.fromkeys(("leave", worst)):
            seats = [
                _seat(trace.setup, request, tag + i, cursors, dead)
                for i, (request, cursors) in enumerate(before[position].items())
            ]
            yield _with(trace, (*seats, *operations[position:]))


def fewer(trace: Trace) -> Iterator[Trace]:
    """Without some operations; a verify goes with its commit."""
    units: dict[object, list[int]] = {}
    for i, operation in enumerate(trace.operations):
        tag = operation.tag if isinstance(operation, Verify | Commit) else None
        units.setdefault(("window", tag) if tag is not None else i, []).append(i)
    for chunk in _chunks(list(units.values())):
        gone = set(itertools.chain(*chunk))
        yield _with(trace, [o for i, o in enumerate(trace.operations) if i not in gone])


def fewer_rows(trace: Trace) -> Iterator[Trace]:
    """Batches without padding; then without any one row."""
    yield _with(trace, _rows_where(trace.operations, lambda tag, row, request: request is not None))
    for operation, _ in unroll(trace.operations):
        if isinstance(operation, Verify | Decode) and len(operation.rows) > 1:
            for gone in range(len(operation.rows)):
                at = (operation.tag, gone)
                yield _with(
                    trace,
                    _rows_where(trace.operations, lambda tag, row, _, at=at: (tag, row) != at),
                )


def plain_decoding(trace: Trace) -> Iterator[Trace]:
    """A decode step written as a window of one with one accepted."""

    def window(operation: Operation) -> Operations:
        if not isinstance(operation, Decode):
            return (operation,)
        tag, rows = operation.tag, operation.rows
        return (
            Verify(tag=tag, rows=rows, lengths=(1,) * len(rows), profile=operation.profile),
            Commit(
                tag=tag,
                accepted=tuple(None if row is None else 1 for row in rows),
                dead=operation.dead,
            ),
        )

    yield _with(trace, itertools.chain(*map(window, trace.operations)))


def unrepeated(trace: Trace) -> Iterator[Trace]:
    """Repeats with fewer turns, then written out."""
    for i, operation in enumerate(trace.operations):
        if not isinstance(operation, Repeat):
            continue
        head, tail = trace.operations[:i], trace.operations[i + 1 :]
        for times in _fewer_times(operation.times):
            fewer_turns = msgspec.structs.replace(operation, times=times)
            yield _with(trace, (*head, fewer_turns, *tail))
        if operation.times * len(operation.operations) <= UNROLLED_MAX:
            turns = itertools.chain.from_iterable([operation.operations] * operation.times)
            yield _with(trace, (*head, *_fresh_tags(turns, trace), *tail))


# ------------------------------------------------------------------ windows and rings


def shorter_windows(trace: Trace) -> Iterator[Trace]:
    """Each window as short as it can be, each count of accepted tokens as small."""
    for operation, _ in unroll(trace.operations):
        if isinstance(operation, Verify):
            accepted = _accepted(trace.operations, operation)
            for row, (length, n) in enumerate(zip(operation.lengths, accepted, strict=True)):
                for new_length in range(1, length + 1):
                    for new_n in range(new_length + 1) if n is not None else (None,):
                        yield _with_window(trace, operation.tag, row, new_length, new_n)


def smaller_rings(trace: Trace) -> Iterator[Trace]:
    """Shorter rings and windows, with a lone place in each state that the shorter ring has."""
    setup = trace.setup
    for T in range(1, setup.window + 1):
        for L in _powers(setup.ring):
            if 2 * T <= L:
                yield from _states(_with_setup(_clipped(trace, T), ring=L, window=T), True)


def simpler_places(trace: Trace) -> Iterator[Trace]:
    """An admission in place of a place or a fork; else fewer records, nearer to row 0."""
    yield from _states(trace, False)


def default_bounds(trace: Trace) -> Iterator[Trace]:
    """Commits that announce the setup's own window."""

    def plain(operation: Operation) -> Operation:
        bound = isinstance(operation, Commit) and operation.bound is not None
        return msgspec.structs.replace(operation, bound=None) if bound else operation

    yield _with(trace, map(plain, trace.operations))


# ------------------------------------------------------------------ memory, numbers, names


def living(trace: Trace) -> Iterator[Trace]:
    """Dead memory left alone: everywhere, then after one operation."""
    for dead in DEAD:
        yield _with(trace, (msgspec.structs.replace(o, dead=dead) for o in trace.operations))
    for i, operation in enumerate(trace.operations):
        for dead in DEAD[: DEAD.index(operation.dead)]:
            quiet = msgspec.structs.replace(operation, dead=dead)
            yield _with(trace, (*trace.operations[:i], quiet, *trace.operations[i + 1 :]))


def smaller_geometry(trace: Trace) -> Iterator[Trace]:
    """One head of one element; else each size as small as it can be by itself."""
    g = trace.setup.geometry
    yield _with_setup(trace, geometry=Geometry(1, 1, 1, 1))
    for heads, value_heads in itertools.product(range(1, g.heads + 1), range(1, g.value_heads + 1)):
        if value_heads % heads == 0:
            yield _with_setup(trace, geometry=Geometry(heads, value_heads, g.key_dim, g.value_dim))
    for key_dim in _powers(g.key_dim):
        yield _with_setup(trace, geometry=Geometry(g.heads, g.value_heads, key_dim, g.value_dim))
    for value_dim in _powers(g.value_dim):
        yield _with_setup(trace, geometry=Geometry(g.heads, g.value_heads, g.key_dim, value_dim))


def plainer_setup(trace: Trace) -> Iterator[Trace]:
    """One layer, float32, the L2 norm on, and no more slots than the requests need."""
    plain = {
        "layers": 1,
        "dtypes": Dtypes(),
        "l2norm": True,
        "slots": 1 + _seated_most(trace.operations),
    }
    yield _with_setup(trace, **plain)
    for name, value in plain.items():
        yield _with_setup(trace, **{name: value})
    for name in ("activation", "record", "state"):
        dtypes = msgspec.structs.replace(trace.setup.dtypes, **{name: "float32"})
        yield _with_setup(trace, dtypes=dtypes)


def plainer_payload(trace: Trace) -> Iterator[Trace]:
    """Numbers from a seed, one profile for all, a simple one first."""

    def unprofiled(operation: Operation) -> Operation:
        profiled = isinstance(operation, Verify | Decode | Place)
        return msgspec.structs.replace(operation, profile=None) if profiled else operation

    same = _with(trace, map(unprofiled, trace.operations))
    for profile in dict.fromkeys((*PROFILES_PLAIN, trace.payload.profile)):
        payload = msgspec.structs.replace(trace.payload, profile=profile, tensors=None)
        yield msgspec.structs.replace(same, payload=payload)
        yield msgspec.structs.replace(trace, payload=payload)


def renamed(trace: Trace) -> Trace:
    """Requests 0, 1, ... and tags 1, 2, ... in the order in which they appear.

    A request that is seated again after it was freed gets a number of its own.
    """
    names: dict[int, int] = {}
    tags: dict[int, int] = {}
    count = itertools.count()

    def name(request: int | None) -> int | None:
        return None if request is None else names[request]

    def change(operation: Operation) -> Operation:
        changes: dict[str, object] = {}
        if isinstance(operation, Admit | Place | Fork):
            if isinstance(operation, Fork):
                changes["source"] = name(operation.source)
            names[operation.request] = next(count)
        if isinstance(operation, Admit | Place | Fork | Free):
            changes["request"] = names[operation.request]
        if isinstance(operation, Verify | Decode):
            changes["rows"] = tuple(map(name, operation.rows))
        if isinstance(operation, Admit | Place | Verify | Decode | Commit):
            changes["tag"] = tags.setdefault(operation.tag, len(tags) + 1)
        if isinstance(operation, Repeat):
            changes["operations"] = tuple(map(change, operation.operations))
        return msgspec.structs.replace(operation, **changes)

    return _with(trace, map(change, trace.operations))


def other_names(trace: Trace) -> Iterator[Trace]:
    """Requests and tags counted from the start, and a small seed."""
    for seed in dict.fromkeys((*SEEDS, trace.payload.seed)):
        payload = msgspec.structs.replace(trace.payload, seed=seed)
        yield msgspec.structs.replace(renamed(trace), payload=payload)


def every_short(trace: Trace) -> Iterator[Trace]:
    """Every history of one request with at most as many steps, in the smallest rings.

    What came so far started from one failure; this makes the end the same from any of them.
    """
    steps = min(SHORT_STEPS_MAX, sum(isinstance(o, Verify) for o, _ in unroll(trace.operations)))
    own = (trace.setup.ring, trace.setup.window)
    for L, T in dict.fromkeys((*SMALL_RINGS, own)):
        if own[0] >= L and own[1] >= T:
            base = _with_setup(trace, ring=L, window=T)
            for count in range(1, steps + 1):
                if _short_count(base.setup, count) <= SHORT_HISTORIES_MAX:
                    yield from _short(base, count)


# ------------------------------------------------------------------ helpers


def _with(trace: Trace, operations: Iterable[Operation]) -> Trace:
    return msgspec.structs.replace(trace, operations=tuple(operations))


def _with_setup(trace: Trace, **changes: object) -> Trace:
    return msgspec.structs.replace(trace, setup=msgspec.structs.replace(trace.setup, **changes))


def _requests(operations: Iterable[Operation]) -> list[int]:
    """Those that some operation seats, in order."""
    seated = (o.request for o, _ in unroll(operations) if isinstance(o, Admit | Place | Fork))
    return list(dict.fromkeys(seated))


def _seated_most(operations: Iterable[Operation]) -> int:
    now = most = 0
    for operation, _ in unroll(operations):
        now += isinstance(operation, Admit | Place | Fork) - isinstance(operation, Free)
        most = max(most, now)
    return max(1, most)


def _chunks(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """All items in pieces, first halves, then quarters, at last one by one from the end."""
    size = len(items)
    while size > 1:
        size = (size + 1) // 2
        for end in range(len(items), 0, -size):
            yield items[max(0, end - size) : end]


def _powers(limit: int) -> list[int]:
    """1, 2, 4, ... and the limit itself."""
    return [*(1 << i for i in range(limit.bit_length()) if 1 << i < limit), limit]


def _fewer_times(times: int) -> Iterator[int]:
    yield 1
    yield from (times * eighths // 8 for eighths in (1, 2, 4, 6, 7) if times * eighths >= 16)
    if times > 2:
        yield times - 1


def _fresh_tags(operations: Iterable[Operation], trace: Trace) -> Iterator[Operation]:
    """Operations of several turns, so that no two windows share a tag."""
    used = 1 + max((o.tag for o, _ in unroll(trace.operations) if hasattr(o, "tag")), default=0)
    fresh = itertools.count(used)
    tags: dict[int, int] = {}
    for operation in operations:
        if isinstance(operation, Admit | Place | Verify | Decode):
            tags[operation.tag] = next(fresh)
        tag = tags[operation.tag] if hasattr(operation, "tag") else None
        yield operation if tag is None else msgspec.structs.replace(operation, tag=tag)


def _only(trace: Trace, requests: set[int | None]) -> Trace:
    """The history of some requests; those that were forked from others start afresh."""

    def kept(operation: Operation) -> Iterator[Operation]:
        match operation:
            case Admit(request=request) | Place(request=request) | Free(request=request):
                if request in requests:
                    yield operation
            case Fork(request=request, source=source):
                if request in requests and source in requests:
                    yield operation
                elif request in requests:
                    yield Admit(request=request, tag=request, dead=operation.dead)
            case Repeat(operations=inner):
                if inside := tuple(itertools.chain(*map(kept, inner))):
                    yield msgspec.structs.replace(operation, operations=inside)
            case _:
                yield operation

    operations = tuple(itertools.chain(*map(kept, trace.operations)))
    return _with(
        trace,
        _rows_where(operations, lambda tag, row, request: request is None or request in requests),
    )


def _rows_where(
    operations: Iterable[Operation], keep: Callable[[int, int, int | None], bool]
) -> Operations:
    """Batches with the rows for which `keep(tag, row, request)` holds; none with padding alone."""
    rows_of: dict[int, list[int]] = {}

    def kept(operation: Operation) -> Iterator[Operation]:
        match operation:
            case Verify(tag=tag, rows=rows, lengths=lengths):
                at = rows_of[tag] = _kept_rows(tag, rows, keep)
                if at:
                    yield msgspec.structs.replace(
                        operation, rows=_at(rows, at), lengths=_at(lengths, at)
                    )
            case Decode(tag=tag, rows=rows):
                if at := _kept_rows(tag, rows, keep):
                    yield msgspec.structs.replace(operation, rows=_at(rows, at))
            case Commit(tag=tag, accepted=accepted):
                if at := rows_of.get(tag, []):
                    yield msgspec.structs.replace(operation, accepted=_at(accepted, at))
            case Repeat(operations=inner):
                if inside := tuple(itertools.chain(*map(kept, inner))):
                    yield msgspec.structs.replace(operation, operations=inside)
            case _:
                yield operation

    return tuple(itertools.chain(*map(kept, operations)))


def _kept_rows(
    tag: int, rows: Sequence[int | None], keep: Callable[[int, int, int | None], bool]
) -> list[int]:
    at = [i for i, request in enumerate(rows) if keep(tag, i, request)]
    padding_only = all(rows[i] is None for i in at) and any(row is not None for row in rows)
    return [] if padding_only else at


def _at(values: Sequence[Item], places: Sequence[int]) -> tuple[Item, ...]:
    return tuple(values[i] for i in places)


def _accepted(operations: Operations, verify: Verify) -> Sequence[int | None]:
    for operation, _ in unroll(operations):
        if isinstance(operation, Commit) and operation.tag == verify.tag:
            return operation.accepted
    return (None,) * len(verify.rows)


def _with_window(trace: Trace, tag: int, row: int, length: int, accepted: int | None) -> Trace:
    """`trace` with another length and count in one row of the window called `tag`."""

    def change(operation: Operation) -> Operation:
        if isinstance(operation, Repeat):
            inside = tuple(map(change, operation.operations))
            return msgspec.structs.replace(operation, operations=inside)
        if isinstance(operation, Verify) and operation.tag == tag:
            lengths = (*operation.lengths[:row], length, *operation.lengths[row + 1 :])
            return msgspec.structs.replace(operation, lengths=lengths)
        if isinstance(operation, Commit) and operation.tag == tag:
            counts = (*operation.accepted[:row], accepted, *operation.accepted[row + 1 :])
            return msgspec.structs.replace(operation, accepted=counts)
        return operation

    return _with(trace, map(change, trace.operations))


def _clipped(trace: Trace, T: int) -> Trace:
    """No window longer than `T`, no count above its window, no bound above `T`."""
    lengths: dict[int, tuple[int, ...]] = {}

    def change(operation: Operation) -> Operation:
        match operation:
            case Repeat(operations=inner):
                return msgspec.structs.replace(operation, operations=tuple(map(change, inner)))
            case Verify(tag=tag):
                lengths[tag] = tuple(min(length, T) for length in operation.lengths)
                return msgspec.structs.replace(operation, lengths=lengths[tag])
            case Commit(tag=tag, accepted=accepted, bound=bound):
                counts = tuple(
                    None if n is None else min(n, length)
                    for n, length in zip(accepted, lengths[tag], strict=True)
                )
                bounded = None if bound is None else min(bound, T)
                return msgspec.structs.replace(operation, accepted=counts, bound=bounded)
            case _:
                return operation

    return _with(trace, map(change, trace.operations))


# Cursors.


def _seat(setup: Setup, request: int, tag: int, cursors: Cursors, dead: Dead) -> Admit | Place:
    """The simplest operation that seats a request with these cursors."""
    if not DIALECTS[setup.dialect].has_ring or cursors == rules.reset(setup.ring, setup.window):
        return Admit(request=request, tag=tag, dead=dead)
    return Place(
        request=request,
        tag=tag,
        base=cursors.cache_base,
        records=cursors.write_pos,
        flush=bool(cursors.is_flush),
        dead=dead,
    )


def _seated_before(trace: Trace) -> Iterator[dict[int, Cursors]]:
    """Who is seated before each operation, and with which cursors."""
    setup = trace.setup
    ledger = Ledger(setup, DIALECTS[setup.dialect])
    windows: dict[int, Verify] = {}
    for top in trace.operations:
        yield {request: entry.cursors for request, entry in ledger.entries.items()}
        for operation, _ in unroll((top,)):
            match operation:
                case Admit(request=request) | Place(request=request) | Fork(request=request):
                    ledger.admit(request, {"slot": 1})
                    if isinstance(operation, Place):
                        ledger.entries[request].cursors = _cursors(operation)
                case Free(request=request):
                    ledger.free(request)
                case Verify(tag=tag):
                    windows[tag] = operation
                case Commit(tag=tag, accepted=accepted, bound=bound):
                    _advance(ledger, windows[tag].rows, accepted, bound or setup.window)
                case Decode(rows=rows):
                    _advance(ledger, rows, [1] * len(rows), setup.window)
                case _:
                    pass


def _advance(
    ledger: Ledger, rows: Sequence[int | None], accepted: Sequence[int | None], bound: int
) -> None:
    for request, n in zip(rows, accepted, strict=True):
        if request is not None and n is not None:
            ledger.commit(request, n, bound)


def _cursors(place: Place) -> Cursors:
    return Cursors(place.records, place.base, int(place.flush))


def _states(trace: Trace, everywhere: bool) -> Iterator[Trace]:
    """`trace` with its seats in other states; `everywhere`: also where the old one is no more.

    One place after the other is moved, and with `everywhere` the rest is squeezed into the ring.
    """
    setup = trace.setup
    places = [i for i, o in enumerate(trace.operations) if isinstance(o, Place | Fork)]
    if everywhere:
        trace = _with(trace, (_squeezed(o, setup) for o in trace.operations))
    if not places:
        if everywhere:
            yield trace
        return
    for i in places:
        seat = trace.operations[i]
        assert isinstance(seat, Place | Fork)
        tag = seat.tag if isinstance(seat, Place) else seat.request
        for cursors in _placeable(setup):
            moved = _seat(setup, seat.request, tag, cursors, seat.dead)
            yield _with(trace, (*trace.operations[:i], moved, *trace.operations[i + 1 :]))


def _placeable(setup: Setup) -> list[Cursors]:
    """States that a place may name, the simplest first."""
    if not DIALECTS[setup.dialect].has_ring:
        return [Cursors(0, 0, 0)]
    states = reachable(setup.ring, setup.window).states
    return sorted(states, key=lambda c: (c.write_pos, c.cache_base))


def _squeezed(operation: Operation, setup: Setup) -> Operation:
    if not isinstance(operation, Place) or not DIALECTS[setup.dialect].has_ring:
        return operation
    records = min(operation.records, setup.ring - setup.window)
    return msgspec.structs.replace(
        operation,
        records=records,
        base=operation.base % setup.ring,
        flush=bool(rules.due(records, setup.ring, setup.window)),
    )


# Every short history.


def _short_count(setup: Setup, steps: int) -> int:
    T = setup.window
    choices = T * (T + 3) // 2  # of (length, accepted)
    return len(DEAD) * len(_placeable(setup)) * choices ** (steps - 1) * (choices + T)


def _short(trace: Trace, steps: int) -> Iterator[Trace]:
    """Histories of one request with exactly this many steps, the last one committed or not."""
    setup, T = trace.setup, trace.setup.window
    windows = [(length, n) for length in range(1, T + 1) for n in range(length + 1)]
    last = [(length, None) for length in range(1, T + 1)]
    for dead in DEAD:
        for cursors in _placeable(setup):
            seat = _seat(setup, 0, 1, cursors, dead)
            for run in itertools.product(*[windows] * (steps - 1), [*last, *windows]):
                operations: list[Operation] = [seat]
                for tag, (length, n) in enumerate(run, start=2):
                    operations.append(Verify(tag=tag, rows=(0,), lengths=(length,), dead=dead))
                    if n is not None:
                        operations.append(Commit(tag=tag, accepted=(n,), dead=dead))
                yield _with(trace, operations)


PASSES: Final[tuple[Callable[[Trace], Iterator[Trace]], ...]] = (
    other_names,
    placed,
    fewer,
    fewer_rows,
    unrepeated,
    plain_decoding,
    default_bounds,
    smaller_rings,
    simpler_places,
    shorter_windows,
    living,
    plainer_setup,
    smaller_geometry,
    plainer_payload,
    every_short,
)
"""In the order in which they pay: what makes the next ones cheap comes first."""
