"""What it takes to import and run a release, most of it on a CPU: no source is edited.

Each shim says what would fail without it.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ringfold.fuzz.targets.pool.arena import DEVICE

SCATTER = "sglang.kernels.ops.mamba.mamba_state_scatter_triton"
SCATTERS = ("fused_conv_window_scatter_with_mask", "fused_mamba_state_scatter_with_mask")
_forever = contextlib.ExitStack()
FOLDS = (
    "sglang.kernels.ops.attention.fla.gdn_replayssm_spec_fold",
    "sglang.kernels.ops.attention.linear.gdn_replayssm_spec_fold",
)


def prepare() -> None:
    """Before the release is imported."""
    # torchvision's binary is a CUDA build, and importing it registers operators for these.
    for name in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
    os.environ["TRITON_INTERPRET"] = "1"
    from ringfold.fuzz.targets import fast_triton

    _forever.enter_context(
        fast_triton.standing_in([one for one in fast_triton.STAND_INS if one.fits()])
    )
    _boolean_masks()
    # A prefill's kernels are launched within the context of their tensors' GPU.
    vars(torch.cpu)["device"] = lambda index: contextlib.nullcontext()


def apply() -> None:
    """After it is imported."""
    # These refuse tensors that do not claim to be on a GPU; nothing in them needs one.
    scatter = importlib.import_module(SCATTER)
    for name in SCATTERS:
        if hasattr(scatter, name):
            setattr(scatter, name, _claiming_cuda(getattr(scatter, name)))
    # In the interpreter a loop variable is a Python int; the fold casts it.
    for name in FOLDS:
        with contextlib.suppress(ImportError):
            _module(name).__dict__["range"] = _castable_range


def publish_arguments() -> Any:
    """Server arguments as a scheduler publishes them, with a model that is never looked for."""
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    arguments = ServerArgs(
        model_path="dummy", speculative_eagle_topk=1, linear_attn_backend="triton", page_size=1
    )
    arguments._mamba_cache_chunk_size = 64  # else later releases look for the model's configuration
    set_global_server_args_for_scheduler(arguments)
    return arguments


class Allocating(TorchFunctionMode):
    """Tensors that a pool asks for on a GPU come from `take` (shape, dtype), filled as asked."""

    def __init__(self, take: Callable[[Any, torch.dtype], torch.Tensor]) -> None:
        super().__init__()
        self.take = take

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Every torch function that is called within the mode."""
        named = dict(kwargs or {})
        if str(named.get("device", "")).startswith("cuda"):
            named["device"] = DEVICE
        made = func(*args, **named)
        if func not in {torch.zeros, torch.empty, torch.full, torch.ones} or not made.numel():
            return made
        if made.device.type != DEVICE:
            return made
        return self.take(made.shape, made.dtype).copy_(made)


class Poisoning(TorchFunctionMode):
    """Floating-point memory that is taken uninitialised holds NaN: what is not written shows."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Every torch function that is called within the mode."""
        made = func(*args, **(kwargs or {}))
        fresh = {torch.empty, torch.empty_like, torch.Tensor.new_empty}
        if func in fresh and made.is_floating_point():
            made.fill_(float("nan"))
        return made


class Copying(TorchFunctionMode):
    """Moving a tensor to the host makes a copy, as from a GPU; here it would be the same memory.

    From a GPU it is a copy anyhow, which may be under way when the call returns.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Every torch function that is called within the mode."""
        made = func(*args, **(kwargs or {}))
        if DEVICE == "cpu" and func in {torch.Tensor.to, torch.Tensor.cpu}:
            return made.clone()
        return made


class Unpinned(TorchFunctionMode):
    """Memory that is pinned for a GPU is ordinary memory."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Every torch function that is called within the mode."""
        named = dict(kwargs or {})
        named.pop("pin_memory", None)
        return func(*args, **named)


class Permissive:
    """A stand-in object: what it was given, and None for whatever else is read from it."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def _module(name: str) -> ModuleType:
    return importlib.import_module(name)


def _claiming_cuda(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        torch.Tensor.is_cuda = property(lambda tensor: True)  # type: ignore[assignment]
        try:
            return function(*arguments, **named)
        finally:
            del torch.Tensor.is_cuda

    return call


class _Step(int):
    """A loop counter that can be cast, as it can where kernels are compiled."""

    def to(self, *dtype: object) -> _Step:
        """Itself."""
        return self


def _castable_range(*bounds: Any) -> Iterator[_Step]:
    return map(_Step, builtins.range(*(int(bound) for bound in bounds)))


def _boolean_masks() -> None:
    """Newer interpreters refuse masks that a comparison of scalars made integers."""
    import numpy as np
    from triton.runtime.interpreter import InterpreterBuilder

    for name, at in (("create_masked_load", 1), ("create_masked_store", 2)):
        original = getattr(InterpreterBuilder, name)

        def call(
            self: Any, *arguments: Any, original: Any = original, at: int = at, **named: Any
        ) -> Any:
            mask = arguments[at]  # of a block pointer an array, which holds booleans
            if not isinstance(mask, np.ndarray) and mask.data.dtype != np.bool_:
                mask.data = mask.data.astype(np.bool_)
            return original(self, *arguments, **named)

        setattr(InterpreterBuilder, name, call)


def leave_untuned() -> None:
    """Launch what would be tuned in the first of its configurations.

    A prefill's kernels are: dozens of each are compiled and timed, which takes a GPU, and minutes.
    """
    from triton.runtime.autotuner import Autotuner

    def run(self: Any, *arguments: Any, **named: Any) -> Any:
        return self.fn.run(*arguments, **{**named, **self.configs[0].all_kwargs()})

    Autotuner.run = run
