"""Fuzz every release of SGLang on the CPU for as long each; a table of what came of it.

    python docs/results/releases.py --seconds 60    # writes releases-cpu.json, an hour for 60
    python docs/results/releases.py --table         # prints the table of docs/releases.md from it

Each row is one `ringfold fuzz TARGET --max-time SECONDS --workers 1 --dead garbage --json`, with
seed 0. Dead memory is finite: full of NaN it makes every release from 0.5.20 on fail within
seconds, by a finding that is on the page already. A target that is not here is left out, and said.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "releases-cpu.json"
VERSIONS = tuple(f"0.5.{patch}" for patch in range(16, 24))
FAMILIES = ("sglang", "sglang-snapshots", "sglang-decode", "sglang-packed")
EXIT_CODES = (0, 1, 3)  # agree, mismatch, inconclusive
EXACT = ("exactness",)


def fuzz(target: str, seconds: float) -> dict[str, Any]:
    """What the command reports, cut down to what the table is about."""
    command = [sys.executable, "-m", "ringfold", "fuzz", target, "--json", "--workers", "1"]
    command += ["--max-time", str(seconds), "--dead", "garbage", "--no-shrink"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(run.stdout.splitlines()[-1])
    if run.returncode not in EXIT_CODES:
        raise SystemExit(f"{' '.join(command)}: {run.stderr}")
    if "error" in report:
        print(f"{target} is left out: {report['error']}", file=sys.stderr)
        return {}
    return {
        "target": target,
        "identity": report["identities"][target],
        "seconds": report["elapsed"],
        "windows": report["windows"],
        "histories": report["histories"],
        "compared": report["compared"],
        "largest": report["largest"],
        "folds": report["situations"].get("fold", 0),
        "findings": sorted({f"{f['check']}: {f['symptom']}" for f in report["findings"]}),
        "missed": report["missed"],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: checks that were made, findings, and whether the claim of bits held."""
    lines = [
        "| target | row-windows | folds | checks | outputs | state | bitwise claim | findings |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        compared, largest = row["compared"], row["largest"]
        exact = compared.get("exactness", 0)
        held = not any(f.startswith(EXACT) for f in row["findings"])
        claim = f"{'held' if held else 'broken'}, {exact:,}" if exact else "none made"
        state = max(largest.get(check, 0.0) for check in ("state-local", "state-global"))
        cells = (
            f"`{row['target']}`",
            f"{row['windows']:,}",
            f"{row['folds']:,}" if row["folds"] else "",
            f"{sum(compared.values()):,}",
            f"{largest.get('outputs', 0.0):.2f}",
            f"{state:.2f}",
            claim,
            "; ".join(row["findings"]) or "none",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run all, or print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(RESULTS.read_text(encoding="utf-8"))))
        return
    rows = []
    for family in FAMILIES:
        for version in VERSIONS:
            if row := fuzz(f"{family}=={version}", options.seconds):
                rows.append(row)
                RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
                print(table([row]).splitlines()[-1], file=sys.stderr)


if __name__ == "__main__":
    main()
