"""Compile our kernels for an H100 or H200, where no GPU is needed, and say how they add up.

Run as a script, in a process of its own: the tests' process interprets kernels.  Reads a list of
cases as JSON from each line of its input, answers with a line of {kernel, layouts, exchanged, fma}
for each.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from typing import Any

from ringfold.fuzz.targets.constants import PACKAGE, rewrite_of
from ringfold.fuzz.targets.loading import rewritten_copies


def compile_for_hopper(kernel: Any, types: dict[str, str], constants: dict[str, Any]) -> Any:
    """The compiled kernel; arguments without a type are 32-bit strides divisible by 16."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    warps = constants.pop("warps")
    signature: dict[str, str] = {}
    attributes: dict[tuple[int], list[list[object]]] = {}
    for i, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        signature[name] = types.get(name, "fp32" if name == "scale" else "i32")
        if name not in {"scale", "stride_state"}:
            attributes[i,] = [["tt.divisibility", 16]]
    known = {name: x for name, x in constants.items() if name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=known, attrs=attributes)
    options = {"num_warps": warps, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def row_sum_layouts(compiled: Any, block_v: int, columns: int) -> list[str]:
    """The layouts of the tiles `[block_v, columns / 4, 4]` whose rows are summed."""
    text = compiled.asm["ttgir"]
    names = dict(re.findall(r"^(#\w+) = (.*)$", text, re.MULTILINE))
    sums = r'"tt\.reduce"\([^)]*\) <\{axis = 2.*?\}\) : \(tensor<(\d+)x(\d+)x4xf32, (#.*?)>\) ->'
    found = re.findall(sums, text, re.DOTALL)
    shape = (str(block_v), str(columns // 4))
    return sorted({names.get(layout, layout) for *sizes, layout in found if tuple(sizes) == shape})


def exchange_layouts(compiled: Any) -> list[str]:
    """How that lies in lanes which `lanes.py` exchanges between them."""
    text = compiled.asm["ttgir"]
    names = dict(re.findall(r"^(#\w+) = (.*)$", text, re.MULTILINE))
    pieces = r"packed_element = 8 : i32.*?: tensor<\w+, (?:#ttg.slice<{dim = 2, parent = )?(#\w+)"
    return sorted({names[layout] for layout in re.findall(pieces, text)})


MODULES = ("state", "ring", "recurrent", "fold")


def shares(state: Any, tile: Any, K: int, V: int, act: str) -> bool:
    """What a Hopper would be asked for."""
    import torch

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[act]
    state.known_layouts = lambda device: True
    return bool(tile.shares(V, K, torch.empty(0), torch.empty(0, dtype=dtype)))


def report(
    name: str,
    K: int,
    V: int,
    L: int,
    act: str,
    snapshot: str,
    align: int | None = None,
    changes: str = "",
) -> dict[str, Any]:
    """Compile one kernel for one geometry, with the constants that `changes` names changed."""
    rewrite = rewrite_of(changes)
    if rewrite is None:
        modules = [importlib.import_module(f"{PACKAGE}.{module}") for module in MODULES]
    else:
        modules = rewritten_copies(PACKAGE, MODULES, rewrite, changes)
    state, ring, recurrent, fold = modules
    kernel = {
        "ring": ring.ring_verify_kernel,
        "recurrent": recurrent.recurrent_kernel,
        "fold": fold.fold_kernel,
    }[name]
    tile = state.Tile.of(V, K)
    floats = ("q", "k", "v", "a", "b", "out", "d_ring", "rawv_ring", "rawk_ring")
    fp32 = ("A_log", "dt_bias", "state", "g_ring", "beta_ring", "plan", "units")
    ints = ("window_start", "slots", "write_pos", "cache_base", "snapshot_rows", "walked", "agenda")
    types = dict.fromkeys(floats, f"*{act}") | dict.fromkeys(fp32, "*fp32")
    types |= dict.fromkeys(ints, "*i32") | {"is_flush": "*i8", "snapshots": f"*{snapshot}"}
    align = align or (16 if K % 4 == 0 else 8 if K % 2 == 0 else 4)
    constants = {
        "H": 2, "HV": 4, "K": K, "V": V, "L": L, "T": 4,
        "BLOCK_V": tile.block_v, "BLOCK_L": max(16, L), "BLOCK_T": 4,
        "BLOCK_K": state.block_k(K),
        "ALIGN": align, "UNIT": align // 4, "NORM": True, "NULL": 0, "WHOLE": tile.covers(V, K),
        "FOLDING": True, "PLAIN": True, "PRECISION": "tf32", "OVERLAP": True,
        "TOGETHER": ring.TOGETHER,
        "SHARED": shares(state, tile, K, V, act),
        "OUTPUT": True, "SNAPSHOTS": True, "UPDATE": True, "WALKED": True, "warps": tile.warps,
    }  # fmt: skip
    compiled = compile_for_hopper(kernel, types, constants)
    ptx = compiled.asm["ptx"]
    return {
        "kernel": name,
        "layouts": row_sum_layouts(compiled, tile.block_v, state.TILE_K),
        "exchanged": exchange_layouts(compiled),
        "fma": len(re.findall(r"\bfma\.rn\.f32\b", ptx)),
    }


if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)
    for line in sys.stdin:
        print(json.dumps([report(**case) for case in json.loads(line)]), flush=True)  # noqa: T201
