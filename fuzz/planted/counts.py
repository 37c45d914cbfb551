"""Off-by-one counts: of tokens accepted, records folded and records read."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ringfold.sim.cursors import Cursors
from ringfold.sim.machine import Ints
from ringfold.sim.ring import Mask, Ring
from ringfold.sim.snapshots import Snapshots


class BonusTokenIgnored(Ring):
    """A commit counts accepted drafts and leaves out the bonus token behind them."""

    def accepted(self, counts: Ints) -> Ints:
        """One less than was accepted."""
        return np.maximum(counts - 1, 0)


class BonusTokenCountedTwice(Ring):
    """A window that is accepted whole counts for one token more than it has."""

    def accepted(self, counts: Ints) -> Ints:
        """The bonus token added to a count that holds it."""
        return np.where(counts == self.setup.window, counts + 1, counts)


class RejectionKeepsOne(Ring):
    """A commit takes it that one token is always accepted."""

    def accepted(self, counts: Ints) -> Ints:
        """At least the bonus token."""
        return np.maximum(counts, 1)


class CountOfTheFirstRow(Ring):
    """A commit accepts in every row what the first row of the batch accepts."""

    def accepted(self, counts: Ints) -> Ints:
        """A count loaded without the row's offset."""
        return np.broadcast_to(counts[:1], counts.shape)


class FoldOneShort(Ring):
    """The fold leaves out the newest record."""

    def fold_count(self, cursors: Cursors) -> Ints:
        """A loop that ends one early."""
        return np.maximum(super().fold_count(cursors) - 1, 0)


class FoldOneTooMany(Ring):
    """The fold replays a record behind the newest one, a rejected draft."""

    def fold_count(self, cursors: Cursors) -> Ints:
        """A loop that ends one late."""
        return np.minimum(super().fold_count(cursors) + 1, self.setup.ring)


class HistoryOneShort(Ring):
    """Outputs leave out the newest record of the history."""

    def live(self, cursors: Cursors) -> Mask:
        """A mask that ends one early."""
        return super().live(cursors._replace(write_pos=cursors.write_pos - 1))


class HistoryOneTooMany(Ring):
    """Outputs read one record behind the history."""

    def live(self, cursors: Cursors) -> Mask:
        """`<=` in place of `<`."""
        return super().live(cursors._replace(write_pos=cursors.write_pos + 1))


class CommitsTheSnapshotBefore(Snapshots):
    """A commit copies the snapshot of the last draft and leaves out the bonus token."""

    def committed_step(self, accepted: Ints) -> Ints:
        """One less than was accepted."""
        return np.maximum(accepted - 2, 0)


class RejectionCopiesTheLastSnapshot(Snapshots):
    """A row that accepts nothing copies snapshot -1, which is that of the whole window."""

    def moves(self, accepted: Ints) -> NDArray[np.bool_]:
        """No guard against a count of zero."""
        return np.ones(accepted.shape, np.bool_)


BUGS: Final = (
    BonusTokenIgnored,
    BonusTokenCountedTwice,
    RejectionKeepsOne,
    CountOfTheFirstRow,
    FoldOneShort,
    FoldOneTooMany,
    HistoryOneShort,
    HistoryOneTooMany,
    CommitsTheSnapshotBefore,
    RejectionCopiesTheLastSnapshot,
)
