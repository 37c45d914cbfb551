"""Steering: all rows of a batch at once go where each of them alone should.

The protocol's table of rules says one commit at a time where a step leads. Numbered cursors say the
same by a look-up, so every step that somebody can take is compared. What a batch does next
is held to what is asked of a single row: a step that nobody has taken, else the shortest way to
one, which a search from that row finds as well.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

import msgspec
import numpy as np
import pytest

from ringfold.fuzz.histories.draws import Seeded
from ringfold.fuzz.histories.numbered import Numbered
from ringfold.fuzz.histories.steering import Map, Unseen, map_of
from ringfold.fuzz.histories.story import Told
from ringfold.fuzz.histories.trace import Admit, Commit, Verify
from ringfold.sim.cursors import COMPACT, DECODE_RING, NO_RING, RING, Protocol, reachable
from ringfold.sim.setup import RING_MAX, Geometry, Setup

L: Final = 8
T: Final = 2
SETUP: Final = Setup("ring", Geometry(1, 1, 4, 4), ring=L, window=T, slots=3)


@pytest.mark.parametrize("protocol", [RING, COMPACT, DECODE_RING, NO_RING], ids=lambda p: p.name)
def test_the_map_is_the_protocol(protocol: Protocol) -> None:
    """Every step of every state, with the longest bound and with shorter ones."""
    T = 1 if protocol.plain else 4
    numbered, every = Numbered(16, T, protocol), reachable(16, T, protocol)
    drawn = map_of(numbered)

    reached = np.flatnonzero(drawn.reached).tolist()
    assert {numbered.at(place) for place in reached} == {step.before for step in every.transitions}
    assert drawn.steps.sum() == len(every.transitions)
    for step in every.transitions:
        place = numbered.place(step.before)
        assert numbered.at(place) == step.before
        assert numbered.records(place) == step.before.write_pos
        assert numbered.at(drawn.after[place, step.accepted]) == step.after
        assert drawn.steps[place, step.length, step.accepted]
        for bound in range(1, T + 1):
            after = protocol.commit(step.before, step.accepted, 16, bound)
            there = numbered.after(np.array([place]), step.accepted, bound)
            assert numbered.at(int(there[0])) == after


def test_the_longest_ring_is_followed_without_its_map() -> None:
    """Which would have a hundred million steps."""
    told = Told(msgspec.structs.replace(SETUP, ring=RING_MAX, window=RING_MAX // 2))
    told.tell([Admit(request=7, tag=0)])
    expected = RING.reset(RING_MAX, RING_MAX // 2)
    for tag, n in enumerate([500, 11, 300, 0, 100, 512]):
        told.tell([Verify(tag=tag, rows=(None, 7), lengths=(0, 512))])
        told.tell([Commit(tag=tag, accepted=(None, n), bound=100)])
        expected = RING.commit(expected, n, RING_MAX, 100)

        assert told.numbered.at(int(told.places[7])) == expected


def test_rows_take_what_is_left_and_no_two_the_same() -> None:
    """As many as there are new steps with windows of their length; the first ones, one each."""
    unseen = Unseen(SETUP)
    places = np.repeat(unseen.places, 7)
    longest = np.tile([1, 2, 1, 2, 2, 2, 2], len(unseen.places))
    before = unseen.left.copy()

    lengths, accepted = unseen.steps(Seeded((1, 2)), places, longest)

    new = before & ~unseen.left
    taken = Counter(zip(places.tolist(), lengths.tolist(), accepted.tolist(), strict=True))
    assert new.sum() == before.sum()  # five steps a place, seven rows in it
    assert all(taken[step] >= 1 for step in zip(*map(list, np.nonzero(new)), strict=True))
    assert (lengths <= longest)[accepted >= 0].all()
    assert (accepted <= lengths)[accepted >= 0].all()


def nearest(drawn: Map, place: int, longest: int, goals: set[int]) -> set[int]:
    """How much to accept at first on a shortest way from `place` to one of `goals`."""

    def steps(first: int) -> float:
        far, queue = {first: 0}, deque([first])
        while queue:
            if (at := queue.popleft()) in goals:
                return far[at]
            for after in drawn.after[at].tolist():
                if after not in far:
                    far[after] = far[at] + 1
                    queue.append(after)
        return np.inf

    ways = {n: steps(int(drawn.after[place, n])) for n in range(longest + 1)}
    return {n for n, far in ways.items() if far == min(ways.values()) < np.inf}


def test_rows_without_a_new_step_go_the_shortest_way_to_one() -> None:
    """From every state; with windows of one token they accept one at most."""
    unseen = Unseen(SETUP)
    goals = {int(place) for place in unseen.places[[11, 30]]}
    for place in unseen.places.tolist():
        if place not in goals:
            unseen.left[place] = False
    unseen.survey()
    places = np.setdiff1d(unseen.places, [*goals])
    for longest in (1, 2):
        lengths, accepted = unseen.steps(Seeded((1, 2)), places, np.full_like(places, longest))

        for place, length, n in zip(places.tolist(), lengths, accepted, strict=True):
            assert n in nearest(unseen.map, place, longest, goals)
            assert max(1, n) <= length <= longest


def test_where_all_was_visited_nobody_is_steered() -> None:
    """Rows are left to luck."""
    unseen = Unseen(SETUP)
    unseen.left[:] = False
    unseen.survey()

    steps = unseen.steps(Seeded((1, 2)), unseen.places, np.full_like(unseen.places, T))

    assert (steps.accepted == -1).all()
    assert unseen.seen == 280
    assert unseen.unfinished(Seeded((1, 2))) is None
