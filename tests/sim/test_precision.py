"""Storage rounds to nearest even, and a tf32 operand keeps ten bits.

Expected values are written by hand: 1 + 2^-k is on the grid of a type with k mantissa bits and
halfway between two of its numbers with k - 1.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ringfold.sim.dialects import RING_DIALECT, Role
from ringfold.sim.precision import (
    EMULATED,
    EMULATED_TF32,
    EXACT,
    rounded,
    storage,
    tf32_rounded,
    tf32_truncated,
)
from ringfold.sim.setup import Dtypes, Geometry, Setup

SETUP = Setup(
    dialect="ring",
    geometry=Geometry(1, 1, 4, 4),
    ring=8,
    window=2,
    slots=2,
    dtypes=Dtypes(activation="bfloat16", record="float16", state="float32"),
)


@pytest.mark.parametrize(
    ("dtype", "bits"), [("float64", 52), ("float32", 23), ("float16", 10), ("bfloat16", 7)]
)
def test_storage_rounds_to_nearest_even(dtype: str, bits: int) -> None:
    """One bit more than the type has is a tie, which goes to the even neighbour."""
    last, x = 2.0**-bits, np.longdouble(1)
    tie = np.array([x + last / 2, x + 3 * last / 2], np.longdouble)

    assert rounded(np.array([1 + last]), dtype) == 1 + last
    assert np.array_equal(rounded(tie, dtype), [1, 1 + 2 * last])


def test_storage_overflows_to_infinity() -> None:
    """Without a warning, as a kernel's store does."""
    assert rounded(np.array([1e5]), "float16") == np.inf
    assert rounded(np.array([1e5]), "bfloat16") == 99_840.0


@pytest.mark.parametrize("sign", [1, -1])
def test_a_tf32_operand_keeps_ten_bits(sign: int) -> None:
    """Truncation goes towards zero; rounding goes to the nearest, ties to even."""
    last = 2.0**-10
    x = sign * np.array([1, 1 + last, 1 + last / 2, 1 + 0.75 * last, 1 + 1.5 * last], np.float32)

    assert np.array_equal(tf32_truncated(x), sign * np.array([1, 1 + last, 1, 1, 1 + last]))
    assert np.array_equal(
        tf32_rounded(x), sign * np.array([1, 1 + last, 1, 1 + last, 1 + 2 * last])
    )


def test_tf32_leaves_special_values_alone() -> None:
    """Infinities, NaN and zeros of either sign; rounding may carry into infinity."""
    x = np.array([np.inf, -np.inf, 0.0, -0.0], np.float32)
    largest = np.array([np.finfo(np.float32).max])

    for cut in (tf32_truncated, tf32_rounded):
        assert cut(x).tobytes() == x.tobytes()
        assert np.isnan(cut(np.array([np.nan], np.float32))).all()
    assert np.isfinite(tf32_truncated(largest)).all()
    assert np.isinf(tf32_rounded(largest)).all()


@pytest.mark.parametrize(
    ("role", "stored", "exact"),
    [
        ("state", np.float32, np.float64),
        ("record", np.float16, np.float64),
        ("gate", np.float32, np.float64),
        ("position", np.int32, np.int32),
        ("flag", np.int8, np.int8),
    ],
)
def test_a_role_has_a_dtype(role: Role, stored: type, exact: type) -> None:
    """As implementations keep it; an exact machine keeps all floats in float64."""
    assert storage(SETUP, role) == EMULATED.storage(SETUP, role) == stored
    assert EXACT.storage(SETUP, role) == exact


def test_outputs_come_in_the_dtype_of_the_activations() -> None:
    """But exact ones in float64."""
    assert EMULATED_TF32.output(SETUP) == ml_dtypes.bfloat16
    assert EXACT.output(SETUP) == np.float64


def test_every_role_of_the_ring_has_a_dtype() -> None:
    """None is forgotten."""
    assert all(storage(SETUP, buffer.role).itemsize for buffer in RING_DIALECT.buffers)
