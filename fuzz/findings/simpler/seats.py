"""Seats in plainer states: a place where a long prefix was, or one that holds fewer records."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from ringfold.fuzz.findings.simpler.edits import each, exchanged, with_operations
from ringfold.fuzz.findings.simpler.order import worst
from ringfold.fuzz.findings.simpler.requests import seated
from ringfold.fuzz.findings.simpler.steps import written_out
from ringfold.fuzz.histories.trace import (
    Admit,
    Donate,
    Operation,
    Place,
    Save,
    Seats,
    Trace,
    unroll,
)
from ringfold.fuzz.histories.trace.rehearsal import Rehearsal
from ringfold.fuzz.judging.frame import Dead
from ringfold.sim.cursors import Cursors, reachable
from ringfold.sim.dialects import protocol_of
from ringfold.sim.setup import Setup

MOVES_MAX: Final = 300
"""States, or pairs of them, that the seats of a history are moved through."""


def placed(trace: Trace) -> Iterator[Trace]:
    """The prefix replaced by one place (or admission) a request, the longest prefix first.

    A prefix may end within a repeat, whose other turns are then written out, and while windows are
    in flight, which are then verified behind the places.
    """
    for whole in (*written_out(trace), trace):
        yield from _placed(whole)


def _placed(trace: Trace) -> Iterator[Trace]:
    operations = trace.operations
    at = Rehearsal(trace.setup, with_cursors=True)
    before = [list(_rebuilt(trace, at))]
    for top in operations[:-1]:
        for operation, _ in unroll((top,)):
            at.apply(operation)
        before.append(list(_rebuilt(trace, at)))
    for position in range(len(operations) - 1, 0, -1):
        for dead in dict.fromkeys(("leave", worst(operations[:position]))):
            prefix = [replace(o, dead=dead) for o in before[position]]
            yield with_operations(trace, (*prefix, *operations[position:]))


def _rebuilt(trace: Trace, at: Rehearsal) -> Iterator[Operation]:
    """The simplest operations after which everybody is where the rehearsal has come to."""
    setup = trace.setup
    tags = itertools.count(1 + max((getattr(o, "tag", 0) for o in trace.operations), default=0))
    empty = protocol_of(setup).reset(setup.ring, setup.window)
    for request, prefix in enumerate(at.prefixes, start=1 + max(seated(trace), default=0)):
        yield seat(setup, request, next(tags), empty)
        yield Donate(request=request, prefix=prefix)
    for request, its in at.saved.items():
        yield seat(setup, request, next(tags), its.cursors)
        yield Save(request=request)
    for request, its in at.seats.items():
        yield seat(setup, request, next(tags), its.cursors)
    yield from at.verified.values()


def simpler_places(trace: Trace) -> Iterator[Trace]:
    """Requests seated in another state, the emptiest first: one, or two where states are few."""
    states = placeable(trace.setup)
    seats = [i for i, o in enumerate(trace.operations) if isinstance(o, Seats)]
    for many in (1, 2):
        if len(states) ** many <= MOVES_MAX:
            for at in itertools.combinations(seats, many):
                for cursors in itertools.product(states, repeat=many):
                    moved = dict(zip(at, cursors, strict=True))
                    yield with_operations(trace, _reseated(trace, moved))


def fewer_records(trace: Trace) -> Iterator[Trace]:
    """Each place with fewer records, the fewest first: where states are too many to try them all.

    From ring row 0, from the row where they begin, or up to the row where they end, so that records
    which lie across the ring's end still do.
    """
    L = trace.setup.ring
    for i, place in each(trace, Place):
        for records in range(place.records):
            for base in dict.fromkeys((0, place.base, (place.base + place.records - records) % L)):
                yield _with_place(trace, i, place, records, base)


def one_record_fewer(trace: Trace) -> Iterator[Trace]:
    """Each place without its last record."""
    for i, place in each(trace, Place):
        if place.records:
            yield _with_place(trace, i, place, place.records - 1, place.base)


def unflagged(trace: Trace) -> Iterator[Trace]:
    """Each place that need not fold without its flag."""
    setup = trace.setup
    for i, place in each(trace, Place):
        flags = protocol_of(setup).flags(place.records, setup.ring, setup.window)
        if place.flush and False in flags:
            yield exchanged(trace, i, replace(place, flush=False))


def nearer_bases(trace: Trace) -> Iterator[Trace]:
    """Each place with its records nearer to ring row 0, there first."""
    for i, place in each(trace, Place):
        for base in range(place.base):
            yield _with_place(trace, i, place, place.records, base)


def _with_place(trace: Trace, at: int, place: Place, records: int, base: int) -> Trace:
    """`trace` with this place in another state, flagged as the protocol has it."""
    setup = trace.setup
    flags = protocol_of(setup).flags(records, setup.ring, setup.window)
    flag = place.flush if place.flush in flags else flags[0]
    cursors = Cursors(records, base, int(flag))
    return exchanged(trace, at, seat(setup, place.request, place.tag, cursors, place.dead))


def _reseated(trace: Trace, cursors: dict[int, Cursors]) -> Iterator[Operation]:
    for i, operation in enumerate(trace.operations):
        if i in cursors and isinstance(operation, Seats):
            tag = getattr(operation, "tag", operation.request)
            yield seat(trace.setup, operation.request, tag, cursors[i], operation.dead)
        else:
            yield operation


def seat(
    setup: Setup, request: int, tag: int, cursors: Cursors, dead: Dead = "leave"
) -> Admit | Place:
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


def placeable(setup: Setup) -> list[Cursors]:
    """States that a place may name, the simplest first."""
    states = reachable(setup.ring, setup.window, protocol_of(setup)).states
    return sorted(states, key=lambda c: (c.write_pos, c.cache_base))
