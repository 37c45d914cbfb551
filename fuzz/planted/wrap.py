"""Wrap arithmetic: the step from ring row L - 1 to row 0."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ringfold.fuzz.planted.tables import row_replaced
from ringfold.sim.cursors import Cursors
from ringfold.sim.machine import Ints
from ringfold.sim.ring import Mask, Ring


class WrapMaskOffByOne(Ring):
    """Records wrap one row too early, so that the ring's last row is never used."""

    def physical(self, cache_base: Any, position: Any) -> Any:
        """A mask taken from a length that is one too short."""
        return (cache_base + position) % (self.setup.ring - 1)


class WindowClampedAtTheEnd(Ring):
    """A window that should wrap is written over and over into the ring's last row."""

    def window_rows(self, cursors: Cursors, position: Ints) -> Ints:
        """A clamp, as for an array that does not wrap."""
        return np.asarray(np.minimum(cursors.cache_base[:, None] + position, self.setup.ring - 1))


class HistoryClampedAtTheEnd(Ring):
    """Outputs read the ring's last row again where they should go on at row 0."""

    def history_rows(self, cursors: Cursors) -> Ints:
        """A clamp in place of the wrap."""
        rows = cursors.cache_base[:, None] + self.positions()
        return np.asarray(np.minimum(rows, self.setup.ring - 1))


class FoldClampedAtTheEnd(Ring):
    """The fold alone reads the ring's last row again where it should go on at row 0."""

    def fold_rows(self, cursors: Cursors) -> Ints:
        """A clamp in place of the wrap."""
        rows = cursors.cache_base[:, None] + self.positions()
        return np.asarray(np.minimum(rows, self.setup.ring - 1))


class RecordsPastTheEndDropped(Ring):
    """The mask of the ring's end is applied before the wrap, so records behind it are lost."""

    def fits(self, cursors: Cursors, position: Ints) -> Mask:
        """Bounds of an array where those of a ring belong."""
        return np.asarray(cursors.cache_base[:, None] + position < self.setup.ring)


class BaseNeverWraps(Ring):
    """The base grows without end: right modulo L, until the integer overflows."""

    rules = row_replaced("fold, keep n", cache_base=lambda c, n, L: c.cache_base + c.write_pos)


BUGS: Final = (
    WrapMaskOffByOne,
    WindowClampedAtTheEnd,
    HistoryClampedAtTheEnd,
    FoldClampedAtTheEnd,
    RecordsPastTheEndDropped,
    BaseNeverWraps,
)
