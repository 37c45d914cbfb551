"""Do SGLang's compact kernels compile for a ring shorter than 16 records? Without ringfold.

torch, triton and one upstream file alone:

    python compact_short_ring.py FILE [--cuda]

FILE is gdn_replayssm_spec_decode.py of SGLang 0.5.20 or later (in its wheel under
sglang/kernels/ops/attention/fla/, from 0.5.23 on .../linear/). Without --cuda, what a launch would
compile on an H200 is compiled and not launched, which needs no GPU. Triton's interpreter would not
do: it multiplies matrices of any size.

For a few ring lengths one request verifies one token and commits it into an empty ring, so that
nothing is folded. A line each says how verify and commit ended.
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
os.environ.pop("TRITON_INTERPRET", None)

import torch  # noqa: E402
import triton  # noqa: E402

ON = torch.device("cuda" if OPTIONS.cuda else "cpu")


class Hopper:
    """What Triton asks of a driver before it launches."""

    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)
    get_current_target = staticmethod(lambda: triton.backends.compiler.GPUTarget("cuda", 90, 32))


def compile_only():
    """Have each launch compile its kernel for an H200 that need not be there, and stop."""
    run = triton.JITFunction.run
    triton.runtime.driver.set_active(Hopper())
    triton.JITFunction.run = lambda kernel, *arguments, warmup, **options: run(
        kernel, *arguments, warmup=True, **options
    )


def load(path):
    """Execute the file; the two names that it imports from its package are given here."""
    names = {
        "sglang.kernels.ops.attention.fla.utils": {"is_tf32_supported": True},
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


def zeros(*shape, dtype=torch.bfloat16):
    return torch.zeros(shape, dtype=dtype, device=ON)


def ending(call, **arguments):
    try:
        call(**arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the line says
        cause = error.__cause__ or error
        return f"raised {type(cause).__name__}: {str(cause).strip().splitlines()[-1]}"
    return "returned" if OPTIONS.cuda else "compiled"


def main():
    if not OPTIONS.cuda:
        compile_only()
    module = load(OPTIONS.file)
    K = V = 128
    for L, T in ((2, 1), (4, 2), (8, 4), (16, 4), (32, 4)):
        parts = {"d": (1, L, V), "k": (1, L, K), "d_low": (1, L, V), "k_low": (1, L, K)}
        memory = {name: zeros(1, 2, *shape) for name, shape in parts.items()}
        memory["g"] = zeros(1, 2, 1, L, dtype=torch.float32)
        state = zeros(1, 2, 1, V, K, dtype=torch.float32)
        one = torch.tensor([1], dtype=torch.int32, device=ON)
        cursors = {
            "write_pos": zeros(2, dtype=torch.int32),
            "cache_base": zeros(2, dtype=torch.int32),
            "is_flush": zeros(2, dtype=torch.int8),
        }
        verify = ending(
            module.gdn_replayssm_spec_decode,
            q=zeros(1, 1, K), k=zeros(1, 1, K), v=zeros(1, 1, V), a=zeros(1, 1), b=zeros(1, 1),
            A_log=zeros(1, dtype=torch.float32), dt_bias=zeros(1, dtype=torch.float32),
            checkpoint_state=state[0],
            d_cache=memory["d"][0], k_cache=memory["k"][0], g_cache=memory["g"][0],
            rawv_cache=memory["d_low"][0], rawk_cache=memory["k_low"][0], beta_cache=None,
            out=zeros(1, 1, V),
            query_start_loc=torch.tensor([0, 1], dtype=torch.int32, device=ON),
            ssm_state_indices=one, replay_indices=one, **cursors,
            max_cache_len=L, max_spec_len=T, null_block_id=-1, launch_mode="verify",
        )  # fmt: skip
        commit = ending(
            module.commit_gdn_replayssm_circular,
            checkpoint_state=state,
            d_cache=memory["d"], k_cache=memory["k"], g_cache=memory["g"],
            d_residual_cache=memory["d_low"], k_residual_cache=memory["k_low"],
            state_batch_indices=one, replay_indices=one, **cursors,
            accept_lens=one, null_block_id=-1,
        )  # fmt: skip
        print(f"L = {L}: verify {verify}; commit {commit}")


main()
