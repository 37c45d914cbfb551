"""The release's prefix cache: who finishes leaves a state to it, who begins is seated on a copy.

The cache is the one that the release's registry builds for a model with linear attention. It keeps
a state under the tokens that it holds; here each request has a prompt of its own, and the tokens
that its steps commit are counted into it. How long a key the cache makes of it says which tokens
the state it keeps must hold.
"""

from __future__ import annotations

import inspect
from array import array
from typing import Any

import torch

from ringfold.fuzz.targets.pool.arena import DEVICE
from ringfold.fuzz.targets.pool.pages import PAGE, whole
from ringfold.fuzz.targets.pool.requests import fed, holder, set_lengths
from ringfold.fuzz.targets.standins import Loose

LAST = 2**62
"""Tokens about it no prompt has."""
TOKENS = 2**17
"""Places of the full attention's pool, which nothing here computes with; few are given back."""


class Prefixes:
    """A prefix cache over one pool, and what it keeps by the names that ringfold gave it."""

    def __init__(self, pool: Any, arguments: Any, *, tracks: bool) -> None:
        from sglang.srt.mem_cache import registry
        from sglang.srt.mem_cache.allocator import (
            PagedTokenToKVPoolAllocator,
            TokenToKVPoolAllocator,
        )
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams

        self.pool = pool
        full = Loose(maybe_get_custom_mem_pool=lambda: None)
        given = (torch.float32, DEVICE, full, False)
        if PAGE > 1:
            self.allocator = PagedTokenToKVPoolAllocator(TOKENS, PAGE, *given)
        else:
            self.allocator = TokenToKVPoolAllocator(TOKENS, *given)
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=pool,
            token_to_kv_pool_allocator=self.allocator,
            page_size=PAGE,
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
        self.prompts: dict[str, Any] = {}
        """Tokens of what else it keeps, by the request that goes on from there."""
        self.others: list[tuple[Any, int]] = []
        """Tokens and slots of prompts that share some with a request's, until that is there."""
        self.named: dict[str, int] = {}
        """For how many tokens of a request there are places for keys and values."""

    def publish(self, request: Any) -> bool:
        """What a scheduler does behind a prefill: the cache takes what was stored of the prompt.

        Returns whether it did. The request goes on, and holds on to that, so that what was taken of
        it before may be evicted.
        """
        from sglang.srt.mem_cache import common

        before = _protected(request)
        self._name_places(request, fed(request))
        if hasattr(common, "checkpoint_kv_cache"):
            common.checkpoint_kv_cache(request, self.cache)
        else:
            common.maybe_cache_unfinished_req(request, self.cache)
        if (count := _protected(request)) == before:
            return False
        older = self.prompts.get(request.rid)
        self.prompts[request.rid] = request.origin_input_ids[:count]
        if older is not None:
            self._give_up(older)
        return True

    def share(self, request: Any, count: int) -> None:
        """Have another request have left its prompt, which begins with `count` tokens of this one.

        Of these the cache has no state then, only of where that prompt ends. As a scheduler does,
        the request notes what the cache says of where they part.
        """
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        other = LAST - PAGE * int(request.rid)
        tokens = request.origin_input_ids[:count] + array("q", range(other, other + PAGE))
        places, slot = self.allocator.alloc(len(tokens)), self.pool.mamba_allocator.alloc(1)
        key = RadixKey(tokens, None)
        self.cache.insert(InsertParams(key=key, value=places.to(torch.int64), mamba_value=slot))
        self.others.append((tokens, int(slot)))
        asked = MatchPrefixParams(key=RadixKey(request.origin_input_ids, None))
        request.mamba_branching_seqlen = self.cache.match_prefix(asked).mamba_branching_seqlen

    def forget_others(self) -> None:
        """Have the cache give up what others have left to share."""
        while self.others:
            tokens, slot = self.others[-1]
            self._give_up(tokens)
            self.others.pop()
            if slot not in self.pool.mamba_allocator.free_slots.tolist():
                raise RuntimeError(f"the prefix cache did not give up slot {slot}")

    def forget(self, request: Any) -> None:
        """Have the cache give up what a request left there that no prefix is named after."""
        self.named.pop(request.rid, None)
        tokens = self.prompts.pop(request.rid, None)
        if tokens is not None and tokens not in self.kept.values():
            self._give_up(tokens)

    def end(self, request: Any, *, insert: bool = True, ahead: int = 0) -> int:
        """`release_kv_cache` of a request that has finished; returns how many tokens were fed.

        The last `ahead` of them are of steps whose results nobody will look at.
        """
        from sglang.srt.managers.schedule_batch import FINISH_LENGTH, ReqKvInfo
        from sglang.srt.mem_cache.common import release_kv_cache

        count = fed(request) + ahead
        self._name_places(request, count)
        if request.kv is None:
            given = {"kv_allocated_len": count, "swa_evicted_seqlen": 0}
            request.kv = ReqKvInfo(**{k: v for k, v in given.items() if _takes(ReqKvInfo, k)})
        set_lengths(request, count)
        request.finished_reason = FINISH_LENGTH(length=count)
        flag = "checkpoint" if _takes(release_kv_cache, "checkpoint") else "is_insert"
        release_kv_cache(request, self.cache, **{flag: insert})
        return count

    def finish(self, request: Any, prefix: int, *, ahead: int) -> tuple[int, int]:
        """The same, for the sake of what is kept.

        Returns how many tokens were fed, and of how many of them the cache has a state.
        """
        count = self.end(request, ahead=ahead)
        tokens = (request.origin_input_ids + request.output_ids)[:count]
        kept = self._matched(tokens)
        if kept:
            self.kept[prefix] = tokens[:kept]
        self.forget(request)
        return count, kept

    def match(self, request: Any) -> None:
        """What a scheduler asks first: how much of the prompt is kept.

        Where a state is, this takes a slot and says from where to copy into it.
        """
        request.init_next_round_input(self.cache)

    def evict(self, prefix: int) -> None:
        """Have the cache give a prefix up."""
        self._give_up(self.kept.pop(prefix))

    def _give_up(self, tokens: Any) -> None:
        """Evict what was used least recently: this one, after all others were.

        To use a prefix is to use all that it begins with, so who begins with this one comes first.
        """
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        count = len(tokens)
        others = [*self.kept.values(), *self.prompts.values()]
        others += [shared for shared, _ in self.others]
        for other in sorted(others, key=lambda other: other[:count] != tokens):
            if other != tokens:
                self._matched(other)
        self.cache.evict(EvictParams(num_tokens=0, mamba_num=1))

    def _matched(self, tokens: Any) -> int:
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        found = self.cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens, None)))
        indices = getattr(found, "device_indices", None)
        return int(found.device_prefix_len) if indices is None else len(indices)

    def _name_places(self, request: Any, count: int) -> None:
        """Give its first `count` tokens places for keys and values, those that have none.

        That is, to all pages that they are in.
        """
        have, count = self.named.get(request.rid, 0), whole(count)
        if count > have:
            row = holder(request, "req_pool_idx").req_pool_idx
            places = self.allocator.alloc(count - have).to(torch.int32)
            self.pool.req_to_token[row, have:count] = places
            self.named[request.rid] = count


def _protected(request: Any) -> int:
    """How many of its tokens a request holds on to in the cache."""
    return int(holder(request, "cache_protected_len").cache_protected_len)


def _takes(function: Any, name: str) -> bool:
    return name in inspect.signature(function).parameters
