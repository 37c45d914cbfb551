"""What a server would do with an accepted configuration, done with the release's own code.

`run` builds the request pool as `KVCacheConfigurator` does, once as configured and once with the
replay flags off, the linear-attention backend on each, and then does on both what the resolved
arguments make a server do: verify windows of every draft count in every order, a draft tree where
one is drafted, a mixed batch where they are allowed, a retraction to host memory on a decode
server, a finished request's donation, a tracked state. The recurrent path with its snapshots is
what a replay has to agree with, so an event after which the two disagree is a finding, and it
follows from the flags alone. Stand-ins are namespaces for the runner, batches and requests.

Runs in a release's environment, from `worker.py`; imports nothing of ringfold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from .pools import build, described
from .release import Loose, srt, standins
from .side import Side
from .walk import Disagreement, Walk


def run(
    arguments: Any, resolved: Any, described_error: Callable[[BaseException], Any]
) -> dict[str, Any]:
    """Everything that the resolved arguments make a server do; see the module."""
    found: dict[str, Any] = {"stage": "pool", "events": []}
    try:
        standins.after_import()
        module = srt("server_args")
        module.set_global_server_args_for_scheduler(arguments)
        parallel = srt("distributed.parallel_state")
        vars(parallel)["_ATTN_TP"] = Loose(world_size=1, rank_in_group=0)  # one rank
        model_config = _model_config(arguments)
        pool, plain = build(arguments, model_config)
        found["pool"] = described(pool)
        if not found["pool"]["cursors"] and not found["pool"]["rings"]:
            return found
        hybrid = srt("configs.hybrid_arch").hybrid_gdn_config(model_config)
        if hybrid is None or not resolved.speculative_num_draft_tokens:
            return found
        found["stage"] = "backend"
        sides = [Side(one, arguments, model_config) for one in (pool, plain)]
        dtype = getattr(torch, str(model_config.dtype).rpartition(".")[2])
        for name, event in _events(resolved, found["pool"]):
            found["stage"] = name
            walk = Walk(sides[0], sides[1], hybrid, dtype)
            event(walk)
            found["events"].append([name, walk.largest])
    except Disagreement as difference:
        found["differs"] = {"event": found["stage"], "text": str(difference)}
    except Exception as error:  # noqa: BLE001 - whatever a server would die of
        found["crashed"] = described_error(error)
    return found


def _model_config(arguments: Any) -> Any:
    if hasattr(arguments, "get_model_config"):
        return arguments.get_model_config()
    overrides = srt("arg_groups.overrides")
    return overrides.model_config_of(arguments)


def _events(resolved: Any, pool: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[Walk], None]]]:
    drafts = int(resolved.speculative_num_draft_tokens)
    counts = [drafts]
    ring = int(resolved.linear_replayssm_cache_len)
    if resolved.speculative_adaptive:
        adaptive = srt("speculative.adaptive_spec_params")
        steps = adaptive.resolve_candidate_steps_from_config(resolved.speculative_adaptive_config)
        counts = sorted({step + 1 for step in steps})
    direct = str(resolved.speculative_algorithm).upper() in ("DFLASH", "DSPARK")
    if (resolved.speculative_eagle_topk or 1) > 1:
        yield "tree", lambda walk: walk.tree(drafts, int(resolved.speculative_eagle_topk))
        return
    yield "windows", lambda walk: walk.windows(counts, ring, direct)
    if pool["extra_buffer"]:
        yield "tracked", lambda walk: walk.tracked(drafts)
    elif resolved.uses_mamba_radix_cache:
        yield "donated", lambda walk: walk.donated(drafts)
    if resolved.enable_mixed_chunk:
        yield "mixed", lambda walk: walk.mixed(drafts)
    if resolved.disaggregation_mode == "decode":
        yield "retracted", lambda walk: walk.retracted(drafts)
    if len(counts) > 1:
        yield "counts change", lambda walk: walk.counts_change(counts, ring)
