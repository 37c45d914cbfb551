"""The directed history alone finds every bug of saved and shared states, on the smallest setup.

Random histories meet these rarely: a save while a fold is due or with a ring that has turned, a hit
into a slot that somebody left with records waiting. The directed one goes there on purpose, so each
bug is found within its first hundred row-windows, and the sound machine of its dialect is not.
"""

from __future__ import annotations

from typing import Final

import pytest

from ringfold.fuzz.generate import DIRECTED, history
from ringfold.fuzz.planted import PLANTED
from ringfold.fuzz.story import Plan
from ringfold.fuzz.targets.simulated import SimulatedTarget
from ringfold.fuzz.walk import Verdict, walk
from ringfold.sim.machine import Machine
from ringfold.sim.protocols import MACHINES
from ringfold.sim.setup import Geometry, Setup

TRAVELS: Final = [name for name, bug in PLANTED.items() if bug.kind == "saved and shared states"]
WINDOWS_MAX: Final = 100  # seen: 81 at most, and 88 in the whole history


def directed(machine: type[Machine]) -> Verdict:
    target = SimulatedTarget("sim", machine)
    setup = Setup(machine.dialect.name, Geometry(1, 2, 16, 8), ring=8, window=2, slots=4)
    return walk(history(Plan(setup, "sim", target.operations, 3, 30, True), 1, DIRECTED), target)


@pytest.mark.parametrize("bug", TRAVELS)
def test_a_bug_of_travelling_states_is_found(bug: str) -> None:
    """Whatever its check."""
    verdict = directed(PLANTED[bug].machine)

    assert verdict.mismatches
    assert verdict.windows <= WINDOWS_MAX


@pytest.mark.parametrize("dialect", sorted({PLANTED[bug].machine.dialect.name for bug in TRAVELS}))
def test_the_sound_machine_agrees(dialect: str) -> None:
    """The same history, with every operation that the bugs are in."""
    verdict = directed(MACHINES[dialect])

    assert verdict.mismatches == []
    assert {"save", "restore", "donate", "hit"}.isdisjoint(verdict.skipped)
