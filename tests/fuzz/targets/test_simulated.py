"""The simulator's machines as targets: memory seen live, requests seated in slots.

What the machines compute is tested in tests/sim, and that they agree with the oracle by the walk.
Here each target is asked what it says of itself, and its views are compared with the machine's own
memory, since all that is framed, poisoned and placed goes through them.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from ringfold.fuzz.histories.payload import Payload
from ringfold.fuzz.targets.registry import resolve
from ringfold.fuzz.targets.simulated import SimulatedTarget
from ringfold.sim.dialects import DIALECTS
from ringfold.sim.protocols import MACHINES
from ringfold.sim.setup import Dtypes, Geometry, Setup

PAYLOAD_TAG = 1


def opened(dialect: str) -> tuple[SimulatedTarget, Payload]:
    target = cast(SimulatedTarget, resolve(f"sim@{dialect}"))
    dtypes = Dtypes("float16", "float16", "float32")
    setup = Setup(dialect, Geometry(1, 2, 8, 4), ring=8, window=2, slots=4, dtypes=dtypes)
    payload = Payload(setup, 3, "ordinary")
    target.open(setup, payload.parameters())
    return target, payload


@pytest.mark.parametrize("dialect", DIALECTS)
def test_its_views_are_the_machines_memory(dialect: str) -> None:
    """Every buffer that the dialect keeps, in its shape, and writing there writes the memory."""
    target, _ = opened(dialect)
    machine = target.machine

    assert set(target.views()) == {b.name for b in DIALECTS[dialect].kept(machine.setup)}
    for name, view in target.views().items():
        assert view.array.shape == view.buffer.shape(machine.setup)
        view.array[...] = 1
        assert (machine.memory[name] == 1).all()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_request_sits_where_it_says(dialect: str) -> None:
    """Its checkpoint is in its slot; slots are given again, last in first out."""
    target, payload = opened(dialect)
    states = {r: payload.state(r, PAYLOAD_TAG) for r in (4, 9)}
    for request, state in states.items():
        target.admit(request, state)

    for request, state in states.items():
        stored = target.views()["checkpoint"].array[:, target.seat(request)["slot"]]
        assert np.array_equal(stored, state)
    assert target.seat(4)["slot"] != target.seat(9)["slot"]
    slot = target.seat(4)["slot"]
    target.free(4)
    target.admit(5, states[9])
    assert target.seat(5)["slot"] == slot
    assert len({target.seat(r)["request"] for r in (5, 9)}) == 2


@pytest.mark.parametrize("dialect", MACHINES)
def test_it_names_what_runs(dialect: str) -> None:
    """The machine and the versions; its twin is the recurrent machine."""
    target = resolve(f"sim@{dialect}")
    twin = target.twin()

    assert target.name == f"sim@{dialect}"
    assert target.dialect is DIALECTS[dialect]
    assert target.identity()["machine"] == MACHINES[dialect].__qualname__
    assert {"ringfold", "numpy"} <= set(target.identity())
    assert twin is not None
    assert twin.dialect.name == "snapshots"


def test_outputs_have_the_activations_dtype_and_padding_is_zero() -> None:
    """A row an input, in batch order."""
    target, payload = opened("ring")
    target.admit(0, payload.state(0, PAYLOAD_TAG))
    inputs = payload.window(np.array([-1, 0]), np.array([1, 2]), 2)

    outputs = target.verify([None, 0], [1, 2], inputs)

    assert outputs.shape == (1, 3, 2, 4)
    assert outputs.dtype == np.float16
    assert not outputs[:, 0].any()
    assert outputs[:, 1:].all()
