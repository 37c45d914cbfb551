"""A served workload is a history that every target can walk, and walks without a finding.

A small server that does everything a server does is told as a trace by each dialect's cursors. The
trace must be legal (`validate` rehearses it by rules of its own), survive a file, and agree with
the recurrence on the machine of its dialect with no operation skipped, as it must on machines of
other dialects and on a released kernel. That the walk would notice if a request met another one's
state is shown by a machine that copies the wrong one.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
import pytest

from ringfold.fuzz.histories.served import served
from ringfold.fuzz.histories.trace import (
    Commit,
    Decode,
    Operation,
    Place,
    Prefill,
    Repeat,
    Trace,
    Verify,
    load,
    save,
)
from ringfold.fuzz.histories.trace import validate as validated
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.targets import wheels
from ringfold.fuzz.targets.registry import resolve
from ringfold.fuzz.targets.simulated import SimulatedTarget
from ringfold.sim.dialects import DIALECTS, VERIFIERS
from ringfold.sim.engine.workload import Workload
from ringfold.sim.ring import Ring
from ringfold.sim.setup import Geometry, SetupError

LOAD = Workload(
    requests=36,
    tokens=10,
    running=6,
    ring=8,
    window=3,
    acceptance=0.6,
    prompt=9,
    chunk=4,
    samples=2,
    turns=3,
    gap=3.0,
    aborts=0.2,
    cached=3,
    context=90,
    adaptive=True,
)
SMALL = msgspec.structs.replace(
    LOAD, requests=9, tokens=8, running=3, window=2, turns=1, cached=0, context=None
)
RELEASE = "sglang==0.5.16"


@cache
def history(dialect: str, served_load: Workload = LOAD) -> Trace:
    """The trace of a load, H=1, HV=2."""
    K, V = (32, 16) if served_load is SMALL else (8, 6)
    return served(served_load, dialect, Geometry(1, 2, K, V))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_workload_is_a_legal_history_with_everything_in_it(dialect: str, tmp_path: Path) -> None:
    """Read back it is the same; only placing, repeating and a kept slot's next turn are missing."""
    trace, path = history(dialect), tmp_path / "trace.json"
    save(trace, path)
    kinds = {type(operation) for operation in trace.operations}
    windows = set() if dialect in VERIFIERS else {Verify, Commit}

    assert load(path) == trace
    validated(trace)
    assert kinds == set(Operation.__args__) - {Place, Prefill, Repeat} - windows


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_machine_of_its_dialect_walks_all_of_it(dialect: str) -> None:
    """Nothing is skipped, nothing disagrees."""
    verdict = walk(history(dialect), resolve(f"sim@{dialect}", "cpu"))

    assert verdict.mismatches == []
    assert set(verdict.skipped) <= {"idle"}  # which a machine that only decodes does not own
    assert verdict.windows > 300


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_convolution_is_rolled_back_beside_the_state(dialect: str) -> None:
    """Its window follows every commit, fork, hit and restore."""
    trace = served(LOAD, dialect, Geometry(1, 2, 8, 6), convolution=4)
    verdict = walk(trace, resolve(f"sim@{dialect}", "cpu"))

    assert verdict.mismatches == []
    assert verdict.compared["convolution"] > 100


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_history_of_the_ring_is_one_for_all(dialect: str) -> None:
    """What a target does not own is skipped, the rest agrees."""
    trace = history("ring")
    verdict = walk(trace, resolve(f"sim@{dialect}", "cpu"))
    decodes = sum(isinstance(operation, Decode) for operation in trace.operations)

    assert verdict.mismatches == []
    assert verdict.windows > (300 if dialect in VERIFIERS else decodes // 2)


def test_a_copy_of_the_wrong_state_is_found() -> None:
    """A prefix hit that copies the slot beside it."""

    class WrongPrefix(Ring):
        def hit(self, prefix: int, slot: int) -> None:
            super().hit(max(1, prefix - 1), slot)

    verdict = walk(history("ring"), SimulatedTarget("wrong", WrongPrefix))

    assert {mismatch.check for mismatch in verdict.mismatches} == {"state-local", "state-global"}


def test_there_are_names_for_so_many_requests_only() -> None:
    """A trace counts them in 16 bits."""
    many = Workload(requests=65_537, running=8)
    heads = Geometry(1, 1, 8, 8)
    with pytest.raises(SetupError, match="requests is 65537, but must be at most 65536"):
        served(many, "ring", heads)


@pytest.mark.slow
def test_a_released_kernel_walks_it() -> None:
    """SGLang 0.5.16's, interpreted; what its kernels alone do not own is skipped."""
    pytest.importorskip("triton")
    if wheels.find(RELEASE) is None:
        pytest.skip(f"needs the wheel: ringfold targets add {RELEASE}")
    verdict = walk(history("ring", SMALL), resolve(RELEASE, "cpu"))

    assert verdict.mismatches == []
    assert verdict.windows > 20
