"""Does an exploration walk every step of a protocol, and find what is wrong in any of them?

How many states and steps there are is known from counting them by hand for small rings and from an
enumerator of its own (tests/sim). A right machine must agree in all of them; a planted bug that
concerns a request's cursors must show, whichever step it spoils, and come out as a history of one
or two steps. The cursors alone are tried on every input, most of which no history reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from ringfold.fuzz import cli, explore
from ringfold.fuzz.commands.options import AGREE, MISMATCH
from ringfold.fuzz.explore import Plan, Walked, cursor_inputs, walk_batch, walk_cursors
from ringfold.fuzz.frame import Dead
from ringfold.fuzz.planted import KINDS, PLANTED
from ringfold.fuzz.shrink import shrink
from ringfold.fuzz.target import Request
from ringfold.fuzz.targets.registry import resolve
from ringfold.fuzz.targets.simulated import SimulatedTarget
from ringfold.fuzz.trace import load, validate
from ringfold.sim.cursors import reachable
from ringfold.sim.setup import Geometry, Setup

SMALL = Geometry(1, 1, 2, 2)
CURSOR_KINDS = ("base and position", "double fold", "off-by-one counts", "wrap arithmetic")
CURSOR_BUGS = [
    bug
    for bug, planted in PLANTED.items()
    if planted.kind in CURSOR_KINDS and planted.machine.dialect.name == "ring"
]
STEPS_MAX = 2


def plan_of(target: str, L: int = 8, T: int = 2) -> Plan:
    """What to explore of a target, on small heads."""
    dialect = resolve(target).dialect.name
    return Plan(target, "cpu", Setup(dialect, SMALL, L, T, 2))


def walk_all(plan: Plan) -> Walked:
    """Every batch, in this process."""
    total = Walked()
    for numbers in explore.batches(plan):
        walked = walk_batch(plan, numbers)
        total.covered += walked.covered
        total.windows += walked.windows
        total.failing += walked.failing
    return total


@pytest.mark.parametrize(
    "target",
    ["sim", "sim@compact", "sim@open-loop", "sim@snapshots", "sim@linear-cache", "sim@decode-ring"],
)
def test_every_transition_of_a_right_machine_agrees(target: str) -> None:
    """All are walked to their end, two windows each."""
    plan = plan_of(target)
    transitions = len(explore.protocol_steps(plan.setup).transitions)

    walked = walk_all(plan)

    assert walked.covered == transitions
    assert walked.windows == 2 * transitions
    assert walked.failing == []


@pytest.mark.parametrize("dead", get_args(Dead))
def test_dead_memory_is_filled_as_asked(dead: Dead) -> None:
    """After everything that a batch does, its placing included."""
    plan = plan_of("sim")._replace(dead=dead)

    trace = explore.history(plan, explore.protocol_steps(plan.setup).transitions[:3])

    assert {operation.dead for operation in trace.operations[2:]} == {dead}


def test_the_history_of_a_batch_is_one_that_a_scheduler_could_do() -> None:
    """Each row is in the state of its transition, and takes its step."""
    plan = plan_of("sim")
    steps = reachable(8, 2).transitions

    trace = explore.history(plan, steps)

    validate(trace)
    assert len(trace.operations) == len(steps) + 4 == 284


@pytest.mark.parametrize("bug", CURSOR_BUGS)
def test_a_cursor_bug_is_found_and_shrinks_to_a_step_or_two(bug: str) -> None:
    """Whichever transition it spoils."""
    plan = plan_of(f"sim:{bug}")
    for numbers in explore.batches(plan):
        if failing := walk_batch(plan, numbers).failing:
            break

    shrunk = shrink(failing[0][1], resolve(plan.target))

    assert shrunk.cause == failing[0][2]
    assert shrunk.steps <= STEPS_MAX


def test_what_fails_only_as_a_batch_is_not_called_covered_and_right() -> None:
    """One row that is due makes all fold: no single transition shows that."""
    plan = plan_of("sim:batch-folds-as-one")

    walked = walk_batch(plan, range(64))

    assert walked.failing
    assert len(walked.failing[0][1].operations) > 3  # several requests


class LateCommit(SimulatedTarget):
    """Moves the cursors of all rows but the last that is not padding."""

    def __init__(self, device: str) -> None:
        super().__init__()
        assert device == "cpu"

    def commit(self, rows: Sequence[Request | None], accepted: Sequence[int], bound: int) -> None:
        """One row short."""
        last = max((i for i, row in enumerate(rows) if row is not None), default=0)
        super().commit(rows[:last], accepted[:last], bound)


# ------------------------------------------------------------------ the cursors alone


def test_the_inputs_of_the_cursors_hold_every_reachable_one() -> None:
    """And more: any flag at any position, as long as the window has room."""
    setup = plan_of("sim").setup
    inputs = cursor_inputs(setup)
    tried = set(
        zip(
            *(c.tolist() for c in inputs.before),
            inputs.accepted.tolist(),
            inputs.bound.tolist(),
            strict=True,
        )
    )

    reached = {(*step.before, step.accepted, 2) for step in reachable(8, 2).transitions}

    assert reached < tried
    # Unflagged: 7 positions with room for 0, 1 and 2 tokens, one for 0 and 1, one for 0; flagged:
    # 9 positions and 3 counts; times 8 bases and 2 bounds.
    assert len(tried) == (7 * 3 + 2 + 1 + 9 * 3) * 8 * 2 == inputs.accepted.size


@pytest.mark.parametrize("target", ["sim", "sim@compact", "sim@open-loop"])
def test_every_cursor_input_of_a_right_machine_agrees(target: str) -> None:
    """With a padding row at either end."""
    walked = walk_cursors(plan_of(target))

    assert walked.inputs == cursor_inputs(plan_of(target).setup).accepted.size > 300
    assert (walked.wrong, walked.example, walked.refused) == (0, "", "")


def test_a_dialect_without_cursors_has_no_inputs() -> None:
    """Nothing is claimed of them."""
    assert walk_cursors(plan_of("sim@snapshots")).inputs == 0


def test_a_bound_that_is_not_the_windows_is_tried_too() -> None:
    """No transition announces a bound of its own, but an input does."""
    walked = walk_cursors(plan_of("sim:flag-from-the-longest-window"))

    assert walked.wrong == 48
    assert "with bound 1" in walked.example


def test_one_wrong_row_in_a_launch_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last input of every launch stays where it was."""
    monkeypatch.setattr(explore, "_target", lambda name, device: LateCommit(device))

    walked = walk_cursors(Plan("late", "cpu", plan_of("sim").setup))

    assert walked.wrong == 2  # one launch for each bound


