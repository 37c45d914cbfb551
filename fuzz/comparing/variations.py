"""Variations: a history told in another way, which must give the same result.

Each makes of a trace another one that asks for the same tokens, and names the property that makes
both agree: rows in another order, batches in parts, other garbage in dead memory. All take
histories as `generate` makes them, without repeats. What comes of the two is compared by
`ringfold.fuzz.comparing.metamorphic`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar, get_args

import msgspec
import numpy as np

from ringfold.fuzz.comparing import retold
from ringfold.fuzz.histories.payload import Payload
from ringfold.fuzz.histories.story import Told, as_rows
from ringfold.fuzz.histories.trace import (
    Admit,
    Commit,
    Decode,
    Fork,
    Free,
    Hit,
    Operation,
    Place,
    Prefill,
    Trace,
    Verify,
)
from ringfold.fuzz.judging.frame import Dead
from ringfold.fuzz.target import Floats, Inputs, Request, Target
from ringfold.sim.dialects import DIALECTS, protocol_of
from ringfold.sim.setup import RING_MAX, SLOTS_MAX

Random = np.random.Generator
Item = TypeVar("Item")
Rowed = TypeVar("Rowed", bound=Verify | Commit | Decode)

MORE_SLOTS: Final = 3
"""By how many slots a pool grows, so that every request sits elsewhere."""


class Varied(NamedTuple):
    """A trace that must give what another one gives."""

    trace: Trace
    tensors: Mapping[str, Floats] = {}
    """Numbers that windows under a new tag share with windows of the other trace."""
    origin: Mapping[int, int] = {}
    """By the new tag, the tag that the same tokens had."""


class Variation(NamedTuple):
    """One way to tell a history differently."""

    name: str
    holds: str
    """The property: what must make no difference."""
    make: Callable[[Trace, Random], Varied | None]
    """None where a trace gives nothing to vary."""
    bits: bool = True
    """Whether a sound implementation may keep the bits. If not, the oracle alone judges."""
    retell: Callable[[Target], Target | None] = retold.unchanged
    """What is done with the target; None where that can't be done with it."""
    costly: bool = False
    """Whether it is left out unless it is asked for."""


# ------------------------------------------------------------------ variations


def permuted_rows(trace: Trace, random: Random) -> Varied:
    """Each batch, padding included, in another order."""
    orders: dict[int, Sequence[int]] = {}

    def permuted(operation: Operation) -> Operation:
        match operation:
            case Verify(tag=tag, rows=rows) | Decode(tag=tag, rows=rows):
                orders[tag] = [int(i) for i in random.permutation(len(rows))]
                return _part(operation, orders[tag])
            case Commit(tag=tag):
                return _part(operation, orders[tag])
        return operation

    return Varied(_with(trace, [permuted(operation) for operation in trace.operations]))


def other_slots(trace: Trace, random: Random) -> Varied | None:
    """A larger pool; others came first, some of whom have left their slots, in any order."""
    if trace.setup.slots + MORE_SLOTS > SLOTS_MAX:
        return None
    setup = msgspec.structs.replace(trace.setup, slots=trace.setup.slots + MORE_SLOTS)
    first = 1 + max((getattr(o, "request", 0) for o in trace.operations), default=0)
    others = [first + i for i in range(MORE_SLOTS)]
    leaving = random.permutation(others)[: random.integers(MORE_SLOTS)]
    before: list[Operation] = [Admit(request=other, tag=other) for other in others]
    before += [Free(request=int(other)) for other in leaving]
    varied = _with(trace, [*before, *trace.operations])
    return Varied(msgspec.structs.replace(varied, setup=setup))


def split_batches(trace: Trace, random: Random) -> Varied:
    """Each batch of several rows in parts, each with a verify and a commit of its own."""
    payload, fresh = _payload(trace), _fresh_tags(trace)
    parts: dict[int, list[tuple[int, list[int]]]] = {}  # by tag: the tags and rows of its parts
    tensors: dict[str, Floats] = {}
    origin: dict[int, int] = {}
    operations: list[Operation] = []
    for operation in trace.operations:
        match operation:
            case Verify(tag=tag, rows=rows) | Decode(tag=tag, rows=rows):
                count = int(random.integers(2, max(len(rows), 2) + 1))
                shares = np.array_split(random.permutation(len(rows)), count)
                first, *moved = (sorted(map(int, share)) for share in shares if share.size)
                parts[tag] = [(tag, first)]
                for rows_of in moved:
                    new = next(fresh)
                    parts[tag].append((new, rows_of))
                    origin[new] = tag
                    tensors.update(_tokens(payload, operation, rows_of, new))
        match operation:
            case Verify(tag=tag) | Decode(tag=tag) | Commit(tag=tag):
                operations += [
                    msgspec.structs.replace(_part(operation, rows_of), tag=part)
                    for part, rows_of in parts[tag]
                ]
            case _:
                operations.append(operation)
    return Varied(_with(trace, operations), tensors, origin)


