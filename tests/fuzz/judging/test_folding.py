"""A fold of stored deltas is judged by its own roundings, whatever its deltas had lost before.

Under 16-bit records deltas lose some 2^-11 each, a limit has to allow for that, and a fold that
loses as much passes for right. What checkpoint and records stood for before is known exactly, so
machines whose folds lose a part of a record, or round the state once too often, must be found by
that comparison alone, far beyond the limit, and the sound ones lie well within it.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from ringfold.fuzz.histories.trace import Admit, Commit, PayloadSpec, Trace, Verify
from ringfold.fuzz.judging import checks
from ringfold.fuzz.judging.checks import Judged
from ringfold.fuzz.judging.judge import Judge
from ringfold.fuzz.judging.walk import Verdict, walk
from ringfold.fuzz.planted.rounding import FoldDropsLowParts
from ringfold.fuzz.targets.simulated import SimulatedTarget
from ringfold.sim.compact import Compact
from ringfold.sim.cursors import Cursors
from ringfold.sim.machine import Ints, Machine
from ringfold.sim.open_loop import OpenLoop
from ringfold.sim.precision import rounded
from ringfold.sim.setup import Dtypes, Geometry, Setup

FOLDED: Final = "the folded state is not the committed one"
SOUND_MAX: Final = 0.25  # of the limit; seen: 0.04
WRONG_MIN: Final = 10.0  # times the limit; seen: 93 and 124
TURNS: Final = 6


class FoldThroughHalf(Compact):
    """A folded state takes the records' dtype on its way; one that is admitted does not."""

    def fold(self, slots: Ints, cursors: Cursors) -> None:
        """Rounded once more."""
        before = self.load_checkpoint(slots)
        super().fold(slots, cursors)
        after, record = self.load_checkpoint(slots), self.setup.dtypes.record
        changed = (after != before).any(axis=(0, 2, 3, 4))
        self.store_checkpoint(slots[changed], rounded(after[:, changed], record))


def walked(machine: type[Machine], monkeypatch: pytest.MonkeyPatch, *, apart: bool) -> Verdict:
    """Six full windows of float16 records on a float32 checkpoint, with or without the check."""
    if not apart:
        monkeypatch.setattr(Judge, "folds", lambda *_: None)
    operations: list[Any] = [Admit(request=0, tag=0)]
    for tag in range(1, TURNS + 1):
        operations += [
            Verify(tag=tag, rows=(0,), lengths=(2,)),
            Commit(tag=tag, accepted=(2,)),
        ]
    dtypes = Dtypes("float16", "float16", "float32")
    setup = Setup(machine.dialect.name, Geometry(1, 2, 32, 32), 8, 2, 4, dtypes=dtypes)
    made = Trace(setup=setup, payload=PayloadSpec(3, "slow-decay"), operations=tuple(operations))
    return walk(made, SimulatedTarget("sim", machine))


@pytest.mark.parametrize("machine", [FoldDropsLowParts, FoldThroughHalf])
def test_a_fold_that_loses_what_deltas_lose_is_found_apart(
    machine: type[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judged with its deltas it passes."""
    (found,) = walked(machine, monkeypatch, apart=True).mismatches

    assert (found.check, found.symptom, found.kind) == ("state-local", FOLDED, "commit")
    assert found.units is not None
    assert found.units > WRONG_MIN
    assert walked(machine, monkeypatch, apart=False).mismatches == []


@pytest.mark.parametrize("machine", [Compact, OpenLoop])
def test_a_sound_fold_lies_within(machine: type[Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    """With room to spare, be it the commit that folds or the next verify; every fold is judged."""
    seen: list[float] = []
    judge = checks.state

    def watched(*given: Any) -> Judged:
        judged = judge(*given)
        seen.extend([judged.seen] if given[5:] else [])
        return judged

    monkeypatch.setattr(checks, "state", watched)
    verdict = walked(machine, monkeypatch, apart=True)

    assert verdict.mismatches == []
    assert len(seen) == verdict.situations["fold"] > 0
    assert 0 < max(seen) < SOUND_MAX
