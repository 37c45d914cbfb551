"""Planted bugs: faults that the field has met, each one method of the reference machine overridden.

They ask how good the tester is. A bug is a target like any other, named `sim:NAME`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ringfold.sim import cursors as table
from ringfold.sim.cursors import Cursors
from ringfold.sim.machine import Ints, Machine
from ringfold.sim.ring import Ring


class Planted(NamedTuple):
    """One planted bug."""

    about: str
    machine: type[Machine]


class WrapMaskOffByOne(Ring):
    """Records wrap at L - 1, so the ring's last row is never used and row 0 comes too early."""

    def physical(self, cache_base: Any, position: Any) -> Any:
        """A mask taken from a length that is one too short."""
        return (cache_base + position) % (self.setup.ring - 1)


class FlushOneWindowLate(Ring):
    """The flag looks one window ahead in place of two, so a window can outgrow the ring."""

    def flag(self, write_pos: Any, bound: int) -> Any:
        """Whether the *next* window still fits, whatever comes after it."""
        return write_pos + bound > self.setup.ring


class FoldReadsFromRowZero(Ring):
    """The fold forgets that the ring's origin has moved."""

    def fold_rows(self, cursors: Cursors) -> Ints:
        """Ring rows 0, 1, 2, ... whatever the base is."""
        return np.broadcast_to(self.positions(), (len(cursors.write_pos), self.setup.ring))


class BonusTokenIgnored(Ring):
    """The commit counts accepted drafts and leaves out the bonus token behind them."""

    def accepted(self, counts: Ints) -> Ints:
        """One less than was accepted."""
        return np.maximum(counts - 1, 0)


class SlotReusedWithoutReset(Ring):
    """A new owner of a slot inherits the cursors of the last one."""

    def reset(self, slots: ArrayLike) -> None:
        """Only a slot that nobody has used starts with cursors of its own."""
        at = self.seated(slots)
        fresh = at[[not self._used(slot) for slot in at]]
        self.write_cursors(fresh, table.reset(self.setup.ring, self.setup.window))

    def _used(self, slot: int) -> bool:
        return any(self.memory[name][slot] for name in ("write_pos", "cache_base"))


PLANTED: Final = {
    "wrap-mask-off-by-one": Planted("records wrap one row too early", WrapMaskOffByOne),
    "flush-one-window-late": Planted("the flush flag looks one window ahead", FlushOneWindowLate),
    "fold-reads-from-row-zero": Planted("the fold ignores the ring's origin", FoldReadsFromRowZero),
    "bonus-token-ignored": Planted("a commit leaves out the bonus token", BonusTokenIgnored),
    "slot-reused-without-reset": Planted(
        "a slot's new owner inherits cursors", SlotReusedWithoutReset
    ),
}
