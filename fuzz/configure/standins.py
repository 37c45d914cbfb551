"""What a release needs from outside to run on a CPU, in Triton's interpreter.

Runs in a release's environment, from `worker.py` and `exercise.py`; imports nothing of ringfold.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping
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


class _Index(int):
    def to(self, *_: Any) -> _Index:
        return self


def before_import() -> None:
    """Torchvision's binary can't load beside the CPU's torch; its operators have to exist."""
    for operator in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{operator}",
            "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        )


def before_running() -> None:
    """What the released kernels and their wrappers need where no GPU is."""
    vars(torch.cpu).setdefault("device", lambda _: contextlib.nullcontext())
    numpy = importlib.import_module("numpy")
    builder = importlib.import_module("triton.runtime.interpreter").InterpreterBuilder
    for name, at in (("create_masked_load", 1), ("create_masked_store", 2)):
        original = getattr(builder, name)

        def masked(self: Any, *args: Any, _original: Any = original, _at: int = at) -> Any:
            if args[_at].data.dtype != numpy.bool_:  # comparing block with scalar gives ints
                args[_at].data = args[_at].data.astype(numpy.bool_)
            return _original(self, *args)

        setattr(builder, name, masked)
    for folder in ("fla", "linear"):  # a loop bound that was loaded gives Python's ints
        with contextlib.suppress(ImportError):
            fold = importlib.import_module(
                f"sglang.kernels.ops.attention.{folder}.gdn_replayssm_spec_fold"
            )
            vars(fold)["range"] = lambda *a: map(_Index, range(*(int(x) for x in a)))
    scatter = importlib.import_module("sglang.kernels.ops.mamba.mamba_state_scatter_triton")
    for name in ("fused_conv_window_scatter_with_mask", "fused_mamba_state_scatter_with_mask"):
        if hasattr(scatter, name):
            setattr(scatter, name, _as_if_on_cuda(getattr(scatter, name)))


def _as_if_on_cuda(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        torch.Tensor.is_cuda = property(lambda _: True)  # type: ignore[assignment]
        try:
            return function(*args, **options)
        finally:
            del torch.Tensor.is_cuda

    return call
