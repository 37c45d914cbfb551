"""An extra buffer: states are stored apart, for the prefix cache, as a request goes on.

Where a window crosses the track interval the commit stores the state there, and a prefill stores
that of the last whole chunk that it brings. Each goes to a slot of the request's own, and from then
on the request knows up to which token it is kept: that much a prefix cache takes of it. A server's
requests cross where they happen to; here each is given the length at which it does when a trace
says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ringfold.fuzz.targets.pool import shims
from ringfold.fuzz.targets.pool.arena import DEVICE
from ringfold.fuzz.targets.pool.pages import PAGE
from ringfold.fuzz.targets.pool.requests import holder, set_lengths, speak
from ringfold.fuzz.targets.standins import Loose

INTERVAL = 256
"""Tokens, unless --mamba-track-interval says another."""


def length(fed: int, tokens: int, track: int | None) -> int:
    """The next length, of a request that has fed so many, at which an interval ends in a window.

    It ends at the window's token `track`; without one, at none of its `tokens`.
    """
    if track is not None:
        return -(-(fed + track) // INTERVAL) * INTERVAL - track
    end = (fed // INTERVAL + 1) * INTERVAL
    return fed if fed + tokens < end else end


def followed(length: int, *, ended: bool, ends: bool) -> int:
    """The next length that a request may have behind a step, if one more is on its way already.

    An interval ends there if one `ended` with the step, and with the next one if that `ends` one:
    not both can be.
    """
    if ends:
        return -(-(length + 1) // INTERVAL) * INTERVAL - 1
    return length + 2 if not ended and (length + 1) % INTERVAL == 0 else length


def name_slots(batch: Any, places: Any) -> None:
    """What `prepare_mamba_track_for_verify` does where the extra buffer is on."""
    from sglang.srt.managers.schedule_batch import set_mamba_track_indices_from_reqs

    batch.req_pool_indices = places
    with shims.Unpinned():
        set_mamba_track_indices_from_reqs(batch)


def note(batch: Any, numbers: list[int], accepted: list[int]) -> None:
    """What the scheduler makes of a step's result: who crossed says how much of it is kept."""
    from sglang.srt.managers.scheduler_components import batch_result_processor

    processor = batch_result_processor.SchedulerBatchResultProcessor
    scheduler: Any = Loose(tree_cache=batch.tree_cache)
    scheduler._mamba_check_track_boundary = lambda *given: processor._mamba_check_track_boundary(
        scheduler, *given
    )
    result = Loose(num_correct_drafts_per_req_cpu=[n - 1 for n in accepted])
    lengths = batch.seq_lens.tolist()
    for i, (request, number, n) in enumerate(zip(batch.reqs, numbers, accepted, strict=True)):
        speak(request, number, lengths[i], n)
        processor._mamba_prefix_cache_update(scheduler, request, batch, result, i)


def name_ends(batch: Any, requests: Sequence[Any], before: Sequence[int], pool: Any) -> Any:
    """What `prepare_for_decode` does with an extra buffer for a batch that drafts nothing.

    Rows behind those of the requests are padding. Returns the scheduler's batch.
    """
    count, rows = len(requests), batch.batch_size
    lengths = torch.tensor([n + 1 for n in before] + [1] * (rows - count))
    ends = _end(lengths)
    scheduled: Any = Loose(
        reqs=list(requests),
        req_to_token_pool=pool,
        seq_lens_cpu=lengths[:count],
        mamba_track_mask_cpu=ends[:count].tolist(),
        mamba_track_mask_next_cpu=_end(lengths + 1)[:count].tolist(),
        tree_cache=Loose(page_size=PAGE),
        spec_algorithm=Loose(is_none=lambda: True),
    )
    name_slots(scheduled, batch.req_pool_indices[:count])
    for request, length in zip(requests, before, strict=True):
        set_lengths(request, length + 1)
        request.decode_batch_idx += 1
    scheduled.mamba_decode_batch_idx_cpu = [request.decode_batch_idx for request in requests]
    slots = torch.zeros(rows, dtype=torch.int64, device=DEVICE)
    slots[:count] = scheduled.mamba_track_indices
    batch.mamba_track_indices, batch.mamba_track_mask = slots, ends.to(DEVICE)
    batch.seq_lens, batch.seq_lens_cpu = lengths.to(DEVICE), lengths
    return scheduled


def lengthen(batch: Any, i: int, length: int) -> None:
    """Have row `i` of a step that was prepared so be so long behind it."""
    batch.seq_lens_cpu[i] = length
    batch.mamba_track_mask_next_cpu[i] = bool(_end(length + 1))


def _end(lengths: Any) -> Any:
    return lengths % INTERVAL == 0


def note_decoded(batch: Any, rows: Sequence[int]) -> None:
    """What the scheduler makes of such a step's result, for these of its rows."""
    from sglang.srt.managers.scheduler_components import batch_result_processor

    processor = batch_result_processor.SchedulerBatchResultProcessor
    scheduler: Any = Loose(tree_cache=batch.tree_cache, server_args=Loose())
    scheduler._maybe_collect_customized_info = lambda *given: None
    scheduler._mamba_assert_committed_len_lookahead = getattr(
        processor, "_mamba_assert_committed_len_lookahead", None
    )
    for name in ("_mamba_check_track_boundary", "_mamba_prefix_cache_update"):
        setattr(scheduler, name, partial(getattr(processor, name), scheduler))
    result = Loose()
    for i in rows:
        request = batch.reqs[i]
        processor._handle_finish_state_updated_req(scheduler, request, batch, result, i, None)


def name_chunks(batch: Any, requests: Sequence[Any], pool: Any, config: Any) -> None:
    """What `prepare_for_extend` does with an extra buffer: who stores which chunk's state where."""
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

    scheduled = Loose(
        req_to_token_pool=pool, tree_cache=Loose(page_size=PAGE), model_config=config, reqs=requests
    )
    entries = [
        ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend(scheduled, request)
        for request in requests
    ]
    slots = [
        entry.track_index
        if hasattr(entry, "track_index")
        else int(_buffer(request)[entry.track_position])
        for entry, request in zip(entries, requests, strict=True)
    ]
    batch.mamba_prefill_track_mask_cpu = [bool(entry.track_mask) for entry in entries]
    batch.mamba_track_seqlens_cpu = [int(entry.track_seqlen) for entry in entries]
    batch.mamba_track_mask = torch.tensor(batch.mamba_prefill_track_mask_cpu, device=DEVICE)
    batch.mamba_track_indices = torch.tensor(slots, dtype=torch.int64, device=DEVICE)
    batch.mamba_track_seqlens = torch.tensor(
        batch.mamba_track_seqlens_cpu, dtype=torch.int64, device=DEVICE
    )
    if hasattr(ForwardBatch, "mamba_track_aligned_lens"):
        batch.mamba_track_aligned_lens = lambda: ForwardBatch.mamba_track_aligned_lens(batch)


def slots(request: Any) -> list[int]:
    """Those that a request stores in."""
    return [int(slot) for slot in _buffer(request)]


def kept(pool: Any, request: Any) -> int:
    """The slot in which a request's last such state lies, while it is the request's own."""
    return int(_buffer(request)[pool.get_mamba_ping_pong_keep_idx(request)])


def _buffer(request: Any) -> Any:
    name = "mamba_ping_pong_track_buffer"
    return getattr(holder(request, name), name)
