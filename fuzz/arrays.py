"""The few array operations that the walk needs, for NumPy arrays and torch tensors alike.

Everything is exact: values cross between the two without rounding (bfloat16 through its bits), and
comparisons look at bits, so that NaN equals itself and -0.0 differs from 0.0.
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

DTYPES: Final = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int32": np.dtype(np.int32),
    "int8": np.dtype(np.int8),
}

Index = tuple[Any, ...]
"""One entry an axis: a slice, or integer arrays of equal length that are walked together."""


def is_torch(array: Any) -> bool:
    """Whether `array` is a torch tensor, without importing torch."""
    return type(array).__module__.partition(".")[0] == "torch"


def to_numpy(array: Any) -> NDArray[Any]:
    """A NumPy copy of the same values in the same dtype, on the host."""
    if not is_torch(array):
        return np.array(array)
    import torch

    host = array.detach().cpu()
    if host.dtype == torch.bfloat16:
        host = host.contiguous().view(torch.int16)
        return np.array(host.numpy().view(ml_dtypes.bfloat16))
    return np.array(host.numpy())


def like(values: NDArray[Any], array: Any) -> Any:
    """`values` rounded to the dtype of `array`, on its device."""
    if not is_torch(array):
        return np.asarray(values).astype(array.dtype)
    import torch

    return torch.from_numpy(np.ascontiguousarray(values)).to(array.device, array.dtype)


def native(index: Index, array: Any) -> Index:
    """`index` with its integer arrays where `array` lives."""
    if not is_torch(array):
        return index
    import torch

    return tuple(
        torch.from_numpy(np.ascontiguousarray(i)).to(array.device)
        if isinstance(i, np.ndarray)
        else i
        for i in index
    )


def take(array: Any, index: Index) -> NDArray[Any]:
    """`array[index]` as a NumPy copy."""
    return to_numpy(array[native(index, array)])


def put(array: Any, index: Index, values: NDArray[Any]) -> None:
    """`array[index] = values`, rounded to the dtype of `array`."""
    array[native(index, array)] = like(values, array)


def fill(array: Any, index: Index, value: float) -> None:
    """`array[index] = value`."""
    array[native(index, array)] = value


def bits(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory seen as integers of the same width."""
    return array.view(f"i{array.dtype.itemsize}")
