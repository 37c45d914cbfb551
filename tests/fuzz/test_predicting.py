"""A prediction stands beside a measurement of the same case, and differs in one number.

Files are made here in the form of `ringfold bench`, with times that are known: bytes over a
bandwidth and a rest that is the same for every ring. The prediction must find that rest, and then
all times. What the bytes are is tested beside `ringfold.sim.traffic`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ringfold.fuzz.bench.case import Case, Cycle
from ringfold.fuzz.bench.floor import Traffic
from ringfold.fuzz.bench.report import Bandwidth, Measured, Peer, Report
from ringfold.fuzz.failures import write_json
from ringfold.fuzz.predicting import MeasuredFileError, compare, predicted_us

SPEED = 4.2
REST = 5.0
CASE = Case(batch=8)
RINGS = (8, 16, 32)


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


def in_bytes(ring: int) -> float:
    """Microseconds that the bytes of the case take."""
    return predicted_us("ring", msgspec.structs.replace(CASE, ring=ring), SPEED)


def test_a_rest_that_is_the_same_for_all_rings_is_found(tmp_path: Path) -> None:
    """One measurement decides it, and all others are met; a length not measured is predicted."""
    times = [measured(ring, in_bytes(ring) + REST) for ring in RINGS]
    found = compare(written(tmp_path / "a.json", *times, bandwidth=COPY), [64])
    (ladder,) = found.ladders

    assert (found.made, found.bandwidth, found.left_out) == ({"device": "a card"}, SPEED, {})
    assert (ladder.dialect, ladder.case.ring) == ("ring", 16)
    assert ladder.rest_us == pytest.approx(REST)
    assert [one.ring for one in ladder.lengths] == [8, 16, 32, 64]
    for one in ladder.lengths[:3]:
        assert one.predicted_us == pytest.approx(one.measured_us)
    assert ladder.lengths[3].measured_us is None
    assert ladder.recommended_ring == 32
    assert ladder.over_best == 1.0


def test_a_kernel_that_is_slow_on_long_rings_contradicts_the_recommendation(tmp_path: Path) -> None:
    """What the recommended ring costs over the best measured is told."""
    times = [measured(16, 10.0), measured(32, 11.0)]
    (ladder,) = compare(written(tmp_path / "a.json", *times, bandwidth=COPY), []).ladders

    assert ladder.recommended_ring == 32
    assert ladder.over_best == pytest.approx(1.1)


def test_one_length_is_no_sweep(tmp_path: Path) -> None:
    """Then nothing is said of the best."""
    path = written(tmp_path / "a.json", measured(16, 10.0), bandwidth=COPY)
    (ladder,) = compare(path, [32]).ladders

    assert ladder.over_best is None


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
