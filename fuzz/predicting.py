"""What `ringfold.sim.traffic` predicts beside what `ringfold bench` measured, ring by ring.

A step takes the time that its bytes take, and a rest. The rest is a part that is the same for every
ring, and one in proportion to its length, since kernels compute on all rows of a ring. Measurements
at two lengths decide both; those at other lengths say how far that can be trusted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from ringfold.fuzz.bench.case import Case, rate
from ringfold.fuzz.bench.report import Measured, Report
from ringfold.fuzz.targets.registry import MissingTargetError, UnknownTargetError, resolve
from ringfold.fuzz.targets.wheels import WheelError
from ringfold.sim.dialects import DIALECTS
from ringfold.sim.engine.workload import Workload
from ringfold.sim.memory import pool_of
from ringfold.sim.presets import Model
from ringfold.sim.setup import SetupError
from ringfold.sim.traffic import RING_ROW_READINGS, Prediction, predict, recommended

CALIBRATED_AT: Final = 16
"""The ring length whose measurement decides the rest, if it was measured; else the shortest. The
longest that was measured decides how the rest grows."""
TOKENS: Final = 400
"""That a request decodes; two requests a row."""


class MeasuredFileError(SetupError):
    """A file that is no outcome of `ringfold bench`, or has no times."""


class Length(msgspec.Struct, frozen=True):
    """One ring length; microseconds a step and layer."""

    ring: int
    bytes_us: float
    predicted_us: float
    """With the rest."""
    measured_us: float | None


class Ladder(msgspec.Struct, frozen=True):
    """One target in one case, over ring lengths."""

    target: str
    dialect: str
    case: Case
    """Its ring is the one that decided the rest."""
    rest_us: float
    """At that length."""
    readings: float
    """How the rest grows with each row of the ring, in readings of the row."""
    grown_at: int | None
    """The length that decided this; None where it is taken from `sim.traffic`."""
    lengths: list[Length]

    @property
    def recommended_ring(self) -> int:
        """By prediction."""
        return recommended({one.ring: one.predicted_us for one in self.lengths})

    @property
    def over_best(self) -> float | None:
        """Measured time at the recommended ring over the best; None unless several are known."""
        times = {one.ring: t for one in self.lengths if (t := one.measured_us) is not None}
        if len(times) < 2 or self.recommended_ring not in times:
            return None
        return times[self.recommended_ring] / min(times.values())


class Compared(msgspec.Struct, frozen=True):
    """A whole file."""

    measured: str
    made: dict[str, str]
    """Where it was measured, as the file says."""
    bandwidth: float
    """TB/s that a copy reached in that run, unless another was given."""
    ladders: list[Ladder]
    left_out: dict[str, str]
    """Targets whose protocol can't be known here, and why."""


def compare(path: Path, rings: Sequence[int], bandwidth: float | None = None) -> Compared:
    """Predict every case of a file that `ringfold bench --save` wrote.

    Args:
        path: the file.
        rings: lengths to predict besides those measured.
        bandwidth: in TB/s, in place of the file's.

    Raises:
        MeasuredFileError: it is no such file, or has no times.
    """
    report = _read(path)
    if report.bandwidth is None:
        raise MeasuredFileError(f"{path}: has no times: measure on a GPU, without --dry-run")
    speed = bandwidth or report.bandwidth.copy / 1e12
    dialects, left_out = _dialects(report.options["targets"])
    alike: dict[Case, list[Measured]] = defaultdict(list)  # but for the ring
    for one in report.measured:
        alike[msgspec.structs.replace(one.case, ring=CALIBRATED_AT)].append(one)
    ladders = []
    for case, measured in alike.items():
        for target, dialect in dialects.items():
            times = {
                one.case.ring: peer.median_us
                for one in measured
                for peer in one.peers
                if peer.target == target and peer.samples_us
            }
            if times:
                ladders.append(ladder(target, dialect, case, times, rings, speed))
    return Compared(str(path), report.machine, speed, ladders, left_out)


def ladder(
    target: str,
    dialect: str,
    case: Case,
    times: dict[int, float],
    rings: Sequence[int],
    speed: float,
) -> Ladder:
    """`times` [ring] are what was measured, in microseconds; `speed` is in TB/s."""
    at = CALIBRATED_AT if CALIBRATED_AT in times else min(times)
    case = msgspec.structs.replace(case, ring=at)
    lengths = {at}
    if DIALECTS[dialect].has_ring:
        lengths |= {*times, *(ring for ring in rings if ring >= 2 * case.window)}
    found = {
        ring: predicted(dialect, msgspec.structs.replace(case, ring=ring), speed)
        for ring in sorted(lengths)
    }
    rest = {ring: times[ring] - found[ring].step_microseconds for ring in times if ring in found}
    readings, far = RING_ROW_READINGS, max(rest)
    if far > at:
        read = found[far].work_microseconds - found[at].work_microseconds
        readings = (rest[far] - rest[at]) / read
    steps = []
    for ring, one in found.items():
        grown = readings * (one.work_microseconds - found[at].work_microseconds)
        us = one.step_microseconds + rest[at] + grown
        steps.append(Length(ring, one.step_microseconds, us, times.get(ring)))
    return Ladder(target, dialect, case, rest[at], readings, far if far > at else None, steps)


@cache
def predicted(dialect: str, case: Case, speed: float) -> Prediction:
    """A step of `case` at `speed` TB/s, one layer; the work is that of reading the ring once."""
    model = Model("measured", 1, case.geometry, conv_width=4)
    load = Workload(
        requests=2 * case.batch,
        tokens=TOKENS,
        running=case.batch,
        window=case.window,
        ring=case.ring,
        acceptance=rate(case.acceptance),
    )
    pool = pool_of(
        model, window=case.window, running=case.batch, ring=case.ring, conv_dtype=case.dtype
    )
    return predict(dialect, pool, load, speed * 1e12, readings=1.0)


def _read(path: Path) -> Report:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except (OSError, msgspec.MsgspecError) as error:
        raise MeasuredFileError(
            f"{path}: is not what `ringfold bench --save` writes ({error})"
        ) from None


def _dialects(targets: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Dialect of each target, and why that of some can't be known."""
    known, unknown = {}, {}
    for name in targets:
        try:
            known[name] = resolve(name).dialect.name
        except (MissingTargetError, UnknownTargetError, WheelError) as error:
            unknown[name] = str(error)
    return known, unknown
