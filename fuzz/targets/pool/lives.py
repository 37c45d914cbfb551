"""Requests come and go, as a scheduler has it: each is seated, copied, kept or given back."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

from ringfold.fuzz.targets.pool import host, sessions, shims, tracks
from ringfold.fuzz.targets.pool.protocol import Message
from ringfold.fuzz.targets.pool.requests import (
    PLACES,
    fed,
    finish_early,
    forget_lengths,
    holder,
    new,
    prompt,
)
from ringfold.fuzz.targets.pool.results import Results
from ringfold.fuzz.targets.pool.server import Server
from ringfold.fuzz.targets.pool.tensors import indices, tensor
from ringfold.fuzz.targets.standins import Loose


class Lives(Server):
    """A server and the requests that it has."""

    def __init__(self, arguments: Any, setup: dict[str, Any]) -> None:
        super().__init__(arguments, setup)
        self.prompt = 2 * setup["ring"] + setup["window"]
        """Tokens of a request's prompt: a prefix that ends at the last fold has some, too."""
        self.requests: dict[int, Any] = {}
        self.saved: dict[int, Any] = {}
        self.verified: set[int] = set()
        """Requests that have verified since they were prefilled last."""
        self.lengths: dict[int, list[int]] = {}
        """How long each request was when it was seated, and after each token since."""
        self.stored: dict[int, int] = {}
        """How many tokens the state holds that was stored apart of a request last."""
        self.given: dict[int, int] = {}
        """The slot of that state, where the prefix cache has it already."""
        self.published: dict[int, int] = {}
        """The slot of what the prefix cache has of a request's prompt."""
        self.accepted: dict[int, int] = {}
        """How many tokens a request's last step brought, if that was a window."""
        self.results = Results()
        """Of plain steps, as far as they were not processed."""

    def admit(
        self, state: NDArray[Any], past: NDArray[Any] | None = None, *, request: int
    ) -> Message:
        """Allocate, clear as the forward pass of a prefill does, and write what prefill leaves."""
        self.results.settle()
        made = new(request, self.prompt)
        self.prefixes.match(made)
        self._alloc(request, made)
        self._clear_or_copy(clear=self._slot(request))
        cache, slot = self.pool.mamba_pool.mamba_cache, self._slot(request)
        cache.temporal[:, slot] = tensor(state)
        if past is not None:
            cache.conv[0][:, slot] = tensor(past)
        return self._seat(request)

    def fork(self, *, request: int, source: int) -> Message:
        """A request that matched a cached prefix: its slot is taken first, and copied into later.

        This is what `match_prefix` prepares for a copy on write.
        """
        self.results.settle()
        made = new(request, self.prompt)
        self.prefixes.match(made)
        slot = self.pool.mamba_allocator.alloc(1)
        assert slot is not None
        holder(made).mamba_pool_idx = slot[0]
        self._alloc(request, made)
        self._clear_or_copy(copy=(self._slot(source), self._slot(request)))
        return self._seat(request)

    def free(self, *, request: int) -> None:
        """Give slots and row back, as `release_kv_cache` does where no cache keeps them.

        Those of a session's request are given back when the session is closed.
        """
        ahead = self.results.finish(request)
        made = self._gone(request)
        if (session := made.session) is not None:
            self.prefixes.end(made, ahead=ahead)
            sessions.close(self.prefixes.cache, session)
        elif made.rid in self.prefixes.prompts:
            self.prefixes.end(made, insert=False, ahead=ahead)
        else:
            self.pool.free_mamba_cache(made)
            self.pool.free(made)
            forget_lengths(made)
        self.prefixes.forget(made)

    def donate(self, *, request: int, prefix: int, cut: int = 0) -> Message:
        """Finish: its slot, or the one that was tracked, is the prefix cache's from now on.

        The last `cut` tokens are not to be kept: they lie behind a stop in the last window, or
        else are what a model thought. Returns how many tokens the key lacks, of those that were
        fed, or of those whose state was stored apart; and how many of the request's lie behind it,
        if it ends with one of them.
        """
        ahead = self.results.finish(request)
        seat, stored = self._places(request), self.stored.get(request)
        own, taken = self._slots(request), self.published.get(request)
        ends, stops = self.lengths[request], cut <= self.accepted.get(request, 0) - 2
        made = self._gone(request)
        sessions.leave(self.prefixes.cache, made)
        if cut:
            finish_early(made, ends[max(0, len(ends) - 1 - cut)], stops=stops)
        count, kept = self.prefixes.finish(made, prefix, ahead=ahead)
        lacks = (count if stored is None else stored) - kept
        behind = len(ends) - 1 - ends.index(kept) if kept in ends else None
        free = set(self.pool.mamba_allocator.free_slots.tolist())
        usual = seat.get("track", seat["slot"])
        slot = next(iter(own - free), usual if taken is None else taken)
        fields = {"slot": slot if kept else None, "lacks": lacks, "behind": behind}
        return Message("done", fields, [])

    def hit(self, *, request: int, prefix: int) -> Message:
        """Begin with a prompt whose first tokens are a prefix that is kept."""
        self.results.settle()
        tokens = self.prefixes.kept[prefix] + prompt(request, 1)
        made = new(request, tokens=tokens)
        self.prefixes.match(made)
        source = holder(made).mamba_cow_src_index
        if source is None:
            raise RuntimeError(f"the prefix cache has no state for prefix {prefix}")
        self._alloc(request, made)
        self._clear_or_copy(copy=(int(source), self._slot(request)))
        self.requests[request] = self._unlocked(request, made)
        return self._seat(request)

    def evict(self, *, prefix: int) -> None:
        """Have the prefix cache give a state up."""
        self.results.settle(1)
        self.prefixes.evict(prefix)

    def save(self, *, request: int) -> None:
        """Retract to host memory: `Req.offload_kv_cache`, then give the seat back and forget it."""
        self.results.settle()
        made = self.requests[request]
        sessions.leave(self.prefixes.cache, made)
        with shims.Copying():
            made.offload_kv_cache(self.pool, host.allocator(self.pool.mamba_pool))
        self.free(request=request)
        made.reset_for_retract()
        self.saved[request] = made

    def restore(self, *, request: int) -> Message:
        """Resume: match and allocate anew, then `Req.load_kv_cache`."""
        self.results.settle()
        made = self.saved.pop(request)
        self.prefixes.match(made)
        self._alloc(request, made)
        made.load_kv_cache(self.pool, host.allocator(self.pool.mamba_pool))
        return self._seat(request)

    def _next_turn(self, request: int, tokens: int) -> None:
        """Finish a session's turn and begin the next, in the places that the session kept."""
        ends, before = self.requests[request], self._places(request)
        sessions.join(self.prefixes.cache, ends)
        session = ends.session
        count = self.prefixes.end(ends)
        made = new(request, count + tokens)
        made.session = session
        self.prefixes.match(made)
        self.requests[request] = made
        if (now := self._places(request)) != before:
            raise RuntimeError(f"a turn ended in {before}, and the next begins in {now}")

    # Shared by them.

    def _alloc(self, request: int, made: Any) -> None:
        if self.pool.alloc([made]) is None:
            raise RuntimeError("the pool has no row left")
        self.requests[request] = made

    def _gone(self, request: int) -> Any:
        self.verified.discard(request)
        for known in (self.stored, self.given, self.published, self.accepted, self.lengths):
            known.pop(request, None)
        return self.requests.pop(request)

    def _unlocked(self, request: int, made: Any) -> Any:
        """A request in the seat of `made` that matched nothing.

        A scheduler locks what a running request matched, eviction passes that over, and finishing
        gives the lock back. Here the copy was made, so that it may go: nothing is locked, and who
        finishes must hold no lock to give back.
        """
        fresh = new(request, self.prompt)
        self.prefixes.match(fresh)
        for field in PLACES:
            if hasattr(holder(made, field), field):
                setattr(holder(fresh, field), field, getattr(holder(made, field), field))
        return fresh

    def _clear_or_copy(self, clear: int | None = None, copy: tuple[int, int] | None = None) -> None:
        from sglang.srt.model_executor.forward_batch_info import ForwardMode
        from sglang.srt.model_executor.model_runner import ModelRunner

        source, target = copy or (None, None)
        batch = Loose(
            forward_mode=ForwardMode.EXTEND,
            mamba_clear_indices=None if clear is None else indices([clear]),
            mamba_cow_src_indices=None if source is None else indices([source]),
            mamba_cow_dst_indices=None if target is None else indices([target]),
        )
        ModelRunner._maybe_execute_deferred_mamba_cow_and_clear(self.runner, batch)

    def _row(self, request: int) -> int:
        return int(holder(self.requests[request], "req_pool_idx").req_pool_idx)

    def _slot(self, request: int) -> int:
        return int(holder(self.requests[request]).mamba_pool_idx)

    def _row_indices(self, rows: list[int]) -> torch.Tensor:
        return indices([self._row(request) for request in rows])

    def _slots(self, request: int) -> set[int]:
        """All that it has."""
        track = tracks.slots(self.requests[request]) if self.setup["tracks"] else []
        return {self._slot(request), *track}

    def _seat(self, request: int) -> Message:
        self.lengths[request] = [fed(self.requests[request])]
        return Message("done", self._places(request), [])

    def _places(self, request: int) -> dict[str, int]:
        seat = {"slot": self._slot(request), "request": self._row(request)}
        if self.setup["tracks"]:
            own = tracks.kept(self.pool, self.requests[request])
            seat["track"] = self.given.get(request, own)
        return seat
