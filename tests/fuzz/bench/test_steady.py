"""A peer in its steady state computes what the recurrence computes, and folds as its protocol says.

The steps that are timed on a GPU run here in Triton's interpreter. Their outputs are compared with
the float64 recurrence; the share of rows whose checkpoint is written is counted and compared with
that of the cursors, run apart. A peer that is made to go wrong, or never to fold, is noticed.
"""

from __future__ import annotations

from typing import Any

import pytest

from ringfold.fuzz.bench.case import Case, cycle
from ringfold.fuzz.bench.run import NEVER_FOLDED, OUTPUT_LIMIT, WRONG, Bench, Options
from ringfold.fuzz.bench.steady import Steady, Work, seat
from ringfold.fuzz.targets import wheels
from ringfold.fuzz.targets.registry import UnknownTargetError, resolve
from ringfold.sim.cursors import RING, Cursors
from ringfold.sim.setup import Geometry

pytest.importorskip("torch")
pytest.importorskip("triton")

SMALL = Case(Geometry(1, 2, 32, 32), batch=3, ring=8, window=2, dtype="float16")
SEEN = 1e-3  # seen 3.7e-4 with fp16 records and outputs
RELEASED = (
    "sglang-snapshots==0.5.16",
    "sglang-snapshots==0.5.23",
    "sglang==0.5.16",
    "sglang==0.5.17",
    "sglang==0.5.23",
)


def needs(name: str) -> Any:
    """The target, skipped where its wheel is missing."""
    release = "sglang==" + name.partition("==")[2]
    missing = name != "triton" and wheels.find(release) is None
    reason = f"ringfold targets add {release}"
    return pytest.param(name, marks=pytest.mark.skipif(missing, reason=reason))


@pytest.mark.parametrize("name", ["triton", *map(needs, RELEASED)])
def test_the_steps_that_are_timed_are_right(name: str) -> None:
    """Every verify on the way through two folds, all layers of it, and every fold is seen."""
    steps = 10
    case = Case(SMALL.geometry, 2, 8, 2, "uniform", layers=2, dtype="float16")
    steady = seat(resolve(name), Work(case, "cpu", steps, seed=0))

    error = steady.output_error(steps)
    written = steady.written_share(steps)

    assert 0 < error < SEEN < OUTPUT_LIMIT["float16"]
    if "snapshots" in name or "0.5.17" in name:
        assert written == 1.0
    elif name == "triton" or name.endswith("16"):
        assert written == share_of_the_cursors(steady, steps)
    else:
        assert 0 < written < 1


def share_of_the_cursors(steady: Steady, steps: int) -> float:
    """The share of rows that flush in the second round of the steps, by the protocol's table."""
    case, counts = steady.work.case, steady.work.counts
    cursors = Cursors(*[0 * counts[0]] * 3)
    flushing = []
    for i in range(2 * steps):
        flushing.append(cursors.is_flush)
        cursors = RING.commit(cursors, counts[i % steps], case.ring, case.window)
    return float(sum(flags.sum() for flags in flushing[steps:])) / (steps * case.batch)


def test_the_expected_share_is_near_what_is_counted() -> None:
    """What the floor is made from, and what is printed beside it, are found apart."""
    work = Work(SMALL, "cpu", 16, seed=3)
    steady = seat(resolve("triton"), work)

    expected = cycle(work.counts, SMALL.ring, SMALL.window).flushing

    assert steady.written_share(32) == pytest.approx(expected, abs=0.06)  # seen 0.03


class TestFlags:
    """Figures that must not be taken as they stand say so."""

    def test_wrong_outputs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A commit that moves no cursor forgets what was accepted."""
        monkeypatch.setattr(Steady, "commit", lambda self, step: None)

        (peer,) = (
            Bench(["triton"], [SMALL], "cpu", Options(4), timed=False).run(ignore).measured[0].peers
        )

        assert any(flag.startswith(WRONG) for flag in peer.flags)
        assert NEVER_FOLDED in peer.flags

    def test_no_fold(self) -> None:
        """Two steps of one token each leave room in a ring of 16: nothing was folded."""
        case = Case(SMALL.geometry, 1, 16, 2, "0", dtype="float16")

        (peer,) = (
            Bench(["triton"], [case], "cpu", Options(2), timed=False).run(ignore).measured[0].peers
        )

        assert peer.written_share == 0.0
        assert peer.flags == [NEVER_FOLDED]

    def test_a_refused_setup_leaves_the_others_standing(self) -> None:
        """The interpreter takes no bfloat16; that is told beside the case, not raised."""
        cases = [Case(SMALL.geometry, 1, 8, 2), SMALL]

        report = Bench(["triton"], cases, "cpu", Options(8), timed=False).run(ignore)

        assert report.measured[0].peers[0].flags[0].startswith("refused: dtype bfloat16")
        assert report.measured[1].peers[0].flags == []

    def test_a_target_without_launches(self) -> None:
        """The simulator's verbs take arrays of the host's."""
        with pytest.raises(UnknownTargetError, match="its verbs take arrays of the host"):
            seat(resolve("sim"), Work(SMALL, "cpu", 1, 0))


def ignore(*_: object) -> None:
    """Nobody watches."""
