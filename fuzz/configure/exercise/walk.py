"""The same history on both sides: what a server does, each event a method."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final

import torch

from .release import Loose, srt
from .side import Side, held

TOLERANCES: Final = {"torch.float32": 2e-5, "torch.float16": 3e-2}
"""Largest difference over the largest number; where nothing is wrong 4e-7 and 1e-3 were seen."""


class Disagreement(Exception):  # noqa: N818 - a result, not a failure of this program
    """The release with the flag on is not the release with it off."""


class Walk:
    """The same history on both sides."""

    def __init__(self, on: Side, off: Side, hybrid: Any, dtype: Any) -> None:
        self.sides = (on, off)
        self.dtype = dtype
        self.tolerance = TOLERANCES[str(dtype)]
        cache = on.pool.mamba_pool.mamba_cache
        if cache.replayssm_d is not None and cache.replayssm_beta is None:
            # Stored deltas are the state, so what their dtype rounds off is allowed.
            self.tolerance = max(self.tolerance, TOLERANCES[str(cache.replayssm_d.dtype)])
        self.random = torch.Generator().manual_seed(0)
        H, HV = hybrid.linear_num_key_heads, hybrid.linear_num_value_heads
        K, V = hybrid.linear_key_head_dim, hybrid.linear_value_head_dim
        self.width, self.HV = 2 * H * K + HV * V, HV
        layers = srt("layers.radix_linear_attention")
        self.layer = layers.RadixLinearAttention(
            hybrid.linear_layer_ids[0], H, H, HV, K, K, V,
            conv_weights=(self.draw(self.width, hybrid.linear_conv_kernel_dim) * 0.4).to(dtype),
            bias=None,
            activation="silu",
            A_log=torch.full((HV,), -3.0),
            dt_bias=torch.zeros(HV),
        )  # fmt: skip
        self.largest = 0.0

    def each(self, requests: Sequence[Any]) -> list[tuple[Side, Any]]:
        """Both sides, each with its own of the two requests."""
        return list(zip(self.sides, requests, strict=True))

    def draw(self, *shape: int) -> Any:
        """Normal numbers."""
        return torch.randn(*shape, generator=self.random)

    def tokens(self, count: int) -> tuple[Any, Any, Any]:
        """Projections of `count` tokens, before the convolution."""
        return (
            self.draw(count, self.width).to(self.dtype),
            (self.draw(count, self.HV) * 0.3).to(self.dtype),
            self.draw(count, self.HV).to(self.dtype),
        )

    def admit(self) -> list[Any]:
        """A request on each side, the only one, with one state after its prefill."""
        for side in self.sides:
            side.pool.clear()
        requests = [side.request() for side in self.sides]
        first = self.sides[0]
        state = self.draw(*first.state(0).shape) * 0.3
        window = self.draw(*first.pool.mamba_pool.mamba_cache.conv[0][:, 0].shape)
        for side, request in self.each(requests):
            side.state(side.slot(request)).copy_(state)
            side.pool.mamba_pool.mamba_cache.conv[0][:, side.slot(request)].copy_(window)
        return requests

    def agree(self, found: Sequence[Any], what: str) -> None:
        """Raise `Disagreement` where the two differ by more than rounding."""
        on, off = (x.float().reshape(-1) for x in found)
        off_by = float((on - off).abs().max() / off.abs().max().clamp_min(1e-6))
        if not off_by <= self.tolerance:
            raise Disagreement(f"{what}: off by {off_by:.2g} of the largest number")
        self.largest = max(self.largest, off_by)

    def step(
        self,
        requests: Sequence[Any],
        count: int,
        accepted: Sequence[int] | None = None,
        tree: Any = None,
        **options: Any,
    ) -> None:
        """Verify a window of `count`, compare outputs, keep the tokens `accepted` (or all)."""
        tokens = self.tokens(count)
        outputs = [
            side.verify(each, self.layer, tokens, tree) for side, each in self.each(requests)
        ]
        what = f"outputs of a {'tree' if tree is not None else 'window'} of {count}"
        self.agree(outputs, what)
        for side, request in self.each(requests):
            side.commit(request, range(count) if accepted is None else accepted, count, **options)

    # ------------------------------------------------------------ events

    def windows(self, counts: Sequence[int], ring: int, direct: bool) -> None:
        """Shortest and longest draft counts, kept whole and in part, until a ring is full."""
        for count in {min(counts), max(counts)}:
            requests = self.admit()
            for i in range(min(2 + ring // count, 8)):
                kept = range(count if i % 3 else max(1, count - 1))
                self.step(requests, count, kept, direct=direct)

    def counts_change(self, counts: Sequence[int], ring: int) -> None:
        """From a ring as full as windows of `before` leave it, to longer windows."""
        pairs = [(before, after) for before in counts for after in counts if after > before]
        for before, after in sorted(pairs, key=lambda pair: pair[0] - pair[1]):
            requests = self.admit()
            for _ in range(max(0, ring // before - 2)):
                self.step(requests, before)
            for _ in range(2):
                self.step(requests, after)

    def tree(self, count: int, width: int) -> None:
        """The root's first `width` children are siblings; the rest hang from the first one."""
        following = torch.full((1, count), -1, dtype=torch.int64)
        sibling = following.clone()
        children = min(width, count - 1)
        following[0, 0] = 1
        sibling[0, 1:children] = torch.arange(2, children + 1)
        rest = list(range(children + 1, count))
        for parent, child in zip([1, *rest], rest, strict=False):
            following[0, parent] = child
        requests = self.admit()
        self.step(requests, count, (0, children), (following, sibling))
        self.step(requests, count, (0, children), (following, sibling))

    def mixed(self, count: int) -> None:
        """A running request's token rides in a prefill batch, while records wait."""
        requests = self.admit()
        self.step(requests, count)
        tokens = self.tokens(1)
        outputs = [side.mixed(each, self.layer, tokens, 100) for side, each in self.each(requests)]
        self.agree(outputs, "output of one token in a mixed batch")
        self.step(requests, count)

    def retracted(self, count: int) -> None:
        """A request goes to host memory and comes back, while records wait."""
        requests = self.admit()
        self.step(requests, count)
        restored = []
        for side, request in self.each(requests):
            pool = side.pool.mamba_pool
            saved = pool.get_cpu_copy(torch.tensor([side.slot(request)]))
            back = side.request()  # before the old one is freed: into another place
            pool.load_cpu_copy(saved, torch.tensor([side.slot(back)]))
            restored.append(back)
        self.step(restored, count)

    def donated(self, count: int) -> None:
        """A request finishes while records wait; the prefix cache keeps its slot."""
        requests = self.admit()
        off, its = self.sides[1], requests[1]
        current = [off.kept(off.slot(its))]  # by number of windows, where nothing ever waits
        windows = 4  # by default three of them are folded, and one waits
        for _ in range(windows):
            self.step(requests, count)
            current.append(off.kept(off.slot(its)))
        length = windows * count
        on, request = self.sides[0], requests[0]
        cut = donation(on, request, length)
        if cut % count:
            raise Disagreement(f"a prefix of {cut} of {length} tokens is kept, no window's end")
        for what, *found in zip(
            ("state", "convolution window"),
            on.kept(on.slot(request)),
            current[cut // count],
            strict=True,
        ):
            self.agree(found, f"{what} that is kept for a prefix of {cut} of {length} tokens")

    def tracked(self, count: int) -> None:
        """A window crosses the track interval: its state goes into a second slot."""
        requests = self.admit()
        tokens, tracked = self.tokens(count), []
        for side, request in self.each(requests):
            slot = int(held(request, "mamba_ping_pong_track_buffer")[0])
            side.state(slot).zero_()
            side.verify(request, self.layer, tokens)
            side.commit(request, range(count), count, track=slot, length=256 - 1)
            tracked.append(side.state(slot))
        self.agree(tracked, "state that is tracked for the prefix cache")


def donation(side: Side, request: Any, length: int) -> int:
    """How many of a finished request's `length` tokens the prefix cache keeps its state for."""
    tree = Loose(
        enable_mamba_extra_buffer=False,
        req_to_token_pool=side.pool,
        page_size=1,
        token_to_kv_pool_allocator=Loose(free=lambda _: None),
        dec_lock_ref=lambda *_: None,
    )
    with contextlib.suppress(ImportError):
        component = srt("mem_cache.unified_cache.components.mamba")
        tree = Loose(cache=tree)
        return int(
            component.MambaComponent.prepare_for_caching_req(tree, request, Loose(), length, True)
        )
    radix = srt("mem_cache.mamba_radix_cache")
    kept: list[int] = []

    def insert(params: Any) -> Any:
        kept.append(len(params.key))
        raise StopIteration

    tree.insert = insert
    request.origin_input_ids, request.output_ids = [0] * length, []
    request.cache_protected_len, request.extra_key = 0, None
    with contextlib.suppress(StopIteration):
        radix.MambaRadixCache.cache_finished_req(tree, request, kv_len_to_handle=length)
    return kept[0]
