"""Is the smallest history of every planted bug as short as a person would write it?

Each bug is hunted from two seeds that are drawn when the test runs, and both failures are shrunk.
The results must be at most three steps long (a step is a verify and its commit; placing a request
is free), must fail when they are replayed from disk, and must be the same trace wherever the cause
is the same: what is found first then depends on the bug and not on luck.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ringfold.fuzz.findings.replay import Outcome, replay
from ringfold.fuzz.findings.shrink import Shrunk, shrink, write
from ringfold.fuzz.findings.simpler.reseeded import RARE_SEEDS
from ringfold.fuzz.running.hunt import hunt
from ringfold.fuzz.targets.registry import resolve

STEPS_MAX: Final = 3  # seen: 2 for six bugs of 116, else 1 or none
SECONDS_MAX: Final = 60.0  # seen: median 0.3, at most 9.5, of processor time


def smallest(bug: str, seed: int) -> Shrunk:
    """Hunt a planted bug and shrink what was found."""
    target = resolve(f"sim:{bug}")
    found = hunt(target, seed, seconds_max=SECONDS_MAX)
    assert found.failure is not None, f"sim:{bug} is not found from seed {seed}"
    return shrink(found.failure, target, seconds_max=SECONDS_MAX)


def test_a_planted_bug_shrinks_to_what_a_person_would_write(
    bug: str, seed: int, tmp_path: Path
) -> None:
    """At most three steps, in time, failing again from disk, and the same from another start."""
    one, other = smallest(bug, seed), smallest(bug, seed + 1)

    for shrunk in (one, other):
        written = write(shrunk.trace, shrunk, Path(), tmp_path, "cpu")

        assert shrunk.complete
        assert shrunk.steps <= STEPS_MAX
        assert replay(Path(written.trace), None, "cpu").outcome is Outcome.FAILED
    if one.cause == other.cause and not (rare(one) or rare(other)):
        assert one.digest == other.digest


def rare(shrunk: Shrunk) -> bool:
    """Whether the fault shows on few numbers only, so that no small seed brings them.

    Seen: none in 393; with the seeds below 8 alone, 2 in 995.
    """
    return shrunk.trace.payload.seed not in RARE_SEEDS
