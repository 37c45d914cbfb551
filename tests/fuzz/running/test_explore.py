"""Does an exploration walk every step of a protocol, and find what is wrong in any of them?

How many states and steps there are is known from counting them by hand for small rings and from an
enumerator of its own (tests/sim). A right machine must agree in all of them; a planted bug that
concerns a request's cursors must show, whichever step it spoils, and come out as a history of one
or two steps. The cursors alone are tried on every input, most of which no history reaches. Targets
that hang or die do so on purpose, and say so.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from ringfold.fuzz import cli
from ringfold.fuzz.commands.options import AGREE, MISMATCH
from ringfold.fuzz.findings.shrink import shrink
from ringfold.fuzz.histories.trace import Verify, load, validate
from ringfold.fuzz.judging.frame import Dead
from ringfold.fuzz.planted import KINDS, PLANTED
from ringfold.fuzz.running import cursor_inputs as inputs
from ringfold.fuzz.running import explore, tours
from ringfold.fuzz.running.cursor_inputs import cursor_inputs, walk_cursors
from ringfold.fuzz.running.explore import Walked, Walker
from ringfold.fuzz.running.tours import Plan
from ringfold.fuzz.running.watch import Watch
from ringfold.fuzz.target import Inputs, Request
from ringfold.fuzz.targets.registry import resolve
from ringfold.fuzz.targets.simulated import SimulatedTarget
from ringfold.sim.cursors import reachable
from ringfold.sim.setup import Geometry, Setup, SetupError

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
    """Every lot, in this process."""
    total, walker = Walked(), Walker(plan)
    for together in tours.lots(plan):
        walked = walker.lot(together)
        total.covered += walked.covered
        total.windows += walked.windows
        total.failing += walked.failing
    return total


# ------------------------------------------------------------------ tours and lots


@pytest.mark.parametrize("target", ["sim", "sim@compact", "sim@snapshots", "sim@decode-ring"])
def test_every_transition_is_in_one_tour(target: str) -> None:
    """Whose steps follow one another, up to a limit."""
    transitions = tours.protocol_steps(plan_of(target, 16, 4).setup).transitions

    found = tours.tours(transitions)

    assert sorted(step for tour in found for step in tour) == sorted(transitions)
    assert max(map(len, found)) <= tours.TOUR_STEPS_MAX
    assert all(one.after == other.before for tour in found for one, other in pairwise(tour))


def test_tours_are_few_where_the_protocol_has_runs_of_steps() -> None:
    """Each is placed anew, so that they are what an exploration costs."""
    assert len(tours.tours(reachable(16, 4).transitions)) < 2912 / 4


def test_lots_hold_all_tours_and_are_no_longer_than_seconds() -> None:
    """A single tour may exceed the size of a lot."""
    plan = plan_of("sim", 16, 4)._replace(device="cuda")
    setup = msgspec.structs.replace(plan.setup, geometry=Geometry(2, 4, 128, 128))

    shared = tours.lots(plan._replace(setup=setup))

    sizes = [sum(tours.tokens(tour, 4) for tour in together) for together in shared]
    assert sum(len(tour) for together in shared for tour in together) == 2912
    assert len(shared) > 10
    assert max(sizes) * 4 * 128 * 128 <= tours.LOT_ELEMENTS["cuda"]


@pytest.mark.parametrize("dead", get_args(Dead))
def test_dead_memory_is_filled_as_asked(dead: Dead) -> None:
    """After everything that a batch does, its placing included."""
    plan = plan_of("sim")._replace(dead=dead)
    some = tours.tours(tours.protocol_steps(plan.setup).transitions)[:3]

    trace = tours.history(plan, some)

    assert {operation.dead for operation in trace.operations[2:]} == {dead}


def test_the_history_of_a_batch_is_one_that_a_scheduler_could_do() -> None:
    """Each row takes the steps of its tour and a full window, then it is padding."""
    plan = plan_of("sim")
    some = tours.tours(reachable(8, 2).transitions)

    trace = tours.history(plan, some)

    validate(trace)
    verifies = [operation for operation in trace.operations if isinstance(operation, Verify)]
    assert len(verifies) == 1 + max(map(len, some))
    windows = sum(row is not None for verify in verifies for row in verify.rows)
    assert windows == 280 + len(some)


# ------------------------------------------------------------------ walking


@pytest.mark.parametrize(
    "target",
    ["sim", "sim@compact", "sim@open-loop", "sim@snapshots", "sim@linear-cache", "sim@decode-ring"],
)
def test_every_transition_of_a_right_machine_agrees(target: str) -> None:
    """All are walked to their end, and a window more for each tour."""
    plan = plan_of(target)
    transitions = tours.protocol_steps(plan.setup).transitions

    walked = walk_all(plan)

    assert walked.covered == len(transitions)
    assert walked.windows == len(transitions) + len(tours.tours(transitions))
    assert walked.failing == []


@pytest.mark.parametrize("bug", CURSOR_BUGS)
def test_a_cursor_bug_is_found_and_shrinks_to_a_step_or_two(bug: str) -> None:
    """Whichever transition it spoils."""
    plan = plan_of(f"sim:{bug}")
    for together in tours.lots(plan):
        if failing := Walker(plan).lot(together).failing:
            break

    shrunk = shrink(failing[0][0], resolve(plan.target))

    assert shrunk.cause == failing[0][1]
    assert shrunk.steps <= STEPS_MAX


def test_what_fails_only_as_a_batch_is_not_called_covered_and_right() -> None:
    """One row that is due makes all fold: no single transition shows that."""
    plan = plan_of("sim:batch-folds-as-one")

    walked = walk_all(plan)

    assert walked.failing
    assert len(walked.failing[0][0].operations) > 3  # several requests


class WrongOnce(SimulatedTarget):
    """Adds to the outputs of a window of two whose request has a base of 3 and a record."""

    def verify(
        self, rows: Sequence[Request | None], lengths: Sequence[int], inputs: Inputs
    ) -> NDArray[Any]:
        """Right but for them."""
        outputs: NDArray[Any] = super().verify(rows, lengths, inputs)
        memory, ends = self.machine.memory, np.cumsum(lengths)
        for row, length, end in zip(rows, lengths, ends, strict=True):
            slot = 0 if row is None else self.seats[row]
            at = memory["cache_base"][slot], memory["write_pos"][slot]
            if slot and length == 2 and at == (3, 1):
                outputs[:, end - 1] += 1
        return outputs


def test_what_follows_a_failing_transition_is_covered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three transitions fail, and those after which a full window meets the same state."""
    monkeypatch.setattr(explore, "target_of", lambda name, device: WrongOnce())
    monkeypatch.setattr(explore, "FAILING_MAX", 100)

    walked = walk_all(plan_of("sim"))

    places = [trace.operations[0] for trace, _ in walked.failing]
    wrong = [place for place in places if (place.base, place.records) == (3, 1)]  # type: ignore[union-attr]
    assert walked.covered == 280
    assert len(wrong) == 3
    assert len(walked.failing) < 30


