"""A pool's tensors, seen from here: in memory that the worker shares."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.judging.arrays import DTYPES
from ringfold.fuzz.target import View
from ringfold.sim.dialects import CONVOLUTION, Dialect
from ringfold.sim.setup import Setup

NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "snapshots": {"checkpoint": "temporal", "snapshots": "intermediate_ssm"},
    "ring": {
        "checkpoint": "temporal",
        "d": "replayssm_d",
        "k": "replayssm_k",
        "g": "replayssm_g",
        "rawv": "replayssm_rawv",
        "rawk": "replayssm_rawk",
        "beta": "replayssm_beta",
        "write_pos": "replayssm_write_pos",
        "cache_base": "replayssm_cache_base",
        "is_flush": "replayssm_is_flush",
    },
    "fold-every-commit": {
        "checkpoint": "temporal",
        "rawv": "replayssm_rawv",
        "rawk": "replayssm_rawk",
        "g": "replayssm_g",
        "beta": "replayssm_beta",
    },
    "compact": {
        "checkpoint": "temporal",
        "d": "replayssm_d",
        "k": "replayssm_k",
        "g": "replayssm_g",
        "d_low": "replayssm_rawv",
        "k_low": "replayssm_rawk",
        "write_pos": "replayssm_spec_write_pos",
        "cache_base": "replayssm_cache_base",
        "is_flush": "replayssm_is_flush",
    },
}
"""What a release calls each buffer of a dialect."""


def of(
    dialect: Dialect, setup: Setup, pid: int, *, file: int, memory: Mapping[str, Mapping[str, Any]]
) -> dict[str, View]:
    """By our names, what the dialect keeps of it, and the convolution's windows.

    Args:
        dialect: of the pool.
        setup: with which it was opened.
        pid: of the worker.
        file: number of its shared file, there.
        memory: where in the file each buffer lies, by the release's name.
    """
    shared = _mapped(pid, file)
    names = NAMES[dialect.name]
    shown = {
        buffer.name: View(buffer, _array(shared, **memory[names[buffer.name]]))
        for buffer in dialect.kept(setup)
        if names[buffer.name] in memory
    }
    return {**shown, CONVOLUTION.name: View(CONVOLUTION, _array(shared, **memory["conv"]))}


def _mapped(pid: int, file: int) -> mmap.mmap:
    """The worker's shared file, seen from here."""
    handle = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR)
    try:
        return mmap.mmap(handle, 0)
    finally:
        os.close(handle)


def _array(
    memory: mmap.mmap, offset: int, dtype: str, shape: Sequence[int], strides: Sequence[int]
) -> NDArray[Any]:
    return np.ndarray(tuple(shape), DTYPES[dtype], memory, offset, tuple(strides))
