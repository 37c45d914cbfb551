"""Hunt and shrink every bug planted in our kernels, and write what it took into docs/.

python tests/quality/measure_kernels.py [SEED]

What was measured is kept in docs/results/planted-kernels-cpu.json as it comes, and what is there
already for the same kernels is not measured again.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Final

import msgspec

from ringfold.fuzz.findings.failures import write_json, write_text
from ringfold.fuzz.findings.shrink import shrink
from ringfold.fuzz.planted_kernels import KERNEL_BUGS
from ringfold.fuzz.running.hunt import hunt
from ringfold.fuzz.targets.registry import resolve

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "planted.md"
RESULTS: Final = ROOT / "docs" / "results" / "planted-kernels-cpu.json"
HEAD: Final = (
    "| bug in a kernel | kind | what it models | seen by | row-windows | found in | steps "
    "| shrunk in |\n"
)
SECONDS_MAX: Final = 300.0
SHRINK_SECONDS_MAX: Final = 600.0


class Measured(msgspec.Struct):
    """What one bug took."""

    sha256: str
    """Of the file that it is planted in, before."""
    seed: int
    check: str
    """The first that failed."""
    windows: int
    """Row-windows until then."""
    seconds: float
    steps: int
    """Of the shrunk history: verifies with their commits. Placing a request is free."""
    operations: int
    shrink_seconds: float
    walks: int
    complete: bool
    """Whether shrinking ended by itself."""


def measure(bug: str, seed: int, sha256: str) -> Measured:
    """Hunt and shrink one."""
    target = resolve(f"triton:{bug}")
    found = hunt(target, seed, seconds_max=SECONDS_MAX)
    if found.failure is None:
        raise SystemExit(f"triton:{bug} is not found from seed {seed} in {SECONDS_MAX:g} s")
    shrunk = shrink(found.failure, target, seconds_max=SHRINK_SECONDS_MAX)
    return Measured(
        sha256,
        seed,
        found.mismatches[0].check,
        found.windows,
        round(found.seconds, 1),
        shrunk.steps,
        len(shrunk.trace.operations),
        round(shrunk.seconds, 1),
        shrunk.walks,
        shrunk.complete,
    )


def row(bug: str, m: Measured) -> str:
    """A line of the table."""
    planted = KERNEL_BUGS[bug]
    return (
        f"| `{bug}` | {planted.kind} | {planted.about} | {m.check} | {m.windows} "
        f"| {m.seconds:.1f} s | {m.steps} | {m.shrink_seconds:.1f} s |\n"
    )


def main() -> None:
    """Measure what is not there yet, and replace the page's table."""
    seed = int(sys.argv[1]) if sys.argv[1:] else 1
    measured: dict[str, Measured] = {}
    if RESULTS.exists():
        kept = msgspec.json.decode(RESULTS.read_bytes(), type=dict[str, msgspec.Raw])
        measured = {
            bug: msgspec.json.decode(kept[bug], type=Measured) for bug in KERNEL_BUGS if bug in kept
        }
    for bug, planted in KERNEL_BUGS.items():
        source = (ROOT / "kernels" / planted.file).read_bytes()
        sha256 = hashlib.sha256(source).hexdigest()
        if bug not in measured or (measured[bug].sha256, measured[bug].seed) != (sha256, seed):
            measured[bug] = measure(bug, seed, sha256)
            write_json(RESULTS, {b: measured[b] for b in KERNEL_BUGS if b in measured})
    text, head, behind = PAGE.read_text(encoding="utf-8").partition(HEAD)
    assert head, f"{PAGE} has no table that begins with {HEAD}"
    _, blank, behind = behind.partition("\n\n")
    rows = "".join(row(bug, measured[bug]) for bug in KERNEL_BUGS)
    write_text(PAGE, text + HEAD + "|---|---|---|---|---|---|---|---|\n" + rows + "\n" + behind)
    assert blank


if __name__ == "__main__":
    main()
