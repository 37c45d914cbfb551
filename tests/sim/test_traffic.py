"""Bytes are sums that a person can write out, and a floor that was known beforehand.

The formulas are compared with others written here from the protocols' description. For
Qwen3.5-35B-A3B at T=4, L=16 the memory floor of a step was stated as about 43 microseconds for 64
rows and 172 for 256 at 4.2 TB/s, before any of this was written.
"""

from __future__ import annotations

import pytest

from ringfold.sim.dialects import (
    COMPACT_DIALECT,
    DECODE_RING_DIALECT,
    DIALECTS,
    LINEAR_CACHE_DIALECT,
    RING_DIALECT,
    SNAPSHOTS_DIALECT,
)
from ringfold.sim.engine.statistics import serve
from ringfold.sim.engine.workload import Workload
from ringfold.sim.memory import pool_of
from ringfold.sim.presets import PRESETS, Model
from ringfold.sim.setup import Geometry
from ringfold.sim.traffic import TRAFFIC, predict, recommended, sizes

H200 = 4.2e12
FLOOR_TOL = 0.03  # seen 0.025: the floors were stated as "about" so much


@pytest.mark.parametrize(("rows", "microseconds"), [(64, 43), (256, 172)])
def test_the_memory_floor_of_the_ring_on_an_h200(rows: int, microseconds: int) -> None:
    """As worked out beside the measurements: each state read, a quarter written, and the ring."""
    pool = pool_of(PRESETS["qwen3.5-35b-a3b"], window=4, running=rows, ring=16)
    load = Workload(requests=rows, running=rows, tokens=500)

    assert predict("ring", pool, load, H200).step_microseconds == pytest.approx(
        microseconds, rel=FLOOR_TOL
    )


class TestBytes:
    """One row and layer, H=1, HV=2, K=3, V=5, T=4, bfloat16 records, written out."""

    pool = pool_of(Model("small", 1, Geometry(1, 2, 3, 5)), window=4, running=8, ring=16)
    load = Workload(requests=8, running=8, tokens=500)
    state = 2 * 5 * 3 * 4
    vectors, gate = (2 * 5 + 3) * 2, 2 * 4
    through = 4 * (2 * 3 + 2 * 2 * 5 + 2 * 2) * 2

    def moved(self, dialect: str) -> float:
        """Bytes of a step."""
        return predict(dialect, self.pool, self.load, H200).traffic.bytes

    def test_sizes(self) -> None:
        """The parts."""
        s = sizes(self.pool)

        assert (s.state, s.vectors, s.gate, s.through) == (
            self.state,
            self.vectors,
            self.gate,
            self.through,
        )

    def test_snapshots(self) -> None:
        """Read the state, write four snapshots, copy one."""
        assert self.moved("snapshots") == (1 + 4 + 2) * self.state + self.through

    def test_ring(self) -> None:
        """Two records a token, one for outputs and one for folding."""
        seen = serve(self.load, RING_DIALECT)
        raw = self.vectors + 2 * self.gate
        expected = (
            (1 + seen.fold_share) * self.state
            + seen.live * (self.vectors + self.gate)
            + seen.folded * raw
            + 4 * (2 * self.vectors + 2 * self.gate)
            + self.through
        )

        assert self.moved("ring") == pytest.approx(expected)

    def test_fold_every_commit(self) -> None:
        """The commit reads and writes the state once more."""
        seen = serve(self.load, SNAPSHOTS_DIALECT)
        raw = self.vectors + 2 * self.gate
        expected = 3 * self.state + (seen.accepted + 4) * raw + self.through

        assert self.moved("fold-every-commit") == pytest.approx(expected)

    def test_compact(self) -> None:
        """Two parts are written and folded, one serves outputs; a fold reads the state again."""
        seen = serve(self.load, COMPACT_DIALECT)
        record = 2 * self.vectors + self.gate
        expected = (
            (1 + 2 * seen.fold_share) * self.state
            + seen.live * (self.vectors + self.gate)
            + (seen.folded + 4) * record
            + self.through
        )

        assert self.moved("compact") == pytest.approx(expected)

    def test_open_loop(self) -> None:
        """What serves the outputs serves the fold."""
        seen = serve(self.load, RING_DIALECT)
        record = self.vectors + self.gate
        expected = (
            (1 + seen.fold_share) * self.state
            + (seen.live + seen.folded + 4) * record
            + self.through
        )

        assert self.moved("open-loop") == pytest.approx(expected)

    def test_linear_cache(self) -> None:
        """As `fold-every-commit`, but with one record a token and no beta."""
        seen = serve(self.load, LINEAR_CACHE_DIALECT)
        record = self.vectors + self.gate
        expected = 3 * self.state + (seen.accepted + 4) * record + self.through

        assert self.moved("linear-cache") == pytest.approx(expected)

    def test_decode_ring(self) -> None:
        """A token reads the state and 7.5 records of 16, writes one, or every 16th the state."""
        record = 2 * self.vectors + self.gate  # in the dtype of the state
        seen = serve(self.load, DECODE_RING_DIALECT)

        assert seen.fold_share == pytest.approx(1 / 16, rel=0.02)  # 500 is no multiple of 16
        assert seen.live == pytest.approx(7.5, rel=0.02)
        assert self.moved("decode-ring") == pytest.approx(
            (1 + seen.fold_share) * self.state
            + (seen.live + 1 - seen.fold_share) * record
            + self.through / 4
        )


def test_every_dialect_has_its_bytes() -> None:
    """None is forgotten."""
    assert set(TRAFFIC) == set(DIALECTS)


def test_computing_on_a_ring_grows_with_its_length() -> None:
    """So many readings of the vectors of all its rows, written out; none without a ring."""
    pool = pool_of(Model("small", 1, Geometry(1, 2, 3, 5)), window=4, running=8, ring=16)
    load = Workload(requests=8, running=8, tokens=100)
    vectors = (2 * 5 + 3) * 2
    ring, snapshots = (predict(name, pool, load, 1e6, 2.0) for name in ("ring", "snapshots"))

    assert ring.work_microseconds == pytest.approx(8 * 16 * vectors * 2.0)
    assert snapshots.work_microseconds == 0


@pytest.mark.parametrize(("sixteen", "best"), [(0.504, 16), (0.506, 32)])
def test_the_recommended_ring_is_the_shortest_that_is_as_good(sixteen: float, best: int) -> None:
    """Less than one per cent slower than the fastest is as good; more is not."""
    assert recommended({8: 1.0, 16: sixteen, 32: 0.5, 64: 0.504}) == best
