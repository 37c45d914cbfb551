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
from numpy.typing import NDArray

from ringfold.fuzz.draws import Draw
from ringfold.fuzz.trace import Trace
from ringfold.sim.cursors import Cursors, Protocol, reachable
from ringfold.sim.dialects import protocol_of
from ringfold.sim.setup import Setup

RESUMED: Final = 0.125
"""How many histories go on from one that raised the largest error."""

RESUMED_OPERATIONS_MAX: Final = 200
"""Longer ones are not taken up again."""


class Map(NamedTuple):
    """All states and steps of a protocol, as arrays."""

    states: tuple[Cursors, ...]
    places: Mapping[Cursors, int]
    steps: NDArray[np.bool_]  # [state, length, accepted], which of them there are
    after: NDArray[np.int64]  # [state, accepted]


@cache
def map_of(L: int, T: int, protocol: Protocol) -> Map:
    """Draw it."""
    every = reachable(L, T, protocol)
    index = {state: i for i, state in enumerate(every.states)}
    steps = np.zeros((len(index), T + 1, T + 1), np.bool_)
    after = np.zeros((len(index), T + 1), np.int64)
    for step in every.transitions:
        at = index[step.before]
        steps[at, step.length, step.accepted] = True
        after[at, step.accepted] = index[step.after]
    return Map(every.states, index, steps, after)


class Unseen:
    """Transitions of a setup that nobody has visited yet."""

    def __init__(self, setup: Setup) -> None:
        self.map = map_of(setup.ring, setup.window, protocol_of(setup))
        self.left = self.map.steps.copy()
        """[state, length, accepted]"""
        self.survey()

    @property
    def states(self) -> tuple[Cursors, ...]:
        """Every state that a history whose bounds are never tightened may be in."""
        return self.map.states

    @property
    def seen(self) -> int:
        """How many were visited."""
        return int(self.map.steps.sum() - self.left.sum())

    def survey(self) -> None:
        """How many steps it takes from each state to one where something is left to do."""
        unknown = len(self.states)
        self.distance = np.where(self.left.any((1, 2)), 0, unknown)
        for _ in range(unknown):
            nearer = np.minimum(self.distance, 1 + self.distance[self.map.after].min(1))
            if np.array_equal(nearer, self.distance):
                break
            self.distance = nearer

    def reachable(self, cursors: Cursors) -> bool:
        """Whether a history whose bounds are never tightened may be there."""
        return cursors in self.map.places

    def visit(self, before: Cursors, length: int, accepted: int) -> None:
        """Somebody takes this step."""
        at = self.map.places.get(before)
        if at is not None:
            self.left[at, length, accepted] = False

    def steps(self, before: Cursors, longest: int) -> list[tuple[int, int]]:
        """(length, accepted) of what is left to do there, with windows of up to `longest`."""
        at = self.map.places.get(before)
        if at is None:
            return []
        return [(int(t), int(n)) for t, n in np.argwhere(self.left[at, : longest + 1])]

    def towards(self, before: Cursors, longest: int) -> list[int]:
        """How much to accept so that a state where something is left comes nearer."""
        at = self.map.places.get(before)
        if at is None:
            return []
        distance = self.distance[self.map.after[at, : longest + 1]]
        nearest = distance.min()
        if nearest == len(self.states):
            return []
        return [int(n) for n in np.flatnonzero(distance == nearest)]

    def unfinished(self, draw: Draw) -> Cursors | None:
        """A state in which something is left to do, if there is one."""
        left = np.flatnonzero(self.left.any((1, 2)))
        return self.states[left[draw.integer(0, len(left) - 1)]] if left.size else None


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
