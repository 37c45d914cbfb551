"""Memory that two processes see: a pool's tensors are allocated in it, and read and written there.

It is an anonymous file (`memfd`), so nothing is left behind however a process ends. The other
process opens it through `/proc` and maps it. A file is sparse: what is not touched takes no memory.

On a GPU a tensor lies where the release would have it, and the file is what it held after the last
request and holds before the next: what the other process wrote there in between goes to the GPU.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import torch

DEVICE = os.environ.get("RINGFOLD_POOL_DEVICE", "cpu")
"""Where this process has its pools: cpu or cuda."""

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
        return {
            "offset": self.offset(tensor),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "strides": [stride * tensor.element_size() for stride in tensor.stride()],
        }

    def offset(self, tensor: torch.Tensor) -> int:
        """Where in the file its first element is."""
        offset = tensor.data_ptr() - self.bytes.data_ptr()
        if not 0 <= offset < self.used:
            raise ValueError(f"a tensor of shape {list(tensor.shape)} is not in shared memory")
        return offset

    def load(self) -> None:
        """Make the tensors what the file says; here they are the file."""

    def store(self) -> None:
        """Make the file what the tensors hold; here they are the file."""

    def close(self) -> None:
        """Give the file up; its memory goes when nobody has it mapped."""
        os.close(self.file)


class DeviceArena(Arena):
    """Tensors on a GPU, each with its place in the file."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        """On the GPU, in the file."""

    def take(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        """A tensor of zeros on the GPU."""
        there = torch.zeros(torch.Size(shape), dtype=dtype, device="cuda")
        self.pairs.append((there, super().take(shape, dtype)))
        return there

    def offset(self, tensor: torch.Tensor) -> int:
        """Where in the file the first element of a tensor, or of a part of one, is."""
        for there, here in self.pairs:
            within = tensor.data_ptr() - there.data_ptr()
            if 0 <= within < there.nbytes:
                return super().offset(here) + within
        raise ValueError(f"a tensor of shape {list(tensor.shape)} is not of this pool")

    def load(self) -> None:
        """Copy the file to the GPU."""
        for there, here in self.pairs:
            there.copy_(here)

    def store(self) -> None:
        """Wait for the GPU, and copy what it holds to the file."""
        torch.cuda.synchronize()
        for there, here in self.pairs:
            here.copy_(there)
