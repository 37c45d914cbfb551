"""Does a dead ring record get into a checkpoint? SGLang's compact fold, without ringfold.

torch, triton and one upstream file alone:

    python compact_dead_records.py FILE [--cuda]

FILE is gdn_replayssm_spec_decode.py of SGLang 0.5.20 or later (in its wheel under
sglang/kernels/ops/attention/fla/, from 0.5.23 on .../linear/). Without --cuda, Triton interprets it.

One place of a running request is used by three requests, one after the other. The first gets one
infinite number in its very first key, as an overflow of the model would give, and stays for as
many tokens as the ring is long. The second and the third are healthy: fresh slot, zero state,
cursors zeroed as the pool does it, finite inputs. They verify windows of two tokens and accept all,
until a commit has folded. The same two requests run once more in a place that nobody had before. A
line a request says whether its checkpoint is finite after the fold.
"""

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
PARSER.add_argument("file", type=Path)
PARSER.add_argument("--cuda", action="store_true")
OPTIONS = PARSER.parse_args()
if not OPTIONS.cuda:
    os.environ["TRITON_INTERPRET"] = "1"

import torch  # noqa: E402

ON = torch.device("cuda" if OPTIONS.cuda else "cpu")
H, HV, K, V, L, T = 1, 2, 64, 64, 16, 2
SLOTS, PLACES = 8, 4


def load(path):
    """Execute the file; the two names that it imports from its package are given here."""
    names = {
        "sglang.kernels.ops.attention.fla.utils": {"is_tf32_supported": OPTIONS.cuda},
        "sglang.srt.utils": {"is_gfx95_supported": lambda: False},
    }
    for name, values in names.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            package = sys.modules.setdefault(".".join(parts[:end]), ModuleType(parts[end - 1]))
            package.__path__ = []
        sys.modules[name].__dict__.update(values)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def zeros(*shape, dtype=torch.float16):
    return torch.zeros(shape, dtype=dtype, device=ON)


def pool():
    """Rings and cursors as the memory pool allocates them: zeros."""
    parts = {"d": (HV, L, V), "k": (H, L, K), "d_low": (HV, L, V), "k_low": (H, L, K)}
    memory = {name: zeros(1, PLACES, *shape) for name, shape in parts.items()}
    memory["g"] = zeros(1, PLACES, HV, L, dtype=torch.float32)
    memory["state"] = zeros(1, SLOTS, HV, V, K, dtype=torch.float32)
    for name, dtype in (
        ("write_pos", torch.int32),
        ("cache_base", torch.int32),
        ("is_flush", torch.int8),
    ):
        memory[name] = zeros(PLACES, dtype=dtype)
    return memory


def serve(module, memory, slot, place, seed, first=None):
    """A request's life until a commit folds; returns its checkpoint."""
    cursors = {name: memory[name] for name in ("write_pos", "cache_base", "is_flush")}
    for cursor in cursors.values():
        cursor[place] = 0
    generator = torch.Generator().manual_seed(seed)
    row = torch.tensor([slot], dtype=torch.int32, device=ON)
    at = torch.tensor([place], dtype=torch.int32, device=ON)
    windows = 0
    while True:
        q, k, v, a, b = (
            torch.randn(T, *shape, generator=generator).to(ON, torch.float16)
            for shape in ((H, K), (H, K), (HV, V), (HV,), (HV,))
        )
        if first is not None and windows == 0:
            k[0, 0, 0] = first
        module.gdn_replayssm_spec_decode(
            q=q, k=k, v=v, a=a, b=b,
            A_log=torch.full((HV,), -3.0, device=ON), dt_bias=torch.zeros(HV, device=ON),
            checkpoint_state=memory["state"][0],
            d_cache=memory["d"][0], k_cache=memory["k"][0], g_cache=memory["g"][0],
            rawv_cache=memory["d_low"][0], rawk_cache=memory["k_low"][0], beta_cache=None,
            out=torch.empty_like(v),
            query_start_loc=torch.tensor([0, T], dtype=torch.int32, device=ON),
            ssm_state_indices=row, replay_indices=at, **cursors,
            max_cache_len=L, max_spec_len=T, null_block_id=-1, launch_mode="verify",
        )  # fmt: skip
        accepted = torch.tensor([T], dtype=torch.int32, device=ON)
        module.commit_gdn_replayssm_spec(
            **cursors, num_accepted=accepted, replay_indices=at,
            max_cache_len=L, max_spec_len=T, null_block_id=-1,
        )  # fmt: skip
        folds = bool(memory["is_flush"][place])
        module.commit_gdn_replayssm_circular(
            checkpoint_state=memory["state"],
            d_cache=memory["d"], k_cache=memory["k"], g_cache=memory["g"],
            d_residual_cache=memory["d_low"], k_residual_cache=memory["k_low"],
            state_batch_indices=row, replay_indices=at, **cursors,
            accept_lens=accepted, null_block_id=-1,
        )  # fmt: skip
        windows += 1
        if windows == L // T if first is not None else folds:
            return memory["state"][0, slot]


def main():
    module = load(OPTIONS.file)
    used = pool()
    serve(module, used, slot=1, place=1, seed=0, first=float("inf"))
    for place, memory in (("the same place", used), ("a place that nobody had", pool())):
        for slot, seed in ((2, 1), (3, 2)):
            state = serve(module, memory, slot=slot, place=1, seed=seed)
            finite = int(torch.isfinite(state).sum())
            print(
                f"healthy request {seed} in {place}: "
                f"{finite} of {state.numel()} numbers of its checkpoint are finite"
            )


main()
