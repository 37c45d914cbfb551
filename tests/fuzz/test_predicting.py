"""A prediction stands beside a measurement of the same case, and two lengths decide it.

Files are made here in the form of `ringfold bench`, with times that are known: bytes over a
bandwidth, and a rest that grows with the ring in a known way. The prediction must find that rest,
and then all times. What the bytes are is tested beside `ringfold.sim.traffic`. The page's figures
are those that are predicted from the file kept beside it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ringfold.fuzz.bench.case import Case, Cycle
from ringfold.fuzz.bench.floor import Traffic
from ringfold.fuzz.bench.report import Bandwidth, Measured, Peer, Report
from ringfold.fuzz.findings.failures import write_json
from ringfold.fuzz.predicting import Ladder, MeasuredFileError, compare, predicted
from ringfold.sim.traffic import RING_ROW_READINGS

SPEED = 4.2
REST = 5.0
NEAR = 0.05
PREDICTED_TOL = 0.06  # seen 0.001 at L=32; L=8 is 0.072 off, and said to be
CASE = Case(batch=8)
RESULTS = Path(__file__).parents[2] / "docs" / "results"


def measured(ring: int, us: float, target: str = "sim") -> Measured:
    """One case with one peer."""
    case = msgspec.structs.replace(CASE, ring=ring)
    peer = Peer(target, samples_us=[us, us, us])
    return Measured(case, Cycle(0.0, 0.0, 0.0), Traffic(0, 0, 0, 0, 0, 0), None, [peer])


def written(path: Path, *cases: Measured, bandwidth: Bandwidth | None = None) -> Path:
    """A file of these."""
    targets = list(dict.fromkeys(peer.target for one in cases for peer in one.peers))
    machine = {"device": "a card"}
    write_json(path, Report(1, machine, {"targets": targets}, {}, bandwidth, list(cases), {}))
    return path


COPY = Bandwidth(copy=SPEED * 1e12, read=SPEED * 1e12)


def taken(ring: int, readings: float) -> float:
    """Microseconds of a kernel whose rest is known: `REST` at L=16, and `readings` a row."""
    one, at = (predicted("ring", msgspec.structs.replace(CASE, ring=r), SPEED) for r in (ring, 16))
    grown = readings * (one.work_microseconds - at.work_microseconds)
    return float(one.step_microseconds + REST + grown)


@pytest.mark.parametrize(("readings", "best"), [(0.0, 32), (6.0, 16)])
def test_a_rest_that_grows_with_the_ring_is_found(
    tmp_path: Path, readings: float, best: int
) -> None:
    """Lengths 16 and 64 decide it, and all others are met, measured ones and those that are not."""
    times = [measured(ring, taken(ring, readings)) for ring in (8, 16, 64)]
    found = compare(written(tmp_path / "a.json", *times, bandwidth=COPY), [32])
    (ladder,) = found.ladders

    assert (found.made, found.bandwidth, found.left_out) == ({"device": "a card"}, SPEED, {})
    assert (ladder.dialect, ladder.case.ring, ladder.grown_at) == ("ring", 16, 64)
    assert ladder.rest_us == pytest.approx(REST)
    assert ladder.readings == pytest.approx(readings, abs=1e-9)
    for one in ladder.lengths:
        assert one.predicted_us == pytest.approx(taken(one.ring, readings))
    assert [one.measured_us is None for one in ladder.lengths] == [False, False, True, False]
    assert ladder.recommended_ring == best


def test_what_the_recommended_ring_costs_is_told(tmp_path: Path) -> None:
    """Over the best measured: a length between the two that decide may be faster than predicted."""
    times = [measured(16, 10.0), measured(32, 8.0), measured(64, 12.0)]
    (ladder,) = compare(written(tmp_path / "a.json", *times, bandwidth=COPY), []).ladders

    assert ladder.recommended_ring == 16
    assert ladder.over_best == pytest.approx(10 / 8)


def test_one_length_is_no_sweep(tmp_path: Path) -> None:
    """Then nothing is said of the best, and the rest grows as that of our kernels."""
    path = written(tmp_path / "a.json", measured(16, 10.0), bandwidth=COPY)
    (ladder,) = compare(path, [32]).ladders

    assert ladder.over_best is None
    assert (ladder.readings, ladder.grown_at) == (RING_ROW_READINGS, None)


def test_a_protocol_without_a_ring_has_one_length(tmp_path: Path) -> None:
    """Whatever rings are asked for."""
    path = written(tmp_path / "a.json", measured(16, 99.0, "sim@snapshots"), bandwidth=COPY)
    (ladder,) = compare(path, [8, 64]).ladders

    assert [one.ring for one in ladder.lengths] == [16]


def test_a_target_that_is_unknown_here_is_left_out(tmp_path: Path) -> None:
    """With the reason; another bandwidth can be given."""
    path = written(tmp_path / "a.json", measured(16, 9.0, "nobody"), bandwidth=COPY)
    found = compare(path, [], bandwidth=3.0)

    assert (found.ladders, found.bandwidth) == ([], 3.0)
    assert "is unknown" in found.left_out["nobody"]


def test_a_file_without_times_is_refused(tmp_path: Path) -> None:
    """A dry run has no clock; another file is none of ours."""
    with pytest.raises(MeasuredFileError, match="without --dry-run"):
        compare(written(tmp_path / "dry.json", measured(16, 9.0)), [])
    with pytest.raises(MeasuredFileError, match="is not what `ringfold bench --save` writes"):
        compare(tmp_path / "none.json", [])


@pytest.fixture(scope="module")
def ladders() -> dict[str, Ladder]:
    """Of our kernels and SGLang's: what one H200 took at rings of 8, 16, 32 and 64."""
    found = compare(RESULTS / "sweep-h200.json", []).ladders
    return {
        one.target: one
        for one in found
        if one.case == Case() and one.target in ("triton", "sglang==0.5.23")
    }


