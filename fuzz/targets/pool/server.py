"""What a server builds when it starts: a pool, its prefix cache, layers, and their backends."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from numpy.typing import NDArray

from ringfold.fuzz.targets.pool import shims
from ringfold.fuzz.targets.pool.arena import DEVICE, Arena, DeviceArena
from ringfold.fuzz.targets.pool.prefixes import Prefixes
from ringfold.fuzz.targets.pool.tensors import tensor
from ringfold.fuzz.targets.standins import Loose

FULL_TOKENS = 2**14
"""How long a request may get; of it nothing is computed but keys of prefixes."""


TRACKING_SLOTS = 2
"""Of each request, written in turn: with overlapped scheduling, as is the default."""
PROMPT_SLOTS = 2
"""Of each request, in 16 bits: what the cache keeps of its prompt while it goes on, and of another
prompt that shares some of it."""


class Server:
    """One `HybridReqToTokenPool` with the attention backends that use it."""

    layers: list[Any]
    """`RadixLinearAttention`, one a layer of the model."""

    def __init__(self, arguments: Any, setup: dict[str, Any]) -> None:
        self.setup, self.arena = setup, Arena() if DEVICE == "cpu" else DeviceArena()
        self.pool = self._pool()
        self.prefixes = Prefixes(self.pool, arguments, tracks=setup["tracks"])
        self.runner = self._runner(arguments)
        self.backends: dict[int, Any] = {}
        """By draft count: a server that changes it has a backend for each."""

    def _pool(self) -> Any:
        from sglang.srt.configs.mamba_utils import (
            Mamba2CacheParams,
            Mamba2StateDType,
            Mamba2StateShape,
        )
        from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

        s = self.setup
        shape = Mamba2StateShape.create(
            tp_world_size=1,
            intermediate_size=s["value_heads"] * s["value_dim"],
            n_groups=s["heads"],
            num_heads=s["value_heads"],
            head_dim=s["value_dim"],
            state_size=s["key_dim"],
            conv_kernel=s["width"],
        )
        dtype = Mamba2StateDType(
            conv=getattr(torch, s["activation"]), temporal=getattr(torch, s["state"])
        )
        layers = list(range(s["layers"]))
        accepted = inspect.signature(HybridReqToTokenPool.__init__).parameters
        flags = ("enable_linear_replayssm_spec", "enable_gdn_replayssm_spec")
        flag = next(flag for flag in flags if flag in accepted)
        running = s["slots"] - 1
        each, spare = 1, 0
        if s["tracks"]:
            prompts = PROMPT_SLOTS * (s["activation"] != "float32")
            each += TRACKING_SLOTS + prompts
            spare = prompts  # the new one is there before the old one is given up
        with shims.Allocating(self.arena.take):
            return HybridReqToTokenPool(
                size=running,
                mamba_size=running * each + spare,
                mamba_spec_state_size=running,
                max_context_len=FULL_TOKENS,
                device=DEVICE,
                enable_memory_saver=False,
                cache_params=Mamba2CacheParams(shape=shape, layers=layers, dtype=dtype),
                mamba_layer_ids=layers,
                enable_mamba_extra_buffer=s["tracks"],
                speculative_num_draft_tokens=s["window"],
                speculative_eagle_topk=1,
                enable_overlap_schedule=s["tracks"],
                start_layer=0,
                linear_replayssm_cache_len=s["ring"],
                **{flag: s["replay"]},
            )

    def _runner(self, arguments: Any) -> Any:
        from sglang.srt.configs import Qwen3NextConfig
        from sglang.srt.layers.attention.linear import utils

        runner: Any = Loose(
            device=DEVICE,
            server_args=arguments,
            is_draft_worker=False,
            req_to_token_pool=self.pool,
            model_config=Loose(
                hf_config=Qwen3NextConfig(), hf_text_config=Qwen3NextConfig(), is_draft_model=False
            ),
        )
        if hasattr(utils, "resolve_linear_attn_backends"):
            runner.linear_attn_backends = utils.resolve_linear_attn_backends()
        return runner

    def _backend(self, drafts: int) -> Any:
        """The attention backend that verifies windows of so many tokens, as the runner's own."""
        from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend
        from sglang.srt.layers.attention.linear.gdn_backend import GDNAttnBackend

        if drafts not in self.backends:
            full = Loose(req_to_token_pool=self.pool, needs_cpu_seq_lens=False)
            linear = GDNAttnBackend(self.runner)
            running = self.setup["slots"] - 1
            linear.init_cuda_graph_state(running, running * drafts)
            self.backends[drafts] = HybridLinearAttnBackend(full, linear, [])
        self.runner.attn_backend = self.backends[drafts]
        return self.runner.attn_backend

    def layer(
        self, number: int, A_log: NDArray[Any], dt_bias: NDArray[Any], weight: NDArray[Any]
    ) -> Any:
        """A layer of a model; a convolution is followed by SiLU, as in all of them."""
        from sglang.srt.layers.radix_linear_attention import RadixLinearAttention

        s = self.setup
        return RadixLinearAttention(
            number,
            s["heads"],
            s["heads"],
            s["value_heads"],
            s["key_dim"],
            s["key_dim"],
            s["value_dim"],
            conv_weights=tensor(weight).to(getattr(torch, s["activation"])),
            bias=None,
            activation="silu" if s["convolution"] else None,
            A_log=tensor(A_log),
            dt_bias=tensor(dt_bias),
        )

    def memory(self) -> dict[str, dict[str, Any]]:
        """Where each buffer lies that was asked for and is there, by the release's name."""
        pool, cache = self.pool.mamba_pool, self.pool.mamba_pool.mamba_cache
        found = {"conv": cache.conv[0]}
        for name in self.setup["buffers"]:
            in_cache = getattr(cache, name, None)
            found[name] = getattr(pool, name, None) if in_cache is None else in_cache
        return {name: self.arena.where(t) for name, t in found.items() if t is not None}
