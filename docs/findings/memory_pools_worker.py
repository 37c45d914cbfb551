"""Runs inside the releases' own environment: builds their pools, prints the bytes of their tensors.

Arguments: folders of releases, for each of which a process forks off once what all of them import
is there. Standard input: a JSON list of pools (see `memory_pools.py`). Standard output: a JSON
object for each release with its version and, for each pool, the bytes of each storage by the
attribute that holds it and what the release's sizing charges for a ring.
"""

import inspect
import json
import os
import sys
from dataclasses import fields, is_dataclass

import torch
from torch.overrides import TorchFunctionMode

for operation in ("nms", "qnms"):  # before sglang is imported: torchvision's own cannot be loaded
    torch.library.define(
        f"torchvision::{operation}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    )

import torchvision  # noqa: E402, F401
import transformers  # noqa: E402, F401

pools = json.load(sys.stdin)
for release in sys.argv[1:]:
    if not (process := os.fork()):
        sys.path.insert(0, release)
        break
    if os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
        sys.exit(f"{release} failed")
else:
    sys.exit()

import sglang  # noqa: E402
from sglang.srt.configs.mamba_utils import (  # noqa: E402
    Mamba2CacheParams,
    Mamba2StateDType,
    Mamba2StateShape,
)
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool  # noqa: E402
from sglang.srt.server_args import (  # noqa: E402
    ServerArgs,
    set_global_server_args_for_scheduler,
)


class OnCpu(TorchFunctionMode):
    """Parts of a pool are allocated on "cuda" by name."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


def params_of(pool):
    """Shapes and dtypes of a pool's layers."""
    conv, state = (getattr(torch, pool[name]) for name in ("conv_dtype", "state_dtype"))
    return Mamba2CacheParams(
        shape=Mamba2StateShape.create(
            tp_world_size=1,
            intermediate_size=pool["value_heads"] * pool["v"],
            n_groups=pool["heads"],
            num_heads=pool["value_heads"],
            head_dim=pool["v"],
            state_size=pool["k"],
            conv_kernel=pool["conv_width"],
        ),
        layers=list(range(pool["layers"])),
        dtype=Mamba2StateDType(conv=conv, temporal=state),
    )


def build(pool):
    """The release's pool, by its own constructor."""
    takes = inspect.signature(HybridReqToTokenPool.__init__).parameters
    spec = next(n for n in takes if n.endswith("replayssm_spec") and n.startswith("enable"))
    drafts = pool["mode"] != "decode"
    given = {
        "size": pool["running"],
        "mamba_size": pool["slots"],
        "mamba_spec_state_size": pool["running"],
        "max_context_len": 64,
        "device": "cpu",
        "enable_memory_saver": False,
        "cache_params": params_of(pool),
        "mamba_layer_ids": list(range(pool["layers"])),
        "enable_mamba_extra_buffer": False,
        "speculative_num_draft_tokens": pool["window"] if drafts else None,
        "speculative_eagle_topk": 1 if drafts else None,
        "enable_overlap_schedule": False,
        "start_layer": 0,
        "linear_replayssm_cache_len": pool["ring"],
        "enable_linear_replayssm": pool["mode"] == "decode",
        spec: pool["mode"] == "replay",
    }
    with OnCpu():
        return HybridReqToTokenPool(**{k: v for k, v in given.items() if k in takes}).mamba_pool


def storages(value, name, found, seen):
    """Bytes of each storage that `value` reaches, under the first name that leads to it."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            found[name] = found.get(name, 0) + storage.nbytes()
    elif isinstance(value, list | tuple):
        for item in value:
            storages(item, name, found, seen)
    elif is_dataclass(value):
        for field in fields(value):
            storages(getattr(value, field.name), field.name, found, seen)


def measured(pool):
    """Bytes by name of all that one pool keeps; why there is none under `refused`."""
    found, seen = {}, set()
    try:
        built = build(pool)
    except Exception as error:  # noqa: BLE001 - whatever a release refuses by
        return {"refused": f"{type(error).__name__}: {error}"}
    for name, value in vars(built).items():
        storages(value, name.removeprefix("_"), found, seen)
    return found


def charged(pool):
    """What the release's sizing charges for one ring, if it knows of any."""
    charge = getattr(params_of(pool), "replayssm_ring_bytes_per_req", None)
    if charge is None or pool["mode"] != "replay":
        return None
    by_request = getattr(build(pool), "replayssm_spec_write_pos", None) is not None
    return charge(record_len=pool["ring" if by_request else "window"])


set_global_server_args_for_scheduler(
    ServerArgs(model_path="dummy", speculative_eagle_topk=1, linear_attn_backend="triton")
)
answer = {
    "version": sglang.__version__,
    "pools": [measured(pool) for pool in pools],
    "charged": [charged(pool) for pool in pools],
}
print("\n" + json.dumps(answer))
