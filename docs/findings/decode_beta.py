"""Do SGLang's plain decoding and its verify make the same state of a token? Without ringfold.

torch, triton and two upstream files alone:

    python decode_beta.py DECODE VERIFY [--cuda]

DECODE is fused_recurrent.py and VERIFY fused_sigmoid_gating_recurrent.py of one SGLang release (in
its wheel under sglang/kernels/ops/attention/). Without --cuda, Triton interprets them, and then in
float16, since its interpreter gets bfloat16 wrong; with it, in bfloat16.

One token with b = -0.5 is decoded from one state by the packed decode kernel and by the recurrent
kernel that also verifies. Both are compared with float64, once with beta = sigmoid(b) and once with
beta rounded to the dtype of the activations.
"""

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
PARSER.add_argument("decode", type=Path)
PARSER.add_argument("verify", type=Path)
PARSER.add_argument("--cuda", action="store_true")
OPTIONS = PARSER.parse_args()
if not OPTIONS.cuda:
    os.environ["TRITON_INTERPRET"] = "1"

import torch  # noqa: E402
import triton.language as tl  # noqa: E402

ON = torch.device("cuda" if OPTIONS.cuda else "cpu")
DTYPE = torch.bfloat16 if OPTIONS.cuda else torch.float16
K = V = 64


def false(*arguments):
    return False


def load(path):
    """Execute the file; the names that it imports from its package are given here."""
    names = {
        "sglang.kernels.ops.attention.fla.op": {
            "exp": tl.exp if OPTIONS.cuda else lambda x: tl.exp(x)
        },
        "sglang.kernels.ops.attention.fla.utils": {"input_guard": lambda function: function},
        "sglang.kernels.jit.utils": {"is_arch_support_pdl": false},
        "sglang.srt.utils": dict.fromkeys(
            ("is_gfx95_supported", "is_hip", "is_cuda", "is_sm90_supported", "get_device_sm"), false
        ),
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


def truth(state, k, v, a, beta):
    """The recurrence in float64, [V, K]."""
    S, k, v = (x.double().cpu() for x in (state, k, v))
    g = -torch.exp(torch.tensor(-3.0).double()) * torch.log1p(torch.exp(a.double().cpu()))
    k = k / torch.sqrt((k * k).sum() + 1e-6)
    S = torch.exp(g) * S
    return S + torch.outer(beta * (v - S @ k), k)


def main():
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, K, generator=generator).to(ON, DTYPE) for _ in range(2))
    v = torch.randn(1, 1, V, generator=generator).to(ON, DTYPE)
    state = torch.randn(1, 1, V, K, generator=generator).to(ON)
    a, b = (
        torch.full((1, 1), 0.25, device=ON).to(DTYPE),
        torch.full((1, 1), -0.5, device=ON).to(DTYPE),
    )
    A_log, dt_bias = torch.full((1,), -3.0, device=ON), torch.zeros(1, device=ON)
    slot = torch.zeros(1, dtype=torch.int32, device=ON)

    decoded, verified = state.clone(), state.clone()
    load(OPTIONS.decode).fused_recurrent_gated_delta_rule_packed_decode(
        mixed_qkv=torch.cat([x.reshape(1, -1) for x in (q, k, v)], dim=-1),
        a=a, b=b, A_log=A_log, dt_bias=dt_bias, scale=K**-0.5, initial_state=decoded,
        out=torch.empty(1, 1, 1, V, dtype=DTYPE, device=ON), ssm_state_indices=slot,
        use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    load(OPTIONS.verify).fused_sigmoid_gating_delta_rule_update(
        A_log=A_log, a=a, dt_bias=dt_bias, softplus_beta=1.0, softplus_threshold=20.0,
        q=q[None], k=k[None], v=v[None], b=b,
        initial_state_source=verified, initial_state_indices=slot, use_qk_l2norm_in_kernel=True,
        cu_seqlens=torch.tensor([0, 1], dtype=torch.int32, device=ON),
    )  # fmt: skip

    exact = torch.sigmoid(b.double().cpu())[0, 0]
    for beta, name in ((exact, "sigmoid(b)"), (exact.to(DTYPE).double(), f"its {DTYPE} rounding")):
        right = truth(state[0, 0], k[0, 0], v[0, 0], a[0, 0], beta)
        for kernel, got in (("packed decode", decoded), ("recurrent verify", verified)):
            off = (got[0, 0].double().cpu() - right).abs().max()
            print(f"{kernel}: off by {off:.3g} from float64 with beta = {name}")


main()
