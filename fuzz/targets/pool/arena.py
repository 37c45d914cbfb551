"""Memory that two processes see: a pool's tensors are allocated in it, and read and written there.

It is an anonymous file (`memfd`), so nothing is left behind however a process ends. The other
process opens it through `/proc` and maps it. A file is sparse: what is not touched takes no memory.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import torch

BYTES_MAX = 2**32
ALIGNMENT = 64


class Arena:
    """Tensors one behind the other in one shared file."""

    def __init__(self) -> None:
        self.file = os.memfd_create("ringfold-pool")
        os.ftruncate(self.file, BYTES_MAX)
        self.memory = mmap.mmap(self.file, BYTES_MAX)
        self.bytes = torch.frombuffer(self.memory, dtype=torch.uint8)
        self.used = 0

    def take(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        """A tensor of zeros in shared memory.

        Raises:
            MemoryError: there is no room left.
        """
        count = torch.Size(shape).numel() * dtype.itemsize
        start = -(-self.used // ALIGNMENT) * ALIGNMENT
        if start + count > BYTES_MAX:
            raise MemoryError(
                f"a pool of more than {BYTES_MAX} bytes: choose a smaller geometry or fewer slots"
            )
        self.used = start + count
        return self.bytes[start : start + count].view(dtype).view(torch.Size(shape))

    def where(self, tensor: torch.Tensor) -> dict[str, Any]:
        """How another process finds the same numbers in the file."""
        offset = tensor.data_ptr() - self.bytes.data_ptr()
        if not 0 <= offset < self.used:
            raise ValueError(f"a tensor of shape {list(tensor.shape)} is not in shared memory")
        return {
            "offset": offset,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "strides": [stride * tensor.element_size() for stride in tensor.stride()],
        }

    def close(self) -> None:
        """Give the file up; its memory goes when nobody has it mapped."""
        os.close(self.file)
