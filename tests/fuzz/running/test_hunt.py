"""Does a hunt find what a campaign would, and stop when it should?

A hunt walks the histories of a campaign in one process. The campaign's own list of histories is
the reference for their order, and the walk of a single history for what is found. Whether hunts
find planted bugs from any seed is asked by tests/quality.
"""

from __future__ import annotations

from collections import Counter

import pytest

from ringfold.fuzz.findings.failures import as_failure
from ringfold.fuzz.findings.shrink import shrink
from ringfold.fuzz.histories.generate import history
from ringfold.fuzz.histories.profiles import PROFILES
from ringfold.fuzz.histories.story import Plan
from ringfold.fuzz.histories.trace import Verify
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.running.course import Course
from ringfold.fuzz.running.hunt import hunt, plans, plans_with_twin
from ringfold.fuzz.target import Target
from ringfold.fuzz.targets.registry import TWIN, resolve
from ringfold.fuzz.targets.simulated import SimulatedTarget
from ringfold.sim.setup import Geometry, Setup
from ringfold.sim.snapshots import Snapshots

BUG = "sim:fold-newest-first"
SEED = 5


def test_a_hunt_finds_the_first_failure_of_the_campaigns_list() -> None:
    """The same history, the same mismatches, as many windows up to there."""
    target = resolve(BUG)
    first = Course(plans(target), SEED, None, "cpu").lot()
    assert first is not None
    verdict = walk(first.traces[0], target)

    found = hunt(target, SEED)

    assert (found.mismatches, found.windows) == (verdict.mismatches, verdict.windows)
    assert found.histories == 1
    assert found.failure is not None
    assert walk(found.failure, target).mismatches == found.mismatches


def test_a_hunt_stops_after_its_windows() -> None:
    """The last history is told to measure; none follows."""
    found = hunt(resolve("sim"), SEED, windows_max=100)

    assert found.failure is None
    assert found.mismatches == []
    assert found.windows == 100


def test_a_hunt_stops_when_its_time_is_out() -> None:
    """Before the first history, if there is none."""
    found = hunt(resolve("sim"), SEED, seconds_max=0.0)

    assert (found.failure, found.windows) == (None, 0)


def test_each_protocol_has_one_directed_history() -> None:
    """In the first configuration of each (L, T); all configurations bear the target's name."""
    made = plans(resolve("sim"), name="mine")

    directed = Counter((p.setup.ring, p.setup.window) for p in made if p.directed)
    assert directed == dict.fromkeys({(p.setup.ring, p.setup.window) for p in made}, 1)
    assert {p.target for p in made} == {"mine"}


@pytest.mark.parametrize("target", ["sim", "sim@compact", BUG])
def test_the_simulator_computes_bfloat16_on_the_cpu(target: str) -> None:
    """By whatever name; the interpreter of kernels does not."""
    assert "bfloat16" in {plan.setup.dtypes.record for plan in plans(resolve(target))}


def test_configurations_tell_different_stories() -> None:
    """Histories of one number share neither profile nor batches; windows may have their own."""
    told = [history(plan, SEED, number) for plan in plans(resolve("sim")) for number in (1, 2, 3)]
    own = Counter(
        operation.profile
        for trace in told
        for operation in trace.operations
        if isinstance(operation, Verify)
    )

    assert len({trace.operations for trace in told}) == len(told)
    assert len({trace.payload.profile for trace in told[::3]}) > 3
    assert set(own) == {None, *PROFILES}


def test_padding_stands_anywhere() -> None:
    """Before, between and behind the rows of requests, in directed and random histories."""
    for number in (0, 1):
        batches = [
            [row is None for row in operation.rows]
            for plan in plans(resolve("sim"))
            for operation in history(plan, SEED, number).operations
            if isinstance(operation, Verify) and len(operation.rows) > 2
        ]

        assert any(rows[0] for rows in batches)
        assert any(rows[-1] for rows in batches)
        assert any(any(rows[1:-1]) for rows in batches)


def test_a_failure_among_hundreds_is_cut_down_to_its_request() -> None:
    """A batch of 500 rows becomes one request, one step, in fewer walks than it has rows.

    Seen: 162, most of them to see that nothing is simpler.
    """
    setup = Setup("ring", Geometry(1, 1, 4, 4), ring=8, window=2, slots=502)
    target = resolve("sim:fold-newest-first")
    plan = Plan(setup, target.name, target.operations, 500, 8, directed=False)
    failing = (
        (trace, found)
        for trace in (history(plan, SEED, number) for number in range(1, 9))
        if (found := walk(trace, target).mismatches)
    )
    trace, found = next(failing)
    assert max(len(o.rows) for o in trace.operations if isinstance(o, Verify)) >= 100

    shrunk = shrink(as_failure(trace, found, {}), target, seconds_max=60.0)

    assert shrunk.complete
    assert shrunk.steps == 1
    assert shrunk.trace.setup.slots == 2
    assert shrunk.walks <= 200


class ScaledTwin(SimulatedTarget):
    """Its recurrent machine returns outputs that are doubled, and keeps right states."""

    def twin(self) -> Target:
        """Wrong."""
        right = SimulatedTarget("doubled", Snapshots)
        verify = right.verify
        right.verify = lambda *asked: 2 * verify(*asked)  # type: ignore[method-assign]
        return right


def test_a_twins_own_outputs_are_judged() -> None:
    """Its bits are what others are compared with, so somebody must look at them."""
    target = ScaledTwin("mine")

    found = hunt(target, SEED, windows_max=3000)

    assert found.failure is not None
    assert found.failure.target == f"mine{TWIN}"
    assert {mismatch.check for mismatch in found.mismatches} == {"outputs"}


def test_one_configuration_is_the_twins() -> None:
    """With several heads of both kinds, and K unlike V; who has no twin has none."""
    plan = plans_with_twin(resolve("sim"), name="mine")[-1]

    geometry = plan.setup.geometry
    assert (plan.target, plan.setup.dialect, plan.directed) == (f"mine{TWIN}", "snapshots", True)
    assert geometry.heads > 1
    assert geometry.value_heads > geometry.heads
    assert geometry.key_dim != geometry.value_dim
    assert resolve(f"sim{TWIN}").dialect.name == "snapshots"
    assert len(plans_with_twin(resolve("sim@compact"))) == len(plans(resolve("sim@compact")))
