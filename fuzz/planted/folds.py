"""Fold order and fold rows: which records a fold replays, in which order, on which rows."""

from __future__ import annotations

from typing import Final

import numpy as np

from ringfold.sim.cursors import Cursors
from ringfold.sim.machine import Ints
from ringfold.sim.recurrence import Writes
from ringfold.sim.ring import Ring


class FoldReadsFromRowZero(Ring):
    """The fold ignores the ring's origin."""

    def fold_rows(self, cursors: Cursors) -> Ints:
        """Ring rows 0, 1, 2, ... whatever the base is."""
        return np.broadcast_to(self.positions(), (len(cursors.write_pos), self.setup.ring))


class FoldNewestFirst(Ring):
    """The fold replays records from the newest to the oldest."""

    def fold_rows(self, cursors: Cursors) -> Ints:
        """Positions counted down."""
        newest_first = cursors.write_pos[:, None] - 1 - self.positions()
        return np.asarray(self.physical(cursors.cache_base[:, None], newest_first))


class FoldInRowOrder(Ring):
    """The fold replays records in the order of ring rows, so those behind the wrap come first."""

    def fold_rows(self, cursors: Cursors) -> Ints:
        """The right rows, sorted."""
        replayed = self.positions() < cursors.write_pos[:, None]
        rows = np.sort(np.where(replayed, super().fold_rows(cursors), self.setup.ring), axis=1)
        return np.asarray(np.minimum(rows, self.setup.ring - 1))


class FoldReadsTheNextGate(Ring):
    """The fold takes each record's decay from the record behind it."""

    def fold_writes(self, slots: Ints, cursors: Cursors, counts: Ints) -> Writes:
        """Decays that lead by one."""
        writes = super().fold_writes(slots, cursors, counts)
        return writes._replace(g=np.roll(writes.g, -1, axis=-1))


class FoldsOnlyTheFirstDueRow(Ring):
    """Of several rows that are due in a batch only the first is folded."""

    def fold(self, slots: Ints, cursors: Cursors) -> None:
        """The grid has one row of programs."""
        first = np.flatnonzero(self.folds(cursors))[:1]
        super().fold(slots[first], Cursors(*(c[first] for c in cursors)))


BUGS: Final = (
    FoldReadsFromRowZero,
    FoldNewestFirst,
    FoldInRowOrder,
    FoldReadsTheNextGate,
    FoldsOnlyTheFirstDueRow,
)
