"""Retraction to host memory and the prefix cache: what is taken along, and what is found again."""

from __future__ import annotations

from typing import Final

import numpy as np

from ringfold.sim.compact import Compact
from ringfold.sim.dialects import CHECKPOINT, Buffer
from ringfold.sim.machine import Saved
from ringfold.sim.ring import Ring


class SaveDropsWhatWaits(Compact):
    """Host memory gets the checkpoint, and records that it lacks are lost."""

    def save(self, slot: int) -> Saved:
        """No fold (SGLang 0.5.20 and later, issue #38485)."""
        at = self.seated([slot])
        return {CHECKPOINT.name: self.memory[CHECKPOINT.name][self.rows_of(CHECKPOINT, at)].copy()}


class SaveLeavesTheRing(Ring):
    """Cursors go to host memory and back, the records that they count stay behind."""

    def saved(self) -> tuple[Buffer, ...]:
        """Checkpoint and integers (SGLang 0.5.16)."""
        return tuple(b for b in super().saved() if b.role not in ("record", "gate"))


class SaveCopiesNothing(Ring):
    """What is saved is a view of the slot, which has another owner by the time it is read."""

    def save(self, slot: int) -> Saved:
        """Slices in place of copies."""
        pool, one = self.memory, slice(slot, slot + 1)
        return {
            b.name: pool[b.name][one] if b.axes[0] == "slot" else pool[b.name][:, one]
            for b in self.saved()
        }


class RestoreKeepsTheCursors(Compact):
    """A restored request goes on with the cursors that the last owner of its place left."""

    def restore(self, slot: int, saved: Saved) -> None:
        """No reset."""
        self.store_checkpoint(self.seated([slot]), saved[CHECKPOINT.name])


class RestoreForgetsTheFlag(Ring):
    """A restored request was due to fold, and nobody remembers."""

    def saved(self) -> tuple[Buffer, ...]:
        """Everything but the flag."""
        return tuple(b for b in super().saved() if b.role != "flag")


class RestoreStartsAtRowZero(Ring):
    """Records are put back from the ring's first row on, where the base does not look for them."""

    def restore(self, slot: int, saved: Saved) -> None:
        """The ring rotated, its base as it was."""
        back = -int(saved["cache_base"][0])
        rings = {b.name: b.axes.index("ring") for b in self.saved() if "ring" in b.axes}
        turned = {name: np.roll(saved[name], back, axis) for name, axis in rings.items()}
        super().restore(slot, {**saved, **turned})


class DonateDropsWhatWaits(Compact):
    """A prefix cache gets the checkpoint under the name of the whole committed history."""

    def donate(self, slot: int) -> None:
        """No fold."""
        self.reset(self.seated([slot]))


class DonateFoldsBehindTheName(Ring):
    """A prefix is named by the tokens up to the last fold, and holds those that waited as well."""

    def donate(self, slot: int) -> None:
        """A fold too many."""
        self.flush(self.seated([slot]))


class HitKeepsTheCursors(Ring):
    """A request seated on a prefix goes on with the cursors that the slot's last owner left."""

    def hit(self, prefix: int, slot: int) -> None:
        """No reset."""
        origin, at = self.seated([prefix]), self.seated([slot])
        self.store_checkpoint(at, self.memory[CHECKPOINT.name].take(origin, 1))


class HitTakesTheNeighboursCursors(Ring):
    """A request seated on a prefix gets the cursors of the slot before its own."""

    def hit(self, prefix: int, slot: int) -> None:
        """A reset that misses its slot."""
        super().hit(prefix, slot)
        self.write_cursors(self.seated([slot]), self.cursors(np.array([slot - 1])))


BUGS: Final = (
    SaveDropsWhatWaits,
    SaveLeavesTheRing,
    SaveCopiesNothing,
    RestoreKeepsTheCursors,
    RestoreForgetsTheFlag,
    RestoreStartsAtRowZero,
    DonateDropsWhatWaits,
    DonateFoldsBehindTheName,
    HitKeepsTheCursors,
    HitTakesTheNeighboursCursors,
)
