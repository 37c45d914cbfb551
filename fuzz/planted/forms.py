"""Norm and gate forms: formulas that look like the right one."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ringfold.sim import recurrence
from ringfold.sim.recurrence import EPSILON, Array
from ringfold.sim.ring import Ring


class FoldMultipliesByTheReciprocal(Ring):
    """The fold normalises by a multiplication, where the recurrent kernel divides: a bit or two."""

    def unit(self, x: Array) -> Array:
        """The form of the output path."""
        return self.unit_for_output(x)


class EpsilonOutsideTheRoot(Ring):
    """The norm of the output path adds its epsilon behind the root."""

    def unit_for_output(self, x: Array) -> Array:
        """X / (|x| + 1e-6)."""
        return x / (_length(x) + x.dtype.type(EPSILON)) if self.setup.l2norm else x


class EpsilonLeftOut(Ring):
    """The norm of the output path has no epsilon, and a key of zeros becomes NaN."""

    def unit_for_output(self, x: Array) -> Array:
        """X / |x|."""
        return x / _length(x) if self.setup.l2norm else x


class OutputsSkipTheNorm(Ring):
    """The output path takes queries and keys as they come."""

    def unit_for_output(self, x: Array) -> Array:
        """Unchanged."""
        return x


class ScaleByTheDimension(Ring):
    """Queries are scaled by 1 / K and not by its root."""

    def scale(self) -> Any:
        """The exponent of another attention."""
        return self.arithmetic.compute.type(1 / self.setup.geometry.key_dim)


class SoftplusLinearTooSoon(Ring):
    """Softplus becomes linear at 4 in place of 20."""

    def gates(self, a: Array, b: Array) -> tuple[Array, Array]:
        """A threshold that a float16 would allow."""
        A_log, dt_bias = self.A_log[:, None, None], self.dt_bias[:, None, None]
        return recurrence.gates(a, b, A_log, dt_bias, 4.0)


class BiasLeftOut(Ring):
    """The decay is computed without `dt_bias`."""

    def gates(self, a: Array, b: Array) -> tuple[Array, Array]:
        """softplus(a)."""
        A_log = self.A_log[:, None, None]
        return recurrence.gates(a, b, A_log, np.zeros_like(A_log), 20.0)


class BetaUpToTwo(Ring):
    """Beta is 2 sigmoid(b), as models with negative eigenvalues have it."""

    def gates(self, a: Array, b: Array) -> tuple[Array, Array]:
        """An option of the layer left on."""
        g, beta = super().gates(a, b)
        return g, 2 * beta


class HistoryKeepsItsOwnGate(Ring):
    """A record's contribution is decayed once more, by the gate of its own token."""

    def history_decay(self, g: Array) -> Array:
        """A running sum that starts one late."""
        return np.asarray(np.exp(g.sum(-1, keepdims=True) - g.cumsum(-1) + g))


class WindowSkipsItsOwnGate(Ring):
    """A token of the window reads the state before its own decay."""

    def running_gates(self, g: Array) -> Array:
        """An exclusive running sum."""
        return g.cumsum(-1) - g


def _length(x: Array) -> Array:
    return np.asarray(np.sqrt(np.einsum("...k,...k->...", x, x)))[..., None]


BUGS: Final = (
    FoldMultipliesByTheReciprocal,
    EpsilonOutsideTheRoot,
    EpsilonLeftOut,
    OutputsSkipTheNorm,
    ScaleByTheDimension,
    SoftplusLinearTooSoon,
    BiasLeftOut,
    BetaUpToTwo,
    HistoryKeepsItsOwnGate,
    WindowSkipsItsOwnGate,
)
