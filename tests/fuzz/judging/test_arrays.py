"""The same values and the same bits, whether NumPy or torch holds them.

A target's memory may be either, in any dtype that a setup names. What crosses between the two must
come back bit for bit, NaN, subnormal numbers and negative zero included; bfloat16, which NumPy
lacks, goes through its bits. A round trip through the other library is compared with the original.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from ringfold.fuzz.judging import arrays

torch = pytest.importorskip("torch")

FLOATS = ("float64", "float32", "float16", "bfloat16")


def odd_values(dtype: str) -> NDArray[Any]:
    """Numbers that a careless conversion loses, in `dtype`."""
    info = ml_dtypes.finfo(arrays.DTYPES[dtype])  # type: ignore[no-untyped-call]
    values = [0.0, -0.0, 1.0, -1 / 3, float("nan"), float("inf"), -float("inf")]
    odd = np.array([*values, info.max, info.smallest_subnormal], np.float64)
    return odd.astype(arrays.DTYPES[dtype])


@pytest.mark.parametrize("dtype", FLOATS)
def test_values_cross_bit_for_bit(dtype: str) -> None:
    """From NumPy to torch and back nothing changes, and torch has the same numbers."""
    values = odd_values(dtype)

    there = arrays.like(values.astype(np.float64), torch.zeros(9, dtype=getattr(torch, dtype)))
    back = arrays.to_numpy(there)

    assert back.dtype == values.dtype
    assert np.array_equal(arrays.bits(back), arrays.bits(values))
    assert there[3].item() == pytest.approx(-1 / 3, rel=1e-2)


@pytest.mark.parametrize("dtype", FLOATS)
def test_to_numpy_copies(dtype: str) -> None:
    """What is written to the copy does not reach the array, of either library."""
    values = odd_values(dtype)
    tensor = torch.ones(4, dtype=getattr(torch, dtype))

    for array in (values, tensor):
        copy = arrays.to_numpy(array)
        copy[2] = 5.0

        assert float(array[2]) == 1.0
        assert float(copy[2]) == 5.0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_take_put_and_fill_are_the_same_in_both(dtype: str) -> None:
    """Slices and walked-together integers pick the same elements, and rounding is the same."""
    start = np.arange(24, dtype=np.float64).reshape(2, 4, 3)
    plain = start.astype(arrays.DTYPES[dtype])
    tensor = arrays.like(start, torch.zeros(1, dtype=getattr(torch, dtype)))
    index = (slice(None), np.array([1, 3]), np.array([0, 2]))
    values = np.array([[0.1, 0.2], [0.3, 1e30]])

    for array in (plain, tensor):
        arrays.put(array, index, values)
        arrays.fill(array, (0, np.array([0])), -7.0)

    assert np.array_equal(arrays.bits(arrays.to_numpy(tensor)), arrays.bits(plain))
    assert np.array_equal(arrays.take(plain, index), arrays.take(tensor, index))
    assert float(plain[1, 1, 0]) == pytest.approx(0.3, rel=1e-2)
    assert float(plain[1, 1, 1]) == 16.0  # beside what was put
    assert (plain[0, 0] == -7.0).all()


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "int8"])
def test_what_differs_is_the_same_in_both(dtype: str) -> None:
    """Only bits count: one that is flipped is found, NaN and copies of NaN are alike."""
    values = odd_values(dtype) if dtype in FLOATS else np.arange(9).astype(dtype)
    there = arrays.like(values.astype(np.float64), torch.zeros(9, dtype=getattr(torch, dtype)))
    for array in (values, there):
        copy = arrays.copied(array)
        same = arrays.differing(array, copy)
        arrays.fill(copy, (np.array([0]),), -0.0 if dtype in FLOATS else 1)
        other = arrays.differing(array, copy)

        assert arrays.anywhere([same, other, same]) == [False, True, False]
        assert arrays.to_numpy(other).tolist() == [True] + 8 * [False]
        assert arrays.copied(array, copy) is copy  # the same memory again
        assert arrays.anywhere([arrays.differing(array, copy)]) == [False]


def test_several_arrays_come_back_at_once() -> None:
    """Those of either library, in order, as copies."""
    tensor, array = torch.arange(3), np.arange(4.0)

    one, two = arrays.to_numpy_all([tensor, array])
    tensor[0], array[0] = 7, 7

    assert (one.tolist(), two.tolist()) == ([0, 1, 2], [0, 1, 2, 3])


def test_bits_tell_apart_what_values_do_not() -> None:
    """NaN equals itself and the two zeros differ, in the width of the dtype."""
    a, b = np.array([np.nan, 0.0], np.float32), np.array([np.nan, -0.0], np.float32)

    assert list(arrays.bits(a) == arrays.bits(b)) == [True, False]
    assert arrays.bits(a.astype(np.float16)).dtype == np.int16


def test_torch_is_told_by_its_name() -> None:
    """Without importing it, so that the simulator alone never does."""
    assert arrays.is_torch(torch.zeros(1))
    assert not arrays.is_torch(np.zeros(1))
