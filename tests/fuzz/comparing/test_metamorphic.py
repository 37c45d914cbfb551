"""Does a history that is told in another way give the same result, and is it noticed if not?

The simulator's machines compute each row on its own, so all bitwise variations must agree on them.
Of the planted bugs, some treat rows, slots or ring rows unequally: comparing two tellings must find
these with the oracle switched off, which shows that the comparison needs no oracle and can fail.
The last target rounds by one spacing where a batch has several rows, which no limit may forbid.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

from ringfold.fuzz import cli
from ringfold.fuzz.commands.options import AGREE, INCONCLUSIVE, MISMATCH, STOPPED
from ringfold.fuzz.comparing import metamorphic
from ringfold.fuzz.comparing.metamorphic import TENSORS, Variations, vary
from ringfold.fuzz.comparing.retold import twice
from ringfold.fuzz.comparing.variations import BITWISE, CHEAP, VARIATIONS, as_it_is
from ringfold.fuzz.findings.replay import Outcome, replay
from ringfold.fuzz.histories.generate import history
from ringfold.fuzz.histories.payload import Payload
from ringfold.fuzz.histories.trace import load, validate
from ringfold.fuzz.running.hunt import plans
from ringfold.fuzz.target import HeadParameters, Inputs, Request, Target
from ringfold.fuzz.targets.registry import resolve
from ringfold.fuzz.targets.simulated import SimulatedTarget
from ringfold.sim.setup import Geometry, Setup

FOUND_ALONE: Final = (
    ("wrap-mask-off-by-one", "rotated-base"),
    ("history-clamped-at-the-end", "rotated-base"),
    ("fold-in-row-order", "rotated-base"),
    ("flag-never-falls", "nothing-kept"),
    ("rejection-copies-the-last-snapshot", "nothing-kept"),
    ("count-of-the-first-row", "permuted-rows"),
    ("folds-only-the-first-due-row", "permuted-rows"),
    ("batch-folds-as-one", "split-batches"),
    ("checkpoint-of-the-last-owner", "other-slots"),
    ("history-one-too-many", "dead-memory"),
    ("dead-records-times-zero", "dead-memory"),
)
"""Bugs, and a variation that finds each without an oracle; docs/metamorphic.md lists them."""


RETELLING = [variation for variation in VARIATIONS if variation.make is not as_it_is]
SETUP = Setup("ring", Geometry(1, 1, 4, 4), ring=8, window=2, slots=4)

POOLED = {"strided-pools", "far-offsets", "captured-launch"}
"""What takes a pool of torch tensors."""


def varied(target: Target, windows: int, *, seed: int = 1, **rest: Any) -> Variations:
    """Histories in a small geometry, and their variations."""
    small = plans(target, name=target.name, geometry=Geometry(1, 2, 8, 8))
    return vary(small, target, seed, windows, **rest)


@pytest.mark.parametrize("name", ["sim", "sim@snapshots", "sim@fold-every-commit", "sim@compact"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_sound_machine_agrees(name: str, seed: int) -> None:
    """Every variation that its protocol has, bit for bit or judged by the oracle."""
    target = resolve(name)

    report = varied(target, 600, seed=seed)

    assert report.findings == []
    ringless = {"rotated-base"} if not target.dialect.has_ring else set()
    assert report.compared.keys() == BITWISE - ringless - POOLED


@pytest.mark.parametrize("variation", RETELLING, ids=lambda variation: variation.name)
def test_a_variation_is_a_legal_history(variation: Any) -> None:
    """A scheduler could do it; it differs from its origin, and not by chance alone."""
    made = 0
    for plan in plans(resolve("sim"))[:6]:
        for number in range(8):
            trace = history(plan._replace(horizon=0), 5, number)
            other = variation.make(trace, np.random.default_rng(number))
            if other is None:
                continue
            again = variation.make(trace, np.random.default_rng(number))
            validate(other.trace)
            assert other.trace == again.trace
            made += other.trace != trace
    assert made >= 8


@pytest.mark.parametrize(("bug", "variation"), FOUND_ALONE)
def test_a_bug_is_found_without_an_oracle(bug: str, variation: str) -> None:
    """Two tellings contradict each other, and the finding names the property."""
    only = [one for one in VARIATIONS if one.name == variation]

    report = varied(resolve(f"sim:{bug}"), 500, oracle=False, variations=only)

    found = [f.symptom for f in report.findings if f.variation == variation]
    assert any(symptom.endswith(f"({variation})") for symptom in found)


def test_the_page_lists_them() -> None:
    """In the same order."""
    page = (Path(__file__).parents[3] / "docs" / "metamorphic.md").read_text(encoding="utf-8")

    assert all(f"| `{bug}` | {variation} |" in page for bug, variation in FOUND_ALONE)
    assert all(f"| `{variation.name}` | {variation.holds} |" in page for variation in VARIATIONS)


class RoundsByTheBatch(SimulatedTarget):
    """Outputs of a batch with several rows lie one spacing higher: right, but not the same."""

    def verify(
        self, rows: Sequence[Request | None], lengths: Sequence[int], inputs: Inputs
    ) -> NDArray[Any]:
        """One spacing of float32, where padding stays zero."""
        outputs = super().verify(rows, lengths, inputs)
        if len(rows) == 1 or outputs.dtype != np.float32:
            return outputs
        higher: NDArray[Any] = np.where(outputs == 0, outputs, np.nextafter(outputs, np.inf))
        return higher


def test_a_pair_is_written_down(tmp_path: Path) -> None:
    """What only a comparison shows: two traces that replay, numbers included, and agree alone."""
    report = varied(RoundsByTheBatch(), 600, run_dir=tmp_path)

    assert {finding.variation for finding in report.findings} == {"split-batches"}
    [finding] = report.findings
    paths = [Path(line.split()[3]) for line in finding.reproduce]
    assert len(paths) == 2
    assert [load(path).payload.tensors for path in paths] == [None, TENSORS]
    for path in paths:
        assert finding.sentence in (path.parent / "mismatch.txt").read_text(encoding="utf-8")
        assert replay(path, None, "cpu").outcome is Outcome.AGREES


class Counts(SimulatedTarget):
    """Its outputs lie one spacing higher each second time."""

    calls = 0

    def verify(
        self, rows: Sequence[Request | None], lengths: Sequence[int], inputs: Inputs
    ) -> NDArray[Any]:
        """One spacing of float32, where padding stays zero."""
        self.calls += 1
        outputs = super().verify(rows, lengths, inputs)
        if self.calls % 2 or outputs.dtype != np.float32:
            return outputs
        higher: NDArray[Any] = np.where(outputs == 0, outputs, np.nextafter(outputs, np.inf))
        return higher

    def open(self, setup: Setup, parameters: HeadParameters) -> None:
        """Nothing was counted yet."""
        self.calls = 0
        super().open(setup, parameters)


def test_a_window_that_depends_on_how_often_it_is_verified_is_found() -> None:
    """Right within error units both times, and not the same."""
    only = [one for one in VARIATIONS if one.name == "verified-twice"]

    report = varied(Counts(), 300, variations=only)

    assert {finding.variation for finding in report.findings} == {"verified-twice"}


def test_a_row_that_folds_is_not_verified_again() -> None:
    """The second time it is padding; a batch of nothing else is verified once."""
    asked = list[Sequence[Request | None]]()

    class Asked(SimulatedTarget):
        def verify(self, rows: Sequence[Request | None], *rest: Any) -> NDArray[Any]:
            asked.append(list(rows))
            return super().verify(rows, *rest)

    other = twice(Asked())
    assert other is not None
    other.open(SETUP, Payload(SETUP, 0, "ordinary").parameters())
    state = np.zeros((1, 1, 4, 4), np.float32)
    for request in (0, 1):
        other.admit(request, state)
    other.views()["is_flush"].array[other.seat(1)["slot"]] = 1
    inputs = Payload(SETUP, 0, "ordinary").window(np.array([0, 1]), np.array([1, 2]), 1)

    other.verify([0, 1], [1, 2], inputs)
    other.verify([1], [2], Inputs(*(x[:, 1:] for x in inputs)))

    assert asked == [[0, 1], [0, None], [1]]


@pytest.mark.slow
def test_our_kernels_lie_anywhere() -> None:
    """Slots apart or far from each other give the same bits, in the interpreter.

    Seen: seed 0, the directed history.
    """
    pytest.importorskip("triton")
    only = [one for one in VARIATIONS if one.name in ("strided-pools", "far-offsets")]

    report = varied(resolve("triton"), 100, variations=only)

    assert report.findings == []
    assert report.compared.keys() == {"strided-pools", "far-offsets"}


def test_nothing_is_compared_that_is_not_claimed() -> None:
    """A target without `repeats_bits` is judged by the oracle alone."""
    report = varied(resolve("sim"), 300, bits=frozenset())

    assert report.compared == {}
    assert report.judged.keys() >= BITWISE - POOLED


def test_what_the_oracle_finds_is_a_failure_of_its_own(tmp_path: Path) -> None:
    """A history that fails as it is isn't varied; its trace is kept and fails again."""
    report = varied(resolve("sim:fold-one-short"), 200, run_dir=tmp_path)

    finding = report.findings[0]
    assert finding.variation == "none"
    [line] = finding.reproduce
    assert replay(Path(line.split()[3]), None, "cpu").outcome is Outcome.FAILED


