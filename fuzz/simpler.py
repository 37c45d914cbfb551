"""Simpler neighbours of a trace: what a person would try to leave out, one idea a function.

Each function takes a trace and yields traces that may be simpler; none of them asks whether the
failure is still there, and some of what they yield no scheduler could do (`trace.validate` refuses
it). `shrink` does the asking. The order within a function is from much to little.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from ringfold.fuzz.frame import Dead
from ringfold.fuzz.ledger import Ledger
from ringfold.fuzz.profiles import PROFILES
from ringfold.fuzz.trace import (
    Admit,
    Commit,
    Decode,
    Donate,
    Evict,
    Fork,
    Free,
    Hit,
    Idle,
    Operation,
    Place,
    Prefill,
    Repeat,
    Restore,
    Save,
    Trace,
    Verify,
    unroll,
)
from ringfold.sim.cursors import Cursors, reachable
from ringfold.sim.dialects import DIALECTS, protocol_of
from ringfold.sim.setup import Dtypes, Geometry, Setup

Item = TypeVar("Item")
Operations = tuple[Operation, ...]
Rows = Sequence[int | None]
Choose = Callable[[int, Rows], list[int]]
Seats = Admit | Place | Fork | Hit
"""What seats a request for the first time."""

PROFILES_PLAIN: Final = ("slow-decay", "ordinary")
"""Simplest first: what nothing is forgotten in makes a lost token plain to see."""
SEEDS: Final = range(8)
UNROLLED_MAX: Final = 200
SMALL_RINGS: Final = ((2, 1), (4, 1), (4, 2))
"""(L, T) at which every short history is looked at, beside the trace's own."""
SHORT_STEPS_MAX: Final = 3
SHORT_HISTORIES_MAX: Final = 1500
MOVES_MAX: Final = 300
"""States, or pairs of them, that the seats of a history are moved through."""
SHAPES_MAX: Final = 300
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
    before = list(_before(trace))
    for position in range(len(operations) - 1, 0, -1):
        worst: Dead = max((o.dead for o in operations[:position]), key=DEAD.index)
        for dead in dict.fromkeys(("leave", worst)):
            yield _with(trace, (*_rebuilt(trace, before[position], dead), *operations[position:]))


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
    yield _with(trace, _rebatched(trace.operations, lambda tag, rows: _real(rows)))
    for tag, rows in _batches(trace):
        for gone in range(len(rows)):
            rest = [*range(gone), *range(gone + 1, len(rows))]
            yield _with(trace, _rebatched(trace.operations, _choice(tag, rest)))


def joined(trace: Trace) -> Iterator[Trace]:
    """One request that stays, in place of one that leaves and another that comes, or it again."""
    for i, leave in enumerate(trace.operations):
        if not isinstance(leave, Free | Save | Donate):
            continue
        for j, seat in enumerate(trace.operations[i + 1 :], start=i + 1):
            if isinstance(seat, Seats | Restore):
                rest = [o for at, o in enumerate(trace.operations) if at not in {i, j}]
                yield _with(trace, (_called(o, seat.request, leave.request) for o in rest))


def unshared(trace: Trace) -> Iterator[Trace]:
    """A request that leaves nothing to the prefix cache; without what is then missing."""
    for i, donate in enumerate(trace.operations):
        if isinstance(donate, Donate):
            free = Free(request=donate.request, dead=donate.dead)
            behind = (
                o
                for o in trace.operations[i + 1 :]
                if not (isinstance(o, Hit | Evict) and o.prefix == donate.prefix)
            )
            yield _with(trace, (*trace.operations[:i], free, *behind))


def plain_steps(trace: Trace) -> Iterator[Trace]:
    """An idle batch of one row; a decode step written as a window of one with one accepted."""
    for i, operation in enumerate(trace.operations):
        if isinstance(operation, Idle):
            one = msgspec.structs.replace(operation, rows=1)
            yield _with(trace, (*trace.operations[:i], one, *trace.operations[i + 1 :]))

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