def test_time_runs_out_in_the_middle_of_a_lot() -> None:
    """The steps that were taken by then count as covered."""
    plan = plan_of("sim")
    (together,) = tours.lots(plan)
    asked = iter([False] * (3 + 2 * 3) + [True] * 100)  # lot, opening, places, three steps

    walked = Walker(plan, out_of_time=lambda: next(asked)).lot(together)

    assert walked.covered == sum(min(len(tour), 3) for tour in together) < 280
    assert walked.failing == []


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
    monkeypatch.setattr(inputs, "target_of", lambda name, device: LateCommit(device))

    walked = walk_cursors(Plan("late", "cpu", plan_of("sim").setup))

    assert walked.wrong == 2  # one launch for each bound


def test_a_target_that_insists_on_a_verify_is_not_called_wrong() -> None:
    """Its cursors can't be tried alone, and the report says so."""
    walked = walk_cursors(plan_of("sim:flag-from-the-rows-own-window"))

    assert walked.wrong == 0
    assert "a commit without a verify raised AttributeError" in walked.refused


# ------------------------------------------------------------------ the command


TARGETS: Final = """
import os
import time
from pathlib import Path
from ringfold.fuzz.targets.simulated import SimulatedTarget


def hang():
    Path(os.environ["HANGS"], str(os.getpid())).touch()
    time.sleep(10_000)


class Slow(SimulatedTarget):
    def __init__(self, device):
        super().__init__("mine")

    def commit(self, rows, accepted, bound):
        time.sleep(0.2)
        super().commit(rows, accepted, bound)


class Hangs(Slow):
    def verify(self, rows, lengths, inputs):
        if len(rows) > 9:
            hang()
        return super().verify(rows, lengths, inputs)


class HangsAlone(Slow):
    def commit(self, rows, accepted, bound):
        if len(rows) > 99:
            hang()
        super().commit(rows, accepted, bound)


class Dies(Slow):
    def verify(self, rows, lengths, inputs):
        if len(rows) > 9:
            os._exit(1)
        return super().verify(rows, lengths, inputs)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the targets above, which workers find, too."""
    (tmp_path / "mine.py").write_text(TARGETS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_time_limit_is_obeyed_and_what_was_done_is_on_disk(mine: Path) -> None:
    """To one operation; the reason is given, and the exit code is that of a run without proof."""
    limit = 1.0
    setup = Setup("ring", SMALL, 16, 4, 2)

    report = explore.explore("mine:Slow", setup, run_dir=mine, workers=1, seconds_max=limit)

    assert limit <= report.seconds < 12 * limit  # seen 1.2
    assert 0 < report.covered < report.transitions
    assert 0 < report.coverage < 1
    assert "give it more time" in report.inconclusive[-1]
    kept = msgspec.json.decode((mine / "report.json").read_bytes())
    assert kept["covered"] == report.covered


@pytest.mark.usefixtures("known_to_hang")
def test_a_target_that_hangs_is_given_up(mine: Path) -> None:
    """Its worker is killed, and what did not come back is on disk."""
    report = explore.explore("mine:Hangs", plan_of("sim").setup, run_dir=mine, workers=2)

    assert report.failing == 1
    failure = load(report.hanging.split()[3])
    assert (failure.seen[0]["symptom"], failure.seen[0]["kind"]) == ("the target hangs", "verify")
    assert isinstance(failure.operations[-1], Verify)


@pytest.mark.usefixtures("known_to_hang")
def test_one_that_hangs_at_cursors_alone_is_blamed_for_no_history(mine: Path) -> None:
    """The report says where it does not come back from."""
    report = explore.explore("mine:HangsAlone", plan_of("sim").setup, run_dir=mine, workers=1)

    assert not report.hanging
    assert "from a commit of cursors alone" in report.inconclusive[0]


def test_a_worker_that_is_through_with_the_cursors_does_not_hang() -> None:
    """However long it waits for others."""
    watch = Watch(multiprocessing.get_context("spawn"), workers=1)

    walked = Walker(plan_of("sim"), watch).cursors()

    assert walked.inputs
    assert watch.hanging(0.0) is None


def test_a_target_that_dies_leaves_its_history(mine: Path) -> None:
    """As one that may have done it."""
    report = explore.explore("mine:Dies", plan_of("sim").setup, run_dir=mine, workers=1)

    (reason,) = [why for why in report.inconclusive if "worker process died" in why]
    (suspect,) = mine.glob("failures/worker-died-*/trace.json")
    assert str(suspect) in reason


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


def test_what_would_take_too_long_to_enumerate_is_refused() -> None:
    """Before anything is enumerated, with the count, the limit and what to do."""
    with pytest.raises(SetupError, match=r"ring of 1024 is 29388800, .* at most 4000000 .*fuzz"):
        explore.explore("sim", plan_of("sim", 1024, 4).setup)
