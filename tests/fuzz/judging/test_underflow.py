"""Where decays underflow, a ring loses what a sequential computation keeps, and that is allowed.

A ring decays its checkpoint at once: exp(-101) of a state of 2^34 is an ordinary number, but in
float32 exp(-101) has four bits. The history here erases a large state in steps and writes nothing,
so that nothing covers the loss. Float32 machines of every dialect agree with it, though without the
allowance those of rings would not; in float64 the same machine is right far beyond any of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from safetensors.numpy import save_file

from ringfold.fuzz.histories.trace import (
    Admit,
    Commit,
    Decode,
    Operation,
    PayloadSpec,
    Trace,
    Verify,
)
from ringfold.fuzz.judging.walk import Verdict, walk
from ringfold.fuzz.targets.simulated import SimulatedTarget
from ringfold.sim.dialects import DIALECTS
from ringfold.sim.precision import EXACT
from ringfold.sim.protocols import MACHINES
from ringfold.sim.recurrence import Array
from ringfold.sim.ring import Ring
from ringfold.sim.setup import Geometry, Setup

GATES: Final = (-42.0, -59.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
LARGE: Final = 2.0**34


def erased(dialect: str, folder: Path) -> Trace:
    """A large state, then tokens without a value, until everything has been folded."""
    verifies = DIALECTS[dialect].verifies
    T = 2 if verifies else 1
    setup = Setup(dialect, Geometry(1, 1, 8, 4), ring=4, window=T, slots=2)
    tags = range(2, 2 + len(GATES) // T)
    tensors = {
        "A_log": np.zeros((1, 1), np.float32),
        "dt_bias": np.zeros((1, 1), np.float32),
        "state/0/1": np.float32(LARGE) * np.ones((1, 1, 4, 8), np.float32),
    }
    for i, tag in enumerate(tags):
        gates = np.array(GATES[i * T :][:T], np.float32)
        tensors[f"a/0/{tag}"] = np.where(gates < 0, -gates, -30).reshape(1, T, 1).astype(np.float32)
        tensors[f"v/0/{tag}"] = np.zeros((1, T, 1, 4), np.float32)
    save_file(tensors, folder / "erased.safetensors")

    def told() -> Iterator[Operation]:
        yield Admit(request=0, tag=1)
        for tag in tags:
            if verifies:
                yield Verify(tag=tag, rows=(0,), lengths=(T,))
                yield Commit(tag=tag, accepted=(T,))
            else:
                yield Decode(tag=tag, rows=(0,))

    payload = PayloadSpec(3, "ordinary", tensors="erased.safetensors")
    return Trace(setup=setup, payload=payload, operations=tuple(told()))


def walked(dialect: str, folder: Path, target: SimulatedTarget | None = None) -> Verdict:
    target = target or SimulatedTarget(machine=MACHINES[dialect])
    return walk(erased(dialect, folder), target, folder=folder)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_agrees(dialect: str, tmp_path: Path) -> None:
    """Outputs and states, before the fold and after it."""
    verdict = walked(dialect, tmp_path)

    assert verdict.mismatches == []
    assert verdict.compared["outputs"] >= len(GATES) // 2


@pytest.mark.parametrize(
    ("dialect", "check"),
    [
        ("ring", "outputs"),
        ("compact", "outputs"),
        ("open-loop", "outputs"),
        ("decode-ring", "state-local"),  # its window is one token, so its fold meets it first
    ],
)
def test_without_the_allowance_they_would_not(
    dialect: str, check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By little: what is off is a few units of what other roundings may cost."""
    monkeypatch.setattr("ringfold.fuzz.judging.truth.TINY", 0.0)
    first = walked(dialect, tmp_path).mismatches[0]

    assert first.check == check
    assert 1 < (first.units or 0) < 10  # seen 2.2 and 1.6


def test_what_a_ring_loses_is_told_apart(tmp_path: Path) -> None:
    """As precision, in units of what a sequential computation may lose; that one loses nothing."""
    ring, sequential = (walked(dialect, tmp_path).largest for dialect in ("ring", "snapshots"))

    assert ring["precision"] > 1  # seen 2.2
    assert "precision" not in sequential
    assert sequential["outputs"] < 0.01  # seen 0.0008


def test_in_float64_the_machine_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its logic is no part of the loss: the same outputs, where exp(-101) has all its bits."""
    monkeypatch.setattr("ringfold.fuzz.targets.simulated.EMULATED_TF32", EXACT)

    class Exact(SimulatedTarget):
        def verify(self, *batch: Any) -> Any:
            return super().verify(*batch).astype(np.float32)

    assert walked("ring", tmp_path, Exact()).largest["precision"] < 1e-4  # seen 1.5e-6


def test_a_decay_that_is_cut_off_earlier_is_found(tmp_path: Path) -> None:
    """The allowance is some 2^-123 of a state, and exp(-80) is 2^-115: no more is let through."""

    class Clamped(Ring):
        def running_gates(self, g: Array) -> Array:
            return np.maximum(super().running_gates(g), -80)

    first = walked("ring", tmp_path, SimulatedTarget(machine=Clamped)).mismatches[0]

    assert (first.check, first.operation) == ("outputs", 1)
    assert (first.units or 0) > 10  # seen 39
