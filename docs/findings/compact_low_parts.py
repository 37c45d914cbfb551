"""What do the low parts of SGLang's compact records bring? Without ringfold.

torch, triton and two upstream files alone:

    python compact_low_parts.py FILE VERIFY [--cuda]

FILE is gdn_replayssm_spec_decode.py and VERIFY fused_sigmoid_gating_recurrent.py of one SGLang
release from 0.5.20 on (in its wheel under sglang/kernels/ops/attention/). Without --cuda, Triton
interprets them, and then in float16; with it, in bfloat16.

One request verifies 24 windows of four tokens and accepts them all, three times over: with float32
records, with 16-bit records and their low parts, and with 16-bit records alone. After each fold the
float32 checkpoint is compared with float64. A line each gives the largest error of a row, relative
to the row's norm, and that of the recurrent kernel on the same tokens.
"""

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
PARSER.add_argument("file", type=Path)
PARSER.add_argument("verify", type=Path)
PARSER.add_argument("--cuda", action="store_true")
OPTIONS = PARSER.parse_args()
if not OPTIONS.cuda:
    os.environ["TRITON_INTERPRET"] = "1"

import torch  # noqa: E402

ON = torch.device("cuda" if OPTIONS.cuda else "cpu")
NARROW = torch.bfloat16 if OPTIONS.cuda else torch.float16
H, HV, K, V, L, T, WINDOWS = 1, 2, 64, 64, 16, 4, 24


def false(*arguments):
    return False


def load(path):
    """Execute the file; the names that it imports from its package are given here."""
    names = {
        "sglang.kernels.ops.attention.fla.utils": {"is_tf32_supported": OPTIONS.cuda},
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


def advance(S, k, v, a, b):
    """One token of the recurrence in float64; S [HV, V, K]."""
    k = k.double().cpu()
    k = k / torch.sqrt((k * k).sum() + 1e-6)
    g = -torch.exp(torch.tensor(-4.0).double()) * torch.log1p(torch.exp(a.double().cpu()))
    S = torch.exp(g)[:, None, None] * S
    u = torch.sigmoid(b.double().cpu())[:, None] * (v.double().cpu() - S @ k)
    return S + u[:, :, None] * k


def walk(ring, recurrent, dtype, low):
    def zeros(*shape, dtype=dtype):
        return torch.zeros(shape, dtype=dtype, device=ON)

    generator = torch.Generator().manual_seed(0)
    d, k_ring, d_low, k_low = (
        zeros(1, 2, *shape) for shape in ((HV, L, V), (H, L, K), (HV, L, V), (H, L, K))
    )
    g = zeros(1, 2, HV, L, dtype=torch.float32)
    state = torch.randn(1, 2, HV, V, K, generator=generator).to(ON)
    plain, right = state.clone(), state[0, 1].double().cpu()
    cursors = {
        "write_pos": zeros(2, dtype=torch.int32),
        "cache_base": zeros(2, dtype=torch.int32),
        "is_flush": zeros(2, dtype=torch.int8),
    }
    one = torch.tensor([1], dtype=torch.int32, device=ON)
    starts = torch.tensor([0, T], dtype=torch.int32, device=ON)
    accepted = torch.tensor([T], dtype=torch.int32, device=ON)
    A_log, dt_bias = torch.full((HV,), -4.0, device=ON), torch.zeros(HV, device=ON)
    topics = torch.randn(6, H, K, generator=generator)
    parts = (d_low, k_low) if low else (None, None)
    worst = 0.0
    for _ in range(WINDOWS):
        near = topics[torch.randint(6, (T,), generator=generator)]
        numbers = [torch.randn(T, *s, generator=generator) for s in ((H, K), (H, K), (HV, V))]
        numbers[1] = near + 0.1 * numbers[1]
        numbers += [torch.randn(T, HV, generator=generator) for _ in range(2)]
        # All walks get the same numbers: those that the narrow dtype holds.
        q, k, v, a, b = (x.to(ON, NARROW).to(dtype) for x in numbers)
        ring.gdn_replayssm_spec_decode(
            q=q, k=k, v=v, a=a, b=b, A_log=A_log, dt_bias=dt_bias, checkpoint_state=state[0],
            d_cache=d[0], k_cache=k_ring[0], g_cache=g[0],
            rawv_cache=parts[0][0] if low else None, rawk_cache=parts[1][0] if low else None,
            beta_cache=None, out=torch.empty_like(v), query_start_loc=starts,
            ssm_state_indices=one, replay_indices=one, **cursors,
            max_cache_len=L, max_spec_len=T, null_block_id=-1, launch_mode="verify",
        )  # fmt: skip
        ring.commit_gdn_replayssm_spec(
            **cursors, num_accepted=accepted, replay_indices=one,
            max_cache_len=L, max_spec_len=T, null_block_id=-1,
        )  # fmt: skip
        folds = bool(cursors["is_flush"][1])
        ring.commit_gdn_replayssm_circular(
            checkpoint_state=state, d_cache=d, k_cache=k_ring, g_cache=g,
            d_residual_cache=parts[0], k_residual_cache=parts[1],
            state_batch_indices=one, replay_indices=one, **cursors,
            accept_lens=accepted, null_block_id=-1,
        )  # fmt: skip
        recurrent.fused_sigmoid_gating_delta_rule_update(
            A_log=A_log, a=a, dt_bias=dt_bias, softplus_beta=1.0, softplus_threshold=20.0,
            q=q[None], k=k[None], v=v[None], b=b,
            initial_state_source=plain[0], initial_state_indices=one,
            use_qk_l2norm_in_kernel=True, cu_seqlens=starts,
        )  # fmt: skip
        for t in range(T):
            right = advance(right, k[t, 0], v[t], a[t], b[t])
        if folds:
            worst = max(worst, distance(state[0, 1], right))
    return worst, distance(plain[0, 1], right)


def distance(state, right):
    off = state.double().cpu() - right
    return float((off.norm(dim=-1) / right.norm(dim=-1)).max())


def main():
    ring, recurrent = load(OPTIONS.file), load(OPTIONS.verify)
    for name, dtype, low in (
        ("float32 records", torch.float32, False),
        (f"{NARROW} records with low parts", NARROW, True),
        (f"{NARROW} records alone", NARROW, False),
    ):
        folded, plain = walk(ring, recurrent, dtype, low)
        print(f"{name}: {folded:.2g} after a fold; the recurrent kernel {plain:.2g}")


main()
