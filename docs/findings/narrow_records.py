"""What do records lose that are narrower than what they record? SGLang's exact folds, no ringfold.

torch, triton and upstream files alone:

    python narrow_records.py VERIFY [FOLD] [--cuda]

VERIFY is gdn_replayssm_spec_decode.py of SGLang 0.5.16, or fused_sigmoid_gating_recurrent.py of
0.5.17 to 0.5.19 with that release's gdn_replayssm_spec_fold.py as FOLD (in its wheel under
sglang/kernels/ops/attention/fla/). Without --cuda, Triton interprets them.

One request verifies windows of four float32 tokens and keeps them all, until its ring was folded
twice, once with float32 records and once with 16-bit ones: float16, and bfloat16 with --cuda, which
SGLANG_MAMBA_CONV_DTYPE makes the default. Lines give the largest differences to the recurrence in
float64, over its largest number: of each window's outputs, and of each checkpoint that was folded.
"""

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
PARSER.add_argument("verify", type=Path)
PARSER.add_argument("fold", type=Path, nargs="?")
PARSER.add_argument("--cuda", action="store_true")
OPTIONS = PARSER.parse_args()
if not OPTIONS.cuda:
    os.environ["TRITON_INTERPRET"] = "1"

import torch  # noqa: E402

ON = torch.device("cuda" if OPTIONS.cuda else "cpu")
H, HV, K, V, L, T, WINDOWS = 1, 2, 64, 64, 16, 4, 8
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


class Pool:
    """One request in slot 1."""

    def __init__(self, records):
        self.verifies = load(OPTIONS.verify)
        self.folds = load(OPTIONS.fold) if OPTIONS.fold else None
        if self.folds and not OPTIONS.cuda:
            self.folds.range = lambda *bounds: map(Step, range(*(int(b) for b in bounds)))
        rows = T if self.folds else L
        self.state = zeros(2, HV, V, K)
        self.raw = (zeros(2, HV, rows, V, dtype=records), zeros(2, H, rows, K, dtype=records))
        self.gates = (zeros(2, HV, rows), zeros(2, HV, rows))
        self.derived = (torch.zeros_like(self.raw[0]), torch.zeros_like(self.raw[1]))
        self.cursors = (
            zeros(2, dtype=torch.int32), zeros(2, dtype=torch.int32), zeros(2, dtype=torch.int8)
        )  # fmt: skip
        self.row = torch.tensor([1], dtype=torch.int32, device=ON)
        self.starts = torch.tensor([0, T], dtype=torch.int32, device=ON)
        self.accepted = torch.tensor([T], dtype=torch.int32, device=ON)

    def step(self, before, after, q, k, v, a, b):
        """Outputs [T, HV, V] of tokens that are all kept, and what a folded checkpoint should be."""
        if self.folds:
            out = self.verifies.fused_sigmoid_gating_delta_rule_update(
                A_LOG, a, DT_BIAS, 1.0, 20.0, q[None], k[None], v[None], b, self.state, self.row,
                use_qk_l2norm_in_kernel=True, cu_seqlens=self.starts, disable_state_update=True,
                cache_ring=True, replayssm_rawv=self.raw[0], replayssm_rawk=self.raw[1],
                replayssm_g=self.gates[0], replayssm_beta=self.gates[1],
            )  # fmt: skip
            self.folds.commit_gdn_replayssm_fold_all_layers(
                self.state[None], self.raw[0][None], self.raw[1][None], self.gates[0][None],
                self.gates[1][None], self.row, self.accepted, T, H,
            )  # fmt: skip
            return out.reshape(T, HV, V), after
        out, folds = torch.empty_like(v), bool(self.cursors[2][1])
        self.verifies.gdn_replayssm_spec_decode(
            q, k, v, a, b, A_LOG, DT_BIAS, self.state, *self.derived, self.gates[0], *self.raw,
            self.gates[1], out, self.starts, self.row, *self.cursors, L, T,
        )  # fmt: skip
        self.verifies.commit_gdn_replayssm_spec(*self.cursors, self.accepted, self.row, L, T)
        return out, before if folds else None


def recurrence(state, token):
    """One token in float64; returns (state, output)."""
    q, k, v, a, b = (t.double() for t in token)
    q, k = (t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k))
    q, k = q.repeat(HV // H, 1) * K**-0.5, k.repeat(HV // H, 1)
    g = -A_LOG.double().exp() * torch.nn.functional.softplus(a + DT_BIAS)
    state = state * g.exp()[:, None, None]
    u = torch.sigmoid(b)[:, None] * (v - torch.einsum("hvk,hk->hv", state, k))
    state = state + torch.einsum("hv,hk->hvk", u, k)
    return state, torch.einsum("hvk,hk->hv", state, q)


def distance(got, right):
    return float((got.double() - right).abs().max() / right.abs().max())


def walk(records):
    pool, state = Pool(records), zeros(HV, V, K, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    outputs, checkpoints = [], []
    for _ in range(WINDOWS):
        shapes = ((H, K), (H, K), (HV, V), (HV,), (HV,))
        tokens = [torch.randn(T, *shape, generator=generator).to(ON) for shape in shapes]
        before, expected = state, []
        for i in range(T):
            state, out = recurrence(state, [t[i] for t in tokens])
            expected.append(out)
        got, folded = pool.step(before, state, *tokens)
        outputs.append(distance(got, torch.stack(expected)))
        if folded is not None:
            checkpoints.append(distance(pool.state[1], folded))
    for what, off in (("outputs", outputs), ("folded checkpoints", checkpoints)):
        print(f"{records} records, {what}: off by {', '.join(f'{x:.1e}' for x in off)}")


for dtype in (torch.float32, torch.bfloat16 if OPTIONS.cuda else torch.float16):
    walk(dtype)
