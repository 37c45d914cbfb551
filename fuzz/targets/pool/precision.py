"""How exact a release's kernels are, by what they compute in and where."""

from __future__ import annotations

from ringfold.fuzz.judging.checks import eps
from ringfold.fuzz.target import IEEE, TF32, Device, Precision
from ringfold.oracle.units import UNIT
from ringfold.sim.dialects import Dialect
from ringfold.sim.setup import Setup


def precision(setup: Setup, dialect: Dialect, device: Device) -> Precision:
    """Of a pool that was opened with `setup`."""
    # Its convolution multiplies taps and projections in the dtype of the activations, and so
    # does a verify that reads a checkpoint narrower than float32.
    narrow = max(UNIT, eps(setup.dtypes.activation))
    # The interpreter has no tf32, and recurrent kernels have no dots.
    has_dots = device == "cuda" and dialect.has_ring
    dot = TF32.dot if has_dots else IEEE.dot
    fold = dot if dialect.name == "compact" and narrow == UNIT else IEEE.fold
    if setup.dtypes.state != "float32":
        dot = max(dot, narrow)
    return Precision(dot, fold, convolution=narrow, prefill=narrow)
