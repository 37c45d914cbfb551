"""Numbers of ringfold's as tensors where the pools are, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ringfold.fuzz.targets.pool.arena import DEVICE


def tensor(values: NDArray[Any]) -> torch.Tensor:
    """The same numbers, in memory of its own."""
    return torch.from_numpy(np.array(values)).to(DEVICE)


def indices(values: Sequence[int]) -> torch.Tensor:
    """Slots or rows, as a release passes them."""
    return torch.tensor(values, dtype=torch.int64, device=DEVICE)


def bits(tensor: torch.Tensor) -> NDArray[Any]:
    """Its elements; those of bfloat16, which NumPy has not, as integers of the same bits."""
    host = tensor.cpu()
    return (host.view(torch.int16) if host.dtype == torch.bfloat16 else host).numpy()
