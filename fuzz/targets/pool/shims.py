"""What it takes to import a release and run its pool, beyond `fuzz.targets.standins`.

Each shim says what would fail without it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ringfold.fuzz.targets import standins
from ringfold.fuzz.targets.pool.arena import DEVICE
from ringfold.fuzz.targets.pool.pages import CHUNK, PAGE

_forever = contextlib.ExitStack()


def prepare() -> None:
    """Before the release is imported."""
    os.environ["TRITON_INTERPRET"] = "1"
    from ringfold.fuzz.targets import fast_triton

    _forever.enter_context(
        fast_triton.standing_in([one for one in fast_triton.STAND_INS if one.fits()])
    )
    standins.before_import()


def publish_arguments() -> Any:
    """Server arguments as a scheduler publishes them, with a model that is never looked for."""
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    arguments = ServerArgs(
        model_path="dummy",
        speculative_eagle_topk=1,
        linear_attn_backend="triton",
        page_size=PAGE,
        strip_thinking_cache=True,  # of requests that think, and none does unless a trace says so
    )
    arguments._mamba_cache_chunk_size = CHUNK  # else they look for the model's configuration
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


def leave_untuned() -> None:
    """Launch what would be tuned in the first of its configurations.

    A prefill's kernels are: dozens of each are compiled and timed, which takes a GPU, and minutes.
    """
    from triton.runtime.autotuner import Autotuner

    def run(self: Any, *arguments: Any, **named: Any) -> Any:
        return self.fn.run(*arguments, **{**named, **self.configs[0].all_kwargs()})

    Autotuner.run = run