def reordered(trace: Trace) -> Iterator[Trace]:
    """Neighbouring operations and neighbouring rows the other way round."""
    operations = trace.operations
    for i in range(len(operations) - 1):
        yield _with(trace, (*operations[:i], *operations[i : i + 2][::-1], *operations[i + 2 :]))
    for tag, rows in _batches(trace):
        for row in range(len(rows) - 1):
            order = [*range(row), row + 1, row, *range(row + 2, len(rows))]
            yield _with(trace, _rebatched(operations, _choice(tag, order)))


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
    """Shorter rings and windows, with the seats as they are and then in every other state."""
    setup = trace.setup
    squeezed = [
        _squeezed(trace, L, T, lowered)
        for T in range(1, setup.window + 1)
        for L in _powers(setup.ring)
        if 2 * T <= L
        for lowered in (0, setup.window - T)
    ]
    yield from squeezed
    for smaller in squeezed:
        yield from simpler_places(smaller)


def simpler_places(trace: Trace) -> Iterator[Trace]:
    """Requests seated in another state, the emptiest first: one, or two where states are few."""
    states = _placeable(trace.setup)
    seats = [i for i, o in enumerate(trace.operations) if isinstance(o, Seats)]
    for many in (1, 2):
        if len(states) ** many <= MOVES_MAX:
            for at in itertools.combinations(seats, many):
                for cursors in itertools.product(states, repeat=many):
                    yield _with(trace, _reseated(trace, dict(zip(at, cursors, strict=True))))


def plainer_commits(trace: Trace) -> Iterator[Trace]:
    """Commits that store no state apart and announce the setup's own window; else small numbers."""
    for plain in ({"bound": None, "track": None}, {"bound": None}, {"track": None}):
        yield _with(
            trace,
            (
                msgspec.structs.replace(o, **plain) if isinstance(o, Commit) else o
                for o in trace.operations
            ),
        )
    for i, operation in enumerate(trace.operations):
        if isinstance(operation, Commit):
            for name in ("bound", "track"):
                for value in range(1, getattr(operation, name) or 1):
                    commit = msgspec.structs.replace(operation, **{name: value})
                    yield _with(trace, (*trace.operations[:i], commit, *trace.operations[i + 1 :]))


CHUNKS: Final = (1, 2, 3, 4, 8, 16, 64, 65)
"""Lengths to try; prefill kernels work in 64 tokens at a time."""


def shorter_chunks(trace: Trace) -> Iterator[Trace]:
    """Each row of a prefill as short as it can be."""
    for i, operation in enumerate(trace.operations):
        if isinstance(operation, Prefill):
            for row, length in enumerate(operation.lengths):
                for n in (n for n in CHUNKS if n < length):
                    lengths = (*operation.lengths[:row], n, *operation.lengths[row + 1 :])
                    short = msgspec.structs.replace(operation, lengths=lengths)
                    yield _with(trace, (*trace.operations[:i], short, *trace.operations[i + 1 :]))


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
    """One head of one element; else each size by itself as small as it can be."""
    g = trace.setup.geometry
    yield _with_setup(trace, geometry=Geometry(1, 1, 1, 1))
    for heads, value_heads in _heads(g):
        yield _with_setup(trace, geometry=Geometry(heads, value_heads, g.key_dim, g.value_dim))
    for key_dim in _powers(g.key_dim):
        yield _with_setup(trace, geometry=Geometry(g.heads, g.value_heads, key_dim, g.value_dim))
    for value_dim in _powers(g.value_dim):
        yield _with_setup(trace, geometry=Geometry(g.heads, g.value_heads, g.key_dim, value_dim))


def other_shapes(trace: Trace) -> Iterator[Trace]:
    """Every shape with fewer elements, though one side of it be longer."""
    g = trace.setup.geometry
    dims = _powers(max(g.key_dim, g.value_dim))
    shapes = [Geometry(*pair, K, V) for pair in _heads(g) for K in dims for V in dims]
    for shape in sorted(shapes, key=elements)[:SHAPES_MAX]:
        yield _with_setup(trace, geometry=shape)


def elements(g: Geometry) -> int:
    """How large a geometry is."""
    return g.heads * g.value_heads * g.key_dim * g.value_dim


def _heads(g: Geometry) -> list[tuple[int, int]]:
    """Pairs (H, HV) no larger than those of `g`."""
    return [
        (H, HV)
        for HV in range(1, g.value_heads + 1)
        for H in range(1, min(HV, g.heads) + 1)
        if HV % H == 0
    ]


