"""Flush too early or too late: when the flag is raised and which rows heed it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ringfold.sim.cursors import Cursors
from ringfold.sim.machine import Ints
from ringfold.sim.ring import Mask, Ring


class FlushOneWindowLate(Ring):
    """The flush flag looks one window ahead in place of two, so a window can outgrow the ring."""

    def flag(self, write_pos: Any, bound: int) -> Any:
        """Whether the *next* window still fits, whatever comes after it."""
        return write_pos + bound > self.setup.ring


class FlushOneWindowEarly(Ring):
    """The flush flag looks three windows ahead: right states, half of the ring unused."""

    def flag(self, write_pos: Any, bound: int) -> Any:
        """One window more than has to fit."""
        return write_pos + 3 * bound > self.setup.ring


class FlushOneRecordLate(Ring):
    """The flush flag allows for one record more than the ring has."""

    def flag(self, write_pos: Any, bound: int) -> Any:
        """A comparison with L + 1."""
        return write_pos + 2 * bound > self.setup.ring + 1


class FlushOneRecordEarly(Ring):
    """The flush flag is raised when two windows fit exactly."""

    def flag(self, write_pos: Any, bound: int) -> Any:
        """`>=` in place of `>`."""
        return write_pos + 2 * bound >= self.setup.ring


class FlagFromTheOldPosition(Ring):
    """The flush flag is computed from the position before the commit, so it comes a step late."""

    def moved(self, before: Cursors, counts: Ints, bound: int) -> Cursors:
        """The flag read the position before it was stored."""
        after = super().moved(before, counts, bound)
        return after._replace(is_flush=self.flag(before.write_pos, bound))


class FlagNeverFalls(Ring):
    """Once raised, the flush flag stays, and every later verify folds."""

    def moved(self, before: Cursors, counts: Ints, bound: int) -> Cursors:
        """`|=` in place of `=`."""
        after = super().moved(before, counts, bound)
        return after._replace(is_flush=after.is_flush | before.is_flush)


class BatchFoldsAsOne(Ring):
    """Every row folds when one of its batch is due, though its commit knows nothing of it."""

    def folds(self, cursors: Cursors) -> Mask:
        """A flag reduced over the batch."""
        return np.full(cursors.is_flush.shape, np.any(cursors.is_flush != 0))


class BatchFoldsAsItsFirstRow(Ring):
    """Every row folds, or does not, as the first row of its batch does."""

    def folds(self, cursors: Cursors) -> Mask:
        """A flag loaded without the row's offset."""
        return np.full(cursors.is_flush.shape, np.any(cursors.is_flush[:1] != 0))


BUGS: Final = (
    FlushOneWindowLate,
    FlushOneWindowEarly,
    FlushOneRecordLate,
    FlushOneRecordEarly,
    FlagFromTheOldPosition,
    FlagNeverFalls,
    BatchFoldsAsOne,
    BatchFoldsAsItsFirstRow,
)
