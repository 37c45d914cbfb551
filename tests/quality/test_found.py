"""Is every planted bug found, and soon?

Each planted bug is a reference machine with one rule overridden. A hunt walks the histories that
`ringfold fuzz` would, in its order, from a seed that is drawn when the test runs, so that nothing
here was tuned to one seed. A hunt that finds nothing within the budget is a hole in generation or
checks: mend those and leave the bug as it is. What the hunt found must fail again when replayed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Final

import pytest

from ringfold.fuzz.histories.trace import validate
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.running.hunt import Hunt, hunt
from ringfold.fuzz.targets.registry import resolve

SECONDS_MAX: Final = 60.0  # seen: 9.3 at most, on two cores busy with ten other processes
SECONDS_MEDIAN_MAX: Final = 10.0  # seen: 0.12 there, 0.05 on a core of its own


def test_a_planted_bug_is_found(
    bug: str, seed: int, hunts: dict[str, Hunt], record_property: Callable[[str, object], None]
) -> None:
    """Within the budget, by a legal history whose replay shows the same."""
    target = resolve(f"sim:{bug}")

    found = hunts[bug] = hunt(target, seed, seconds_max=SECONDS_MAX)
    told = {"bug": bug, "seed": seed, "row-windows": found.windows, "seconds": found.seconds}
    for name, value in told.items():  # for the summary
        record_property(name, value)

    assert found.failure is not None, (
        f"sim:{bug} is not found in {found.windows} row-windows of {found.histories} histories; "
        f"to repeat: pytest tests/quality --all-planted -k {bug} --quality-seed {seed}"
    )
    validate(found.failure)
    assert walk(found.failure, target).mismatches == found.mismatches


def test_the_median_bug_is_found_sooner(hunts: dict[str, Hunt]) -> None:
    """Half of the bugs take a sixth of the budget at most."""
    if not hunts:
        pytest.skip("no bug was hunted in this session")

    assert statistics.median(found.seconds for found in hunts.values()) < SECONDS_MEDIAN_MAX
