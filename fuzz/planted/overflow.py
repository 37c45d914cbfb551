"""Overflow handling: formulas that are right until a number leaves the range of its type."""

from __future__ import annotations

from typing import Final

import numpy as np

from ringfold.sim import recurrence
from ringfold.sim.compact import Compact
from ringfold.sim.cursors import Cursors
from ringfold.sim.decode_ring import DecodeRing
from ringfold.sim.machine import Batch, Ints, Window
from ringfold.sim.recurrence import EPSILON, Array
from ringfold.sim.ring import History, Mask, Ring

HALF_MAX: Final = 65504.0


class SoftplusOverflows(Ring):
    """Softplus has no linear branch, and log(1 + exp(x)) is infinite from x = 89 on."""

    def gates(self, a: Array, b: Array) -> tuple[Array, Array]:
        """A threshold that nothing reaches."""
        A_log, dt_bias = self.A_log[:, None, None], self.dt_bias[:, None, None]
        return recurrence.gates(a, b, A_log, dt_bias, np.inf)


class SigmoidOverflows(Ring):
    """Beta is exp(b) / (1 + exp(b)), which is infinity over infinity from b = 89 on."""

    def gates(self, a: Array, b: Array) -> tuple[Array, Array]:
        """A form that is safe for negative b."""
        grown = np.exp(b)
        return super().gates(a, b)[0], grown / (1 + grown)


class HistoryDecayAsRatio(Ring):
    """What is left of a record is a ratio of two products of gates, which both may underflow."""

    def history_decay(self, g: Array) -> Array:
        """exp(a) / exp(b) in place of exp(a - b)."""
        return np.asarray(np.exp(g.sum(-1, keepdims=True)) / np.exp(g.cumsum(-1)))


class WindowDecayAsRatio(Ring):
    """What is left of a token of the window is a ratio of two products of gates."""

    def decay_between(self, G: Array) -> Array:
        """exp(a) / exp(b) in place of exp(a - b)."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.exp(G)[..., :, None] / np.exp(G)[..., None, :])


class SquaresSaturate(Ring):
    """The sum of squares under the output path's norm stops at float16's largest number."""

    def unit_for_output(self, x: Array) -> Array:
        """A sum in half precision that saturates."""
        squares = np.minimum(np.einsum("...k,...k->...", x, x), x.dtype.type(HALF_MAX))
        root = np.sqrt(squares + x.dtype.type(EPSILON))[..., None]
        return np.asarray(x / root) if self.setup.l2norm else x


class ValuesSaturate(Ring):
    """Raw values stop at float16's largest number on their way into the ring."""

    def record(self, batch: Batch, cursors: Cursors, window: Window, d: Array, k: Array) -> None:
        """A clamp that was meant for another dtype."""
        clamped = window._replace(v=np.clip(window.v, -HALF_MAX, HALF_MAX))
        super().record(batch, cursors, clamped, d, k)


class HistoryDecayStopsShort(Ring):
    """The history's decay of the checkpoint stops at exp(-20), lest it underflow."""

    def history(self, slots: Ints, cursors: Cursors) -> History:
        """A clamp, which leaves something of what was erased."""
        history = super().history(slots, cursors)
        return history._replace(decay=np.maximum(history.decay, np.exp(-20.0)))


class FoldDecayStopsShort(Compact):
    """A fold's decay of the checkpoint stops at exp(-20), lest it underflow."""

    def summands(self, name: str, slots: Ints, at: Ints, live: Mask) -> Array:
        """The oldest record's gate is clamped, which none but the checkpoint sees."""
        values = super().summands(name, slots, at, live)
        return _stopped_short(values) if name == "g" else values


class DecodeDecayStopsShort(DecodeRing):
    """Where nothing is drafted, the decay of the checkpoint stops at exp(-20)."""

    def records(self, name: str, slots: Ints, at: Ints, live: Mask) -> Array:
        """The same."""
        values = super().records(name, slots, at, live)
        return _stopped_short(values) if name == "g" else values


def _stopped_short(gates: Array) -> Array:
    """So that they sum up to -20 or more."""
    gates[..., 0] += np.maximum(0, -20 - gates.sum(-1))
    return gates


BUGS: Final = (
    SoftplusOverflows,
    SigmoidOverflows,
    HistoryDecayAsRatio,
    WindowDecayAsRatio,
    SquaresSaturate,
    ValuesSaturate,
    HistoryDecayStopsShort,
    FoldDecayStopsShort,
    DecodeDecayStopsShort,
)
