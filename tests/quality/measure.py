"""Hunt every planted bug from a few seeds and write what it took into docs/planted.md.

python tests/quality/measure.py [SEEDS]
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Final

from ringfold.fuzz.findings.failures import write_text
from ringfold.fuzz.planted import PLANTED
from ringfold.fuzz.running.hunt import hunt
from ringfold.fuzz.targets.registry import resolve

PAGE: Final = Path(__file__).parents[2] / "docs" / "planted.md"
HEAD: Final = "| bug | kind | what it models | seen by | row-windows: median | most |\n"
SEEDS: Final = 5
SECONDS_MAX: Final = 60.0


def row(bug: str, seeds: int) -> str:
    """A line of the table."""
    found = [hunt(resolve(f"sim:{bug}"), s, seconds_max=SECONDS_MAX) for s in range(seeds)]
    if missed := [s for s, one in enumerate(found) if one.failure is None]:
        raise SystemExit(f"sim:{bug} is not found from seeds {missed} in {SECONDS_MAX:g} s each")
    checks = Counter(one.mismatches[0].check for one in found)
    windows = [one.windows for one in found]
    cells = [
        f"`{bug}`",
        PLANTED[bug].kind,
        PLANTED[bug].about,
        checks.most_common(1)[0][0],
        f"{statistics.median(windows):.0f}",
        str(max(windows)),
    ]
    return f"| {' | '.join(cells)} |\n"


def main() -> None:
    """Replace the page's table, which is all from its head on."""
    seeds = int(sys.argv[1]) if sys.argv[1:] else SEEDS
    text, head, _ = PAGE.read_text(encoding="utf-8").partition(HEAD)
    assert head, f"{PAGE} has no table that begins with {HEAD}"
    rows = "".join(row(bug, seeds) for bug in PLANTED)
    write_text(PAGE, text + HEAD + "|---|---|---|---|---|---|\n" + rows)


if __name__ == "__main__":
    main()
