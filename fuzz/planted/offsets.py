"""Offset width and strides: addresses computed as a kernel computes them, and computed wrong."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ringfold.sim.dialects import CHECKPOINT
from ringfold.sim.machine import Ints
from ringfold.sim.recurrence import Array
from ringfold.sim.ring import Mask, Ring
from ringfold.sim.snapshots import Snapshots

OFFSET_BITS: Final = 13
"""To a pool of a few thousand numbers what 32 bits are to that of a server."""


class OffsetsTooNarrow(Ring):
    """Offsets into the checkpoints wrap at 2^13 elements, so high slots read low ones."""

    def load_checkpoint(self, slots: Ints) -> Array:
        """Slot * stride in too few bits."""
        pool = self.memory[CHECKPOINT.name]
        block = pool[0, 0]
        offsets = slots[:, None] * block.size + np.arange(block.size)
        found = pool.reshape(len(pool), -1).take(offsets % 2**OFFSET_BITS, 1)
        states = found.reshape(len(pool), slots.size, *block.shape)
        return np.asarray(states, self.arithmetic.compute)


class SlotStrideAssumesContiguity(Ring):
    """The pool is a view with room between its slots, which a verify's load does not see."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Give every slot the room of two."""
        super().__init__(*args, **kwargs)
        pool = self.memory[CHECKPOINT.name]
        self._room = np.zeros((pool.shape[0], 2 * pool.shape[1], *pool.shape[2:]), pool.dtype)
        self.memory[CHECKPOINT.name] = self._room[:, ::2]

    def load_checkpoint(self, slots: Ints) -> Array:
        """Slot * (size of a slot), whatever the stride."""
        return self._room.take(slots, 1).astype(self.arithmetic.compute)


class DeltaRowsAsLongAsKeys(Ring):
    """Rows of `d` are addressed as if they had K elements; they have V."""

    def records(self, name: str, slots: Ints, at: Ints, live: Mask) -> Array:
        """The stride of another buffer."""
        found = super().records(name, slots, at, live)
        if name != "d":
            return found
        memory, K = self.memory[name], self.setup.geometry.key_dim
        HV, L, V = memory.shape[2:]
        block = (slots[:, None, None, None] * HV + np.arange(HV)[:, None, None]) * L * V
        offsets = block + at[:, None, :, None] * K + np.arange(V)
        misread = memory.reshape(len(memory), -1).take(offsets, 1, mode="wrap")
        return np.where(live[:, None, :, None], misread, 0).astype(found.dtype)


class LayerStrideLeftOut(Ring):
    """Every layer's outputs read the records of the first."""

    def records(self, name: str, slots: Ints, at: Ints, live: Mask) -> Array:
        """A pointer without the layer's offset."""
        found = super().records(name, slots, at, live)
        return np.broadcast_to(found[:1], found.shape)


class CheckpointReadTransposed(Ring):
    """A checkpoint is read as [K, V] where [V, K] is stored."""

    def load_checkpoint(self, slots: Ints) -> Array:
        """Strides of the two axes exchanged."""
        state = super().load_checkpoint(slots)
        *outer, V, K = state.shape
        return np.ascontiguousarray(state.reshape(*outer, K, V).swapaxes(-1, -2))


class SnapshotsByBatchRow(Snapshots):
    """Snapshots are kept by the batch's row, which another batch takes before the commit."""

    def snapshot_places(self, slots: Ints) -> Ints:
        """The row's index where its request's place is meant."""
        return np.arange(slots.size) + 1


class SnapshotPlacesShared(Snapshots):
    """Two requests share a place for their snapshots."""

    def snapshot_places(self, slots: Ints) -> Ints:
        """An index halved."""
        return slots // 2


BUGS: Final = (
    OffsetsTooNarrow,
    SlotStrideAssumesContiguity,
    DeltaRowsAsLongAsKeys,
    LayerStrideLeftOut,
    CheckpointReadTransposed,
    SnapshotsByBatchRow,
    SnapshotPlacesShared,
)
