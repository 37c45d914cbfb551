"""A run from its first case to the picture, on a card that is a stand-in.

There is no GPU where tests run, so the few functions of `torch.cuda` that time and capture are
replaced: a graph replays its steps by running them, a clock advances by what the stand-in says.
What is tested is everything around them: that steps are captured and replayed, that peers take
turns, that times are a step's and a layer's, and that flags, ratios and files come out right.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ringfold.fuzz.bench import measure, run
from ringfold.fuzz.bench.case import Case
from ringfold.fuzz.bench.report import Bandwidth, Report
from ringfold.fuzz.bench.run import Bench, Options
from ringfold.fuzz.bench.steady import Steady
from ringfold.fuzz.commands import plots
from ringfold.sim.setup import Geometry

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

CASE = Case(Geometry(1, 1, 16, 16), batch=2, ring=8, window=2, layers=2, dtype="float16")
STEPS = 4
REPLAY_SECONDS = 0.001
BANDWIDTH = measure.bandwidth


class Card:
    """What a run asks of `torch.cuda`: a replay takes a millisecond, and every call is noted."""

    def __init__(self) -> None:
        self.now, self.bytes = 0.0, 0
        self.replays: list[Graph] = []
        self.capturing: Graph | None = None

    def allocated(self) -> int:
        """Bytes in use, a hundred more each time one asks."""
        self.bytes += 100
        return self.bytes

    @contextmanager
    def graph(self, graph: Graph) -> Iterator[None]:
        """Capture."""
        self.capturing = graph
        yield
        self.capturing = None


class Graph:
    """A captured graph."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.steps: list[int] = []

    def replay(self) -> None:
        """Let time pass."""
        self.card.replays.append(self)
        self.card.now += REPLAY_SECONDS


class Event:
    """A point in time."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.at = 0.0

    def record(self) -> None:
        """Now."""
        self.at = self.card.now

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from here to there."""
        return 1e3 * (end.at - self.at)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    """The stand-in, in the place of torch's."""
    card = Card()
    for name, stand_in in {
        "synchronize": lambda: None,
        "reset_peak_memory_stats": lambda: None,
        "empty_cache": lambda: None,
        "memory_allocated": card.allocated,
        "max_memory_allocated": card.allocated,
        "CUDAGraph": lambda: Graph(card),
        "graph": card.graph,
        "Event": lambda enable_timing: Event(card),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(measure, "bandwidth", lambda: Bandwidth(4e12, 4.4e12))
    monkeypatch.setattr(measure, "compile_all", lambda jobs, workers, **_: {})
    monkeypatch.setattr(run, "COUNTED_ROWS", 2 * CASE.batch * STEPS)
    step = Steady.step

    def noted(self: Steady, i: int) -> None:
        if card.capturing is not None:
            card.capturing.steps.append(i)
        step(self, i)

    monkeypatch.setattr(Steady, "step", noted)
    return card


def measured(targets: list[str], cases: list[Case], on_case: Callable[..., Any]) -> Report:
    """A run of three rounds."""
    return Bench(targets, cases, "cpu", Options(STEPS, rounds=3)).run(on_case)


def test_times_are_those_of_a_step_and_layer(card: Card) -> None:
    """A replay of four steps of two layers takes a millisecond: 125 us each, without spread."""
    report = measured(["triton"], [CASE], lambda *_: None)

    (one,) = report.measured
    (peer,) = one.peers
    assert peer.flags == []
    assert peer.samples_us == pytest.approx([125.0] * 3)
    assert peer.spread_us == pytest.approx(0.0, abs=1e-9)
    assert one.floor_us == pytest.approx(1e6 * one.traffic.bytes / 4e12)
    assert one.floor_us is not None
    assert peer.floor_ratio == pytest.approx(125.0 / one.floor_us)
    assert peer.held_bytes == 100
    assert peer.peak_bytes == 200
    assert card.replays[0].steps == [0, 1, 2, 3]


def test_peers_take_turns(card: Card) -> None:
    """Each round begins with another, so that none always follows the same."""
    graphs = {name: Graph(card) for name in "abc"}

    measure.interleave(graphs, rounds=3)  # type: ignore[arg-type]

    names = {id(graph): name for name, graph in graphs.items()}
    turns = "".join(name for name, _ in groupby(names[id(graph)] for graph in card.replays))
    assert turns == "abc" + "abc" + "bca" + "cab"  # settling, then three rounds


def test_a_peer_that_cannot_be_captured_is_left_out(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, and has no times; that the others have theirs is the point."""

    def refuse(steady: Steady) -> Graph:
        if steady.target.name == "triton":
            raise RuntimeError("operation not permitted when stream is capturing")
        return Graph(card)

    monkeypatch.setattr(measure, "capture", refuse)
    report = measured(["triton", "triton+TOGETHER=0"], [CASE], lambda *_: None)

    without, with_times = report.measured[0].peers
    assert without.samples_us == []
    assert without.flags[0].startswith("can't be captured in a graph: operation not permitted")
    assert len(with_times.samples_us) == 3


def test_who_stops_it_gets_what_was_measured(card: Card) -> None:
    """The case that it is at comes to its end, and the report says how many there are."""
    told = list[str]()
    asked = [CASE, msgspec.structs.replace(CASE, batch=1)]
    bench = Bench(["triton"], asked, "cpu", Options(STEPS, rounds=3))

    report = bench.run(lambda _, doing: told.append(doing), stopped=lambda: len(told) > 0)

    assert [one.case for one in report.measured] == [CASE]
    assert report.inconclusive == ["stopped by hand: 1 of 2 cases were measured"]


def test_compiling_tells_how_far_it_is_and_stops_when_it_is_asked_to() -> None:
    """In processes of its own; a target that is refused says why, beside the others."""
    counts = list[int]()
    jobs = [("triton", CASE), ("triton", msgspec.structs.replace(CASE, dtype="bfloat16"))]

    problems = measure.compile_all(jobs, 2, "cpu", on_compiled=counts.append)

    assert list(problems) == jobs[1:]
    assert "bfloat16" in problems[jobs[1]]
    assert counts[0] == 0
    assert measure.compile_all(jobs, 2, "cpu", stopped=lambda: True) == {}


def test_the_file_and_the_picture(card: Card, tmp_path: Path) -> None:
    """A panel for the batch, in its order; the file holds every sample and reads back alike."""
    other = msgspec.structs.replace(CASE, batch=1)
    report = measured(["triton"], [CASE, other], lambda *_: None)
    plots.bench(tmp_path / "bench.png", report)

    again = msgspec.json.decode(msgspec.json.encode(report), type=Report)

    assert (tmp_path / "bench.png").read_bytes()[:4] == b"\x89PNG"
    assert again.measured == report.measured
    assert json.loads(msgspec.json.encode(report))["ringfold_bench"] == 1
    assert [m.case.batch for m in plots.along(report.measured, "batch")] == [1, 2]


def test_a_panel_is_in_the_order_of_its_numbers() -> None:
    """In a sweep that was measured: rates of acceptance by their size, and `uniform` behind."""
    kept = Path(__file__).parents[3] / "docs" / "results" / "sweep-h200.json"
    measured = msgspec.json.decode(kept.read_bytes(), type=Report).measured

    def values(field: str) -> list[object]:
        return [getattr(one.case, field) for one in plots.along(measured, field)]

    assert values("acceptance") == ["0", "0.5", "0.8", "1", "uniform"]
    assert values("window") == [1, 2, 4, 8, 16]
    assert values("batch") == [16, 64]
