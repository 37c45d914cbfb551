"""State of a previous owner, and resets that forget something."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from ringfold.sim import cursors as table
from ringfold.sim.dialects import CHECKPOINT
from ringfold.sim.ring import Ring


class SlotReusedWithoutReset(Ring):
    """A slot's new owner inherits cursors."""

    def reset(self, slots: ArrayLike) -> None:
        """Only a slot that nobody has used starts with cursors of its own."""
        at = self.seated(slots)
        fresh = at[[not self._used(slot) for slot in at]]
        self.write_cursors(fresh, table.reset(self.setup.ring, self.setup.window))

    def _used(self, slot: int) -> bool:
        return any(self.memory[name][slot] for name in ("write_pos", "cache_base"))


class ResetKeepsTheBase(Ring):
    """A slot's new owner starts on an empty ring, but at the last owner's base."""

    def reset(self, slots: ArrayLike) -> None:
        """Position and flag alone."""
        at = self.seated(slots)
        start = table.reset(self.setup.ring, self.setup.window)
        self.write_cursors(at, start._replace(cache_base=self.memory["cache_base"][at]))


class ResetKeepsTheFlag(Ring):
    """A slot's new owner folds an empty ring at its first verify, if the last one was due."""

    def reset(self, slots: ArrayLike) -> None:
        """Position and base alone."""
        at = self.seated(slots)
        start = table.reset(self.setup.ring, self.setup.window)
        self.write_cursors(at, start._replace(is_flush=self.memory["is_flush"][at]))


class CheckpointOfTheLastOwner(Ring):
    """A slot's new owner goes on from the state that the last one left."""

    def admit(self, slots: ArrayLike, states: ArrayLike) -> None:
        """The checkpoint is stored only where none was."""
        at = self.seated(slots)
        used = self.memory[CHECKPOINT.name][:, at].any((0, 2, 3, 4))
        self.store_checkpoint(at[~used], np.asarray(states)[:, ~used])
        self.reset(at)


class ForkInheritsCursors(Ring):
    """A fork copies the checkpoint into a used slot and leaves the cursors that it finds there."""

    def copy(self, source: int, destination: int) -> None:
        """No reset."""
        origin, at = self.seated([source]), self.seated([destination])
        self.store_checkpoint(at, self.memory[CHECKPOINT.name].take(origin, 1))


class ForkCopiesTheFirstLayer(Ring):
    """A fork copies one layer's state; the others keep that of the last owner."""

    def copy(self, source: int, destination: int) -> None:
        """A copy without the loop over layers."""
        pool, at = self.memory[CHECKPOINT.name], self.seated([source, destination])
        pool[0, destination] = pool[0, source]
        self.reset(at[1:])


BUGS: Final = (
    SlotReusedWithoutReset,
    ResetKeepsTheBase,
    ResetKeepsTheFlag,
    CheckpointOfTheLastOwner,
    ForkInheritsCursors,
    ForkCopiesTheFirstLayer,
)
