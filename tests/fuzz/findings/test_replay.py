"""A kept trace, walked again: is what it showed still there?

Traces are made by walking a target with a planted bug, and replayed on that target, on the right
one and on another wrong one, so that each outcome follows from what the targets are. The mark names
the first operation whose outcome is not the recorded one.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from ringfold.fuzz.findings import failures
from ringfold.fuzz.findings.replay import Outcome, Replayed, replay, replay_all
from ringfold.fuzz.histories.trace import Admit, Commit, PayloadSpec, Trace, Verify, save
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.targets.registry import resolve
from ringfold.sim.setup import Dtypes, Geometry, Setup

BUG = "sim:fold-reads-from-row-zero"
HISTORY = Trace(
    setup=Setup("ring", Geometry(1, 2, 16, 8), ring=8, window=2, slots=3),
    payload=PayloadSpec(3, "slow-decay"),
    operations=(
        Admit(request=0, tag=1),
        *(
            operation
            for tag in range(2, 12)
            for operation in (
                Verify(tag=tag, rows=(0,), lengths=(2,)),
                Commit(tag=tag, accepted=(2,)),
            )
        ),
    ),
)


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    """A trace that the bug fails, at the second fold: the first one's records are at row 0."""
    found = walk(HISTORY, resolve(BUG)).mismatches
    failure = failures.as_failure(msgspec.structs.replace(HISTORY, target=BUG), found, {})
    return failures.write(failure, found, tmp_path)


@pytest.fixture
def agreeing(tmp_path: Path) -> Path:
    path = tmp_path / "agrees.json"
    save(HISTORY, path)
    return path


def again(path: Path, target: str | None = None) -> Replayed:
    return replay(path, target, "cpu")


def test_a_failure_that_is_still_there(failing: Path) -> None:
    """It is walked on the target that it names, and nothing has changed."""
    replayed = again(failing)

    assert replayed.outcome == Outcome.FAILED
    assert replayed.target == BUG
    assert replayed.changed == ""
    assert replayed.account == replayed.mismatches[0].sentence()
    assert replayed.windows > 0


def test_a_failure_that_is_gone(failing: Path) -> None:
    """On a right target it is fixed, and the mark is where it used to fail."""
    recorded = again(failing).mismatches[0]

    replayed = again(failing, "sim")

    assert replayed.outcome == Outcome.FIXED
    assert replayed.mismatches == []
    assert replayed.changed.startswith(f"operation {recorded.operation}: {recorded.check}")
    assert replayed.changed.endswith("when it was written, agrees now")


def test_a_failure_that_comes_earlier(failing: Path) -> None:
    """On another wrong target the mark is at the first operation that differs, of either."""
    replayed = again(failing, "sim:wrap-mask-off-by-one")

    assert replayed.outcome == Outcome.FAILED
    first = replayed.mismatches[0]
    assert first.operation < again(failing).mismatches[0].operation
    assert replayed.changed.startswith(f"operation {first.operation}: agreed when it was written")


def test_a_trace_that_agrees(agreeing: Path) -> None:
    """And one that was expected to, and does not."""
    assert again(agreeing).outcome == Outcome.AGREES
    assert again(agreeing).target == "sim"
    assert again(agreeing).changed == ""

    broken = again(agreeing, BUG)
    assert broken.outcome == Outcome.FAILED
    assert "agreed when it was written" in broken.changed


@pytest.mark.parametrize("content", ["", "{", "[]", "\0\1", '{"ringfold_trace": 2}', None])
def test_what_is_no_trace(content: str | None, tmp_path: Path) -> None:
    """Is an error with the reason; so is a file that is not there."""
    path = tmp_path / "trace.json"
    if content is not None:
        path.write_text(content)

    replayed = again(path)

    assert replayed.outcome == Outcome.ERROR
    assert str(path) in replayed.account


