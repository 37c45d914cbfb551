"""Does SGLang's exact fold leave the signs of zero that its recurrent kernel leaves? No ringfold.

torch, triton and upstream files alone:

    python fold_zeros.py RECURRENT FOLD [--cuda]

RECURRENT is fused_sigmoid_gating_recurrent.py of SGLang 0.5.16 to 0.5.19; FOLD is that release's
gdn_replayssm_spec_fold.py, of 0.5.16 gdn_replayssm_spec_decode.py (in its wheel under
sglang/kernels/ops/attention/fla/). Without --cuda, Triton interprets them.

One request has a checkpoint of negative zeros, as strong gates leave it where numbers were below
zero, and keeps one token; half of its key's components are -0.0, which is what SiLU makes of a
large negative number. The lines say how many of the checkpoint's numbers have which bits.
"""

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
PARSER.add_argument("recurrent", type=Path)
PARSER.add_argument("fold", type=Path)
PARSER.add_argument("--cuda", action="store_true")
OPTIONS = PARSER.parse_args()
if not OPTIONS.cuda:
    os.environ["TRITON_INTERPRET"] = "1"

import torch  # noqa: E402

ON = torch.device("cuda" if OPTIONS.cuda else "cpu")
H, HV, K, V, L = 1, 2, 32, 32, 8
A_LOG, DT_BIAS = torch.full((HV,), -3.0, device=ON), torch.zeros(HV, device=ON)


def false(*arguments):
    return False


def load(path):
    """Execute the file; the names that 0.5.19 imports from its package are given here."""
    for name in ("sglang.kernels.jit.utils", "sglang.srt.utils"):
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            package = sys.modules.setdefault(".".join(parts[:end]), ModuleType(parts[end - 1]))
            package.__path__ = []
        for helper in ("is_arch_support_pdl", "is_hip", "is_cuda", "is_sm90_supported"):
            setattr(sys.modules[name], helper, false)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


class Step(int):
    """A loop variable, which the interpreter leaves a plain int."""

    def to(self, *dtype):
        """Itself, whatever the dtype."""
        return self


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype, device=ON)


RECURRENT, FOLD = load(OPTIONS.recurrent), load(OPTIONS.fold)
EACH_COMMIT = hasattr(FOLD, "commit_gdn_replayssm_fold_all_layers")
if EACH_COMMIT and not OPTIONS.cuda:
    FOLD.range = lambda *bounds: map(Step, range(*(int(b) for b in bounds)))

DRAW = torch.Generator().manual_seed(0)
SHAPES = ((1, H, K), (1, H, K), (1, HV, V), (1, HV), (1, HV))
q, k, v, a, b = (torch.randn(*shape, generator=DRAW).to(ON) for shape in SHAPES)
k[..., ::2], v = -0.0, v.abs()
row, one = (torch.ones(1, dtype=torch.int32, device=ON) for _ in range(2))
starts = torch.tensor([0, 1], dtype=torch.int32, device=ON)


def recurrent(state, **named):
    RECURRENT.fused_sigmoid_gating_delta_rule_update(
        A_LOG, a, DT_BIAS, 1.0, 20.0, q[None], k[None], v[None], b, state, row,
        use_qk_l2norm_in_kernel=True, cu_seqlens=starts, **named,
    )  # fmt: skip
    return state


def folded(state):
    """The checkpoint after the token was verified, kept and folded."""
    rows = 1 if EACH_COMMIT else L
    raw, gates = (zeros(2, HV, rows, V), zeros(2, H, rows, K)), (zeros(2, HV, rows),) * 2
    gates = (gates[0], gates[1].clone())
    if EACH_COMMIT:
        recurrent(
            state, disable_state_update=True, cache_ring=True, replayssm_rawv=raw[0],
            replayssm_rawk=raw[1], replayssm_g=gates[0], replayssm_beta=gates[1],
        )  # fmt: skip
        FOLD.commit_gdn_replayssm_fold_all_layers(
            state[None], raw[0][None], raw[1][None], gates[0][None], gates[1][None], row, one, 1, H
        )
        return state
    cursors = [zeros(2, dtype=torch.int32), zeros(2, dtype=torch.int32)]
    cursors.append(zeros(2, dtype=torch.int8))
    derived = [torch.zeros_like(x) for x in raw]
    for _ in range(2):  # the second window's verify folds the first
        FOLD.gdn_replayssm_spec_decode(
            q, k, v, a, b, A_LOG, DT_BIAS, state, *derived, gates[0], *raw, gates[1],
            torch.empty_like(v), starts, row, *cursors, L, 1,
        )  # fmt: skip
        cursors[0][1], cursors[2][1] = 1, 1
    return state


def start():
    return torch.full((2, HV, V, K), -0.0, device=ON)


stays, replays = recurrent(start())[1], folded(start())[1]
differ = stays.view(torch.int32) != replays.view(torch.int32)
print(f"{int(differ.sum())} of {differ.numel()} numbers of the folded checkpoint have other bits")
print(f"  where they do the recurrent kernel has {set(stays[differ].tolist())}")
print(f"  and the fold has {set(replays[differ].tolist())}")
print(f"  the largest difference is {(stays - replays).abs().max():.3g}")
