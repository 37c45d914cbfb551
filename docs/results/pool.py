"""SGLang's pool, backend and commit on a GPU: one release, walked as it comes and by graph replays.

    python docs/results/pool.py OUT.json 0.5.16 [--device cpu] [--seconds S] [--windows N]

Each case is a geometry and a dtype, its steps launched one by one or replayed from captured CUDA
graphs; histories are random ones of the tester's, without the operations at which the release is
known to lose something (`FINDINGS`), which then follow as traces of their own. OUT.json says of
each case what was compared, how large the largest error was over what is allowed, what differed
and what was captured. Exit code: 0 if nothing differed in a case; 1 if something did, or a
finding's trace agreed; 3 if there was no time for all of them.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec

from ringfold.fuzz.failures import write_json
from ringfold.fuzz.generate import history
from ringfold.fuzz.hunt import plans
from ringfold.fuzz.target import Device
from ringfold.fuzz.targets import registry
from ringfold.fuzz.trace import load
from ringfold.fuzz.walk import walk
from ringfold.sim.setup import Geometry

GEOMETRIES: Final = {
    "cuda": ((1, 2, 32, 32), (4, 8, 64, 64), (16, 32, 128, 128)),
    "cpu": ((1, 2, 32, 32),),
}
DTYPES: Final = {"cuda": ("float32", "bfloat16"), "cpu": ("float32", "float16")}
MODES: Final = {"cuda": ("", "+graph"), "cpu": ("",)}
ROWS: Final = 6
RING: Final = 16
WINDOW: Final = 4
SEED: Final = 7

LOSING: Final = {
    "ring": frozenset({"save", "restore", "donate", "hit", "evict"}),
    "fold-every-commit": frozenset[str](),
    "compact": frozenset({"save", "restore", "donate", "hit", "evict"}),
}
"""Operations that are findings of a dialect's releases."""
FINDINGS: Final = {
    "ring": ("pool_retraction", "pool_prefix_window"),
    "fold-every-commit": (),
    "compact": ("pool_retraction_compact", "pool_prefix_state"),
}
"""Traces that show them."""
WORST: Final = {"ring": "nan", "fold-every-commit": "nan", "compact": "garbage"}
"""What dead memory holds: NaN in a dead record is a finding of the compact releases."""


def case(name: str, device: Device, shape: Geometry, dtype: str, windows: int, end: float) -> Any:
    """Walk random histories on a target until there were so many row-windows, or time is up."""
    target: Any = registry.resolve(name, device)
    operations = target.operations - LOSING[target.dialect.name] - {"prefill"}
    told = plans(
        target, device, worst=WORST[target.dialect.name], geometry=shape, dtype=dtype, ring=RING,
        window=WINDOW,
    )  # fmt: skip
    begun, late = time.monotonic(), lambda: time.monotonic() > end
    compared, situations, replays = Counter[str](), Counter[str](), Counter[str]()
    largest: dict[str, float] = {}
    mismatches: list[str] = []
    refused: dict[str, str] = {}
    walked = histories = 0
    for number, plan in zip(itertools.count(), itertools.cycle(told)):
        if walked >= windows or late() or len(mismatches) > 3:
            break
        setup = msgspec.structs.replace(plan.setup, slots=ROWS + 2)
        first = number == 0
        served = plan._replace(setup=setup, rows=ROWS, operations=operations, directed=first)
        trace = history(served, SEED, number, windows_max=windows - walked)
        verdict = walk(trace, target, out_of_time=late)
        histories, walked = histories + 1, walked + verdict.windows
        compared.update(verdict.compared)
        situations.update(verdict.situations)
        largest |= {k: max(v, largest.get(k, 0.0)) for k, v in verdict.largest.items()}
        mismatches += [mismatch.sentence for mismatch in verdict.mismatches]
        if name.endswith("+graph"):
            captured = target.captured()
            replays.update(captured["replays"])
            refused |= captured["refused"]
    return {
        "target": name,
        "geometry": msgspec.to_builtins(shape),
        "dtype": dtype,
        "operations": sorted(operations),
        "histories": histories,
        "windows": walked,
        "compared": dict(compared),
        "situations": dict(situations),
        "largest": largest,
        "mismatches": mismatches,
        "replays": dict(replays),
        "not captured": refused,
        "complete": walked >= windows,
        "seconds": round(time.monotonic() - begun, 2),
    }


def finding(name: str, device: Device, trace: str) -> Any:
    """What a finding's smallest history shows here."""
    path = Path(__file__).parents[1] / "findings" / f"{trace}.json"
    verdict = walk(load(path), registry.resolve(name, device))
    return {
        "trace": path.name,
        "mismatches": [mismatch.sentence for mismatch in verdict.mismatches],
    }


def main() -> int:
    """Run the cases, the plainest first."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("release", help="such as 0.5.16; empty for the one that is installed")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--seconds", type=float, default=80.0)
    parser.add_argument("--windows", type=int, default=240, help="row-windows of each case")
    given = parser.parse_args()
    device: Device = given.device
    end = time.monotonic() + given.seconds
    name = f"sglang-pool=={given.release}" if given.release else "sglang-pool"
    target: Any = registry.resolve(name, device)
    result: dict[str, Any] = {"identity": dict(target.identity()), "cases": [], "findings": []}
    left = list(itertools.product(GEOMETRIES[device], DTYPES[device], MODES[device]))
    while left and time.monotonic() < end:
        shape, dtype, mode = left.pop(0)
        done = case(name + mode, device, Geometry(*shape), dtype, given.windows, end)
        result["cases"].append(done)
        write_json(given.out, result)
        kept = {k: done[k] for k in ("target", "dtype", "windows", "largest", "replays", "seconds")}
        print(shape, kept, done["mismatches"], done["not captured"], flush=True)
    for trace in FINDINGS[target.dialect.name]:
        result["findings"].append(finding(name, device, trace))
        print(result["findings"][-1], flush=True)
    result["not run"] = [list(case) for case in left]
    write_json(given.out, result)
    if any(done["mismatches"] for done in result["cases"]):
        return 1
    if not all(found["mismatches"] for found in result["findings"]):
        return 1
    return 3 if left or not all(done["complete"] for done in result["cases"]) else 0


if __name__ == "__main__":
    sys.exit(main())