def test_a_target_that_insists_on_a_verify_is_not_called_wrong() -> None:
    """Its cursors can't be tried alone, and the report says so."""
    walked = walk_cursors(plan_of("sim:flag-from-the-rows-own-window"))

    assert walked.wrong == 0
    assert "a commit without a verify raised AttributeError" in walked.refused


# ------------------------------------------------------------------ the command


@pytest.mark.slow
def test_the_command_covers_everything(tmp_path: Path) -> None:
    """Coverage is 1.0, every input is right, the exit code says so."""
    options = ["--ring", "8", "--window", "2", "--geometry", "1,1,2,2", "--json"]

    result = CliRunner().invoke(cli.app, ["explore", "sim", *options, "--run-dir", str(tmp_path)])

    report = msgspec.json.decode(result.stdout)
    assert result.exit_code == AGREE
    assert (report["states"], report["transitions"], report["coverage"]) == (56, 280, 1.0)
    assert report["inconclusive"] == report["counterexamples"] == []


@pytest.mark.slow
def test_the_command_shows_the_shortest_counterexample(tmp_path: Path) -> None:
    """Written down, with its replay line."""
    options = ["--ring", "8", "--window", "2", "--geometry", "1,1,2,2", "--json"]
    target = "sim:base-never-wraps"

    result = CliRunner().invoke(cli.app, ["explore", target, *options, "--run-dir", str(tmp_path)])

    report = msgspec.json.decode(result.stdout)
    (example,) = report["counterexamples"]
    assert result.exit_code == MISMATCH
    assert report["coverage"] < 1.0
    assert report["inconclusive"]
    assert example["steps"] == 1
    assert load(example["trace"]).setup.ring == 2
    assert example["reproduce"].endswith(f"--target {target}")


def test_kinds_are_spelled_as_in_the_catalogue() -> None:
    """A kind that is renamed must not silently empty the list above."""
    assert set(CURSOR_KINDS) <= set(KINDS)
    assert len(CURSOR_BUGS) > 20
    assert np.all([resolve(f"sim:{bug}").dialect.has_ring for bug in CURSOR_BUGS])
