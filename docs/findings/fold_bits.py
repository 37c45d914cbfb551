"""Does SGLang's exact fold leave the bits that its recurrent kernel leaves? Without ringfold.

torch, triton and the two upstream files alone, on a CUDA device:

    python fold_bits.py FOLDER [--jobs 16] [--json OUT] [--keys 64 128]

FOLDER holds gdn_replayssm_spec_decode.py and fused_sigmoid_gating_recurrent.py of SGLang 0.5.16
(in its wheel: sglang/kernels/ops/attention/fla/). For each geometry, eight requests verify and
commit windows of T tokens, all accepted, until their rings have folded; the recurrent kernel walks
the same tokens from the same state. At each fold, checkpoints are compared; a line says how many
folds were bit for bit the same, and how far the first that was not differs. Each geometry is
compiled twice, with and without contraction into FMA (`TRITON_DEFAULT_FP_FUSION`).
"""

import argparse
import importlib.util
import itertools
import json
import multiprocessing
import os
from pathlib import Path


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compare(job):
    """One geometry: folds that agreed, and what differs in the first that did not."""
    folder, fusion, dtype, H, HV, K, V, L, T = job
    os.environ["TRITON_DEFAULT_FP_FUSION"] = str(int(fusion))
    import torch

    ring = load(Path(folder) / "gdn_replayssm_spec_decode.py")
    recurrent = load(Path(folder) / "fused_sigmoid_gating_recurrent.py")
    on = torch.device("cuda")
    torch.manual_seed(0)
    B, act = 8, getattr(torch, dtype)
    slots = torch.arange(1, B + 1, dtype=torch.int32, device=on)
    starts = torch.arange(0, (B + 1) * T, T, dtype=torch.int32, device=on)
    zeros = lambda *shape, dtype=act: torch.zeros(*shape, dtype=dtype, device=on)  # noqa: E731
    A_log = torch.rand(HV, device=on) * 2 - 4
    dt_bias = torch.rand(HV, device=on) - 0.5
    state = torch.randn(B + 1, HV, V, K, device=on)
    twin = state.clone()
    d, k_ring = zeros(B + 1, HV, L, V), zeros(B + 1, H, L, K)
    rawv, rawk = torch.zeros_like(d), torch.zeros_like(k_ring)
    g, beta = (zeros(B + 1, HV, L, dtype=torch.float32) for _ in "gb")
    write_pos, base = (zeros(B + 1, dtype=torch.int32) for _ in "wb")
    flush = zeros(B + 1, dtype=torch.int8)
    accepted = torch.full((B,), T, dtype=torch.int32, device=on)
    snapshots = zeros(B + 1, T, HV, V, K, dtype=torch.float32)
    row = {
        "fp_fusion": fusion, "dtype": dtype, "H": H, "HV": HV, "K": K, "V": V, "L": L, "T": T,
        "folds_equal": 0, "elements": state[1:].numel(), "differ": 0, "ulp_max": 0, "v": [],
    }  # fmt: skip
    for _ in range(3 * L // T):
        q, k = (torch.randn(B * T, H, K, device=on).to(act) for _ in "qk")
        v = torch.randn(B * T, HV, V, device=on).to(act)
        a, b = (torch.randn(B * T, HV, device=on).to(act) for _ in "ab")
        folding = bool(flush[1])
        ring.gdn_replayssm_spec_decode(
            q, k, v, a, b, A_log, dt_bias, state, d, k_ring, g, rawv, rawk, beta,
            torch.empty_like(v), starts, slots, write_pos, base, flush, L, T,
        )  # fmt: skip
        if folding:  # the checkpoint now holds all that was committed before this window
            differ = state[1:] != twin[1:]
            if differ.any():
                ulp = state[1:].view(torch.int32).long() - twin[1:].view(torch.int32).long()
                row["differ"], row["ulp_max"] = int(differ.sum()), int(ulp.abs().max())
                row["v"] = sorted({int(i) for i in differ.nonzero()[:, 2]})[:8]
                break
            row["folds_equal"] += 1
        recurrent.fused_sigmoid_gating_delta_rule_update(
            A_log, a, dt_bias, 1.0, 20.0, q[None], k[None], v[None], b, twin, slots,
            use_qk_l2norm_in_kernel=True, cu_seqlens=starts, disable_state_update=True,
            intermediate_states_buffer=snapshots, intermediate_state_indices=slots,
            cache_steps=T,
        )  # fmt: skip
        twin[1:] = snapshots[1:, T - 1]
        ring.commit_gdn_replayssm_spec(write_pos, base, flush, accepted, slots, L, T)
    return row


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--json")
    parser.add_argument("--keys", type=int, nargs="*", default=(32, 64, 96, 128, 256))
    arguments = parser.parse_args()
    jobs = [
        (arguments.folder, fusion, dtype, 1, 2, K, V, 8, 2)
        for fusion, dtype, K, V in itertools.product(
            (True, False), ("float32", "bfloat16"), arguments.keys, (32, 128)
        )
    ]
    rows = []
    context = multiprocessing.get_context("spawn")
    with context.Pool(arguments.jobs, maxtasksperchild=1) as pool:
        for row in pool.imap(compare, jobs):
            rows.append(row)
            print(row, flush=True)
            if arguments.json:
                Path(arguments.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
