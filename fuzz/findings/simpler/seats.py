"""Seats in plainer states: a place where a long prefix was, or one that holds fewer records."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from ringfold.fuzz.findings.simpler.edits import with_operations
from ringfold.fuzz.findings.simpler.order import worst
from ringfold.fuzz.findings.simpler.requests import seated
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
    """The prefix replaced by one place (or admission) a request, the longest prefix first."""
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
