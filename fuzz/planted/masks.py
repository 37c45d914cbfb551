"""Masks and padding: rows of nobody, tokens behind a window, memory that is dead."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringfold.oracle.gdn import Tokens
from ringfold.sim.cursors import Cursors
from ringfold.sim.decode_ring import DecodeRing
from ringfold.sim.machine import Batch, Ints, Window
from ringfold.sim.recurrence import Array
from ringfold.sim.ring import History, Mask, Ring
from ringfold.sim.setup import NULL_SLOT
from ringfold.sim.snapshots import Snapshots


class PaddingServedFromTheNullSlot(Ring):
    """A padding row is served like any other, on slot 0."""

    def is_padding(self, slots: Ints) -> NDArray[np.bool_]:
        """`<` in place of `<=`."""
        return slots < NULL_SLOT


class SnapshotsOfPadding(Snapshots):
    """Where states are snapshots, a padding row is served like any other, on slot 0."""

    def is_padding(self, slots: Ints) -> NDArray[np.bool_]:
        """`<` in place of `<=`."""
        return slots < NULL_SLOT


class PaddingShiftsOutputs(Ring):
    """Outputs are returned without the padding rows between them, so those behind move up."""

    def returned(self, outputs: Array, batch: Batch, tokens: Tokens) -> Array:
        """Row numbers of the batch without padding."""
        return super().returned(outputs, batch._replace(rows=np.arange(batch.rows.size)), tokens)


class PaddingOutputsUnwritten(Ring):
    """A padding row returns before it stores, so its outputs are what the memory held."""

    def returned(self, outputs: Array, batch: Batch, tokens: Tokens) -> Array:
        """Zeros only where a row is real."""
        every = super().returned(outputs, batch, tokens)
        real = np.isin(np.arange(every.shape[1]), batch.rows)
        every[:, ~real] = np.nan
        return every


class LengthOfTheFirstRow(Ring):
    """Every window is cut to the length of the batch's first row."""

    def verify(self, slots: ArrayLike, lengths: ArrayLike, tokens: Tokens) -> Array:
        """A length loaded without the row's offset."""
        counts = np.asarray(lengths)
        return super().verify(slots, np.minimum(counts, counts[0]), tokens)


class TailOfTheWindowRecorded(Ring):
    """A window that is shorter than the longest writes records behind its end."""

    def record(self, batch: Batch, cursors: Cursors, window: Window, d: Array, k: Array) -> None:
        """No mask by the row's length."""
        whole = np.full_like(batch.lengths, self.setup.window)
        super().record(batch._replace(lengths=whole), cursors, window, d, k)


class DeadRecordsTimesZero(Ring):
    """Dead records are multiplied by zero, which leaves a NaN what it is."""

    def records(self, name: str, slots: Ints, at: Ints, live: Mask) -> Array:
        """A product in place of a mask."""
        found = super().records(name, slots, at, np.ones_like(live))
        mask = live[:, None].reshape(live.shape[0], 1, live.shape[1], *[1] * (found.ndim - 4))
        return np.asarray(found * mask.astype(found.dtype))


class TokensReadTheFuture(Ring):
    """A token of the window reads what those behind it wrote."""

    def causal(self) -> Mask:
        """No mask."""
        return np.ones((self.setup.window,) * 2, np.bool_)


class TokensMissTheirOwnWrite(Ring):
    """A token's output leaves out what the token itself wrote."""

    def causal(self) -> Mask:
        """`<` in place of `<=`."""
        return self.strictly_causal()


class DeltasMissTheTokenBefore(Ring):
    """A token's delta leaves out the token right before it."""

    def strictly_causal(self) -> Mask:
        """Off by one diagonal."""
        return np.tri(self.setup.window, k=-2, dtype=np.bool_)


class HistoryCutAtSixteen(Ring):
    """Outputs read sixteen records, the block that a kernel loads, however long the ring is."""

    def history(self, slots: Ints, cursors: Cursors) -> History:
        """The others as if they weighed nothing."""
        history = super().history(slots, cursors)
        return history._replace(d=np.where(self.positions()[:, None] < 16, history.d, 0))


class DeltasSolvedForFour(Ring):
    """Deltas are solved for four tokens, a kernel's smallest block, however long the window is."""

    def strictly_causal(self) -> Mask:
        """Behind those the triangle is empty."""
        within = np.arange(self.setup.window) < 4
        return super().strictly_causal() & within[:, None]


class FoldStoresOneTile(Ring):
    """A fold is stored for 64 rows of a state, a kernel's tile, however many there are."""

    def fold(self, slots: Ints, cursors: Cursors) -> None:
        """The others stay as they were."""
        before = self.load_checkpoint(slots)
        super().fold(slots, cursors)
        after = self.load_checkpoint(slots)
        after[..., 64:, :] = before[..., 64:, :]
        self.store_checkpoint(slots, after)


class CommitTakesOneBlock(Ring):
    """A commit moves 128 rows of a batch, a kernel's block, however many there are."""

    def commit(self, slots: ArrayLike, accepted: ArrayLike, bound: int) -> None:
        """Those behind stay where they are."""
        super().commit(np.asarray(slots)[:128], np.asarray(accepted)[:128], bound)


class DecodeReadsSixteen(DecodeRing):
    """A plain step reads sixteen records, the block that a kernel loads, however long the ring."""

    def records(self, name: str, slots: Ints, at: Ints, live: Mask) -> Array:
        """The others as if they were dead."""
        return super().records(name, slots, at, live & (self.positions() < 16))


class DecodeServesEight(DecodeRing):
    """A plain step serves eight rows of a batch, a kernel's block, however many there are."""

    def decode(self, slots: ArrayLike, tokens: Tokens) -> Array:
        """Those behind are padding."""
        every = np.asarray(slots)
        return super().decode(np.where(np.arange(every.size) < 8, every, NULL_SLOT), tokens)


BUGS: Final = (
    PaddingServedFromTheNullSlot,
    SnapshotsOfPadding,
    PaddingShiftsOutputs,
    PaddingOutputsUnwritten,
    LengthOfTheFirstRow,
    TailOfTheWindowRecorded,
    DeadRecordsTimesZero,
    TokensReadTheFuture,
    TokensMissTheirOwnWrite,
    DeltasMissTheTokenBefore,
    HistoryCutAtSixteen,
    DeltasSolvedForFour,
    FoldStoresOneTile,
    CommitTakesOneBlock,
    DecodeReadsSixteen,
    DecodeServesEight,
)
