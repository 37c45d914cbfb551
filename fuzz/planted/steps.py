"""Cursors moved by the wrong step: another request's, an idle batch's, or a verify's own."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from ringfold.oracle.gdn import Tokens
from ringfold.sim import cursors as table
from ringfold.sim.machine import Ints
from ringfold.sim.recurrence import Array
from ringfold.sim.ring import Ring


class CommitMovesTheLastVerify(Ring):
    """A commit moves the slots of the verify that ran last, which may be another batch's."""

    _last: ArrayLike = ()

    def verify(self, slots: ArrayLike, lengths: ArrayLike, tokens: Tokens) -> Array:
        """Keeps its slots in a buffer that the commit reads."""
        self._last = slots
        return super().verify(slots, lengths, tokens)

    def commit(self, slots: ArrayLike, accepted: ArrayLike, bound: int) -> None:
        """Reads that buffer as far as it is filled."""
        count = min(len(np.atleast_1d(self._last)), len(np.atleast_1d(slots)))
        last, counts = np.asarray(self._last)[:count], np.asarray(accepted)[:count]
        super().commit(last, counts, bound)


class IdleBatchRepeatsTheLast(Ring):
    """A batch of padding alone commits once more what was committed last."""

    _last: tuple[Ints, Ints] | None = None

    def commit(self, slots: ArrayLike, accepted: ArrayLike, bound: int) -> None:
        """Buffers that an idle step does not fill keep the last step's rows."""
        batch = self.batch(slots, accepted)
        if batch.rows.size:
            self._last = batch.slots, batch.lengths
        if self._last is not None:
            super().commit(*self._last, bound)


class CursorsByBatchRow(Ring):
    """A commit moves the cursors of slots 1, 2, 3, ... in the order of the batch's rows."""

    def commit(self, slots: ArrayLike, accepted: ArrayLike, bound: int) -> None:
        """The row's index where its slot is meant."""
        batch = self.batch(slots, accepted)
        super().commit(np.arange(batch.slots.size) + 1, batch.lengths, bound)


class VerifyClearsEveryFlag(Ring):
    """A verify clears the flags of all slots that are not in its batch."""

    def verify(self, slots: ArrayLike, lengths: ArrayLike, tokens: Tokens) -> Array:
        """A fill of the whole buffer."""
        outputs = super().verify(slots, lengths, tokens)
        others = np.setdiff1d(np.arange(self.setup.slots), slots)
        self.memory["is_flush"][others] = 0
        return outputs


class VerifyMovesThePosition(Ring):
    """A verify counts its window as committed, and the commit adds what was accepted."""

    def verify(self, slots: ArrayLike, lengths: ArrayLike, tokens: Tokens) -> Array:
        """Moves the position of rows that it did not fold."""
        outputs = super().verify(slots, lengths, tokens)
        batch = self.batch(slots, lengths)
        plain = self.memory["is_flush"][batch.slots] == 0
        self.memory["write_pos"][batch.slots[plain]] += batch.lengths[plain]
        return outputs


class CommitMovesTheNeighbour(Ring):
    """A commit recomputes the flag of the slot behind its own, as for an empty ring."""

    def commit(self, slots: ArrayLike, accepted: ArrayLike, bound: int) -> None:
        """A block of two slots stored where one is meant."""
        super().commit(slots, accepted, bound)
        behind = np.setdiff1d(self.batch(slots, accepted).slots + 1, slots)
        behind = behind[behind < self.setup.slots]
        self.memory["is_flush"][behind] = table.due(0, self.setup.ring, bound)


BUGS: Final = (
    CommitMovesTheLastVerify,
    IdleBatchRepeatsTheLast,
    CursorsByBatchRow,
    VerifyClearsEveryFlag,
    VerifyMovesThePosition,
    CommitMovesTheNeighbour,
)
