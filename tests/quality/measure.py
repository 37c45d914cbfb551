"""Hunt every planted bug from a few seeds and write what it took into docs/.

python tests/quality/measure.py [SEEDS]

The table of docs/planted.md has row-windows; docs/results/planted-cpu.json has seconds too, of
processor time, so that a busy machine does not count.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

from ringfold.fuzz.findings.failures import write_json, write_text
from ringfold.fuzz.planted import PLANTED
from ringfold.fuzz.running.hunt import hunt
from ringfold.fuzz.targets.registry import resolve

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = DOCS / "planted.md"
RESULTS: Final = DOCS / "results" / "planted-cpu.json"
HEAD: Final = "| bug | kind | what it models | seen by | row-windows: median | most |\n"
SEEDS: Final = 5
SECONDS_MAX: Final = 60.0


class Measured(msgspec.Struct):
    """What one bug took, seed by seed."""

    check: str
    """The first that failed, from most seeds."""
    windows: list[int]
    """Row-windows until then."""
    seconds: list[float]


def measure(bug: str, seeds: int) -> Measured:
    """Hunt one from each of the seeds."""
    checks, windows, seconds = Counter[str](), [], []
    for seed in range(seeds):
        start = time.process_time()
        found = hunt(resolve(f"sim:{bug}"), seed, seconds_max=SECONDS_MAX)
        if found.failure is None:
            raise SystemExit(f"sim:{bug} is not found from seed {seed} in {SECONDS_MAX:g} s")
        checks[found.mismatches[0].check] += 1
        windows.append(found.windows)
        seconds.append(round(time.process_time() - start, 2))
    return Measured(checks.most_common(1)[0][0], windows, seconds)


def row(bug: str, m: Measured) -> str:
    """A line of the table."""
    cells = [
        f"`{bug}`",
        PLANTED[bug].kind,
        PLANTED[bug].about,
        m.check,
        f"{statistics.median(m.windows):.0f}",
        str(max(m.windows)),
    ]
    return f"| {' | '.join(cells)} |\n"


def main() -> None:
    """Replace the page's table, which is all from its head on, and the file of results."""
    seeds = int(sys.argv[1]) if sys.argv[1:] else SEEDS
    text, head, _ = PAGE.read_text(encoding="utf-8").partition(HEAD)
    assert head, f"{PAGE} has no table that begins with {HEAD}"
    measured = {bug: measure(bug, seeds) for bug in PLANTED}
    write_json(RESULTS, measured)
    rows = "".join(row(bug, measured[bug]) for bug in PLANTED)
    write_text(PAGE, text + HEAD + "|---|---|---|---|---|---|\n" + rows)


if __name__ == "__main__":
    main()
