"""Window bounds: how long the next window may be, and where a window may lie."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from ringfold.sim.compact import Compact
from ringfold.sim.cursors import Cursors
from ringfold.sim.machine import Batch, Ints, Window
from ringfold.sim.recurrence import Array
from ringfold.sim.ring import Mask, Ring


class FlagFromTheLongestWindow(Ring):
    """The flag takes the longest window there can be and not the bound of this commit."""

    def flag(self, write_pos: Any, bound: int) -> Any:
        """The setup's window."""
        return super().flag(write_pos, self.setup.window)


class FlagFromTheAcceptedCount(Ring):
    """The flag expects the next window to be as long as what was just accepted."""

    def moved(self, before: Cursors, counts: Ints, bound: int) -> Cursors:
        """The count where the bound is meant."""
        after = super().moved(before, counts, bound)
        return after._replace(is_flush=after.write_pos + 2 * counts > self.setup.ring)


class FlagFromTheRowsOwnWindow(Ring):
    """The flag expects the next window to be as long as the row's last one."""

    def record(self, batch: Batch, cursors: Cursors, window: Window, d: Array, k: Array) -> None:
        """Keeps the windows' lengths by slot."""
        if not hasattr(self, "_own"):
            self._own = np.full(self.setup.slots, self.setup.window)
        self._own[batch.slots] = batch.lengths
        super().record(batch, cursors, window, d, k)

    def commit(self, slots: ArrayLike, accepted: ArrayLike, bound: int) -> None:
        """A ragged batch's lengths where the bound is meant."""
        super().commit(slots, accepted, bound)
        at = self.batch(slots, accepted).slots
        position, own = self.memory["write_pos"][at], self._own[at]
        self.memory["is_flush"][at] = position + 2 * own > self.setup.ring


class WindowGoesToTheBaseAfterAFold(Ring):
    """A folding verify writes its window to the base, where the commit does not look for it."""

    def window_position(self, cursors: Cursors) -> Ints:
        """Behind the history that is left, which is none."""
        left = np.where(self.folds(cursors), 0, cursors.write_pos)
        return super().window_position(cursors._replace(write_pos=left))


class RingOneRecordShort(Ring):
    """The last record that the ring has room for is not stored."""

    def fits(self, cursors: Cursors, position: Ints) -> Mask:
        """`< L - 1` in place of `< L`."""
        return np.asarray(position < self.setup.ring - 1)


class NothingAcceptedFoldsNothing(Compact):
    """A fold that a short bound put off is left out by a commit that accepts nothing."""

    def commit(self, slots: ArrayLike, accepted: ArrayLike, bound: int) -> None:
        """The row returns early, and its cursors move."""
        batch = self.batch(slots, accepted)
        at = batch.slots[batch.lengths == 0]
        states = self.load_checkpoint(at)
        super().commit(slots, accepted, bound)
        self.store_checkpoint(at, states)


BUGS: Final = (
    FlagFromTheLongestWindow,
    FlagFromTheAcceptedCount,
    FlagFromTheRowsOwnWindow,
    WindowGoesToTheBaseAfterAFold,
    RingOneRecordShort,
    NothingAcceptedFoldsNothing,
)
