"""Cursors as numbers, so that where thousands of requests are is an array, and a commit a look-up.

A *place* stands for cursors. No rule of a protocol depends on `cache_base`: a commit turns it by
some rows, so that what it does is one table of the other two cursors, however long the ring is.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ringfold.fuzz.histories.draws import Ints
from ringfold.sim.cursors import Cursors, Protocol
from ringfold.sim.dialects import protocol_of
from ringfold.sim.setup import Setup


class Moves(NamedTuple):
    """What a commit does: arrays [2 * write_pos + is_flush, accepted]."""

    to: Ints
    """The place, with its base left out."""
    turn: Ints
    """By how many rows the base moves."""


class Numbered(NamedTuple):
    """The places of a setup."""

    ring: int
    window: int
    protocol: Protocol

    @classmethod
    def of(cls, setup: Setup) -> Numbered:
        """Those that its requests can be in."""
        return cls(setup.ring, setup.window, protocol_of(setup))

    def __len__(self) -> int:
        return 2 * (self.ring + 1) * self.ring

    def place(self, cursors: Cursors) -> Any:
        """The number of these cursors; an int, or elementwise an array."""
        return (2 * cursors.write_pos + cursors.is_flush) * self.ring + cursors.cache_base

    def at(self, place: int) -> Cursors:
        """The cursors of this number."""
        state, base = divmod(place, self.ring)
        return Cursors(state // 2, base, state % 2)

    def records(self, places: Ints) -> Ints:
        """How many records wait there."""
        return places // (2 * self.ring)

    def after(self, places: Ints, accepted: Ints | int, bound: int) -> Ints:
        """Places after a commit, elementwise; what has no room in the ring ends at its end."""
        moves = _moves(self.protocol, self.ring, self.window, bound)
        state, base = np.divmod(places, self.ring)
        moved: Ints = moves.to[state, accepted] + (base + moves.turn[state, accepted]) % self.ring
        return moved


@cache
def _moves(protocol: Protocol, L: int, T: int, bound: int) -> Moves:
    write_pos, is_flush, accepted = np.indices((L + 1, 2, T + 1)).reshape(3, -1, T + 1)
    before = Cursors(write_pos, np.zeros_like(write_pos), is_flush)
    to = protocol.commit(before, accepted, L, bound)
    return Moves((2 * np.minimum(to.write_pos, L) + to.is_flush) * L, to.cache_base)
