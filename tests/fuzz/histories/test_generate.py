"""Histories: any of them is legal, the directed one goes everywhere, and each is what its key says.

Legality is judged by `trace.validate`, which knows nothing of how histories are drawn; where a
history goes, by walking it on the simulator and counting. A history is a pure function of the
setup, the seed and its number: that is what makes a run repeatable by any number of workers.
"""

from __future__ import annotations

from collections import Counter
from typing import get_args

import msgspec
import pytest

from ringfold.fuzz.histories.configurations import configurations, rows
from ringfold.fuzz.histories.generate import DIRECTED, history, windows
from ringfold.fuzz.histories.story import Plan
from ringfold.fuzz.histories.trace import Commit, Free, Operation, Trace, Verify, validate
from ringfold.fuzz.judging.frame import Dead
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.targets.registry import resolve
from ringfold.fuzz.targets.simulated import SimulatedTarget
from ringfold.sim.dialects import DIALECTS, VERIFIERS
from ringfold.sim.setup import Geometry, Setup
from ringfold.sim.situations import reachable_situations

EVERY = SimulatedTarget.operations
CORE = frozenset({"admit", "free", "verify", "commit"})


def plan(
    dialect: str = "ring",
    *,
    ring: int = 8,
    window: int = 2,
    slots: int = 5,
    operations: frozenset[str] = EVERY,
    worst: Dead = "nan",
    directed: bool = True,
) -> Plan:
    if not DIALECTS[dialect].verifies:
        operations, window = (operations | {"decode"}) - {"verify", "commit", "idle"}, 1
    setup = Setup(dialect, Geometry(1, 1, 4, 4), ring=ring, window=window, slots=slots)
    return Plan(setup, "sim", operations, min(3, slots - 1), 30, directed, worst)


def kinds(made: Trace) -> Counter[str]:
    return Counter(type(operation).__name__.lower() for operation in made.operations)


@pytest.mark.parametrize("slots", [2, 3, 9])
@pytest.mark.parametrize(("ring", "window"), [(2, 1), (8, 2), (8, 4), (32, 5)])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_history_is_legal(dialect: str, ring: int, window: int, slots: int) -> None:
    """For any ring and number of slots, with every operation and with few."""
    for operations in (EVERY, CORE):
        drawn = plan(dialect, ring=ring, window=window, slots=slots, operations=operations)
        for number in range(3):
            made = history(drawn, 3, number)

            validate(made)
            assert set(kinds(made)) <= drawn.operations
            assert windows(made.operations) > 0


@pytest.mark.parametrize("dialect", VERIFIERS)
def test_the_directed_history_goes_everywhere(dialect: str) -> None:
    """Each situation that a setup can reach is visited, however few slots there are."""
    target = resolve(f"sim@{dialect}")
    for ring, window, slots in ((8, 2, 5), (2, 1, 3), (8, 4, 2), (16, 4, 5)):
        made = history(plan(dialect, ring=ring, window=window, slots=slots), 1, DIRECTED)

        verdict = walk(made, target)

        assert verdict.mismatches == []
        assert set(verdict.situations) >= reachable_situations(made.setup)
    # That is worth saying only because random histories of that length do not.
    drawn = [history(plan(dialect, directed=False), 1, number) for number in range(6)]
    whole = [{*walk(one, target).situations} >= reachable_situations(one.setup) for one in drawn]
    assert not VERIFIERS[dialect].has_ring or sum(whole) < len(whole) / 2


@pytest.mark.parametrize("dialect", DIALECTS)
def test_windows_are_counted_before_they_are_walked(dialect: str) -> None:
    """As many as a walk verifies when nothing stops it: that is how a run is cut to size."""
    for number in range(4):
        made = history(plan(dialect), 8, number)

        assert windows(made.operations) == walk(made, resolve(f"sim@{dialect}")).windows > 0


def test_a_history_is_what_its_key_says() -> None:
    """The same again and again; another with any part of the key changed."""
    drawn = plan(directed=False)
    made = history(drawn, 5, 2)
    other = drawn._replace(setup=msgspec.structs.replace(drawn.setup, layers=2))

    assert history(drawn, 5, 2) == made
    assert history(drawn, 5, 3).operations != made.operations
    assert history(drawn, 6, 2).operations != made.operations
    assert history(other, 5, 2).operations != made.operations
    assert history(drawn, 5, 3).payload.seed != made.payload.seed


def test_the_directed_history_alone_is_the_same_for_every_seed() -> None:
    """But for its numbers."""
    first, second = (history(plan(), seed, DIRECTED) for seed in (1, 2))

    assert first.operations == second.operations
    assert first.payload.seed != second.payload.seed
    assert first.payload.profile == second.payload.profile == "slow-decay"


def test_random_histories_do_everything_in_time() -> None:
    """Every kind of operation, length and count, rows of padding, crossed and lost windows."""
    total: Counter[str] = Counter()
    lengths, accepted, bounds = Counter[int](), Counter[tuple[int, int]](), Counter[int | None]()
    profiles, padded, lost, crossed = Counter[str](), 0, 0, 0
    for number in range(60):
        made = history(plan(directed=False), 4, number)
        total += kinds(made)
        profiles[made.payload.profile] += 1
        flying: dict[int, Verify] = {}
        for operation in made.operations:
            match operation:
                case Verify():
                    padded += None in operation.rows
                    crossed += len(flying) > 0
                    flying[operation.tag] = operation
                    lengths.update(operation.lengths)
                case Commit():
                    verify = flying.pop(operation.tag)
                    bounds[operation.bound] += 1
                    for length, n in zip(verify.lengths, operation.accepted, strict=True):
                        if n is not None:
                            accepted[length, n] += 1
                case Free():
                    lost += any(operation.request in v.rows for v in flying.values())
                case _:
                    pass

    assert set(total) == EVERY
    assert set(lengths) == {1, 2}
    assert set(accepted) == {(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)}
    assert set(bounds) == {None, 1}
    assert min(padded, lost, crossed) >= 10
    assert 20 <= profiles["slow-decay"] <= 45
    assert len(profiles) >= 8


@pytest.mark.parametrize("worst", get_args(Dead))
def test_dead_memory_is_filled_with_no_worse_than_asked_for(worst: Dead) -> None:
    """And with as bad as that now and then; the operations are the same otherwise."""

    def quiet(operations: tuple[Operation, ...]) -> list[Operation]:
        return [msgspec.structs.replace(operation, dead="leave") for operation in operations]

    severity = get_args(Dead)
    seen = set()
    for number in range(12):
        made = history(plan(worst=worst), 4, number)
        seen |= {operation.dead for operation in made.operations}
        assert quiet(made.operations) == quiet(history(plan(), 4, number).operations)

    assert max(seen, key=severity.index) == worst


def test_a_configurations_plan_fits_its_pool() -> None:
    """Batches of a real configuration are as large as its rows, and somebody is left out."""
    setup = configurations("ring", "cpu")[0]
    drawn = Plan(setup, "sim", EVERY, rows(setup, "cpu"), 30, directed=False)

    batches = [
        sum(row is not None for row in operation.rows)
        for number in range(10)
        for operation in history(drawn, 1, number).operations
        if isinstance(operation, Verify)
    ]

    assert max(batches) == rows(setup, "cpu") == setup.slots - 2
    assert min(batches) == 1