def plainer_setup(trace: Trace) -> Iterator[Trace]:
    """One layer, float32, the L2 norm, no convolution, no more slots than the requests need."""
    plain = {
        "layers": 1,
        "dtypes": Dtypes(),
        "l2norm": True,
        "convolution": 0,
        "slots": 1 + _seated_most(trace.operations),
    }
    yield _with_setup(trace, **plain)
    for name, value in plain.items():
        yield _with_setup(trace, **{name: value})
    # Records that are narrower than activations lose what raw records must keep.
    wide = msgspec.structs.replace(trace.setup.dtypes, activation="float32", record="float32")
    yield _with_setup(trace, dtypes=wide)
    state = msgspec.structs.replace(trace.setup.dtypes, state="float32")
    yield _with_setup(trace, dtypes=state)


def plainer_payload(trace: Trace) -> Iterator[Trace]:
    """Numbers from a seed, one profile for all, a simple one first."""

    def unprofiled(operation: Operation) -> Operation:
        profiled = isinstance(operation, Verify | Decode | Prefill | Place)
        return msgspec.structs.replace(operation, profile=None) if profiled else operation

    same = _with(trace, map(unprofiled, trace.operations))
    for profile in dict.fromkeys((*PROFILES_PLAIN, *PROFILES)):
        payload = msgspec.structs.replace(trace.payload, profile=profile, tensors=None)
        yield msgspec.structs.replace(same, payload=payload)
        yield msgspec.structs.replace(trace, payload=payload)


def renamed(trace: Trace) -> Trace:
    """Requests and prefixes 0, 1, ... and tags 1, 2, ... in the order in which they appear.

    A request that is seated again after it was freed gets a number of its own; so does a prefix.
    """
    names: dict[int, int] = {}
    prefixes: dict[int, int] = {}
    tags: dict[int, int] = {}
    requests, donations = itertools.count(), itertools.count()

    def name(request: int | None) -> int | None:
        return None if request is None else names[request]

    def change(operation: Operation) -> Operation:
        changes: dict[str, object] = {}
        if isinstance(operation, Fork):
            changes["source"] = name(operation.source)
        if isinstance(operation, Seats):
            names[operation.request] = next(requests)
        if isinstance(operation, Donate):
            prefixes[operation.prefix] = next(donations)
        if hasattr(operation, "request"):
            changes["request"] = name(operation.request)
        if hasattr(operation, "prefix"):
            changes["prefix"] = prefixes[operation.prefix]
        if isinstance(operation, Verify | Decode | Prefill):
            changes["rows"] = tuple(map(name, operation.rows))
        if hasattr(operation, "tag"):
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


def other_numbers(trace: Trace) -> Iterator[Trace]:
    """A plainer setup or payload from another seed: where one number in many shows the fault."""
    for simplify in (plainer_setup, smaller_geometry, plainer_payload):
        for candidate in simplify(trace):
            for seed in SEEDS:
                payload = msgspec.structs.replace(candidate.payload, seed=seed)
                yield msgspec.structs.replace(candidate, payload=payload)


def every_short(trace: Trace) -> Iterator[Trace]:
    """Every history of one request with at most as many steps, in the smallest rings.

    What came so far started from one failure; this makes the end the same from any of them.
    """
    yield _with(trace, (Idle(rows=1),))
    steps = min(SHORT_STEPS_MAX, sum(isinstance(o, Verify) for o, _ in unroll(trace.operations)))
    own = (trace.setup.ring, trace.setup.window)
    for L, T in dict.fromkeys((*SMALL_RINGS, own)):
        if own[0] >= L and own[1] >= T:
            base = _with_setup(trace, ring=L, window=T)
            for count in range(1, steps + 1):
                if _short_count(base, count) <= SHORT_HISTORIES_MAX:
                    yield from _short(base, count)


# ------------------------------------------------------------------ helpers


def _with(trace: Trace, operations: Iterable[Operation]) -> Trace:
    return msgspec.structs.replace(trace, operations=tuple(operations))


def _with_setup(trace: Trace, **changes: object) -> Trace:
    return msgspec.structs.replace(trace, setup=msgspec.structs.replace(trace.setup, **changes))


