"""Does exploring a protocol catch every bug that concerns cursors, by a shortest counterexample?

Such a bug spoils the wrap, the flush, the base, the position or the counts, so that some step of
the protocol goes wrong, and exploring takes every step there is. None can show without a step (a
verify and its commit; placing a request is free), so a counterexample of one step is a shortest
one. What only another window bound than the setup's own brings out, which no step of an exploration
announces, must show in the cursors alone. Bugs in our kernels are explored in the interpreter, two
a day, and all of them by `--all-planted`.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

import pytest

from ringfold.fuzz.findings.shrink import Shrunk, shrink
from ringfold.fuzz.planted import PLANTED
from ringfold.fuzz.planted_kernels import KERNEL_BUGS
from ringfold.fuzz.running import tours
from ringfold.fuzz.running.cursor_inputs import walk_cursors
from ringfold.fuzz.running.explore import Walker
from ringfold.fuzz.running.tours import Plan
from ringfold.fuzz.targets.registry import resolve
from ringfold.sim.setup import Geometry, Setup

KINDS: Final = (
    "wrap arithmetic",
    "flush too early or too late",
    "flush ordering",
    "window bounds",
    "base and position",
    "double fold",
    "off-by-one counts",
)
RING, WINDOW = 8, 2
SMALL: Final = Geometry(1, 1, 2, 2)
KERNEL_SIZE: Final = Geometry(1, 2, 16, 16)
KERNEL_BUGS_A_DAY: Final = 2
SECONDS_MAX: Final = 900.0  # seen: at most 300, with a twelfth of a core

MACHINES: Final = [bug for bug, planted in PLANTED.items() if planted.kind in KINDS]
KERNELS: Final = [bug for bug, planted in KERNEL_BUGS.items() if planted.kind in KINDS]
BOUNDS_ALONE: Final = "flag-from-the-longest-window"
PUT_OFF: Final = "nothing-accepted-folds-nothing"
"""Of a fold that a short bound put off, which no state that is explored has before it."""


def explored(plan: Plan) -> Shrunk | None:
    """The shortest history that shows what the first lot that fails is wrong in."""
    for together in tours.lots(plan):
        if failing := Walker(plan).lot(together).failing:
            found, _ = min(failing, key=lambda each: len(each[0].operations))
            return shrink(found, resolve(plan.target), seconds_max=SECONDS_MAX / 2)
    return None


@pytest.mark.parametrize(
    "cursor_bug", [bug for bug in MACHINES if bug not in (BOUNDS_ALONE, PUT_OFF)]
)
def test_a_cursor_bug_of_a_machine_is_caught_by_one_step(cursor_bug: str) -> None:
    """In any step that it spoils."""
    target = f"sim:{cursor_bug}"
    dialect = resolve(target).dialect.name

    shrunk = explored(Plan(target, "cpu", Setup(dialect, SMALL, RING, WINDOW, 2)))

    assert shrunk is not None
    assert shrunk.complete
    assert shrunk.steps == 1


def test_a_bug_that_another_bound_brings_out_is_caught_by_the_cursors_alone() -> None:
    """All steps agree."""
    plan = Plan(f"sim:{BOUNDS_ALONE}", "cpu", Setup("ring", SMALL, RING, WINDOW, 2))

    assert explored(plan) is None
    assert walk_cursors(plan).wrong > 0


def test_a_fold_that_was_put_off_is_in_no_state_that_is_explored() -> None:
    """So its bug passes, cursors included; the page says so, and hunts find it."""
    plan = Plan(f"sim:{PUT_OFF}", "cpu", Setup("compact", SMALL, RING, WINDOW, 2))

    assert explored(plan) is None
    assert walk_cursors(plan).wrong == 0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Two of our kernels' bugs a day, or all."""
    if "explored_bug" in metafunc.fixturenames:
        day, some = dt.datetime.now(dt.UTC).date().toordinal(), KERNELS
        if not metafunc.config.getoption("--all-planted", default=False):
            first = KERNEL_BUGS_A_DAY * day
            some = [KERNELS[(first + i) % len(KERNELS)] for i in range(KERNEL_BUGS_A_DAY)]
        metafunc.parametrize("explored_bug", some)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX)
def test_a_cursor_bug_of_our_kernels_is_caught_by_one_step(explored_bug: str) -> None:
    """In the interpreter."""
    pytest.importorskip("triton")
    plan = Plan(f"triton:{explored_bug}", "cpu", Setup("ring", KERNEL_SIZE, RING, WINDOW, 2))

    shrunk = explored(plan)

    assert shrunk is not None
    assert shrunk.complete
    assert shrunk.steps == 1
