"""Workloads and bytes: what they add up to is known in another way.

How often rows fold is also the stationary distribution of the cursor table's Markov chain, which is
solved here as linear equations and knows nothing of queues or random numbers. Bytes are compared
with sums written out by hand, and with the memory floor that was worked out beside measurements on
one H200 (43 microseconds for 64 rows and 172 for 256, Qwen3.5-35B-A3B, T=4, L=16).
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from ringfold.sim import cursors
from ringfold.sim.cursors import COMPACT, COMPACT_NARROW, NO_RING, RING, Protocol
from ringfold.sim.dialects import DIALECTS
from ringfold.sim.memory import pool_of
from ringfold.sim.presets import PRESETS, Model
from ringfold.sim.setup import Geometry, SetupError
from ringfold.sim.traffic import TRAFFIC, predict, recommended, sizes
from ringfold.sim.workload import Workload, serve

LONG = Workload(requests=256, running=256, tokens=500, window=4, ring=16)
SHARE_TOL = 8e-3  # seen 5.1e-3, since every request starts on an empty ring
H200 = 4.2e12
FLOOR_TOL = 0.03  # seen 0.025: the floors were worked out as "about" so much


def stationary_fold_share(protocol: Protocol, load: Workload) -> float:
    """Share of folding windows of a request that never ends."""
    L, T = load.ring, load.window
    reach = cursors.reachable(L, T, protocol)
    place = {state: i for i, state in enumerate(reach.states)}
    chain = np.zeros((len(place), len(place)))
    folds = np.zeros(len(place))
    chances = load.chances()
    for step in reach.transitions:
        if step.length == T and step.accepted:
            chance = chances[step.accepted - 1]
            chain[place[step.before], place[step.after]] += chance
            folded = protocol.folded(step.before, step.accepted, L, T)
            folds[place[step.before]] += chance * (folded > 0)
    equations = np.vstack([chain.T - np.eye(len(place)), np.ones(len(place))])
    share, *_ = np.linalg.lstsq(equations, np.append(np.zeros(len(place)), 1.0), rcond=None)
    return float(share @ folds)


@pytest.mark.parametrize("protocol", [RING, COMPACT, COMPACT_NARROW], ids=lambda p: p.name)
@pytest.mark.parametrize("acceptance", [None, 0.7])
@pytest.mark.parametrize("ring", [8, 16])
def test_the_share_of_folds_is_that_of_the_stationary_chain(
    protocol: Protocol, acceptance: float | None, ring: int
) -> None:
    """Served request by request, or solved: the same."""
    load = msgspec.structs.replace(LONG, acceptance=acceptance, ring=ring)

    assert serve(protocol, load).fold_share == pytest.approx(
        stationary_fold_share(protocol, load), abs=SHARE_TOL
    )


def test_every_record_is_folded_once_or_waits_at_the_end() -> None:
    """What is accepted is either in a checkpoint or in a ring when its request ends."""
    seen = serve(RING, LONG)
    accepted = seen.accepted * seen.windows

    assert accepted == pytest.approx(256 * 500)
    assert 256 * (500 - 12) <= seen.folded * seen.windows <= accepted
    assert seen.waiting_max == 12  # L - T


def test_acceptance_at_its_ends() -> None:
    """Nothing but the bonus token, or every draft."""
    assert serve(RING, msgspec.structs.replace(LONG, acceptance=0.0)).accepted == 1.0
    assert serve(RING, msgspec.structs.replace(LONG, acceptance=1.0)).accepted == 4.0
    assert LONG.chances().tolist() == [0.25] * 4


def test_a_protocol_without_a_ring_never_folds() -> None:
    """Nothing waits and nothing is read back."""
    seen = serve(NO_RING, LONG)

    assert (seen.fold_share, seen.live, seen.waiting_max) == (0.0, 0.0, 0)


def test_a_thousand_concurrent_requests() -> None:
    """All are served, more than one after another in a row."""
    load = Workload(requests=2500, running=1000, tokens=100)
    seen = serve(RING, load)

    assert seen.accepted * seen.windows == pytest.approx(250_000)


def test_the_seed_decides() -> None:
    """The same again, and something else for another."""
    again, other = (serve(RING, msgspec.structs.replace(LONG, seed=seed)) for seed in (0, 1))

    assert serve(RING, LONG) == again != other


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
        seen = serve(RING, self.load)
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
        seen = serve(NO_RING, self.load)
        raw = self.vectors + 2 * self.gate
        expected = 3 * self.state + (seen.accepted + 4) * raw + self.through

        assert self.moved("fold-every-commit") == pytest.approx(expected)

    def test_compact(self) -> None:
        """Records in two parts; the commit that folds reads the state again."""
        seen = serve(COMPACT, self.load)
        record = 2 * self.vectors + self.gate
        expected = (
            (1 + 2 * seen.fold_share) * self.state
            + (seen.live + seen.folded + 4) * record
            + self.through
        )

        assert self.moved("compact") == pytest.approx(expected)

    def test_open_loop(self) -> None:
        """What serves the outputs serves the fold."""
        seen = serve(RING, self.load)
        record = self.vectors + self.gate
        expected = (
            (1 + seen.fold_share) * self.state
            + (seen.live + seen.folded + 4) * record
            + self.through
        )

        assert self.moved("open-loop") == pytest.approx(expected)


def test_every_dialect_has_its_bytes() -> None:
    """None is forgotten."""
    assert set(TRAFFIC) == set(DIALECTS)


def test_the_recommended_ring_is_the_shortest_that_is_as_good_as_the_best() -> None:
    """One per cent slower is as good; two are not."""
    pool = pool_of(PRESETS["qwen3.5-35b-a3b"], window=4, running=64, ring=16)
    load = Workload(requests=64, running=64, tokens=500)
    swept = [
        predict("ring", pool, msgspec.structs.replace(load, ring=L), H200) for L in (8, 16, 32, 64)
    ]
    times = {8: 1.0, 16: 0.509, 32: 0.5, 64: 0.504}
    nearly, hardly = (
        [
            msgspec.structs.replace(
                p, token_microseconds=times[p.ring or 0] * (1 + extra * (p.ring == 16))
            )
            for p in swept
        ]
        for extra in (-0.01, 0.01)
    )

    assert recommended(nearly).ring == 16
    assert recommended(hardly).ring == 32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"requests": 0}, "requests is 0"),
        ({"ring": 12}, "ring is 12, but must be a power of two in 8..1024"),
        ({"ring": 4}, "it holds two windows at least"),
        ({"acceptance": 1.1}, r"acceptance is 1\.1"),
        ({"window": 0}, "window is 0"),
    ],
    ids=str,
)
def test_an_illegal_workload_is_refused(changes: dict[str, float], message: str) -> None:
    """The message names the value and its limit."""
    with pytest.raises(SetupError, match=message):
        Workload(**(msgspec.structs.asdict(LONG) | changes))
