"""The `fold-every-commit` protocol: raw inputs of one window, replayed into the checkpoint at once.

A verify walks the window as the recurrent path does and keeps, in place of a state after every
token, what the tokens brought: raw key and value, log decay and beta. The commit replays the first
`n` of them. Nothing waits in between, so there are no cursors, and since both walks are the same
function the checkpoint has the bits of the `snapshots` path, and so have the outputs.

Source: SGLang 0.5.17 to 0.5.19.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ringfold.oracle.gdn import Tokens
from ringfold.sim import recurrence
from ringfold.sim.dialects import FOLD_EVERY_COMMIT_DIALECT
from ringfold.sim.machine import Batch, Ints, as_hardware_does
from ringfold.sim.recurrence import Array, Writes
from ringfold.sim.snapshots import Snapshots


class FoldEveryCommit(Snapshots):
    """The reference machine of the dialect `fold-every-commit`."""

    dialect = FOLD_EVERY_COMMIT_DIALECT

    @as_hardware_does
    def verify(self, slots: ArrayLike, lengths: ArrayLike, tokens: Tokens) -> Array:
        """Walk each row's window and keep its inputs; see `Machine.verify`."""
        batch = self.batch(slots, lengths)
        self.record(batch, tokens)
        return self.returned(self.walk(batch, tokens, keep=False)[0], batch, tokens)

    @as_hardware_does
    def commit(self, slots: ArrayLike, accepted: ArrayLike, bound: int) -> None:
        """Replay what was accepted; see `Machine.commit`."""
        batch = self.batch(slots, accepted)
        self.require_bound(bound)
        counts = self.replayed(batch.lengths)
        state = self.load_checkpoint(batch.slots)
        for _ in recurrence.replay(state, self.fold_writes(batch.slots), counts):
            pass
        kept = counts > 0
        self.store_checkpoint(batch.slots[kept], state[:, kept])

    def decode(self, slots: ArrayLike, tokens: Tokens) -> Array:
        """A window of one with one accepted."""
        one = np.ones(len(np.atleast_1d(slots)), np.int64)
        outputs = self.verify(slots, one, tokens)
        self.commit(slots, one, self.setup.window)
        return outputs

    # ------------------------------------------------------------------ rules

    def replayed(self, accepted: Ints) -> Ints:
        """How many of a window's tokens a commit replays, the bonus token included."""
        return accepted

    def record(self, batch: Batch, tokens: Tokens) -> None:
        """Keep the window's inputs, from step 0 on."""
        window = self.window(tokens, batch)
        row, t = np.nonzero(np.arange(self.setup.window) < batch.lengths[:, None])
        kept = {"rawk": window.k, "rawv": window.v, "g": window.g, "beta": window.beta}
        for name, values in kept.items():  # [layer, row, heads, T, ...]
            heads = np.arange(values.shape[2])
            self.memory[name][:, batch.slots[row][:, None], heads, t[:, None]] = values[
                :, row[:, None], heads, t[:, None]
            ]

    def fold_writes(self, slots: Ints) -> Writes:
        """The records as the recurrence wants them: the key normalised as for a new token."""
        k, v, g, beta = (
            self.memory[name].take(slots, 1).astype(self.arithmetic.compute)
            for name in ("rawk", "rawv", "g", "beta")
        )
        return Writes(self.shared(self.unit(k)), v, g, beta)
