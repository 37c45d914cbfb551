"""The `open-loop` machine folds what it stored, and in float64 that is the recurrence.

`test_machine.py` walks it beside the recurrence. Here its fold is compared, on one history, with
the state that its own records stand for by the formula of the dialect table, and with the raw
replay of `ring`: the two machines return the same outputs until the first fold and differ by the
rounding of the records from then on.
"""

from __future__ import annotations

import numpy as np

from ringfold.oracle.gdn import Tokens
from ringfold.sim.cursors import Cursors
from ringfold.sim.machine import Machine
from ringfold.sim.open_loop import OpenLoop
from ringfold.sim.precision import EMULATED
from ringfold.sim.ring import Ring
from ringfold.sim.setup import Dtypes, Geometry, Setup

FOLD_TOL = 2e-7  # seen 5.0e-8, float32 sums against float64 ones on a state of order 1
STEPS = 12


def pool(kind: type[Machine]) -> Machine:
    """One request on an empty state; bfloat16 records in a float32 machine."""
    setup = Setup(
        kind.dialect.name,
        Geometry(2, 4, 8, 6),
        ring=8,
        window=2,
        slots=2,
        dtypes=Dtypes("float32", "bfloat16"),
    )
    machine = kind(setup, np.full(4, -3.0), np.zeros(4), EMULATED)
    machine.admit([1], np.zeros((1, 1, 4, 6, 8)))
    return machine


def window(rng: np.random.Generator) -> Tokens:
    """Two tokens that bfloat16 holds without loss, so that raw records are exact."""
    shapes = (2, 8), (2, 8), (4, 6), (4,), (4,)
    return Tokens(*(rng.integers(-4, 5, (1, 1, 2, *shape)) / 4.0 for shape in shapes))


def test_a_fold_stores_the_state_that_the_records_stood_for() -> None:
    """The checkpoint after a fold is the represented state before it, rounded to float32."""
    machine, rng, folds = pool(OpenLoop), np.random.default_rng(0), 0
    for _ in range(STEPS):
        cursors = Cursors(*(machine.memory[n][[1]].astype(np.int64) for n in Cursors._fields))
        stood_for = machine.dialect.represented(
            {n: machine.memory[n][:, [1]] for n in machine.dialect.represents},
            cursors,
            machine.setup,
        )
        machine.verify([1], [2], window(rng))
        if cursors.is_flush[0]:
            folds += 1
            np.testing.assert_allclose(
                machine.memory["checkpoint"][:, [1]], stood_for, atol=FOLD_TOL, rtol=0
            )
        machine.commit([1], [2], 2)

    assert folds == 3


def test_outputs_part_from_those_of_the_ring_at_the_first_fold() -> None:
    """Until then both read the same records; from then on one state carries their rounding."""
    closed, opened, rng, equal = pool(Ring), pool(OpenLoop), np.random.default_rng(1), []
    for _ in range(STEPS):
        tokens, flagged = window(rng), bool(closed.memory["is_flush"][1])
        right, drifting = (m.verify([1], [2], tokens) for m in (closed, opened))
        equal.append((flagged, np.array_equal(right, drifting)))
        for machine in (closed, opened):
            machine.commit([1], [2], 2)
    first = [flagged for flagged, _ in equal].index(True)

    assert all(same for _, same in equal[:first])
    assert not any(same for _, same in equal[first:])