@pytest.mark.parametrize(("name", "code"), [("sim", AGREE), ("sim:fold-one-short", 1)])
def test_the_command(
    name: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ringfold vary` lists every variation, and its exit code says what came of them."""
    given = ["vary", name, "--max-windows", "60", "--run-dir", str(tmp_path)]

    assert cli.app(given, standalone_mode=False) == code

    said = capsys.readouterr().out
    assert all(variation.name in said for variation in VARIATIONS)
    assert ("reproduce: ringfold replay" in said) == bool(code)


class TestStopping:
    """Ctrl-C, pressed by the test itself in the middle of a walk."""

    @pytest.fixture
    def pressing(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Press it in the walk of this number, at its fifth operation."""
        testify, walks = metamorphic.testify, 0

        def at(number: int) -> None:
            def pressed(varied: Any, target: Target, oracle: bool, stopped: Any) -> Any:
                nonlocal walks
                walks += 1
                operations = itertools.count()

                def asked() -> bool:
                    if (walks, next(operations)) == (number, 4):
                        os.kill(os.getpid(), signal.SIGINT)
                    return bool(stopped())

                return testify(varied, target, oracle, asked)

            monkeypatch.setattr(metamorphic, "testify", pressed)

        return at

    def told(
        self, name: str, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> tuple[Any, dict[str, Any]]:
        """Exit code, and the object printed."""
        given = ["vary", name, "--run-dir", str(folder), "--json"]
        code = cli.app(given, standalone_mode=False)
        return code, json.loads(capsys.readouterr().out)

    def test_what_was_compared_until_then_is_told(
        self, pressing: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Whole walks alone count as judged, and the run says that it is no verdict."""
        pressing(4)

        code, report = self.told("sim", tmp_path, capsys)

        assert code == INCONCLUSIVE
        assert report["judged"] == report["compared"] == {"permuted-rows": 1, "other-slots": 1}
        assert report["findings"] == []
        assert report["inconclusive"] == [
            f"stopped by hand: 2 of {len(CHEAP)} variations were judged"
        ]

    def test_what_was_found_until_then_is_a_mismatch(
        self, pressing: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """And kept, whole."""
        pressing(3)

        code, report = self.told("sim:fold-one-short", tmp_path, capsys)

        assert code == MISMATCH
        line = report["findings"][0]["reproduce"][0]
        assert replay(Path(line.split()[3]), None, "cpu").outcome is Outcome.FAILED
        assert not list(tmp_path.rglob(".*"))

    def test_before_the_first_window_there_is_nothing_to_tell(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It just ends, as any command does."""
        monkeypatch.setattr(
            SimulatedTarget, "open", lambda *given: os.kill(os.getpid(), signal.SIGINT)
        )
        monkeypatch.setattr(sys, "argv", ["ringfold", "vary", "sim", "--run-dir", str(tmp_path)])

        with pytest.raises(SystemExit) as ended:
            cli.main()

        assert ended.value.code == STOPPED
        assert capsys.readouterr().err.strip() == "ringfold: stopped"


def test_when_its_time_is_over_it_says_what_was_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run without time is no verdict; one with enough of it is."""
    given = ["vary", "sim", "--run-dir", str(tmp_path), "--json", "--max-windows", "1"]

    code = cli.app([*given, "--max-time", "0"], standalone_mode=False)
    report = json.loads(capsys.readouterr().out)

    assert code == INCONCLUSIVE
    assert report["judged"] == {}
    assert report["inconclusive"] == [
        f"the time was over: 0 of {len(CHEAP)} variations were judged: give it more"
    ]
    assert cli.app([*given, "--max-time", "1000"], standalone_mode=False) == AGREE


def test_a_target_that_nothing_is_told_to_is_not_acquitted() -> None:
    """Without a configuration that it takes, nothing was judged, and that is said."""
    report = vary([], resolve("sim"), 0, 100)

    assert report.inconclusive == ["no history could be varied on this target"]
