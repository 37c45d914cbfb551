"""Derived in place of raw: a fold of what was rounded or normalised on the way to an output."""

from __future__ import annotations

from typing import Final

import numpy as np

from ringfold.sim.cursors import Cursors
from ringfold.sim.machine import Batch, Ints, Window
from ringfold.sim.recurrence import Array, Writes
from ringfold.sim.ring import Ring


class FoldAddsStoredDeltas(Ring):
    """The fold adds up stored deltas, an open loop that feeds the errors of outputs forward."""

    def fold(self, slots: Ints, cursors: Cursors) -> None:
        """Decayed outer products in place of a replay."""
        due = self.folds(cursors)
        slots = slots[due]
        unfolded = Cursors(*(c[due] for c in cursors))._replace(is_flush=np.zeros(slots.size))
        history = self.history(slots, unfolded)
        added = np.einsum("...lv,...lk->...vk", history.d, self.shared(history.k))
        state = self.load_checkpoint(slots) * history.decay[..., None, None]
        self.store_checkpoint(slots, state + added)


class FoldUsesStoredKeys(Ring):
    """The fold takes the normalised key that outputs use, rounded to the record's dtype."""

    def fold_writes(self, slots: Ints, cursors: Cursors, counts: Ints) -> Writes:
        """`k` in place of `rawk`."""
        replayed = self.positions() < counts[:, None]
        k = self.records("k", slots, self.fold_rows(cursors), replayed)
        return super().fold_writes(slots, cursors, counts)._replace(k=self.shared(k))


class RawKeysStoredNormalised(Ring):
    """The raw key's ring gets the normalised key, so that the fold normalises it once more."""

    def record(self, batch: Batch, cursors: Cursors, window: Window, d: Array, k: Array) -> None:
        """The wrong variable is stored."""
        super().record(batch, cursors, window._replace(k=k), d, k)


class RawValuesStoredAsDeltas(Ring):
    """The raw value's ring gets what the token wrote."""

    def record(self, batch: Batch, cursors: Cursors, window: Window, d: Array, k: Array) -> None:
        """The wrong variable is stored."""
        super().record(batch, cursors, window._replace(v=d), d, k)


BUGS: Final = (
    FoldAddsStoredDeltas,
    FoldUsesStoredKeys,
    RawKeysStoredNormalised,
    RawValuesStoredAsDeltas,
)
