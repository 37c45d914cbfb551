"""Tours through a protocol: histories that take every step of it once.

A *transition* is a reachable cursor state, the length of a window and how much of it is accepted.
A *tour* is a run of them, each of which begins where the one before it ended: one row of a large
batch. Its request is placed in the tour's first state, takes its steps, and verifies and commits a
full window more, so that what the last step wrote is read or folded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from ringfold.fuzz.histories.trace import (
    Commit,
    Decode,
    Operation,
    PayloadSpec,
    Place,
    Trace,
    Verify,
)
from ringfold.fuzz.judging.frame import Dead
from ringfold.fuzz.target import Device
from ringfold.sim.cursors import Cursors, Reachable, Transition, reachable
from ringfold.sim.dialects import DIALECTS, protocol_of
from ringfold.sim.setup import Setup, require

TOUR_STEPS_MAX: Final = 32
LOT_ELEMENTS: Final = {"cpu": 2**21, "cuda": 2**26}
"""State elements times tokens that a worker is given at once: a few seconds' work."""
TRANSITIONS_MAX: Final = 4_000_000
"""Enumerating so many takes most of a minute."""
PROFILE: Final = "slow-decay"

Tour = Sequence[Transition]


class Plan(NamedTuple):
    """What every worker knows."""

    target: str
    device: Device
    setup: Setup
    dead: Dead = "nan"
    """What dead memory is filled with, after everything."""


def protocol_steps(setup: Setup) -> Reachable:
    """States and transitions of the setup's dialect.

    Raises `SetupError` where there may be more than `TRANSITIONS_MAX`.
    """
    L, T, protocol = setup.ring, setup.window, protocol_of(setup)
    cursors = L * (L + 1) * 2
    steps = 1 if protocol.plain else T * (T + 3) // 2
    require(
        cursors * steps <= TRANSITIONS_MAX,
        f"what a window of {T} may be at any cursor of a ring of {L}",
        cursors * steps,
        f"at most {TRANSITIONS_MAX} transitions",
        "explore a shorter ring or window, or walk this one with `ringfold fuzz`",
    )
    return reachable(L, T, protocol)


def tours(transitions: Sequence[Transition], steps_max: int = TOUR_STEPS_MAX) -> list[Tour]:
    """Every transition once: from the emptiest rings on, as far as steps are left to take."""
    left: dict[Cursors, list[Transition]] = defaultdict(list)
    for step in reversed(transitions):
        left[step.before].append(step)
    found: list[Tour] = []
    for start in sorted(left, key=lambda state: state.write_pos):
        while left[start]:
            tour, at = list[Transition](), start
            while len(tour) < steps_max and left.get(at):
                tour.append(left[at].pop())
                at = tour[-1].after
            found.append(tour)
    return found


def tokens(tour: Tour, window: int) -> int:
    """Those of its records, of its windows, and of the full one at its end."""
    return int(tour[0].before.write_pos) + sum(step.length for step in tour) + window


def lots(plan: Plan) -> list[list[Tour]]:
    """What is walked as one batch: tours of like length and like records, the longest first."""
    setup, g = plan.setup, plan.setup.geometry
    elements = setup.layers * g.value_heads * g.key_dim * g.value_dim
    most = LOT_ELEMENTS[plan.device] // elements
    shared: list[list[Tour]] = []
    room = 0
    found = tours(protocol_steps(setup).transitions)
    for tour in sorted(found, key=lambda t: (-len(t), t[0].before.write_pos)):
        size = tokens(tour, setup.window)
        if size > room:
            shared.append([])
            room = most
        shared[-1].append(tour)
        room -= size
    return shared


def history(plan: Plan, together: Sequence[Tour]) -> Trace:
    """One request for each tour, all in one batch, and a padding row behind them.

    A request whose tour is over stays seated, and its row is padding.
    """
    count, T = len(together), plan.setup.window
    places = [
        Place(
            request=request,
            tag=request,
            base=tour[0].before.cache_base,
            records=tour[0].before.write_pos,
            flush=bool(tour[0].before.is_flush),
            # Between places memory is left alone, so that they are one operation.
            dead=plan.dead if request == count - 1 else "leave",
        )
        for request, tour in enumerate(together)
    ]
    verifies = DIALECTS[plan.setup.dialect].verifies
    operations: list[Operation] = [*places]
    for i in range(1 + max(map(len, together))):
        taken = [
            (tour[i].length, tour[i].accepted)
            if i < len(tour)
            else (T, T)
            if i == len(tour)
            else None
            for tour in together
        ]
        rows = (*(None if step is None else row for row, step in enumerate(taken)), None)
        tag = count + i
        if verifies:
            lengths = (*(1 if step is None else step[0] for step in taken), 1)
            accepted = (*(None if step is None else step[1] for step in taken), None)
            operations += [
                Verify(tag=tag, rows=rows, lengths=lengths, dead=plan.dead),
                Commit(tag=tag, accepted=accepted, dead=plan.dead),
            ]
        else:
            operations.append(Decode(tag=tag, rows=rows, dead=plan.dead))
    return Trace(
        setup=msgspec.structs.replace(plan.setup, slots=count + 1),
        payload=PayloadSpec(seed=0, profile=PROFILE),
        target=plan.target,
        operations=tuple(operations),
    )


def cut(together: Sequence[Tour]) -> list[Sequence[Tour]]:
    """Two halves of some tours, or of one tour; none of one transition."""
    if len(together) > 1:
        half = (len(together) + 1) // 2
        return [together[:half], together[half:]]
    half = (len(together[0]) + 1) // 2
    return [[together[0][:half]], [together[0][half:]]] if half < len(together[0]) else []
