"""The causal convolution in front of a machine: its rolling window, committed and rolled back.

A token's query, key and value are what a depthwise convolution over time and a SiLU make of its
projections. A verify starts from the committed window of each row and leaves it as it is; the
commit appends the projections that were accepted and drops the rest. A fork, a prefix and a saved
request take the window along, as they take the state.

It stands beside any machine and knows nothing of rings, but for one thing: a prefix that ends at
the last fold needs the window as it was then, so the projections of a ring's length are kept.

The arithmetic is float32, as in the kernels, and its result has the activations' dtype. The
definition is `ringfold.oracle.convolution`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringfold.oracle.gdn import Tokens
from ringfold.sim.machine import Ints, as_hardware_does
from ringfold.sim.precision import DTYPES
from ringfold.sim.recurrence import Array
from ringfold.sim.setup import NULL_SLOT, Setup

COMPUTE: Final = np.float32


def projections(tokens: Tokens) -> NDArray[Any]:
    """Query, key and value [..., heads, width] side by side: [..., channel]."""
    parts = (tokens.q, tokens.k, tokens.v)
    flat = [x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1]) for x in parts]
    return np.concatenate(flat, axis=-1)


def replaced(tokens: Tokens, channels: NDArray[Any]) -> Tokens:
    """The same tokens with other queries, keys and values, side by side [..., channel]."""
    parts = (tokens.q, tokens.k, tokens.v)
    ends = np.cumsum([x.shape[-2] * x.shape[-1] for x in parts])
    pieces = np.split(channels, ends[:-1], axis=-1)
    q, k, v = (p.reshape(x.shape) for p, x in zip(pieces, parts, strict=True))
    return tokens._replace(q=q, k=k, v=v)


class Front:
    """What stands in front of a machine: here nothing, so tokens are what they are."""

    memory: Array | None = None
    """Its windows, if it has any, live: [layer, slot, channel, W - 1]."""

    def admit(self, slot: int, window: Array | None) -> None:
        """Seat a request whose last projections are `window` [layer, channel, W - 1]."""

    def copy(self, source: int, destination: int) -> None:
        """Seat a request that goes on from where another one is."""

    def save(self, slot: int) -> Array | None:
        """What host memory keeps of a request."""
        return None

    def restore(self, slot: int, saved: Array | None) -> None:
        """Put it back, in any slot."""

    def rewind(self, slot: int, tokens: int) -> None:
        """Go back to where a request was so many committed tokens ago, at most a ring's length."""

    def verify(self, slots: ArrayLike, lengths: ArrayLike, tokens: Tokens) -> Tokens:
        """Tokens [layer, row, T, ...] as the machine wants them; nothing is committed."""
        return tokens

    def commit(self, slots: ArrayLike, accepted: ArrayLike) -> None:
        """Keep the first `accepted` [row] tokens of each row's window."""


class Convolution(Front):
    """Windows of all slots of a pool.

    Args:
        setup: its `convolution` is the width W, from 2 on.
        weight: [layer, channel, W]; the last weight meets the token itself.
    """

    def __init__(self, setup: Setup, weight: ArrayLike) -> None:
        self.setup = setup
        self.weight = np.asarray(weight, COMPUTE)
        self.taps = setup.convolution - 1
        pool, dtype = (setup.layers, setup.slots, setup.channels), DTYPES[setup.dtypes.activation]
        self.past = np.zeros((*pool, setup.ring + self.taps), dtype)
        """Committed projections, the newest last."""
        self.drafted = np.zeros((*pool, setup.window), dtype)
        """Those of the windows in flight."""
        self.memory: Array = self.past[..., setup.ring :]

    def admit(self, slot: int, window: Array | None) -> None:
        """The window of the prefill."""
        self.memory[:, slot] = window

    def copy(self, source: int, destination: int) -> None:
        """All that is remembered."""
        self.past[:, destination] = self.past[:, source]

    def save(self, slot: int) -> Array:
        """All that is remembered."""
        return self.past[:, slot].copy()

    def restore(self, slot: int, saved: Array | None) -> None:
        """All that was remembered."""
        self.past[:, slot] = saved

    def rewind(self, slot: int, tokens: int) -> None:
        """The window as it was then."""
        self.past[:, slot] = np.roll(self.past[:, slot], tokens, axis=-1)

    @as_hardware_does
    def verify(self, slots: ArrayLike, lengths: ArrayLike, tokens: Tokens) -> Tokens:
        """Convolve each row's window; padding rows stay as they came."""
        rows, at, counts = self._real(slots, lengths)
        given = projections(tokens)  # [layer, row, T, channel]
        x = np.zeros((*given[:, rows].shape[:2], self.setup.window, given.shape[-1]), given.dtype)
        x[:, :, : given.shape[2]] = given[:, rows, : self.setup.window]
        x[:, np.arange(self.setup.window) >= counts[:, None]] = 0
        x = x.swapaxes(2, 3)  # [layer, row, channel, T]
        self.drafted[:, at] = x
        seen = np.concatenate([self.memory[:, at].astype(COMPUTE), x.astype(COMPUTE)], axis=-1)
        made = given.astype(COMPUTE)
        made[:, rows] = self.convolved(seen).swapaxes(2, 3)[:, :, : given.shape[2]]
        kept = made.astype(self.past.dtype).astype(given.dtype)
        return replaced(tokens, kept)

    def convolved(self, seen: Array) -> Array:
        """Of [layer, row, channel, W - 1 + T], as the kernels compute: [layer, row, channel, T]."""
        total = np.zeros((*seen.shape[:-1], self.setup.window), COMPUTE)
        for tap in range(self.setup.convolution):
            weight = self.weight[:, None, :, tap, None]
            total += weight * seen[..., tap : tap + self.setup.window]
        return np.asarray(total / (1 + np.exp(-total)))

    def commit(self, slots: ArrayLike, accepted: ArrayLike) -> None:
        """Append what was accepted."""
        _, at, counts = self._real(slots, accepted)
        for slot, count in zip(at, counts, strict=True):
            seen = np.concatenate([self.past[:, slot], self.drafted[:, slot]], axis=-1)
            self.past[:, slot] = seen[..., count : count + self.past.shape[-1]]

    def _real(self, slots: ArrayLike, counts: ArrayLike) -> tuple[Ints, Ints, Ints]:
        """Rows that are not padding, their slots and their counts."""
        every = np.asarray(slots, np.int64)
        rows = np.flatnonzero(every > NULL_SLOT)
        return rows, every[rows], np.asarray(counts, np.int64)[rows]