def _requests(operations: Iterable[Operation]) -> list[int]:
    """Those that some operation seats, in order."""
    seated = (o.request for o, _ in unroll(operations) if isinstance(o, Seats))
    return list(dict.fromkeys(seated))


def _seated_most(operations: Iterable[Operation]) -> int:
    now = most = 0
    for operation, _ in unroll(operations):
        now += isinstance(operation, Seats | Restore) - isinstance(operation, Free | Save | Evict)
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
        if isinstance(operation, Admit | Place | Verify | Decode | Prefill):
            tags[operation.tag] = next(fresh)
        tag = tags[operation.tag] if hasattr(operation, "tag") else None
        yield operation if tag is None else msgspec.structs.replace(operation, tag=tag)


def _only(trace: Trace, requests: Container[int]) -> Trace:
    """The history of some requests; those that are copies of others start afresh."""
    prefixes: set[int] = set()

    def kept(operation: Operation) -> Iterator[Operation]:
        request = getattr(operation, "request", None)
        if request is not None and request not in requests:
            return
        match operation:
            case Repeat(operations=inner):
                if inside := tuple(itertools.chain(*map(kept, inner))):
                    yield msgspec.structs.replace(operation, operations=inside)
            case Fork(request=request, source=source) if source not in requests:
                yield Admit(request=request, tag=request, dead=operation.dead)
            case Hit(request=request, prefix=prefix) if prefix not in prefixes:
                yield Admit(request=request, tag=request, dead=operation.dead)
            case Evict(prefix=prefix) if prefix not in prefixes:
                pass
            case _:
                if isinstance(operation, Donate | Evict):
                    prefixes.symmetric_difference_update({operation.prefix})
                yield operation

    def choose(tag: int, rows: Rows) -> list[int]:
        return [i for i, row in enumerate(rows) if row is None or row in requests]

    operations = tuple(itertools.chain(*map(kept, trace.operations)))
    return _with(trace, _rebatched(operations, choose))


def _batches(trace: Trace) -> Iterator[tuple[int, Rows]]:
    """Tag and rows of every batch with more than one row."""
    for operation, _ in unroll(trace.operations):
        if isinstance(operation, Verify | Decode | Prefill) and len(operation.rows) > 1:
            yield operation.tag, operation.rows


def _real(rows: Rows) -> list[int]:
    return [i for i, row in enumerate(rows) if row is not None]


def _called(operation: Operation, old: int, new: int) -> Operation:
    """`operation` with another name for one request."""

    def name(request: int | None) -> int | None:
        return new if request == old else request

    changes: dict[str, object] = {}
    if hasattr(operation, "request"):
        changes["request"] = name(operation.request)
    if isinstance(operation, Fork):
        changes["source"] = name(operation.source)
    if isinstance(operation, Verify | Decode | Prefill):
        changes["rows"] = tuple(map(name, operation.rows))
    return msgspec.structs.replace(operation, **changes)


def _choice(tag: int, order: list[int]) -> Choose:
    """Rows `order` of the batch called `tag`, and all rows of the others."""
    return lambda other, rows: order if other == tag else list(range(len(rows)))


def _rebatched(operations: Iterable[Operation], choose: Choose) -> Operations:
    """Batches of the rows `choose(tag, rows)`, in that order; none of padding alone is left."""
    chosen: dict[int, list[int]] = {}

    def rows_of(tag: int, rows: Rows) -> list[int]:
        at = choose(tag, rows)
        emptied = _real(rows) and not any(rows[i] is not None for i in at)
        chosen[tag] = [] if emptied else at
        return chosen[tag]

    def kept(operation: Operation) -> Iterator[Operation]:
        match operation:
            case (
                Verify(tag=tag, rows=rows, lengths=lengths)
                | Prefill(tag=tag, rows=rows, lengths=lengths)
            ):
                if at := rows_of(tag, rows):
                    yield msgspec.structs.replace(
                        operation, rows=_at(rows, at), lengths=_at(lengths, at)
                    )
            case Decode(tag=tag, rows=rows):
                if at := rows_of(tag, rows):
                    yield msgspec.structs.replace(operation, rows=_at(rows, at))
            case Commit(tag=tag, accepted=accepted):
                if kept_rows := chosen.get(tag):
                    yield msgspec.structs.replace(operation, accepted=_at(accepted, kept_rows))
            case Repeat(operations=inner):
                if inside := tuple(itertools.chain(*map(kept, inner))):
                    yield msgspec.structs.replace(operation, operations=inside)
            case _:
                yield operation

    return tuple(itertools.chain(*map(kept, operations)))


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


