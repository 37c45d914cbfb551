"""More of a prompt is prefilled: judged against the recurrence, on machines made for it.

The snapshots machine decodes in place, token by token, which is what a prefill comes to; one that
loses a token, or the window of the convolution, must be found. Cursors are those written out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ringfold.fuzz.histories.trace import (
    Admit,
    Commit,
    PayloadSpec,
    Prefill,
    Trace,
    Verify,
    validate,
)
from ringfold.fuzz.judging import walk as walking
from ringfold.fuzz.judging.ledger import Ledger
from ringfold.fuzz.target import Inputs, Request
from ringfold.fuzz.targets.registry import resolve
from ringfold.fuzz.targets.simulated import SimulatedTarget
from ringfold.sim.cursors import Cursors
from ringfold.sim.dialects import DIALECTS
from ringfold.sim.setup import Geometry, Setup
from ringfold.sim.snapshots import Snapshots

SETUP = Setup("snapshots", Geometry(1, 2, 4, 4), ring=8, window=2, slots=5, convolution=4)


class Prefills(SimulatedTarget):
    """Decodes each row's tokens one after the other, but for the `lost` last ones."""

    operations = SimulatedTarget.operations | {"prefill"}

    def __init__(self, lost: int = 0) -> None:
        super().__init__("sim@snapshots", Snapshots)
        self.lost = lost

    def prefill(
        self, rows: Sequence[Request], lengths: Sequence[int], inputs: Inputs
    ) -> NDArray[Any]:
        """Row by row."""
        outputs = np.zeros(inputs.v.shape, inputs.v.dtype)
        ends = np.cumsum(lengths)
        for row, end, length in zip(rows, ends, lengths, strict=True):
            for token in range(end - length, end - self.lost):
                one = Inputs(*(x[:, token : token + 1] for x in inputs))
                outputs[:, token] = self.decode([row], one)[:, 0]
        return outputs


def trace(*, setup: Setup = SETUP) -> Trace:
    """Two prompts in chunks, beside a request that verifies, and its next turn."""
    made = Trace(
        setup=setup,
        payload=PayloadSpec(seed=1, profile="slow-decay"),
        operations=(
            Admit(request=0, tag=0),
            Admit(request=1, tag=1),
            Prefill(tag=2, rows=(1, 0), lengths=(3, 70)),
            Verify(tag=3, rows=(0,), lengths=(2,)),
            Commit(tag=3, accepted=(1,)),
            Prefill(tag=4, rows=(1,), lengths=(1,)),
            Prefill(tag=5, rows=(0, 1), lengths=(2, 1), profile="ordinary", dead="nan"),
            Verify(tag=6, rows=(1, 0), lengths=(2, 2)),
            Commit(tag=6, accepted=(2, 2)),
        ),
    )
    validate(made)
    return made


def test_chunks_agree_with_the_recurrence() -> None:
    """Outputs, states and windows, in rows of one to seventy tokens."""
    walked = walking.walk(trace(), Prefills())

    assert walked.mismatches == []
    assert walked.skipped == {}
    assert walked.compared["outputs"] == 5
    assert walked.compared["convolution"] == 6


def test_a_lost_token_is_found() -> None:
    """In the output that it has none of, in the state and in the convolution's window."""
    walked = walking.walk(trace(), Prefills(lost=1))

    found = {m.check for m in walked.mismatches}
    assert found == {"outputs", "state-local", "state-global", "convolution"}
    assert {m.operation for m in walked.mismatches} == {2}


@pytest.mark.parametrize("dialect", ["ring", "compact", "fold-every-commit"])
def test_who_owns_no_prefill_leaves_it_out(dialect: str) -> None:
    """The rest of the history is as it was."""
    setup = Setup(dialect, SETUP.geometry, ring=8, window=2, slots=5)
    machine = {"ring": "sim"}.get(dialect, f"sim@{dialect}")
    walked = walking.walk(trace(setup=setup), resolve(machine))

    assert walked.mismatches == []
    assert walked.skipped == {"prefill": 3}


@pytest.mark.parametrize("dialect", ["ring", "compact"])
def test_what_waits_is_folded_first(dialect: str) -> None:
    """The ring is empty then and begins behind the records; where nothing waits, nothing moves."""
    setup = Setup(dialect, Geometry(1, 2, 4, 4), ring=8, window=2, slots=5)
    ledger = Ledger(setup, DIALECTS[dialect])
    seats = {"slot": 3, "request": 1}, {"slot": 1, "request": 4}
    ledger.admit(7, seats[0], Cursors(3, 6, 0))
    ledger.admit(8, seats[1], Cursors(0, 5, 0))
    allowed = ledger.in_place_may_write([7, 8])

    assert ledger.advance_in_place([7, 8]).tolist() == [True, False]
    assert ledger.entry(7).cursors == Cursors(0, 1, 0)
    assert ledger.entry(8).cursors == Cursors(0, 5, 0)
    assert allowed["checkpoint"][0]["slot"].tolist() == [3, 1]
    assert [place["slot"].tolist() for place in allowed["cache_base"]] == [[3]]
    assert "d" not in allowed
