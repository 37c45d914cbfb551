"""Steering: towards steps of the protocol that no history has taken, and errors that were largest.

A *transition* is a cursor state, the length of a window and how much of it is accepted. What a
history will visit is known before it is walked, from the protocol alone, so that histories which
are told one after the other can avoid each other's transitions. How large errors are is known after
the walk: a history that raised the largest one is taken up again and told on.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from ringfold.fuzz.histories.draws import Bools, Draw, Ints
from ringfold.fuzz.histories.numbered import Numbered
from ringfold.fuzz.histories.trace import Trace
from ringfold.sim.cursors import reachable
from ringfold.sim.setup import Setup

RESUMED: Final = 0.125
"""How many histories go on from one that raised the largest error."""

RESUMED_OPERATIONS_MAX: Final = 200
"""Longer ones are not taken up again."""


class Map(NamedTuple):
    """All steps between the places of `Numbered`, as histories take them that tighten no bound."""

    steps: Bools
    """[place, length, accepted] which there are."""
    reached: Bools
    """[place] whether such a history may be there."""
    after: Ints
    """[place, accepted]"""


@cache
def map_of(places: Numbered) -> Map:
    """Draw it."""
    L, T, protocol = places
    steps, reached = (
        np.zeros((len(places), T + 1, T + 1), np.bool_),
        np.zeros(len(places), np.bool_),
    )
    for step in reachable(L, T, protocol).transitions:
        place = places.place(step.before)
        steps[place, step.length, step.accepted] = reached[place] = True
    return Map(steps, reached, places.after(np.arange(len(places))[:, None], np.arange(T + 1), T))


class Steps(NamedTuple):
    """A step for each of some rows."""

    lengths: Ints
    accepted: Ints
    """-1 where there is none to be taken."""


class Unseen:
    """Transitions of a setup that nobody has visited yet."""

    def __init__(self, setup: Setup) -> None:
        self.window = setup.window
        self.map = map_of(Numbered.of(setup))
        self.left = self.map.steps.copy()
        """[place, length, accepted]"""
        self.places = np.flatnonzero(self.map.reached)
        """Every place where a history whose bounds are never tightened may be."""
        self.survey()

    @property
    def seen(self) -> int:
        """How many were visited."""
        return int(self.map.steps.sum() - self.left.sum())

    def survey(self) -> None:
        """How many steps it takes from each place to one where something is left to do."""
        here, unknown = self.places, len(self.places)
        after = self.map.after[here]
        self.distance = np.full(len(self.left), unknown)
        self.distance[self._unfinished()] = 0
        for _ in here:
            nearer = np.minimum(self.distance[here], 1 + self.distance[after].min(1))
            if np.array_equal(nearer, self.distance[here]):
                break
            self.distance[here] = nearer

    def visit(self, places: Ints, lengths: Ints, accepted: Ints) -> None:
        """Rows take these steps."""
        self.left[places, lengths, accepted] = False

    def steps(self, draw: Draw, places: Ints, longest: Ints) -> Steps:
        """What rows do that seek something new.

        A row takes a step that nobody has taken from its place, with a window of up to `longest`
        [row] tokens, and no two take the same one. If there is none, it goes to where some are.
        """
        lengths, accepted = np.zeros_like(places), np.full_like(places, -1)
        for row in np.flatnonzero(self.left[places].any((1, 2))).tolist():
            left = self.left[places[row], : longest[row] + 1]
            if len(new := np.argwhere(left)):
                lengths[row], accepted[row] = step = draw.pick(new.tolist())
                left[*step] = False
        others = np.flatnonzero(accepted < 0)
        ways = self._towards(places[others], longest[others])
        others, ways = others[ways.any(1)], ways[ways.any(1)]
        drawn = draw.integers(0, ways.sum(1) - 1)
        accepted[others] = np.argmax(ways.cumsum(1) > drawn[:, None], axis=1)
        shortest = np.maximum(1, accepted[others])
        lengths[others] = shortest + draw.integers(0, longest[others] - shortest)
        return Steps(lengths, accepted)

    def _towards(self, places: Ints, longest: Ints) -> Bools:
        """[row, accepted] whether a place where something is left comes nearest by that."""
        unknown = len(self.places)
        distance = self.distance[self.map.after[places]]
        distance[np.arange(self.window + 1) > longest[:, None]] = unknown
        nearest: Bools = distance == distance.min(1, keepdims=True)
        return nearest & (distance < unknown)

    def unfinished(self, draw: Draw) -> int | None:
        """A place where something is left to do, if there is one."""
        left = self._unfinished()
        return int(left[draw.integer(0, len(left) - 1)]) if left.size else None

    def _unfinished(self) -> Ints:
        return np.flatnonzero(self.left.any((1, 2)))


class Peak(NamedTuple):
    """The history with the largest error of a check so far."""

    ratio: float
    """Error over what is allowed."""
    trace: Trace


class Peaks:
    """What raised the largest errors, by check."""

    def __init__(self) -> None:
        self.highest: dict[str, Peak] = {}

    def hear(self, trace: Trace, largest: Mapping[str, float]) -> None:
        """A history was walked without a finding, and came this near to the limits."""
        for check, ratio in largest.items():
            known = self.highest.get(check)
            if known is None or ratio > known.ratio:
                self.highest[check] = Peak(ratio, trace)

    def resumed(self, draw: Draw) -> Trace | None:
        """A history to go on from, now and then, cut somewhere in its second half."""
        short = [
            peak.trace
            for _, peak in sorted(self.highest.items())
            if len(peak.trace.operations) <= RESUMED_OPERATIONS_MAX
        ]
        return draw.pick(short) if short and draw.chance(RESUMED) else None