def test_the_recommended_ring_is_near_the_best_measured(ladders: dict[str, Ladder]) -> None:
    """Within 5 %, with our kernels and with 0.5.23's."""
    for one in ladders.values():
        assert one.over_best is not None
        assert one.over_best <= 1 + NEAR
        assert one.recommended_ring == 16


def test_our_kernels_are_met_between_the_lengths_that_decide(ladders: dict[str, Ladder]) -> None:
    """At L=32, and by how much L=8 is missed the page says; the simulator's constant is theirs."""
    ours = ladders["triton"]
    page = (RESULTS.parent / "simulate.md").read_text(encoding="utf-8")
    eight, sixteen, thirty_two, sixty_four = sorted(ours.lengths, key=lambda one: one.ring)
    assert eight.measured_us is not None

    assert ours.readings == pytest.approx(RING_ROW_READINGS, abs=0.05)
    assert thirty_two.predicted_us == pytest.approx(thirty_two.measured_us, rel=PREDICTED_TOL)
    assert (
        f"| ours | {ours.readings:.1f} | {eight.predicted_us:.1f} / {eight.measured_us:.1f} | "
        f"{sixteen.measured_us:.1f} | {thirty_two.predicted_us:.1f} / "
        f"{thirty_two.measured_us:.1f} | {sixty_four.measured_us:.1f} |"
    ) in page
    assert f"missed by {1 - eight.predicted_us / eight.measured_us:.1%}".replace("%", " %") in page


def test_other_windows_and_what_was_foretold_of_them(tmp_path: Path) -> None:
    """The page's table; the best ring is that which one length and the constant of T=4 name."""
    page = (RESULTS.parent / "simulate.md").read_text(encoding="utf-8")
    kept = RESULTS / "bench-windows-h200.json"
    report = msgspec.json.decode(kept.read_bytes(), type=Report)
    of_16 = [one for one in report.measured if one.case.ring == 16]
    write_json(tmp_path / "16.json", msgspec.structs.replace(report, measured=of_16))
    foretold = compare(tmp_path / "16.json", [32, 64]).ladders

    for one, before in zip(compare(kept, []).ladders, foretold, strict=True):
        short, middle, long = sorted(one.lengths, key=lambda length: length.ring)
        best = min(one.lengths, key=lambda length: length.measured_us or 0.0).ring
        assert before.recommended_ring == best
        assert (
            f"| {one.case.window} | {one.readings:.1f} | {short.measured_us:.1f} | "
            f"{middle.predicted_us:.1f} / {middle.measured_us:.1f} | {long.measured_us:.1f} | "
            f"{before.recommended_ring} | {best} |"
        ) in page
