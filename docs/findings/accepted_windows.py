"""Three kinds of window that SGLang's flags allow and its replay gets wrong, without ringfold.

torch, triton and one upstream file alone:

    python accepted_windows.py FILE [--cuda]

FILE is gdn_replayssm_spec_decode.py of SGLang 0.5.16 or of 0.5.20 or later (in its wheel under
sglang/kernels/ops/attention/fla/, from 0.5.23 on .../linear/). Without --cuda, Triton
interprets it.

*Adaptive drafts* (--speculative-adaptive): windows of 2, each kept whole and committed with the
bound that the server hands over, its own length. With L = 16 none of them folds up to 12 records.
Then the draft count rises to 8, which --linear-replayssm-cache-len 16 was validated for.

*A draft tree* (--speculative-algorithm NGRAM, which sets topk after topk was validated): a root
with three children. The kernel knows no parents and takes each for the child of the one before.

*A ring shorter than a window* (which 0.5.16 refuses): windows of 4 with
--linear-replayssm-cache-len 2, which does not compile on NVIDIA's GPUs (compact_short_ring.py), and
windows of 20 with the default of 16, each kept whole.

Each line is the largest difference to the recurrence in float64, over its largest number.
On a GPU with tf32, 1e-3 is rounding.
"""

import argparse
import importlib.util
import inspect
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

torch.set_default_device("cuda" if OPTIONS.cuda else "cpu")
H, HV, K, V, SLOTS = 1, 2, 32, 32, 3
A_LOG, DT_BIAS = torch.full((HV,), -3.0), torch.zeros(HV)


def load(path):
    """Execute the file; the names that it imports from its package are given here."""
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


class Pool:
    """One request in slot 1 and, where rings belong to requests, in place 1."""

    def __init__(self, module, ring=16):
        self.module, self.ring = module, ring
        self.compact = (
            "replay_indices" in inspect.signature(module.gdn_replayssm_spec_decode).parameters
        )
        shapes = {"d": (HV, ring, V), "k": (H, ring, K), "g": (HV, ring)}
        shapes |= {"rawv": (HV, ring, V), "rawk": (H, ring, K), "beta": (HV, ring)}
        self.rings = {f"{name}_cache": torch.zeros(SLOTS, *s) for name, s in shapes.items()}
        self.state = torch.zeros(SLOTS, HV, V, K)
        self.cursors = {
            "write_pos": torch.zeros(SLOTS, dtype=torch.int32),
            "cache_base": torch.zeros(SLOTS, dtype=torch.int32),
            "is_flush": torch.zeros(SLOTS, dtype=torch.int8),
        }
        self.row = torch.tensor([1], dtype=torch.int32)

    def verify(self, tokens):
        """Outputs [T, HV, V] of a window."""
        q, k, v, a, b = tokens
        out = torch.empty_like(v)
        more = {"replay_indices": self.row, "launch_mode": "verify"} if self.compact else {}
        self.module.gdn_replayssm_spec_decode(
            q=q, k=k, v=v, a=a, b=b, A_log=A_LOG, dt_bias=DT_BIAS, checkpoint_state=self.state,
            **self.rings, out=out, query_start_loc=torch.tensor([0, len(q)], dtype=torch.int32),
            ssm_state_indices=self.row, **self.cursors, **more,
            max_cache_len=self.ring, max_spec_len=len(q), null_block_id=-1,
        )  # fmt: skip
        return out

    def commit(self, count):
        """Keep a whole window of `count`; its length is the bound, as in a server."""
        accepted = torch.tensor([count], dtype=torch.int32)
        index = "replay_indices" if self.compact else "state_batch_indices"
        self.module.commit_gdn_replayssm_spec(
            **self.cursors, num_accepted=accepted, **{index: self.row},
            max_cache_len=self.ring, max_spec_len=count, null_block_id=-1,
        )  # fmt: skip
        if self.compact:
            rings = {name: self.rings[name][None] for name in ("d_cache", "k_cache", "g_cache")}
            self.module.commit_gdn_replayssm_circular(
                checkpoint_state=self.state[None], **rings,
                d_residual_cache=self.rings["rawv_cache"][None],
                k_residual_cache=self.rings["rawk_cache"][None],
                state_batch_indices=self.row, replay_indices=self.row, **self.cursors,
                accept_lens=accepted, null_block_id=-1,
            )  # fmt: skip


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


def draw(count, seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((H, K), (H, K), (HV, V), (HV,), (HV,))
    numbers = [torch.randn(count, *s, generator=generator, device="cpu") for s in shapes]
    return [x.to(A_LOG.device) for x in numbers]


def report(what, got, expected):
    off = (got.double() - expected).abs().max() / expected.abs().max()
    print(f"{what}: {off:.1e}")


def walk(pool, what, counts):
    """Windows of so many tokens, each kept whole, beside the recurrence."""
    state = torch.zeros(HV, V, K, dtype=torch.float64)
    for seed, count in enumerate(counts):
        tokens, expected = draw(count, seed), []
        waiting = int(pool.cursors["write_pos"][1])
        for i in range(count):
            state, out = recurrence(state, [t[i] for t in tokens])
            expected.append(out)
        got = pool.verify(tokens)
        report(f"{what}: window of {count} behind {waiting} records", got, torch.stack(expected))
        pool.commit(count)


def tree(module):
    pool, tokens = Pool(module), draw(4, 9)
    root, first = recurrence(torch.zeros(HV, V, K, dtype=torch.float64), [t[0] for t in tokens])
    expected = [first, *(recurrence(root, [t[i] for t in tokens])[1] for i in (1, 2, 3))]
    got = pool.verify(tokens)
    for i, name in enumerate(("root", "its first child", "its second child", "its third child")):
        report(f"tree: {name}", got[i], expected[i])


MODULE = load(OPTIONS.file)
walk(Pool(MODULE), "adaptive", (2, 2, 2, 2, 2, 2, 8, 2))
tree(MODULE)
if Pool(MODULE).compact:
    for length, count in ((16, 4), (2, 4), (16, 20)):
        if length >= 16 or not OPTIONS.cuda:
            walk(Pool(MODULE, length), f"ring of {length}", (count, count, count))
