"""The `snapshots` protocol: the recurrent verify, which stores a state after every token.

A commit copies the snapshot of the last accepted token into the checkpoint. This is the plain way
that a ring replaces, and the twin that a ring's folded checkpoint must equal bit for bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringfold.oracle.gdn import Tokens
from ringfold.sim import recurrence
from ringfold.sim.dialects import SNAPSHOTS_DIALECT
from ringfold.sim.machine import Batch, Ints, Machine, as_hardware_does
from ringfold.sim.recurrence import Array, Writes


class Snapshots(Machine):
    """The reference machine of the dialect `snapshots`."""

    dialect = SNAPSHOTS_DIALECT

    def reset(self, slots: ArrayLike) -> None:
        """Nothing to do but to check the slots: a checkpoint is all that a request has."""
        self.seated(slots)

    @as_hardware_does
    def verify(self, slots: ArrayLike, lengths: ArrayLike, tokens: Tokens) -> Array:
        """Walk each row's window; see `Machine.verify`."""
        batch = self.batch(slots, lengths)
        return self.returned(self.walk(batch, tokens, keep=True)[0], batch, tokens)

    def commit(self, slots: ArrayLike, accepted: ArrayLike, bound: int) -> None:
        """Copy one snapshot a row; see `Machine.commit`."""
        batch = self.batch(slots, accepted)
        self.require_bound(bound)
        moves = self.moves(batch.lengths)
        at, step = batch.slots[moves], self.committed_step(batch.lengths[moves])
        self.store_checkpoint(at, self.memory["snapshots"][:, self.snapshot_places(at), step])

    @as_hardware_does
    def decode(self, slots: ArrayLike, tokens: Tokens) -> Array:
        """One token a row, straight into the checkpoint."""
        batch = self.batch(slots, np.ones(len(np.atleast_1d(slots)), np.int64))
        outputs, states = self.walk(batch, tokens, keep=False)
        self.store_checkpoint(batch.slots, states)
        return self.returned(outputs, batch, tokens)

    # ------------------------------------------------------------------ rules

    def waiting(self, slots: Ints) -> Ints:
        """None, ever."""
        return np.zeros_like(slots)

    def flush(self, slots: Ints) -> None:
        """Nothing ever waits."""

    def require_flushed(self, slots: Ints) -> None:
        """A checkpoint never lags behind: any slot can be copied."""

    def snapshot_places(self, slots: Ints) -> Ints:
        """Where each request's snapshots are: at its own place."""
        return self.places(slots)

    def moves(self, accepted: Ints) -> NDArray[np.bool_]:
        """Rows whose checkpoint a commit replaces: those that keep a token."""
        return accepted > 0

    def committed_step(self, accepted: Ints) -> Ints:
        """The token whose snapshot becomes the checkpoint, bonus token included."""
        return accepted - 1

    def walk(self, batch: Batch, tokens: Tokens, keep: bool) -> tuple[Array, Array]:
        """Outputs [layer, row, HV, T, V] and last states; `keep` stores snapshots."""
        window = self.window(tokens, batch)
        q = self.shared(self.unit(window.q) * self.scale())
        k = self.shared(self.unit(window.k))
        writes = Writes(k, window.v, window.g, window.beta)
        state = self.load_checkpoint(batch.slots)
        outputs = np.zeros_like(window.v)
        for t, rows in recurrence.replay(state, writes, batch.lengths):
            outputs[:, :, :, t][:, rows] = recurrence.read(
                state.take(rows, 1), q[:, :, :, t].take(rows, 1)
            )
            if keep:
                places = self.snapshot_places(batch.slots[rows])
                self.memory["snapshots"][:, places, t] = state.take(rows, 1)
        return outputs, state
