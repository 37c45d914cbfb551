"""How do SGLang's exact fold and recurrent kernel add up over K, once compiled? Without ringfold.

torch, triton and upstream files alone, and no GPU: what a launch would compile on an H200 is
compiled and not launched.

    python fold_contraction.py RECURRENT FOLD [--keys 64 128] [--cuda]

RECURRENT is fused_sigmoid_gating_recurrent.py of an SGLang release, FOLD its
gdn_replayssm_spec_decode.py (0.5.16) or gdn_replayssm_spec_fold.py (0.5.17 to 0.5.19), in its wheel
under sglang/kernels/ops/attention/fla/. With --cuda, the GPU that is here is compiled for.

Both kernels hold a state as a tile [K, 32 columns of V]. A lane has some neighbouring rows of every
second, fourth, ... column, multiplies them with the key and adds them, before lanes are added. Of
the first two products one is rounded, and the other is fused with the addition; the compiler says
which. For each geometry the sums are read from the PTX, column by column, as
`(h3*k3 + (h2*k2 + (h0*k0 + [h1*k1])))`: parentheses are results of an FMA, brackets a rounded
product, and numbers the rows of the lane. A line says whether the two kernels add alike; where not,
the next ones say which columns, and how.
"""

import argparse
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType

PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
PARSER.add_argument("recurrent", type=Path)
PARSER.add_argument("fold", type=Path)
PARSER.add_argument("--keys", type=int, nargs="*", default=(64, 128, 256))
PARSER.add_argument("--cuda", action="store_true")
OPTIONS = PARSER.parse_args()
os.environ.pop("TRITON_INTERPRET", None)

import torch  # noqa: E402
import triton  # noqa: E402

H, HV, V, L, T, B, SLOTS = 1, 3, 96, 8, 2, 2, 4
RECURRENT = "fused_sigmoid_gating_delta_rule_update_kernel"
FOLD = "gdn_replayssm_exact_fold_kernel"
REGISTER = r"%r\d+"
ARITHMETIC = rf"\b(mul|fma\.rn)\.f32\s+({REGISTER}), ({REGISTER}), ({REGISTER})(?:, ({REGISTER}))?;"
STORES = r"st\.global\.v4\.b32 \[.*?\], \{(.*?)\}"
COMPILED = {}


class Hopper:
    """What Triton asks of a driver before it launches."""

    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)
    get_current_target = staticmethod(lambda: triton.backends.compiler.GPUTarget("cuda", 90, 32))


def compile_only():
    """Have each launch compile its kernel for an H200 that need not be there, keep it, and stop."""
    run = triton.JITFunction.run

    def compile_and_keep(kernel, *arguments, warmup, **options):
        COMPILED[kernel.__name__] = run(kernel, *arguments, warmup=True, **options)

    if not OPTIONS.cuda:
        triton.runtime.driver.set_active(Hopper())
    triton.JITFunction.run = compile_and_keep


