"""Rounding through a narrower type on the way to memory or into a fold."""

from __future__ import annotations

from typing import Final

from ringfold.sim.compact import Compact
from ringfold.sim.cursors import Cursors
from ringfold.sim.machine import Batch, Ints, Window
from ringfold.sim.precision import rounded
from ringfold.sim.recurrence import Array, Writes
from ringfold.sim.ring import Mask, Ring
from ringfold.sim.snapshots import Snapshots


class BetaThroughBfloat16(Ring):
    """Beta takes the dtype of its input on the way."""

    def gates(self, a: Array, b: Array) -> tuple[Array, Array]:
        """sigmoid(b) in bfloat16."""
        g, beta = super().gates(a, b)
        return g, rounded(beta, "bfloat16")


class DecayThroughHalf(Ring):
    """The log decay takes the dtype of its input on the way."""

    def gates(self, a: Array, b: Array) -> tuple[Array, Array]:
        """G in float16."""
        g, beta = super().gates(a, b)
        return rounded(g, "float16"), beta


class FoldReadsBetaInBfloat16(Ring):
    """The ring holds the right beta, and the fold rounds it to bfloat16."""

    def fold_writes(self, slots: Ints, cursors: Cursors, counts: Ints) -> Writes:
        """A cast to match the values that it multiplies."""
        writes = super().fold_writes(slots, cursors, counts)
        return writes._replace(beta=rounded(writes.beta, "bfloat16"))


class ValuesThroughBfloat16(Ring):
    """Raw values are stored in bfloat16, whatever the ring's dtype."""

    def record(self, batch: Batch, cursors: Cursors, window: Window, d: Array, k: Array) -> None:
        """A cast that is free where activations are bfloat16."""
        rounded_v = window._replace(v=rounded(window.v, "bfloat16"))
        super().record(batch, cursors, rounded_v, d, k)


class CheckpointThroughActivations(Ring):
    """A folded state takes the dtype of the activations on its way into the checkpoint."""

    def store_checkpoint(self, slots: Ints, states: Array) -> None:
        """A buffer of the wrong dtype between registers and memory."""
        super().store_checkpoint(slots, rounded(states, self.setup.dtypes.activation))


class SnapshotThroughActivations(Snapshots):
    """A snapshot takes the dtype of the activations on its way into the checkpoint."""

    def store_checkpoint(self, slots: Ints, states: Array) -> None:
        """A buffer of the wrong dtype between the two."""
        super().store_checkpoint(slots, rounded(states, self.setup.dtypes.activation))


class FoldDropsLowParts(Compact):
    """A fold adds up the high parts of its records alone."""

    def summands(self, name: str, slots: Ints, at: Ints, live: Mask) -> Array:
        """What a verify reads."""
        return self.records(name, slots, at, live)


BUGS: Final = (
    BetaThroughBfloat16,
    DecayThroughHalf,
    FoldReadsBetaInBfloat16,
    ValuesThroughBfloat16,
    CheckpointThroughActivations,
    SnapshotThroughActivations,
    FoldDropsLowParts,
)
