"""The `open-loop` protocol: a ring that folds the deltas it stored, in place of raw inputs.

A delta d is what a token's write came to, worked out from the state as the ring stood for it then
and rounded to the records' dtype. The fold adds these up,

    S = exp(G[n]) checkpoint + sum over records c of exp(G[n] - G[c]) outer(d[c], k[c])

and never asks again what the checkpoint holds under k. The recurrence would have: a token writes
what the state does *not yet* hold, so an error along k is overwritten by the next token with that
key. Here the delta was computed before the state was rounded, and its own rounding becomes state.
`docs/drift.md` measures the difference.

The arithmetic of the fold is float32 whatever the output path uses, so the records' rounding is
all that sets this machine apart from `ringfold.sim.ring`.

Source: the ring of the first ReplaySSM code, which keeps (d, k, g) alone.
"""

from __future__ import annotations

import numpy as np

from ringfold.sim import dialects
from ringfold.sim.cursors import Cursors
from ringfold.sim.machine import Ints, Window
from ringfold.sim.recurrence import Array
from ringfold.sim.ring import Mask, Ring, transposed


class OpenLoop(Ring):
    """The reference machine of the dialect `open-loop`."""

    dialect = dialects.OPEN_LOOP_DIALECT

    def fold(self, slots: Ints, cursors: Cursors) -> None:
        """Add the stored deltas of rows that are due to their checkpoints."""
        due = self.folds(cursors)
        if not due.any():
            return
        slots, cursors = slots[due], Cursors(*(c[due] for c in cursors))
        folded = self.positions() < self.fold_count(cursors)[:, None]
        at = self.fold_rows(cursors)
        d, k, g = (self.summands(name, slots, at, folded) for name in ("d", "k", "g"))
        d = d * self.history_decay(g)[..., None]
        faded = np.exp(g.sum(-1))[..., None, None] * self.load_checkpoint(slots)
        self.store_checkpoint(slots, faded + transposed(d) @ self.shared(k))

    def summands(self, name: str, slots: Ints, at: Ints, live: Mask) -> Array:
        """Records as the fold reads them; see `Ring.records`."""
        return self.records(name, slots, at, live)

    def kept(self, window: Window, d: Array, k: Array) -> dict[str, Array]:
        """The records of the output path, and no others."""
        return {"d": d, "k": k, "g": window.g}