def _clipped(trace: Trace, T: int, lowered: int) -> Trace:
    """No window longer than `T`, no count above its window, no bound above `T`, some lower."""
    lengths: dict[int, tuple[int, ...]] = {}

    def change(operation: Operation) -> Operation:
        match operation:
            case Repeat(operations=inner):
                return msgspec.structs.replace(operation, operations=tuple(map(change, inner)))
            case Verify(tag=tag):
                lengths[tag] = tuple(min(length, T) for length in operation.lengths)
                return msgspec.structs.replace(operation, lengths=lengths[tag])
            case Commit(tag=tag, accepted=accepted, bound=bound, track=track):
                counts = tuple(
                    None if n is None else min(n, length)
                    for n, length in zip(accepted, lengths[tag], strict=True)
                )
                bounded = None if bound is None else max(1, min(bound - lowered, T))
                tracked = None if track is None else min(track, T)
                return msgspec.structs.replace(
                    operation, accepted=counts, bound=bounded, track=tracked
                )
            case _:
                return operation

    return _with(trace, map(change, trace.operations))


# Cursors.


def _seat(setup: Setup, request: int, tag: int, cursors: Cursors, dead: Dead) -> Admit | Place:
    """The simplest operation that seats a request with these cursors."""
    if cursors == protocol_of(setup).reset(setup.ring, setup.window):
        return Admit(request=request, tag=tag, dead=dead)
    return Place(
        request=request,
        tag=tag,
        base=cursors.cache_base,
        records=cursors.write_pos,
        flush=bool(cursors.is_flush),
        dead=dead,
    )


class _Before(NamedTuple):
    """What an operation meets."""

    seated: dict[int, Cursors]
    saved: dict[int, Cursors]
    prefixes: list[int]


def _before(trace: Trace) -> Iterator[_Before]:
    """Who is seated before each operation, and who is saved, with which cursors; what is kept."""
    setup = trace.setup
    ledger = Ledger(setup, DIALECTS[setup.dialect])
    windows: dict[int, Verify] = {}
    for top in trace.operations:
        seated, saved = (
            {request: entry.cursors for request, entry in entries.items()}
            for entries in (ledger.entries, ledger.saved)
        )
        yield _Before(seated, saved, [*ledger.prefixes])
        for operation, _ in unroll((top,)):
            match operation:
                case Verify(tag=tag):
                    windows[tag] = operation
                case Commit(tag=tag, accepted=accepted, bound=bound):
                    _advance(ledger, windows[tag].rows, accepted, bound or setup.window)
                case Decode(rows=rows):
                    _advance(ledger, rows, [1] * len(rows), setup.window)
                case _:
                    _move(ledger, operation)


def _move(ledger: Ledger, operation: Operation) -> None:
    seat = {"slot": 1, "request": 1}
    match operation:
        case Admit(request=request) | Fork(request=request) | Hit(request=request):
            ledger.admit(request, seat)
        case Place(request=request):
            ledger.admit(request, seat, _cursors(operation))
        case Free(request=request):
            ledger.free(request)
        case Save(request=request):
            ledger.save(request)
        case Restore(request=request):
            ledger.restore(request, seat)
        case Donate(request=request, prefix=prefix):
            ledger.donate(request, prefix, seat)
        case Evict(prefix=prefix):
            ledger.evict(prefix)
        case _:
            pass


def _rebuilt(trace: Trace, before: _Before, dead: Dead) -> Iterator[Operation]:
    """The simplest operations after which everybody is where `before` says."""
    setup = trace.setup
    tags = itertools.count(1 + max((getattr(o, "tag", 0) for o in trace.operations), default=0))
    empty = protocol_of(setup).reset(setup.ring, setup.window)
    unused = 1 + max(_requests(trace.operations))
    for request, prefix in enumerate(before.prefixes, start=unused):
        yield _seat(setup, request, next(tags), empty, dead)
        yield Donate(request=request, prefix=prefix, dead=dead)
    for request, cursors in before.saved.items():
        yield _seat(setup, request, next(tags), cursors, dead)
        yield Save(request=request, dead=dead)
    for request, cursors in before.seated.items():
        yield _seat(setup, request, next(tags), cursors, dead)


