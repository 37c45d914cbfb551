"""Does SGLang's compact commit take the head dimensions that its verify takes? Without ringfold.

torch, triton and one upstream file alone:

    python compact_key_dim.py FILE [--cuda]

FILE is gdn_replayssm_spec_decode.py of SGLang 0.5.20 or later (in its wheel under
sglang/kernels/ops/attention/fla/, from 0.5.23 on .../linear/). Without --cuda, Triton interprets it.

For a few K = V one request verifies one token and commits it, with a ring so short that the commit
folds. A line each says how verify and commit ended.
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


def ending(call, **arguments):
    try:
        call(**arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the line says
        cause = error.__cause__ or error
        return f"raised {type(cause).__name__}: {str(cause).splitlines()[0]}"
    return "returned"


def main():
    module = load(OPTIONS.file)
    L, T = 16, 8
    for D in (64, 96, 128, 192):
        parts = {"d": (1, L, D), "k": (1, L, D), "d_low": (1, L, D), "k_low": (1, L, D)}
        memory = {name: zeros(1, 2, *shape) for name, shape in parts.items()}
        memory["g"] = zeros(1, 2, 1, L, dtype=torch.float32)
        state = zeros(1, 2, 1, D, D, dtype=torch.float32)
        one = torch.tensor([1], dtype=torch.int32, device=ON)
        cursors = {
            "write_pos": zeros(2, dtype=torch.int32),
            "cache_base": zeros(2, dtype=torch.int32),
            "is_flush": zeros(2, dtype=torch.int8),
        }
        verify = ending(
            module.gdn_replayssm_spec_decode,
            q=zeros(1, 1, D), k=zeros(1, 1, D), v=zeros(1, 1, D), a=zeros(1, 1), b=zeros(1, 1),
            A_log=zeros(1, dtype=torch.float32), dt_bias=zeros(1, dtype=torch.float32),
            checkpoint_state=state[0],
            d_cache=memory["d"][0], k_cache=memory["k"][0], g_cache=memory["g"][0],
            rawv_cache=memory["d_low"][0], rawk_cache=memory["k_low"][0], beta_cache=None,
            out=zeros(1, 1, D),
            query_start_loc=torch.tensor([0, 1], dtype=torch.int32, device=ON),
            ssm_state_indices=one, replay_indices=one, **cursors,
            max_cache_len=L, max_spec_len=T, null_block_id=-1, launch_mode="verify",
        )  # fmt: skip
        module.commit_gdn_replayssm_spec(
            **cursors, num_accepted=one, replay_indices=one,
            max_cache_len=L, max_spec_len=T, null_block_id=-1,
        )  # fmt: skip
        commit = ending(
            module.commit_gdn_replayssm_circular,
            checkpoint_state=state,
            d_cache=memory["d"], k_cache=memory["k"], g_cache=memory["g"],
            d_residual_cache=memory["d_low"], k_residual_cache=memory["k_low"],
            state_batch_indices=one, replay_indices=one, **cursors,
            accept_lens=one, null_block_id=-1,
        )  # fmt: skip
        print(f"K = V = {D}: verify {verify}; commit {commit}")


main()
