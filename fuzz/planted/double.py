"""Double fold: records that are in the checkpoint already and count once more."""

from __future__ import annotations

from typing import Final

import numpy as np

from ringfold.fuzz.planted.tables import row_replaced
from ringfold.sim.cursors import Cursors
from ringfold.sim.machine import Ints
from ringfold.sim.ring import Mask, Ring


class FoldedRecordsStayCommitted(Ring):
    """A fold leaves its records in the count, so the next one folds them again."""

    rules = row_replaced(
        "fold, keep n",
        write_pos=lambda c, n: c.write_pos + n,
        cache_base=lambda c, n, L: c.cache_base,
    )


class RejectionSkipsTheCommit(Ring):
    """A row that accepts nothing is left as it is, and after a fold it folds again."""

    def moved(self, before: Cursors, counts: Ints, bound: int) -> Cursors:
        """An early return where no token was accepted."""
        after, none = super().moved(before, counts, bound), counts == 0
        return Cursors(*(np.where(none, b, a) for b, a in zip(before, after, strict=True)))


class FoldRunsTwice(Ring):
    """A launch is repeated, and the second fold replays the records onto the first one's result."""

    def fold(self, slots: Ints, cursors: Cursors) -> None:
        """Twice."""
        super().fold(slots, cursors)
        super().fold(slots, cursors)


class HistoryOutlivesTheFold(Ring):
    """Outputs of a folding verify add the records to a checkpoint that already holds them."""

    def live(self, cursors: Cursors) -> Mask:
        """As if nothing were ever folded."""
        return np.asarray(self.positions() < cursors.write_pos[:, None])


BUGS: Final = (
    FoldedRecordsStayCommitted,
    RejectionSkipsTheCommit,
    FoldRunsTwice,
    HistoryOutlivesTheFold,
)
