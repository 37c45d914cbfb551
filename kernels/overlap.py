"""Kernels that start while the one before them still runs (programmatic dependent launch).

A kernel launched with `launch_pdl` may start as soon as every program of the kernel before it has
called `let_next_start` or has ended.  What that kernel wrote is there after `wait_for_last`, and so
is all that came before it, since every kernel here waits before it ends.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

HOPPER = 9
"""Its major compute capability: the first that can."""


@triton.jit
def let_next_start(OVERLAP: tl.constexpr):
    """The kernel behind this one may start, as far as there are places."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_last(OVERLAP: tl.constexpr):
    """Go on when the kernel before this one has ended."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()


@functools.cache
def generation(device: torch.device) -> int:
    """Major compute capability of the NVIDIA GPU that kernels are compiled for, else 0."""
    if not isinstance(wait_for_last, triton.JITFunction) or torch.version.hip is not None:
        return 0
    return torch.cuda.get_device_capability(device)[0]


def can_overlap(device: torch.device) -> bool:
    """Whether kernels on `device` can be launched so."""
    return generation(device) >= HOPPER
