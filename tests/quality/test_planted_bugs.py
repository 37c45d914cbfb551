"""Is every planted bug found, and soon, and is its smallest history what a person would write?

Each planted bug is a reference machine with one rule overridden. A hunt walks the histories that
`ringfold fuzz` would, in its order, from a seed that is drawn when the test runs, so that nothing
here was tuned to one seed. A hunt that finds nothing within the budget is a hole in generation or
checks: mend those and leave the bug as it is. What was found must fail again when replayed, and
shrink to at most three steps (a step is a verify and its commit; placing a request is free), to the
same trace as what the next seed finds wherever the cause is the same. Seconds are of processor
time, which does not depend on what else the machine does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from ringfold.fuzz.findings.replay import Outcome, replay
from ringfold.fuzz.findings.shrink import Shrunk, shrink, write
from ringfold.fuzz.findings.simpler.reseeded import RARE_SEEDS
from ringfold.fuzz.histories.trace import Trace, digest, validate
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.running.hunt import Hunt, hunt
from ringfold.fuzz.targets.registry import resolve

SECONDS_MAX: Final = 60.0  # seen: hunts 14.2 at most, shrinks 12.1
SECONDS_MEDIAN_MAX: Final = 10.0  # of hunts; seen: 0.12 on busy cores, 0.05 on a core of its own
WAITED_MAX: Final = 240.0  # seconds of the clock, for a machine that is busy with others
STEPS_MAX: Final = 3  # seen: 2 for six bugs of 116, else 1 or none


def hunted(bug: str, seed: int, hunts: dict[tuple[str, int], Hunt]) -> Hunt:
    """What a hunt from this seed came to; each takes place once a session."""
    if (bug, seed) not in hunts:
        start = time.process_time()
        found = hunt(resolve(f"sim:{bug}"), seed, seconds_max=WAITED_MAX)
        hunts[bug, seed] = found._replace(seconds=time.process_time() - start)
    return hunts[bug, seed]


def test_a_planted_bug_is_found(
    bug: str,
    seed: int,
    hunts: dict[tuple[str, int], Hunt],
    record_property: Callable[[str, object], None],
) -> None:
    """Within the budget, by a legal history whose replay shows the same."""
    found = hunted(bug, seed, hunts)

    told = {"bug": bug, "seed": seed, "row-windows": found.windows, "seconds": found.seconds}
    for name, value in told.items():  # for the summary
        record_property(name, value)
    assert found.failure is not None, (
        f"sim:{bug} is not found in {found.windows} row-windows of {found.histories} histories; "
        f"to repeat: pytest tests/quality --all-planted -k {bug} --quality-seed {seed}"
    )
    assert found.seconds < SECONDS_MAX
    validate(found.failure)
    assert walk(found.failure, resolve(f"sim:{bug}")).mismatches == found.mismatches


def test_the_median_bug_is_found_sooner(hunts: dict[tuple[str, int], Hunt]) -> None:
    """Half of the bugs take a sixth of the budget at most."""
    if not hunts:
        pytest.skip("no bug was hunted in this session")

    assert statistics.median(found.seconds for found in hunts.values()) < SECONDS_MEDIAN_MAX


def test_a_planted_bug_shrinks_to_what_a_person_would_write(
    bug: str, seed: int, hunts: dict[tuple[str, int], Hunt], tmp_path: Path
) -> None:
    """At most three steps, in time, failing again from disk, and the same from another start."""
    one = smallest(bug, seed, hunts)
    other = smallest(bug, seed + 1, hunts, one)

    assert one.complete
    assert other.complete or other.digest == one.digest
    for shrunk in (one, other):
        written = write(shrunk.trace, shrunk, Path(), tmp_path, "cpu")

        assert shrunk.steps <= STEPS_MAX
        assert replay(Path(written.trace), None, "cpu").outcome is Outcome.FAILED
    if one.cause == other.cause and not (rare(one) or rare(other)):
        assert one.digest == other.digest


def smallest(
    bug: str, seed: int, hunts: dict[tuple[str, int], Hunt], end: Shrunk | None = None
) -> Shrunk:
    """What the hunt from this seed found, shrunk within the budget, or until it has come to `end`.

    What becomes of a trace depends on the trace alone: from there on it would end where `end` did.
    """
    arrived = False

    def hear(best: Trace, walks: int) -> None:
        nonlocal arrived
        arrived = end is not None and digest(best) == end.digest

    failure, target = hunted(bug, seed, hunts).failure, resolve(f"sim:{bug}")
    assert failure is not None, f"sim:{bug} is not found from seed {seed}"
    start = time.process_time()
    shrunk = shrink(
        failure, target, seconds_max=WAITED_MAX, on_progress=hear, stopped=lambda: arrived
    )
    assert time.process_time() - start < SECONDS_MAX
    return shrunk


def rare(shrunk: Shrunk) -> bool:
    """Whether the fault shows on few numbers only, so that no small seed brings them.

    Seen: none in 1,859; with the seeds below 8 alone, 2 in 995.
    """
    return shrunk.trace.payload.seed not in RARE_SEEDS
