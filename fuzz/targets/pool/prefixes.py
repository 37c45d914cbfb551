"""The release's prefix cache: who finishes leaves a state to it, who begins is seated on a copy.

The cache is the one that the release's registry builds for a model with linear attention. It keeps
a state under the tokens that it holds; here each request has a prompt of its own, and the tokens
that its steps commit are counted into it. How long a key the cache makes of it says which tokens
the state it keeps must hold.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ringfold.fuzz.targets.pool.arena import DEVICE
from ringfold.fuzz.targets.pool.requests import fed, holder, set_lengths
from ringfold.fuzz.targets.standins import Loose

TOKENS = 2**17
"""Places of the full attention's pool, which nothing here computes with; few are given back."""


class Prefixes:
    """A prefix cache over one pool, and what it keeps by the names that ringfold gave it."""

    def __init__(self, pool: Any, arguments: Any, *, tracks: bool) -> None:
        from sglang.srt.mem_cache import registry
        from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams

        self.pool = pool
        full = Loose(maybe_get_custom_mem_pool=lambda: None)
        self.allocator = TokenToKVPoolAllocator(TOKENS, torch.float32, DEVICE, full, False)
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=pool,
            token_to_kv_pool_allocator=self.allocator,
            page_size=1,
            enable_mamba_extra_buffer=tracks,
        )
        self.cache = registry.default_radix_cache_factory(
            Loose(
                params=params,
                server_args=arguments,
                is_hybrid_ssm=True,
                is_hybrid_swa=False,
                disable_radix_cache=False,
                enable_hierarchical_cache=False,
            )
        )
        self.kept: dict[int, Any] = {}
        """Tokens of each prefix."""

    def end(self, request: Any) -> int:
        """`release_kv_cache` of a request that has finished; returns how many tokens were fed."""
        from sglang.srt.managers.schedule_batch import FINISH_LENGTH, ReqKvInfo
        from sglang.srt.mem_cache.common import release_kv_cache

        count = fed(request)
        row = holder(request, "req_pool_idx").req_pool_idx
        self.pool.req_to_token[row, :count] = self.allocator.alloc(count).to(torch.int32)
        if request.kv is None:
            given = {"kv_allocated_len": count, "swa_evicted_seqlen": 0}
            request.kv = ReqKvInfo(**{k: v for k, v in given.items() if _takes(ReqKvInfo, k)})
        set_lengths(request, count)
        request.finished_reason = FINISH_LENGTH(length=count)
        insert = "checkpoint" if _takes(release_kv_cache, "checkpoint") else "is_insert"
        release_kv_cache(request, self.cache, **{insert: True})
        return count

    def finish(self, request: Any, prefix: int) -> int:
        """The same, for the sake of what is kept; returns how many of the tokens are not."""
        count = self.end(request)
        tokens = (request.origin_input_ids + request.output_ids)[:count]
        self.kept[prefix] = tokens
        kept = self._matched(prefix)
        self.kept[prefix] = tokens[:kept]
        return count - kept

    def match(self, request: Any) -> None:
        """What a scheduler asks first: how much of the prompt is kept.

        Where a state is, this takes a slot and says from where to copy into it.
        """
        request.init_next_round_input(self.cache)

    def evict(self, prefix: int) -> None:
        """Have the cache give up what was used least recently: this one, after all others were."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        del self.kept[prefix]
        for other in self.kept:
            self._matched(other)
        self.cache.evict(EvictParams(num_tokens=0, mamba_num=1))

    def _matched(self, prefix: int) -> int:
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        found = self.cache.match_prefix(MatchPrefixParams(key=RadixKey(self.kept[prefix], None)))
        indices = getattr(found, "device_indices", None)
        return int(found.device_prefix_len) if indices is None else len(indices)


def _takes(function: Any, name: str) -> bool:
    return name in inspect.signature(function).parameters
