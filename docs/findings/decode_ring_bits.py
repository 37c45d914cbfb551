"""Has SGLang's decode ring of length 1 the bits of plain decoding, as it says? Without ringfold.

torch, triton and two upstream files alone:

    python decode_ring_bits.py RING PACKED [--cuda]

RING is fused_recurrent_linear_replayssm.py and PACKED fused_recurrent.py of one SGLang release (in
its wheel under sglang/kernels/ops/attention/). Without --cuda, Triton interprets them.

With L = 1 there is never a record, so both kernels step the same checkpoint by the same token.
"""

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
PARSER.add_argument("ring", type=Path)
PARSER.add_argument("packed", type=Path)
PARSER.add_argument("--cuda", action="store_true")
OPTIONS = PARSER.parse_args()
if not OPTIONS.cuda:
    os.environ["TRITON_INTERPRET"] = "1"

import torch  # noqa: E402
import triton.language as tl  # noqa: E402

ON = torch.device("cuda" if OPTIONS.cuda else "cpu")
K = V = 64
B, H, HV = 4, 1, 2


def load(path):
    """Execute the file; the names that it imports from its package are given here."""
    names = {
        "sglang.kernels.ops.attention.fla.op": {
            "exp": tl.exp if OPTIONS.cuda else lambda x: tl.exp(x)
        },
        "sglang.kernels.ops.attention.linear.op": {
            "exp": tl.exp if OPTIONS.cuda else lambda x: tl.exp(x)
        },
        "sglang.kernels.ops.attention.fla.utils": {"input_guard": lambda function: function},
        "sglang.kernels.ops.attention.linear.utils": {"input_guard": lambda function: function},
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


def main():
    ring = load(OPTIONS.ring).fused_recurrent_linear_replayssm_decode
    packed = load(OPTIONS.packed).fused_recurrent_gated_delta_rule_packed_decode
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        if dtype is torch.bfloat16 and not OPTIONS.cuda:
            continue  # the interpreter gets it wrong
        generator = torch.Generator().manual_seed(0)

        def normal(*shape, dtype=dtype, generator=generator):
            return torch.randn(*shape, generator=generator).to(ON, dtype)

        token = {
            "mixed_qkv": normal(B, 2 * H * K + HV * V), "a": normal(B, HV), "b": normal(B, HV),
            "A_log": torch.full((HV,), -3.0, device=ON), "dt_bias": torch.zeros(HV, device=ON),
            "scale": K**-0.5, "use_qk_l2norm_in_kernel": True,
            "ssm_state_indices": torch.arange(B, dtype=torch.int32, device=ON),
        }  # fmt: skip
        state = normal(B, HV, V, K, dtype=torch.float32)
        states, outs = [state.clone(), state.clone()], [normal(B, 1, HV, V) for _ in range(2)]
        packed(**token, initial_state=states[0], out=outs[0])
        for nk in (2, 1):
            states[1].copy_(state)
            ring(
                **token, initial_state=states[1], out=outs[1], nk=nk,
                d_cache=normal(B, HV, 1, V), k_cache=normal(B, H, 1, K),
                g_cache=normal(B, HV, 1, dtype=torch.float32),
                write_pos=torch.zeros(B, dtype=torch.int32, device=ON),
            )  # fmt: skip
            for name, (one, other) in (("checkpoints", states), ("outputs", outs)):
                differ = one != other
                most = (one.double() - other.double()).abs().max()
                count = f"{int(differ.sum())} of {differ.numel()}"
                print(f"{dtype}, nk={nk}: {count} {name} differ, by {most:.3g} at most")


main()
