"""An extra buffer: where a window crosses the track interval, the state there is stored apart.

The commit stores it in a slot of the request's own, and from then on the request knows up to which
token it is kept: that much a prefix cache takes of it when it finishes. A server's requests cross
where they happen to; here each is given the length at which it does when a trace says so.
"""

from __future__ import annotations

from typing import Any

from ringfold.fuzz.targets.pool import shims
from ringfold.fuzz.targets.pool.requests import prompt
from ringfold.fuzz.targets.standins import Loose

INTERVAL = 256
"""Tokens, unless --mamba-track-interval says another."""


def length(track: int | None) -> int:
    """Of requests whose window's token `track` ends an interval; of none: that end none."""
    return INTERVAL - (track or 0)


def name_slots(batch: Any, places: Any) -> None:
    """What `prepare_mamba_track_for_verify` does where the extra buffer is on."""
    from sglang.srt.managers.schedule_batch import set_mamba_track_indices_from_reqs

    batch.req_pool_indices = places
    with shims.Unpinned():
        set_mamba_track_indices_from_reqs(batch)


def note(batch: Any, numbers: list[int], accepted: list[int], track: int) -> None:
    """What the scheduler makes of a step's result: who crossed says how much of it is kept."""
    from sglang.srt.managers.scheduler_components import batch_result_processor

    processor = batch_result_processor.SchedulerBatchResultProcessor
    scheduler: Any = Loose(tree_cache=batch.tree_cache)
    scheduler._mamba_check_track_boundary = lambda *given: processor._mamba_check_track_boundary(
        scheduler, *given
    )
    result = Loose(num_correct_drafts_per_req_cpu=[n - 1 for n in accepted])
    for i, (request, number, n) in enumerate(zip(batch.reqs, numbers, accepted, strict=True)):
        if n >= track:
            # Of its output the last token is not yet fed.
            tokens = prompt(number, length(track) + n + 1)
            request.origin_input_ids = tokens[: length(track)]
            request.output_ids = tokens[length(track) :]
        processor._mamba_prefix_cache_update(scheduler, request, batch, result, i)