def _advance(
    ledger: Ledger, rows: Sequence[int | None], accepted: Sequence[int | None], bound: int
) -> None:
    for request, n in zip(rows, accepted, strict=True):
        if request is not None and n is not None:
            ledger.commit(request, n, bound)


def _cursors(place: Place) -> Cursors:
    return Cursors(place.records, place.base, int(place.flush))


def _reseated(trace: Trace, cursors: dict[int, Cursors]) -> Iterator[Operation]:
    for i, operation in enumerate(trace.operations):
        if i in cursors and isinstance(operation, Seats):
            tag = getattr(operation, "tag", operation.request)
            yield _seat(trace.setup, operation.request, tag, cursors[i], operation.dead)
        else:
            yield operation


def _placeable(setup: Setup) -> list[Cursors]:
    """States that a place may name, the simplest first."""
    states = reachable(setup.ring, setup.window, protocol_of(setup)).states
    return sorted(states, key=lambda c: (c.write_pos, c.cache_base))


def _squeezed(trace: Trace, L: int, T: int, lowered: int) -> Trace:
    """`trace` in a shorter ring, with bounds lowered by so much, and states that are most alike."""
    smaller = _with_setup(_clipped(trace, T, lowered), ring=L, window=T)
    protocol = protocol_of(smaller.setup)
    if not DIALECTS[smaller.setup.dialect].has_ring:
        return smaller

    def squeeze(operation: Operation) -> Operation:
        if not isinstance(operation, Place):
            return operation
        records = min(operation.records, protocol.most(L, T))
        return msgspec.structs.replace(
            operation,
            records=records,
            base=operation.base % L,
            flush=protocol.flags(records, L, T)[0],
        )

    return _with(smaller, map(squeeze, smaller.operations))


# Every short history.


def _short_windows(trace: Trace) -> list[tuple[int, int, int | None]]:
    """Length, accepted and bound; bounds only where the trace has some."""
    T = trace.setup.window
    bounded = any(isinstance(o, Commit) and o.bound for o, _ in unroll(trace.operations))
    bounds = (None, *range(1, T)) if bounded else (None,)
    return [(n, k, bound) for n in range(1, T + 1) for k in range(n + 1) for bound in bounds]


def _short_count(trace: Trace, steps: int) -> int:
    choices, seats = len(_short_windows(trace)), len(_placeable(trace.setup))
    return seats * int(choices ** (steps - 1)) * (choices + trace.setup.window)


def _short(trace: Trace, steps: int) -> Iterator[Trace]:
    """Histories of one request with exactly this many steps, the last one committed or not."""
    windows = _short_windows(trace)
    last = [(length, None, None) for length in range(1, trace.setup.window + 1)]
    worst: Dead = max((o.dead for o in trace.operations), key=DEAD.index)
    for dead in dict.fromkeys(("leave", worst)):
        for cursors in _placeable(trace.setup):
            seat = _seat(trace.setup, 0, 1, cursors, dead)
            for run in itertools.product(*[windows] * (steps - 1), [*last, *windows]):
                operations: list[Operation] = [seat]
                for tag, (length, n, bound) in enumerate(run, start=2):
                    operations.append(Verify(tag=tag, rows=(0,), lengths=(length,), dead=dead))
                    if n is not None:
                        operations.append(Commit(tag=tag, accepted=(n,), bound=bound, dead=dead))
                yield _with(trace, operations)


Pass = Callable[[Trace], Iterator[Trace]]

QUICK: Final[tuple[Pass, ...]] = (
    placed,
    fewer,
    fewer_rows,
    unrepeated,
    plainer_setup,
    smaller_geometry,
    smaller_rings,
    simpler_places,
    shorter_windows,
    plainer_commits,
    shorter_chunks,
    living,
    plainer_payload,
    plain_steps,
    joined,
    unshared,
    reordered,
    other_names,
)
"""In the order in which they pay: what makes the next ones cheap comes first."""

THOROUGH: Final[tuple[Pass, ...]] = (other_numbers, every_short, other_shapes)
"""Many candidates: for when nothing else helps."""
