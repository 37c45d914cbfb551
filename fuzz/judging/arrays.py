"""The few array operations that the walk needs, for NumPy arrays and torch tensors alike.

Everything is exact: values cross between the two without rounding (bfloat16 through its bits), and
comparisons look at bits, so that NaN equals itself and -0.0 differs from 0.0.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    return to_numpy_all([array])[0]


def to_numpy_all(each: Sequence[Any]) -> list[NDArray[Any]]:
    """The same of several arrays; a device is waited for once."""
    copies = [_sent(array) if is_torch(array) else np.array(array) for array in each]
    finish(each)
    return [_as_numpy(copy) if is_torch(copy) else copy for copy in copies]


def _sent(tensor: Any) -> Any:
    """A copy on the host, which is whole once the tensor's device has finished."""
    import torch

    if not tensor.is_cuda:
        return tensor.detach().to("cpu", copy=True)
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor.detach(), non_blocking=True)


def _as_numpy(host: Any) -> NDArray[Any]:
    """A tensor's memory as an array."""
    import torch

    if host.dtype == torch.bfloat16:
        return np.asarray(host.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(host.numpy())


def like(values: NDArray[Any], array: Any) -> Any:
    """`values` rounded to the dtype of `array`, on its device."""
    if not is_torch(array):
        return np.asarray(values).astype(array.dtype)
    return sent(values, array.device, array.dtype)


def native(index: Index, array: Any) -> Index:
    """`index` with its integer arrays where `array` lives."""
    if not is_torch(array):
        return index
    return tuple(sent(i, array.device) if isinstance(i, np.ndarray) else i for i in index)


def sent(values: NDArray[Any], device: Any, dtype: Any = None) -> Any:
    """`values` as a torch tensor on a device. A GPU is not waited for."""
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if dtype is not None:
        tensor = tensor.to(dtype)
    if torch.device(device).type == "cuda":  # it reads pinned memory when its turn comes
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def take(array: Any, index: Index) -> NDArray[Any]:
    """`array[index]` as a NumPy copy."""
    return to_numpy(array[native(index, array)])


def put(array: Any, index: Index, values: NDArray[Any]) -> None:
    """`array[index] = values`, rounded to the dtype of `array`."""
    array[native(index, array)] = like(values, array)


def fill(array: Any, index: Index, value: float) -> None:
    """`array[index] = value`."""
    there: Any = value
    if is_torch(array):  # a plain number would have to be sent, and waited for
        there = array.new_full((), value)
    array[native(index, array)] = there


def copied(array: Any, into: Any = None) -> Any:
    """A copy of the same kind, where `array` lies: in the memory of `into`, if that is alike."""
    if into is None or (into.shape, into.dtype) != (array.shape, array.dtype):
        return array.detach().clone() if is_torch(array) else np.array(array)
    into[...] = array
    return into


def bits(array: Any) -> Any:
    """The same memory seen as integers of the same width."""
    if not is_torch(array):
        return array.view(f"i{array.dtype.itemsize}")
    import torch

    return array.view(getattr(torch, f"int{8 * array.element_size()}"))


def differing(one: Any, other: Any) -> Any:
    """Where two arrays of one kind differ in a bit."""
    return bits(one) != bits(other)


def anywhere(masks: Sequence[Any]) -> list[bool]:
    """Whether each of these arrays of truths holds a true one; a device is waited for once."""
    if masks and all(is_torch(mask) for mask in masks):
        import torch

        return [bool(found) for found in torch.stack([mask.any() for mask in masks]).tolist()]
    return [bool(mask.any()) for mask in masks]


def finish(each: Sequence[Any]) -> None:
    """Wait until the devices of these arrays have done what they were asked to, once for each.

    Raises what went wrong.
    """
    devices = {array.device for array in each if is_torch(array) and array.is_cuda}
    if devices:
        import torch

        for device in devices:
            torch.cuda.synchronize(device)
