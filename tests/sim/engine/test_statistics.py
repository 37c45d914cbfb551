"""How often the rows of a workload fold is known in another way.

It is the stationary distribution of the cursor table's Markov chain, which is solved here as linear
equations and knows nothing of queues, seats or random numbers. The two agree to what a request's
start on an empty ring explains. The rest is conservation: every token is served, and every record
is folded once or waits when its request ends.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from ringfold.sim import cursors
from ringfold.sim.cursors import COMPACT_NARROW, Protocol
from ringfold.sim.dialects import COMPACT_DIALECT, RING_DIALECT, SNAPSHOTS_DIALECT, Dialect
from ringfold.sim.engine.statistics import serve
from ringfold.sim.engine.workload import Workload
from ringfold.sim.setup import SetupError

LONG = Workload(requests=256, running=256, tokens=500, window=4, ring=16)
SHARE_TOL = 8e-3  # seen 5.1e-3, since every request starts on an empty ring


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


@pytest.mark.parametrize(
    ("dialect", "protocol"),
    [
        (RING_DIALECT, RING_DIALECT.protocol),
        (COMPACT_DIALECT, COMPACT_DIALECT.protocol),
        (COMPACT_DIALECT, COMPACT_NARROW),
    ],
    ids=["ring", "compact", "narrow"],
)
@pytest.mark.parametrize("acceptance", [None, 0.7])
@pytest.mark.parametrize("ring", [8, 16])
def test_the_share_of_folds_is_that_of_the_stationary_chain(
    dialect: Dialect, protocol: Protocol, acceptance: float | None, ring: int
) -> None:
    """Served request by request, or solved: the same."""
    load = msgspec.structs.replace(LONG, acceptance=acceptance, ring=ring)

    assert serve(load, dialect, protocol).fold_share == pytest.approx(
        stationary_fold_share(protocol, load), abs=SHARE_TOL
    )


def test_every_record_is_folded_once_or_waits_at_the_end() -> None:
    """What is accepted is either in a checkpoint or in a ring when its request ends."""
    seen = serve(LONG, RING_DIALECT)
    accepted = seen.accepted * seen.windows

    assert accepted == pytest.approx(256 * 500)
    assert 256 * (500 - 12) <= seen.folded * seen.windows <= accepted
    assert seen.waiting_max == 12  # L - T


def test_acceptance_at_its_ends() -> None:
    """Nothing but the bonus token, or every draft."""
    assert serve(msgspec.structs.replace(LONG, acceptance=0.0), RING_DIALECT).accepted == 1.0
    assert serve(msgspec.structs.replace(LONG, acceptance=1.0), RING_DIALECT).accepted == 4.0
    assert LONG.chances().tolist() == [0.25] * 4


def test_a_protocol_without_a_ring_never_folds() -> None:
    """Nothing waits and nothing is read back."""
    seen = serve(LONG, SNAPSHOTS_DIALECT)

    assert (seen.fold_share, seen.live, seen.waiting_max) == (0.0, 0.0, 0)


def test_a_thousand_concurrent_requests() -> None:
    """All are served, more than one after another in a row."""
    load = Workload(requests=2500, running=1000, tokens=100)
    seen = serve(load, RING_DIALECT)

    assert seen.accepted * seen.windows == pytest.approx(250_000)


def test_the_seed_decides() -> None:
    """The same again, and something else for another."""
    again, other = (
        serve(msgspec.structs.replace(LONG, seed=seed), RING_DIALECT) for seed in (0, 1)
    )

    assert serve(LONG, RING_DIALECT) == again != other


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
