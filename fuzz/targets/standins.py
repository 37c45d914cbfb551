"""What a release needs from outside to run on a CPU, in Triton's interpreter: no source is edited.

Runs in a release's environment, for the pools of `fuzz.targets.pool` and for the worker of
`fuzz.configure`; imports nothing of ringfold.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


class Loose:
    """A stand-in object: what it was given, and None for whatever else is read."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class OnCpu(torch.overrides.TorchFunctionMode):
    """Tensors that are asked for on a GPU are made on the CPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Every torch function that is called within the mode."""
        options = dict(kwargs or {})
        if str(options.get("device")).startswith("cuda"):
            options["device"] = "cpu"
        return func(*args, **options)


def before_import() -> None:
    """Torchvision's binary can't load beside the CPU's torch; its operators have to exist."""
    for operator in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{operator}",
            "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        )
    boolean_masks()
    # A prefill's kernels are launched within the context of their tensors' GPU.
    vars(torch.cpu)["device"] = lambda _: contextlib.nullcontext()


def boolean_masks() -> None:
    """Newer interpreters refuse masks that a comparison of scalars made integers."""
    numpy = importlib.import_module("numpy")
    builder = importlib.import_module("triton.runtime.interpreter").InterpreterBuilder
    for name, at in (("create_masked_load", 1), ("create_masked_store", 2)):
        original = getattr(builder, name)

        def masked(self: Any, *args: Any, _original: Any = original, _at: int = at) -> Any:
            mask = args[_at]  # of a block pointer an array, which holds booleans
            if not isinstance(mask, numpy.ndarray) and mask.data.dtype != numpy.bool_:
                mask.data = mask.data.astype(numpy.bool_)
            return _original(self, *args)

        setattr(builder, name, masked)


@functools.cache
def after_import() -> None:
    """What the released wrappers need where no GPU is; once a process."""
    for folder in ("fla", "linear"):
        with contextlib.suppress(ImportError):
            fold = importlib.import_module(
                f"sglang.kernels.ops.attention.{folder}.gdn_replayssm_spec_fold"
            )
            vars(fold)["range"] = _castable_range
    # These refuse tensors that do not claim to be on a GPU; nothing in them needs one.
    scatter = importlib.import_module("sglang.kernels.ops.mamba.mamba_state_scatter_triton")
    for name in ("fused_conv_window_scatter_with_mask", "fused_mamba_state_scatter_with_mask"):
        if hasattr(scatter, name):
            setattr(scatter, name, _claiming_cuda(getattr(scatter, name)))


class _Index(int):
    """A loop variable that can be cast, as where kernels are compiled: here it is Python's."""

    def to(self, *_: Any) -> _Index:
        return self


def _castable_range(*bounds: Any) -> Iterator[_Index]:
    return map(_Index, range(*(int(bound) for bound in bounds)))


def _claiming_cuda(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        torch.Tensor.is_cuda = property(lambda _: True)  # type: ignore[assignment]
        try:
            return function(*args, **options)
        finally:
            del torch.Tensor.is_cuda

    return call
