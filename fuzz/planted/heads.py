"""Decay or head indexing: the right number of another head or layer."""

from __future__ import annotations

from typing import Final

import numpy as np

from ringfold.sim import recurrence
from ringfold.sim.compact import Compact
from ringfold.sim.cursors import Cursors
from ringfold.sim.machine import Ints, Window
from ringfold.sim.recurrence import Array, Writes
from ringfold.sim.ring import Ring


class KeyHeadsInterleaved(Ring):
    """Value head hv reads key head hv mod H, where its group is meant."""

    def key_heads(self) -> Ints:
        """A tiled layout in place of a repeated one."""
        g = self.setup.geometry
        return np.arange(g.value_heads) % g.heads


class FoldReadsTheFirstKeyHead(Ring):
    """The fold uses the first key head's keys for all value heads."""

    def fold_writes(self, slots: Ints, cursors: Cursors, counts: Ints) -> Writes:
        """A pointer without the head's offset."""
        writes = super().fold_writes(slots, cursors, counts)
        return writes._replace(k=np.broadcast_to(writes.k[:, :, :1], writes.k.shape))


class GateOfTheFirstHead(Ring):
    """Every value head decays as the first one does."""

    def gates(self, a: Array, b: Array) -> tuple[Array, Array]:
        """A pointer without the head's offset."""
        g, beta = super().gates(a, b)
        return np.broadcast_to(g[..., :1], g.shape), beta


class HistoryDecaysByKeyHead(Ring):
    """The history of a value head decays by the gate whose index is that of its key head."""

    def history_decay(self, g: Array) -> Array:
        """Gates indexed by h where hv is meant."""
        return super().history_decay(self.shared(g))


class BiasOfTheNextHead(Ring):
    """A head's decay takes the `dt_bias` of the head behind it."""

    def gates(self, a: Array, b: Array) -> tuple[Array, Array]:
        """An offset of one."""
        A_log, dt_bias = self.A_log[:, None, None], np.roll(self.dt_bias, -1, -1)[:, None, None]
        return recurrence.gates(a, b, A_log, dt_bias, self.arithmetic.softplus_linear_from)


class ParametersOfTheFirstLayer(Ring):
    """Every layer decays with the `A_log` of the first."""

    def gates(self, a: Array, b: Array) -> tuple[Array, Array]:
        """A pointer without the layer's offset."""
        A_log, dt_bias = self.A_log[:1, None, None], self.dt_bias[:, None, None]
        return recurrence.gates(a, b, A_log, dt_bias, self.arithmetic.softplus_linear_from)


class LowKeysOfTheFirstHead(Compact):
    """What the rounding of keys cuts off is kept for the first key head alone."""

    def kept(self, window: Window, d: Array, k: Array) -> dict[str, Array]:
        """Nothing for the others."""
        records = super().kept(window, d, k)
        if "k_low" in records:
            records["k_low"][:, :, 1:] = 0
        return records


BUGS: Final = (
    KeyHeadsInterleaved,
    FoldReadsTheFirstKeyHead,
    GateOfTheFirstHead,
    HistoryDecaysByKeyHead,
    BiasOfTheNextHead,
    ParametersOfTheFirstLayer,
    LowKeysOfTheFirstHead,
)