def nothing_kept(trace: Trace, random: Random) -> Varied | None:
    """In front of a window another one of which nothing is kept, where that moves no cursor."""
    fresh, T = _fresh_tags(trace), trace.setup.window
    operations: list[Operation] = []
    for operation, told in _followed(trace):
        if isinstance(operation, Verify) and random.random() < 0.5:
            rows, longest = operation.rows, max(operation.lengths)
            bounds = [b for b in range(T, max(longest, 1) - 1, -1) if _still(told, rows, b)]
            if bounds:
                tag = next(fresh)
                none = tuple(None if row is None else 0 for row in rows)
                operations.append(msgspec.structs.replace(operation, tag=tag))
                operations.append(Commit(tag=tag, accepted=none, bound=bounds[0]))
        operations.append(operation)
    return Varied(_with(trace, operations)) if len(operations) > len(trace.operations) else None


def dead_memory(trace: Trace, random: Random) -> Varied:
    """Dead memory is left, or filled with something else."""
    ways: tuple[Dead, ...] = get_args(Dead)
    return Varied(
        _with(
            trace,
            [
                msgspec.structs.replace(operation, dead=ways[random.integers(len(ways))])
                for operation in trace.operations
            ],
        )
    )


def rotated_base(trace: Trace, random: Random) -> Varied | None:
    """Every ring begins at another of its rows."""
    setup = trace.setup
    if not DIALECTS[setup.dialect].has_ring or protocol_of(setup).plain:
        return None
    L = setup.ring
    start = protocol_of(setup).reset(L, setup.window)
    windows = Verify | Decode | Prefill | Place
    used = {o.tag for o in trace.operations if isinstance(o, windows)}

    def rotated(operation: Operation) -> Operation:
        shift = int(random.integers(1, L)) if L > 1 else 0
        match operation:
            case Admit(request=request, tag=tag) if tag not in used:
                return Place(
                    request=request,
                    tag=tag,
                    base=shift,
                    records=0,
                    flush=bool(start.is_flush),
                    dead=operation.dead,
                )
            case Place(base=base):
                return msgspec.structs.replace(operation, base=(base + shift) % L)
        return operation

    return Varied(_with(trace, [rotated(operation) for operation in trace.operations]))


def other_ring(trace: Trace, random: Random) -> Varied | None:
    """A ring of twice the length: folds come later."""
    setup = msgspec.structs.replace(trace.setup, ring=min(2 * trace.setup.ring, RING_MAX))
    if setup == trace.setup or not DIALECTS[setup.dialect].has_ring or _asks_for_cursors(trace):
        return None
    protocol = protocol_of(setup)

    def moved(operation: Operation) -> Operation:
        if isinstance(operation, Place):
            flags = protocol.flags(operation.records, setup.ring, setup.window)
            flush = operation.flush if operation.flush in flags else flags[0]
            return msgspec.structs.replace(operation, flush=flush)
        return operation

    varied = _with(trace, [moved(operation) for operation in trace.operations])
    return Varied(msgspec.structs.replace(varied, setup=setup))


def other_portions(trace: Trace, random: Random) -> Varied | None:
    """Plain decoding of what was accepted: windows of one token, each kept."""
    if _asks_for_cursors(trace):
        return None
    payload, fresh = _payload(trace), _fresh_tags(trace)
    verified: dict[int, Verify] = {}
    tensors: dict[str, Floats] = {}
    operations: list[Operation] = []
    for operation in trace.operations:
        match operation:
            case Verify(tag=tag):
                verified[tag] = operation
            case Commit(tag=tag, accepted=accepted):
                window = verified[tag]
                for t in range(max((n or 0 for n in accepted), default=0)):
                    rows = [i for i, n in enumerate(accepted) if n is not None and n > t]
                    one, ones = next(fresh), (1,) * len(rows)
                    tensors.update(_tokens(payload, window, rows, one, t))
                    step = msgspec.structs.replace(_part(window, rows), tag=one, lengths=ones)
                    operations += [step, Commit(tag=one, accepted=ones)]
            case _:
                operations.append(operation)
    return Varied(_with(trace, operations), tensors)


