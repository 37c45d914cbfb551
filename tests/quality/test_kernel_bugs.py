"""Is every bug that is planted in our kernels found in the interpreter, and is its history small?

Each bug is a span of a kernel's source that another takes the place of, so that hunting it takes as
long as hunting in any kernel does: tenths of a second a window. A plain run therefore takes two of
them, others every day; `--all-planted` takes all. The seed is drawn when the test runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from ringfold.fuzz.findings.replay import Outcome, replay
from ringfold.fuzz.findings.shrink import shrink, write
from ringfold.fuzz.histories.trace import validate
from ringfold.fuzz.running.hunt import hunt
from ringfold.fuzz.targets.registry import resolve

SECONDS_MAX: Final = 300.0  # docs/planted.md has what was seen
SHRINK_SECONDS_MAX: Final = 600.0  # likewise
STEPS_MAX: Final = 3


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX + SHRINK_SECONDS_MAX + 60)
def test_a_bug_in_a_kernel_is_found_and_shrunk(kernel_bug: str, seed: int, tmp_path: Path) -> None:
    """Within the budget, by a legal history of at most three steps that fails again from disk."""
    pytest.importorskip("triton")
    target = resolve(f"triton:{kernel_bug}")

    found = hunt(target, seed, seconds_max=SECONDS_MAX)

    assert found.failure is not None, (
        f"triton:{kernel_bug} is not found in {found.windows} row-windows; to repeat: "
        f"pytest tests/quality --all-planted -k {kernel_bug} --quality-seed {seed}"
    )
    validate(found.failure)
    shrunk = shrink(found.failure, target, seconds_max=SHRINK_SECONDS_MAX)
    written = write(found.failure, shrunk, Path(), tmp_path, "cpu")
    assert shrunk.complete
    assert shrunk.steps <= STEPS_MAX
    assert replay(Path(written.trace), None, "cpu").outcome is Outcome.FAILED
