"""How numbers are kept and multiplied: storage dtypes, and tensor cores' view of a float32.

A machine computes in one dtype (`Arithmetic.compute`) and stores each buffer in the dtype of its
role. `EXACT` is float64 throughout; `EMULATED` and `EMULATED_TF32` do what the kernels do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ringfold.sim.dialects import Role
from ringfold.sim.setup import Setup

DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}

TF32_DROPPED: Final = np.uint32(13)
"""Bits of a float32 mantissa that a tf32 operand lacks: 23 - 10."""


def rounded(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """`values` as the storage dtype named `dtype` keeps them, in the dtype that they came in.

    Rounds to nearest even; what exceeds the range becomes infinite.
    """
    with np.errstate(over="ignore"):
        return values.astype(DTYPES[dtype]).astype(values.dtype)


def tf32_truncated(values: NDArray[Any]) -> NDArray[Any]:
    """float32 operands cut to tf32's 10 mantissa bits, as Triton 3.6 hands them to `tl.dot`."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits >> TF32_DROPPED) << TF32_DROPPED).view(np.float32)


def tf32_rounded(values: NDArray[Any]) -> NDArray[Any]:
    """float32 operands rounded to tf32's 10 mantissa bits, nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    odd = (bits >> TF32_DROPPED) & np.uint32(1)
    up = bits + np.uint32((1 << 12) - 1) + odd
    # Adding to the bits of a NaN could turn it into a number.
    return tf32_truncated(np.where(np.isfinite(values), up, bits).view(np.float32))


def as_it_is(values: NDArray[Any]) -> NDArray[Any]:
    """An operand that a dot product takes at full precision."""
    return values


def storage(setup: Setup, role: Role) -> np.dtype[Any]:
    """Dtype in which implementations keep a buffer of this role."""
    match role:
        case "state":
            return DTYPES[setup.dtypes.state]
        case "record":
            return DTYPES[setup.dtypes.record]
        case "activation":
            return DTYPES[setup.dtypes.activation]
        case "gate":
            return np.dtype(np.float32)
        case "position":
            return np.dtype(np.int32)
        case "flag":
            return np.dtype(np.int8)


class Arithmetic(NamedTuple):
    """The precision of a machine."""

    name: str
    compute: np.dtype[Any]
    operand: Callable[[NDArray[Any]], NDArray[Any]]
    """What a dot product of the output path makes of its operands; a state never sees it, but in
    `decode-ring`, which stores the state that an output was read from."""
    softplus_linear_from: float
    """From here on softplus(x) is x: the next term, exp(-x), is under the dtype's resolution."""

    def storage(self, setup: Setup, role: Role) -> np.dtype[Any]:
        """Dtype of a machine's buffer of this role; exact machines keep all floats in float64."""
        keeps_integers = role in ("position", "flag")
        return storage(setup, role) if self.emulates or keeps_integers else self.compute

    def output(self, setup: Setup) -> np.dtype[Any]:
        """Dtype of what a verify returns."""
        return DTYPES[setup.dtypes.activation] if self.emulates else self.compute

    @property
    def emulates(self) -> bool:
        """Whether numbers are stored as an implementation stores them."""
        return self.compute != DTYPES["float64"]


EXACT: Final = Arithmetic("exact", DTYPES["float64"], as_it_is, softplus_linear_from=40.0)
EMULATED: Final = Arithmetic("emulated", DTYPES["float32"], as_it_is, softplus_linear_from=20.0)
EMULATED_TF32: Final = EMULATED._replace(name="emulated tf32", operand=tf32_truncated)