def as_it_is(trace: Trace, random: Random) -> Varied:
    """The same history; what differs is the target."""
    return Varied(trace)


VARIATIONS: Final = (
    Variation("permuted-rows", "the order of a batch's rows", permuted_rows),
    Variation("other-slots", "the slot that a request sits in", other_slots),
    Variation("split-batches", "who else is in the batch", split_batches),
    Variation("nothing-kept", "a window of which nothing is kept", nothing_kept),
    Variation("dead-memory", "what dead memory holds", dead_memory),
    Variation("rotated-base", "the row at which a ring begins", rotated_base),
    Variation("verified-twice", "how often a window is verified", as_it_is, retell=retold.twice),
    Variation("strided-pools", "what lies between two slots", as_it_is, retell=retold.apart),
    Variation("far-offsets", "how far apart slots lie", as_it_is, retell=retold.far, costly=True),
    Variation("captured-launch", "that a launch is replayed", as_it_is, retell=retold.captured),
    Variation("other-ring", "the length of the ring", other_ring, bits=False),
    Variation("other-portions", "the portions that are accepted", other_portions, bits=False),
)

CHEAP: Final = tuple(variation for variation in VARIATIONS if not variation.costly)
"""Those that are always tried."""

BITWISE: Final = frozenset(variation.name for variation in VARIATIONS if variation.bits)
"""What an implementation repeats bit for bit whose rows know nothing of each other."""


# ------------------------------------------------------------------ what they share


def _with(trace: Trace, operations: Sequence[Operation]) -> Trace:
    return msgspec.structs.replace(trace, operations=tuple(operations))


def _picked(values: Sequence[Item], rows: Sequence[int]) -> tuple[Item, ...]:
    return tuple(values[i] for i in rows)


def _part(operation: Rowed, rows: Sequence[int]) -> Rowed:
    """A verify, decode or commit of these rows alone, in this order."""
    names = [n for n in ("rows", "lengths", "accepted") if hasattr(operation, n)]
    picked = {name: _picked(getattr(operation, name), rows) for name in names}
    return msgspec.structs.replace(operation, **picked)


def _payload(trace: Trace) -> Payload:
    return Payload(trace.setup, trace.payload.seed, trace.payload.profile)


def _fresh_tags(trace: Trace) -> Iterator[int]:
    tag = max((getattr(operation, "tag", 0) for operation in trace.operations), default=0)
    while True:
        tag += 1
        yield tag


def _tokens(
    payload: Payload, window: Verify | Decode, rows: Sequence[int], tag: int, first: int = 0
) -> dict[str, Floats]:
    """Explicit tensors that give these rows their tokens, from `first` on, under another tag."""
    made: dict[str, Floats] = {}
    for row in rows:
        request = window.rows[row]
        length = window.lengths[row] if isinstance(window, Verify) else 1
        if request is not None and length > first:
            inputs = payload.window(
                np.array([request]), np.array([length]), window.tag, profile=window.profile
            )
            for name, values in zip(Inputs._fields, inputs, strict=True):
                made[f"{name}/{request}/{tag}"] = values[:, first:]
    return made


def _asks_for_cursors(trace: Trace) -> bool:
    """Whether some operation is legal at some cursors only, or copies what the last fold left."""
    return any(
        isinstance(o, Fork | Hit) or (isinstance(o, Commit) and o.bound is not None)
        for o in trace.operations
    )


def _followed(trace: Trace) -> Iterator[tuple[Operation, Told]]:
    """Every operation, and what was told before it."""
    told = Told(trace.setup)
    for operation in trace.operations:
        yield operation, told
        told.tell([operation])


def _still(told: Told, rows: Sequence[Request | None], bound: int) -> bool:
    """Whether a window of which nothing is kept folds nothing and leaves all cursors alone."""
    requests = as_rows([row for row in rows if row is not None])
    at = told.places[requests]
    flagged = [told.numbered.at(place).is_flush for place in at.tolist()]
    room = not told.dialect.has_ring or told.waiting(requests) + bound <= told.setup.ring
    rests = told.numbered.after(at, 0, bound) == at
    return not any(flagged) and bool(np.all(rests & room))
