"""No false alarm: one sound target from twenty seeds, with all rings, dtypes, profiles and checks.

    python docs/results/seeds.py seeds.json triton --device cuda --at-once 5 --geometry 1,2,32,32

Each seed is a `ringfold fuzz` of its own, which gets what options are not known here. The file is written anew as each ends; it exits with 0 if
every seed was walked whole and nothing differed.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from ringfold.fuzz.findings.failures import write_json
from ringfold.fuzz.provenance import machine

SEEDS: Final = range(1, 21)


def fuzzed(asked: argparse.Namespace, folder: Path, seed: int) -> dict[str, Any]:
    """The report of one seed, and its exit code; empty but for that where there is none."""
    run_dir = folder / str(seed)
    command = [sys.executable, "-m", "ringfold", "fuzz", asked.target, "--device", asked.device]
    command += ["--seed", str(seed), "--max-windows", str(asked.windows), "--no-shrink"]
    command += ["--workers", str(asked.workers), "--run-dir", str(run_dir), *asked.more]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.stderr.write(ended.stderr)
    written = run_dir / "report.json"
    report = json.loads(written.read_bytes()) if written.is_file() else {}
    return {"exit": ended.returncode, **report}


def joined(asked: argparse.Namespace, reports: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """All seeds together."""
    compared, largest = Counter[str](), dict[str, float]()
    for report in reports.values():
        compared.update(report.get("compared", {}))
        for check, ratio in report.get("largest", {}).items():
            largest[check] = max(ratio, largest.get(check, 0.0))
    told = ("exit", "windows", "histories", "mismatches", "missed", "findings", "inconclusive")
    return {
        "target": asked.target,
        "options": asked.more,
        "windows": sum(report.get("windows", 0) for report in reports.values()),
        "mismatches": sum(report.get("mismatches", 0) for report in reports.values()),
        "compared": dict(sorted(compared.items())),
        "largest": dict(sorted(largest.items())),
        "seeds": {
            str(seed): {name: report[name] for name in told if name in report}
            for seed, report in sorted(reports.items())
        },
    }


def main() -> int:
    """Walk every seed, some at a time."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("file", type=Path)
    parser.add_argument("target")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--windows", type=int, default=52_000, help="row-windows of each seed")
    parser.add_argument("--at-once", type=int, default=1, help="seeds side by side")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) // 5))
    parser.add_argument("--commit", help="what is run, where git can't tell")
    asked, asked.more = parser.parse_known_args()
    made = machine() | ({"commit": asked.commit} if asked.commit else {})
    reports: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(asked.at_once) as pool:
        walk = functools.partial(fuzzed, asked, Path(folder))
        for seed, report in zip(SEEDS, pool.map(walk, SEEDS), strict=True):
            reports[seed] = report
            write_json(asked.file, {"machine": made, **joined(asked, reports)})
            print(f"seed {seed}: {report.get('windows', 0)} row-windows, exit {report['exit']}")
    return int(any(report["exit"] for report in reports.values()))


if __name__ == "__main__":
    sys.exit(main())
