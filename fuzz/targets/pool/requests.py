"""A request as a release has it: its tokens, its places, and how long it is.

Each has tokens of its own. From 0.5.19 on most of the rest is in a record, `kv`, which a session
hands from one request to the next.
"""

from __future__ import annotations

from array import array
from typing import Any

import torch

VOCABULARY = 2**20
"""Tokens of one request lie apart from those of all others."""

PLACES = (
    "req_pool_idx",
    "mamba_pool_idx",
    "mamba_ping_pong_track_buffer",
    "mamba_ping_pong_empty",
    "mamba_next_track_idx",
    "mamba_last_track_idx",
)
"""What a release knows of where a request is, as far as it has it."""


def prompt(number: int, length: int) -> Any:
    """Tokens that no other request has."""
    return array("q", range(number * VOCABULARY, number * VOCABULARY + length))


def new(number: int, length: int = 0, tokens: Any = None) -> Any:
    """A request with tokens of its own, or with these."""
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    own = prompt(number, length) if tokens is None else tokens
    return Req(str(number), "", own, SamplingParams(max_new_tokens=1))


def extend(request: Any, number: int, before: int, count: int) -> None:
    """Have `count` tokens behind the first `before` be what a prefill of its prompt brings next."""
    request.origin_input_ids, request.output_ids = prompt(number, before + count), array("q")
    request.init_next_round_input()
    if hasattr(request, "set_extend_range"):
        request.set_extend_range(before, before + count)
        request.prefix_indices = torch.zeros(before, dtype=torch.int64)
    else:
        request.prefix_len, request.extend_end = before, before + count
    set_lengths(request, before + count)


def speak(request: Any, number: int, before: int, count: int) -> None:
    """Have `count` tokens behind the first `before` be its output, and one that is not yet fed."""
    tokens = prompt(number, before + count + 1)
    request.origin_input_ids, request.output_ids = tokens[:before], tokens[before:]


def finish_early(request: Any, length: int, *, stops: bool) -> None:
    """Have a request be such that nobody wants more than its first `length` tokens kept.

    It stops there, in the middle of a window; or all behind its prompt it has thought, on a server
    that keeps no thoughts (`--strip-thinking-cache`).
    """
    tokens = request.origin_input_ids + request.output_ids
    if stops:
        request.finished_len = length - len(request.origin_input_ids)
    else:
        request.origin_input_ids, request.output_ids = tokens[:length], tokens[length:]
        request.reasoning_tokens = len(request.output_ids)


def fed(request: Any) -> int:
    """Tokens that a request has fed: all but the last of its output, if it has some."""
    return len(request.origin_input_ids) + max(len(request.output_ids) - 1, 0)


def holder(request: Any, field: str = "mamba_pool_idx") -> Any:
    """Where a release keeps a request's places: on the request, or in its `kv`."""
    return request.kv if hasattr(request.kv, field) else request


def set_lengths(request: Any, count: int) -> None:
    """Say that keys and values of so many tokens were computed."""
    for owner in (request, request.kv):
        for name in ("kv_committed_len", "kv_allocated_len"):
            if hasattr(owner, name):
                setattr(owner, name, count)


def forget_lengths(request: Any) -> None:
    """Say that a request holds no keys and values any more."""
    if hasattr(request.kv, "mark_kv_released"):
        request.kv.mark_kv_released()
    else:
        request.kv = None