def load(path):
    """Execute the file; what 0.5.19 asks of its package is answered here."""
    parts = ("sglang", "kernels", "jit", "utils")
    for end in range(1, len(parts) + 1):
        package = sys.modules.setdefault(".".join(parts[:end]), ModuleType(parts[end - 1]))
        package.__path__ = []
    package.is_arch_support_pdl = lambda: True
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def launch(recurrent, fold, act, K):
    """The recurrent kernel with its snapshots, and the fold, as the release launches them."""

    def zeros(*shape, dtype=act):
        return torch.zeros(shape, dtype=dtype)

    q, k, v = zeros(B * T, H, K), zeros(B * T, H, K), zeros(B * T, HV, V)
    a, b, fp32 = zeros(B * T, HV), zeros(B * T, HV), torch.float32
    A_log, dt_bias, state = (zeros(*s, dtype=fp32) for s in ((HV,), (HV,), (SLOTS, HV, V, K)))
    slots = torch.ones(B, dtype=torch.int32)
    starts = torch.arange(0, (B + 1) * T, T, dtype=torch.int32)
    recurrent.fused_sigmoid_gating_delta_rule_update(
        A_log, a, dt_bias, 1.0, 20.0, q[None], k[None], v[None], b, state, slots,
        use_qk_l2norm_in_kernel=True, cu_seqlens=starts, disable_state_update=True,
        intermediate_states_buffer=zeros(SLOTS, T, HV, V, K, dtype=fp32),
        intermediate_state_indices=slots, cache_steps=T,
    )  # fmt: skip
    rawv, rawk = zeros(SLOTS, HV, L, V), zeros(SLOTS, H, L, K)
    g, beta = zeros(SLOTS, HV, L, dtype=fp32), zeros(SLOTS, HV, L, dtype=fp32)
    if hasattr(fold, "commit_gdn_replayssm_fold_all_layers"):
        fold.commit_gdn_replayssm_fold_all_layers(
            state[None], rawv[None], rawk[None], g[None], beta[None], slots, slots, L, H
        )
        return
    cursors = [zeros(SLOTS, dtype=dtype) for dtype in (torch.int32, torch.int32, torch.int8)]
    fold.gdn_replayssm_spec_decode(
        q, k, v, a, b, A_log, dt_bias, state, zeros(SLOTS, HV, L, V), zeros(SLOTS, H, L, K), g,
        rawv, rawk, beta, zeros(B * T, HV, V), starts, slots, *cursors, L, T,
    )  # fmt: skip


def sums(ptx):
    """By column of a lane, in the order in which it stores them: how its rows are added."""
    results = {out: (op, operands) for op, out, *operands in re.findall(ARITHMETIC, ptx)}
    # What is stored is the new state, fma(k, v, decayed h): k names the row, v the column.
    names, rows, columns = {}, [], []
    for stored in re.findall(STORES, ptx):
        updates = [results[register][1] for register in re.findall(REGISTER, stored)]
        (v,) = set.intersection(*({x, y} for x, y, _ in updates))
        columns += [v] if v not in columns else []
        for x, y, decayed in updates:
            k = x if y == v else y
            rows += [k] if k not in rows else []
            names[k] = f"k{rows.index(k)}"
            names[decayed] = f"h{rows.index(k)}@{columns.index(v)}"

    def spelled(register):
        """The sum of which this is the result, if it is one of the state and the key."""
        if register in names or register not in results:
            return names.get(register, "")
        op, (x, y, addend) = results[register]
        parts = [spelled(x), spelled(y)] + ([spelled(addend)] if addend else [])
        if not all(parts):
            return ""
        product = "*".join(sorted(parts[:2]))
        return f"[{product}]" if op == "mul" else f"({product} + {parts[2]})"

    found = [""] * len(columns)
    for register in results:
        text = spelled(register)
        if len(of := set(re.findall("@([0-9]+)", text))) == 1:
            column = int(of.pop())
            found[column] = max(found[column], re.sub("@[0-9]+", "", text), key=len)
    assert all(text.count("h") == len(rows) for text in found), "a sum was not understood"
    return found


def main():
    compile_only()
    recurrent, fold = load(OPTIONS.recurrent), load(OPTIONS.fold)
    print(f"Triton {triton.__version__}, for {'this GPU' if OPTIONS.cuda else 'sm_90'}")
    for act in (torch.float32, torch.bfloat16, torch.float16):
        for K in OPTIONS.keys:
            launch(recurrent, fold, act, K)
            folded, walked = (sums(COMPILED[name].asm["ptx"]) for name in (FOLD, RECURRENT))
            apart = [i for i, column in enumerate(folded) if column != walked[i]]
            print(f"{act}, K = {K}: {'not ' if apart else ''}added alike")
            lanes = 32 // len(folded)  # that hold different columns
            for i in apart:
                of = ", ".join(str(i * lanes + lane) for lane in range(lanes))
                print(f"  columns {of} of 32: fold {folded[i]}, recurrent {walked[i]}")


main()
