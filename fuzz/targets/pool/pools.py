"""Every pool that ringfold has open, and what of a release runs them.

Everything that computes or moves state is the release's own, called by the name by which its own
code calls it. Stand-ins are the objects that only carry attributes: runner, batches.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import triton
from numpy.typing import NDArray

from ringfold.fuzz.targets import standins
from ringfold.fuzz.targets.pool import absent, shims
from ringfold.fuzz.targets.pool.arena import DEVICE
from ringfold.fuzz.targets.pool.protocol import Message
from ringfold.fuzz.targets.pool.steps import Pool

FILES = (
    "sglang.srt.mem_cache.memory_pool",
    "sglang.srt.layers.attention.hybrid_linear_attn_backend",
    "sglang.srt.layers.attention.linear.gdn_backend",
    "sglang.srt.speculative.spec_utils",
    "sglang.srt.managers.schedule_batch",
    "sglang.srt.model_executor.model_runner",
)
"""Modules whose files are part of the identity."""


class Pools:
    """Every pool that ringfold has open, by name."""

    def __init__(self) -> None:
        self.absent = absent.Finder()
        if DEVICE == "cpu":
            shims.prepare()
        else:
            sys.meta_path.append(self.absent)
        shims.leave_untuned()
        self.modules = {name: importlib.import_module(name) for name in FILES}
        if DEVICE == "cpu":
            standins.after_import()
        self.arguments = shims.publish_arguments()
        self.open_pools: dict[str, Pool] = {}

    def identity(self) -> Message:
        """Versions of what runs, and SHA-256 of the release's files that do."""
        import sglang

        files = {name.removeprefix("sglang.srt."): _digest(self.modules[name]) for name in FILES}
        versions = {"sglang": sglang.__version__, "torch": str(torch.__version__)}
        versions |= {"triton": triton.__version__, "device": "cpu (interpreter)"}
        if DEVICE == "cuda":
            versions |= {"device": torch.cuda.get_device_name()}
            versions |= {"stand-ins": ", ".join(sorted(self.absent.answered))}
        return Message("done", {**versions, **files}, [])

    def open(
        self,
        A_log: NDArray[Any],
        dt_bias: NDArray[Any],
        weight: NDArray[Any],
        *,
        pool: str,
        setup: dict[str, Any],
    ) -> Message:
        """A new pool under this name; returns where its tensors lie."""
        if pool in self.open_pools:
            self.open_pools.pop(pool).arena.close()
        self.open_pools[pool] = made = Pool(self.arguments, setup)
        parameters = zip(A_log, dt_bias, weight, strict=True)
        made.layers = [made.layer(i, *given) for i, given in enumerate(parameters)]
        made.arena.store()
        return Message("done", {"file": made.arena.file, "memory": made.memory()}, [])

    def __getattr__(self, verb: str) -> Any:
        """Any other verb is the pool's."""

        def call(*arrays: NDArray[Any], pool: str, **fields: Any) -> Message | None:
            asked = self.open_pools[pool]
            asked.arena.load()
            try:
                reply: Message | None = getattr(asked, verb)(*arrays, **fields)
            finally:
                _leave_if_broken()
                asked.arena.store()
            return reply

        return call


def _leave_if_broken() -> None:
    """End this process if the GPU refuses all further work: the next one has another context."""
    try:
        if DEVICE == "cuda":
            torch.cuda.synchronize()
    except RuntimeError:
        traceback.print_exc()
        os._exit(1)


def _digest(module: Any) -> str:
    path = Path(os.fspath(module.__file__))
    return hashlib.sha256(path.read_bytes()).hexdigest()
