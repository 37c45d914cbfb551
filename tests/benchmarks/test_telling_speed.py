"""One process tells histories faster than many can walk them, in batches of thousands of rows.

What is told is the course of a run on a GPU in a small geometry, told twice: both times the same,
and as many row-windows as were asked for, which is asserted even where nothing is timed. To
measure: `pytest tests/benchmarks/test_telling_speed.py --benchmark-enable`.
"""

from __future__ import annotations

from time import process_time
from typing import Final

import pytest

from ringfold.fuzz.histories.generate import windows
from ringfold.fuzz.histories.story import Plan
from ringfold.fuzz.histories.trace import Trace
from ringfold.fuzz.running.course import Course
from ringfold.fuzz.running.hunt import plans
from ringfold.fuzz.targets.registry import resolve
from ringfold.sim.setup import Geometry

RATE_MIN: Final = 300_000  # row-windows a second; seen 1,120,000 on one core
WINDOWS: Final = 60_000


def told(made: list[Plan], windows_max: int) -> list[Trace]:
    """A course of which nothing is heard."""
    course, traces = Course(made, 0, windows_max, "cuda"), list[Trace]()
    while (lot := course.lot()) is not None:
        course.hear(lot, [])
        traces += lot.traces
    return traces


def test_thousands_of_rows_are_told_at_once(request: pytest.FixtureRequest) -> None:
    """In batches of up to 4,096 rows, to the last row-window, the same again."""
    geometry = Geometry(1, 2, 32, 32)
    made = plans(resolve("sim"), "cuda", geometry=geometry, ring=8, window=2)
    measured = request.config.getoption("benchmark_enable")
    count = 20 * WINDOWS if measured else WINDOWS
    told(made, WINDOWS)  # the map is drawn once

    start = process_time()
    traces = told(made, count)
    seconds = process_time() - start

    assert sum(windows(trace.operations) for trace in traces) == count
    assert max(plan.rows for plan in made) == 4096
    if measured:
        assert count / seconds > RATE_MIN
    else:
        assert told(made, count) == traces