@pytest.mark.parametrize(
    ("target", "outcome", "reason"),
    [
        ("nobody", Outcome.ERROR, "is unknown"),
        ("sim:no-bug", Outcome.ERROR, "no bug named"),
        ("sglang==0.5.16", Outcome.MISSING, "ringfold targets add sglang==0.5.16"),
    ],
)
def test_a_target_that_cannot_be_had(
    target: str,
    outcome: Outcome,
    reason: str,
    agreeing: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name that means nothing is an error; a wheel that is not here is missing."""
    monkeypatch.setenv("RINGFOLD_CACHE", str(tmp_path / "empty"))
    monkeypatch.delenv("RINGFOLD_WHEELS", raising=False)

    replayed = again(agreeing, target)

    assert replayed.outcome == outcome
    assert reason in replayed.account


def test_what_a_target_refuses(device: str, tmp_path: Path) -> None:
    """Is an error of this trace, with the reason, and no failure of the target."""
    pytest.importorskip("triton")
    if device == "cuda":
        pytest.skip("a process that compiles kernels can't interpret any")
    path = tmp_path / "half.json"
    dtypes = Dtypes("bfloat16", "bfloat16", "float32")
    setup = msgspec.structs.replace(HISTORY.setup, dtypes=dtypes)
    save(msgspec.structs.replace(HISTORY, setup=setup), path)

    refused = again(path, "triton")

    assert refused.outcome == Outcome.ERROR
    assert "bfloat16 is silently wrong" in refused.account
    assert again(path, "sim").outcome == Outcome.AGREES


def test_tensors_lie_beside_the_trace(agreeing: Path, tmp_path: Path) -> None:
    """Explicit numbers are read from the trace's own folder; without the file it is an error."""
    name = "mine.safetensors"
    spec = PayloadSpec(3, "slow-decay", tensors=name)
    path = tmp_path / "trace.json"
    save(msgspec.structs.replace(HISTORY, payload=spec), path)
    assert again(path).outcome == Outcome.ERROR

    save_file({"q/0/2": np.ones((1, 2, 1, 16), np.float32)}, tmp_path / name)

    replayed = again(path)
    assert replayed.outcome == Outcome.AGREES
    assert replayed.largest["outputs"] != again(agreeing).largest["outputs"]


@pytest.mark.parametrize("seen", [{}, {"operation": [1], "check": 3}, {"operation": True}])
def test_what_was_seen_may_be_anything(seen: dict[str, object], agreeing: Path) -> None:
    """A trace is edited by hand; only what it names as failing is compared."""
    edited = msgspec.structs.replace(HISTORY, seen=(seen,))
    save(edited, agreeing)

    assert again(agreeing).outcome == Outcome.AGREES


HANG_SECONDS: Final = 5.0
ILL: Final = """
import os
import time
from ringfold.fuzz.targets.simulated import SimulatedTarget


class Hangs(SimulatedTarget):
    def __init__(self, device):
        super().__init__("ill")

    def commit(self, rows, accepted, bound):
        time.sleep(10_000)


class Dies(Hangs):
    def commit(self, rows, accepted, bound):
        os._exit(1)
"""


@pytest.mark.parametrize(
    ("ill", "symptom"),
    [("Hangs", "the target hangs"), ("Dies", "the target's process died")],
)
def test_a_target_that_does_not_come_back(
    ill: str, symptom: str, agreeing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Has failed, at the operation that it is at; its process is killed, and others go on."""
    (tmp_path / "ill.py").write_text(ILL)
    monkeypatch.syspath_prepend(str(tmp_path))
    started = time.monotonic()

    one, other = replay_all(
        [agreeing, tmp_path / "none"], f"ill:{ill}", "cpu", hang_max=HANG_SECONDS
    )

    assert time.monotonic() - started < 8 * HANG_SECONDS
    assert (one.outcome, other.outcome) == (Outcome.FAILED, Outcome.ERROR)
    (mismatch,) = one.mismatches
    assert (mismatch.check, mismatch.symptom) == ("crash", symptom)
    assert (mismatch.kind, mismatch.operation) == ("commit", 2)
