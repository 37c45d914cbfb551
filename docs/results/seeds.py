"""No false alarm: one sound target from twenty seeds, with all rings, dtypes, profiles and checks.

    python docs/results/seeds.py seeds.json triton --device cuda

One campaign of as many configurations as heads of 32 by 32 have, from each seed. The file is
written anew as it goes on; it exits with 0 if every seed was walked whole and nothing differed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from ringfold.fuzz.findings.failures import write_json
from ringfold.fuzz.histories.story import Plan
from ringfold.fuzz.provenance import machine
from ringfold.fuzz.running.campaign import Campaign, Report, Tally
from ringfold.fuzz.running.course import Budget
from ringfold.fuzz.running.hunt import plans
from ringfold.fuzz.targets import registry
from ringfold.sim.setup import Geometry

SEEDS: Final = range(1, 21)
HEADS: Final = Geometry(1, 2, 32, 32)
ROWS: Final = 256
"""Few enough that a share has many steps."""
HORIZON: Final = 2**12
"""Row-windows of one repeat at most, so that a share has many histories."""


def all_plans(asked: argparse.Namespace) -> list[Plan]:
    """Every configuration from every seed, with its share of the row-windows."""
    target = registry.resolve(asked.target, asked.device)
    some = plans(target, asked.device, name=asked.target, geometry=HEADS)[: asked.configurations]
    share = -(-asked.windows // (len(some) * len(SEEDS)))
    made = []
    for plan in some:
        rows = min(plan.rows, ROWS)
        setup = msgspec.structs.replace(plan.setup, slots=rows + 2)
        horizon = min(plan.horizon, HORIZON)
        one = plan._replace(setup=setup, rows=rows, horizon=horizon, quota=share)
        made += [one._replace(seed=seed) for seed in SEEDS]
    return made


def joined(asked: argparse.Namespace, every: list[Plan], report: Report) -> dict[str, Any]:
    """What came of each seed, and of all together."""
    walked = list(zip(every, report.configurations, strict=True))
    return {
        "target": asked.target,
        "windows": report.windows,
        "histories": report.histories,
        "mismatches": report.mismatches,
        "compared": report.compared,
        "largest": report.largest,
        "configurations": list(dict.fromkeys(str(plan.setup) for plan in every)),
        "seeds": {
            str(seed): _counted(tally for plan, tally in walked if plan.seed == seed)
            for seed in SEEDS
        },
        "findings": [finding.sentence for finding in report.findings],
        "inconclusive": report.inconclusive,
        "elapsed": report.elapsed,
        "rate": report.rate,
        "workers": report.workers,
        "identities": report.identities,
    }


def _counted(tallies: Iterable[Tally]) -> Counter[str]:
    total = Counter[str]()
    for tally in tallies:
        names = ("windows", "histories", "mismatches", "quota")
        total.update({name: getattr(tally, name) for name in names})
    return total


def main() -> int:
    """Walk them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("target")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--windows", type=int, default=1_000_000, help="row-windows in all")
    parser.add_argument("--seconds", type=float, help="stop then")
    parser.add_argument("--configurations", type=int, help="only the first ones [all]")
    parser.add_argument("--workers", type=int, help="processes [one a processor]")
    parser.add_argument("--commit", help="what is run, where git can't tell")
    asked = parser.parse_args()
    made = machine() | ({"commit": asked.commit} if asked.commit else {})
    every = all_plans(asked)
    with tempfile.TemporaryDirectory() as folder:
        budget = Budget(None, asked.seconds)
        campaign = Campaign(every, asked.device, 0, budget, Path(folder), asked.workers)
        told = time.monotonic()

        def progress(report: Report, windows: int, elapsed: float) -> None:
            nonlocal told
            if time.monotonic() - told > 5:
                told = time.monotonic()
                write_json(asked.file, {"machine": made, **joined(asked, every, report)})
                print(f"{elapsed:.0f} s: {windows:,} row-windows", flush=True)

        report = campaign.run(progress)
    write_json(asked.file, {"machine": made, **joined(asked, every, report)})
    print(
        f"{report.windows:,} row-windows from {len(SEEDS)} seeds, {report.mismatches} mismatches",
        *report.inconclusive,
        sep="\n",
    )
    return int(bool(report.mismatches or report.inconclusive or report.findings))


if __name__ == "__main__":
    sys.exit(main())
