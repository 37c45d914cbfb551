"""The `linear-cache` protocol: three vectors a drafted token in place of a state.

A verify walks the window as the recurrent path does. What token t did to the state is one rank-one
write, so in place of the state after it the verify keeps

    d_t = beta_t (v_t - exp(g_t) S k_t)        k_t, normalised        g_t

and the commit replays the first n of them, S <- exp(g_t) S + outer(d_t, k_t). It never asks the
state again, so what the records' rounding lost of a delta or a key is lost to the state. Nothing
waits between steps.

(A gate is one number a head in GDN, and a vector over K in KDA: hence "three vectors".)

Source: *compact linear spec cache*, sgl-project/sglang pull request #27658, open.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ringfold.oracle.gdn import Tokens
from ringfold.sim import recurrence
from ringfold.sim.dialects import LINEAR_CACHE_DIALECT
from ringfold.sim.machine import Batch, Ints, as_hardware_does
from ringfold.sim.recurrence import Array, Deltas, Writes
from ringfold.sim.snapshots import Snapshots


class LinearCache(Snapshots):
    """The reference machine of the dialect `linear-cache`."""

    dialect = LINEAR_CACHE_DIALECT

    @as_hardware_does
    def verify(self, slots: ArrayLike, lengths: ArrayLike, tokens: Tokens) -> Array:
        """Walk each row's window and keep what its tokens write; see `Machine.verify`."""
        batch = self.batch(slots, lengths)
        window = self.window(tokens, batch)
        q, k = self.shared(self.unit(window.q) * self.scale()), self.unit(window.k)
        writes = Writes(self.shared(k), window.v, window.g, window.beta)
        state = self.load_checkpoint(batch.slots)
        outputs, d = np.zeros_like(window.v), np.zeros_like(window.v)
        for t in range(int(batch.lengths.max(initial=0))):
            rows = np.flatnonzero(batch.lengths > t)
            token = (field.take(t, 3).take(rows, 1) for field in writes)
            after, wrote = recurrence.advance_with_delta(state.take(rows, 1), *token)
            state[:, rows] = after
            d[:, :, :, t][:, rows] = wrote
            outputs[:, :, :, t][:, rows] = recurrence.read(after, q.take(t, 3).take(rows, 1))
        self.record(batch, {"d": d, "k": k, "g": window.g})
        return self.returned(outputs, batch, tokens)

    @as_hardware_does
    def commit(self, slots: ArrayLike, accepted: ArrayLike, bound: int) -> None:
        """Replay what was accepted; see `Machine.commit`."""
        batch = self.batch(slots, accepted)
        self.require_bound(bound)
        state, counts = self.load_checkpoint(batch.slots), self.replayed(batch.lengths)
        recurrence.replay_deltas(state, self.deltas(batch.slots), counts)
        kept = counts > 0
        self.store_checkpoint(batch.slots[kept], state[:, kept])

    def decode(self, slots: ArrayLike, tokens: Tokens) -> Array:
        """A window of one with one accepted."""
        one = np.ones(len(np.atleast_1d(slots)), np.int64)
        outputs = self.verify(slots, one, tokens)
        self.commit(slots, one, self.setup.window)
        return outputs

    # ------------------------------------------------------------------ rules

    def places(self, slots: Ints) -> Ints:
        """Where each request keeps its vectors: numbered apart from the slots, so that it shows."""
        return self.setup.slots - slots

    def replayed(self, accepted: Ints) -> Ints:
        """How many of a window's tokens a commit replays, the bonus token included."""
        return accepted

    def record(self, batch: Batch, kept: dict[str, Array]) -> None:
        """Keep what the window's tokens write, [layer, row, heads, T, ...] by buffer."""
        row, t = np.nonzero(np.arange(self.setup.window) < batch.lengths[:, None])
        places = self.places(batch.slots)[row][:, None]
        for name, values in kept.items():
            heads = np.arange(values.shape[2])
            self.memory[name][:, places, heads, t[:, None]] = values[
                :, row[:, None], heads, t[:, None]
            ]

    def deltas(self, slots: Ints) -> Deltas:
        """The records of whole windows, one key per value head."""
        places = self.places(slots)
        d, k, g = (
            self.memory[name].take(places, 1).astype(self.arithmetic.compute)
            for name in ("d", "k", "g")
        )
        return Deltas(d, self.shared(k), g)
