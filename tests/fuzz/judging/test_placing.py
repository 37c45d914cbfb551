"""Is a placed request where a history would have brought it?

A reference machine walks a history step by step; another is placed in the state that the first one
reached. Both must represent the same state and hold the same cursors, which the walk checks against
the recurrence after every place. What is asked here is that many requests placed in one go are
placed as each would be alone, bit for bit.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from ringfold.fuzz.histories.payload import Payload
from ringfold.fuzz.histories.trace import Commit, Operation, PayloadSpec, Place, Trace, Verify
from ringfold.fuzz.judging.walk import Walk, walk
from ringfold.fuzz.target import Floats
from ringfold.fuzz.targets.registry import resolve
from ringfold.fuzz.targets.simulated import SimulatedTarget
from ringfold.sim.cursors import reachable
from ringfold.sim.dialects import DIALECTS, protocol_of
from ringfold.sim.setup import Dtypes, Geometry, Setup

RINGS = [name for name, dialect in DIALECTS.items() if dialect.has_ring]


def setup_of(dialect: str) -> Setup:
    """Two layers and shared key heads, records in half precision."""
    dtypes = Dtypes("float16", "float16")
    return Setup(dialect, Geometry(2, 4, 8, 4), 8, 2, 64, layers=2, dtypes=dtypes)


def places(setup: Setup) -> list[Place]:
    """Every state of a ring, each for a request of its own."""
    states = reachable(setup.ring, setup.window, protocol_of(setup)).states
    return [
        Place(request=i, tag=i, base=c.cache_base, records=c.write_pos, flush=bool(c.is_flush))
        for i, c in enumerate(states)
    ]


def walked(setup: Setup, operations: list[Operation]) -> SimulatedTarget:
    """A target after a history without a mismatch."""
    target = resolve(f"sim@{setup.dialect}")
    assert isinstance(target, SimulatedTarget)
    trace = Trace(
        setup=setup,
        payload=PayloadSpec(seed=5, profile="slow-decay"),
        operations=tuple(operations),
    )
    verdict = Walk(trace, target, Payload(setup, 5, "slow-decay")).run()
    assert verdict.mismatches == []
    return target


@pytest.mark.parametrize("dialect", RINGS)
def test_placing_many_is_placing_each(dialect: str) -> None:
    """Memory after one call for all states is that of a call for each, bit for bit."""
    setup = setup_of(dialect)
    together = walked(setup, [*places(setup)])

    # Garbage in dead memory parts two places; a machine never sees it here.
    apart = walked(
        setup, [msgspec.structs.replace(place, dead="garbage") for place in places(setup)]
    )

    for name, view in together.views().items():
        other = apart.views()[name].array
        unseen = (other == 97.0) | (other == 0.7) | (other == np.float16(0.7))
        assert np.array_equal(view.array[~unseen], other[~unseen]), name


@pytest.mark.parametrize("dialect", RINGS)
def test_placed_requests_go_on_as_the_oracle_does(dialect: str) -> None:
    """From every state a full window, whose outputs, records and state the walk judges."""
    setup = setup_of(dialect)
    seats = places(setup)
    count = len(seats)
    rows = tuple(range(count))
    step: list[Operation] = [
        Verify(tag=count, rows=rows, lengths=(2,) * count, dead="nan"),
        Commit(tag=count, accepted=(2,) * count, dead="nan"),
    ]

    target = walked(setup, [*seats[:-1], msgspec.structs.replace(seats[-1], dead="nan"), *step])

    assert len(target.seats) == count


class WrongCheckpoint(SimulatedTarget):
    """Admits every request on another state than it was given."""

    def admit(self, request: int, state: Floats, past: Floats | None = None) -> None:
        """Off by one."""
        super().admit(request, state + 1, past)


def test_a_finding_names_the_last_of_many_places() -> None:
    """A trace cut there still holds them all, and fails again."""
    setup = setup_of("ring")
    trace = Trace(
        setup=setup,
        payload=PayloadSpec(seed=5, profile="slow-decay"),
        operations=tuple(places(setup)[:3]),
    )

    mismatches = walk(trace, WrongCheckpoint()).mismatches

    assert {m.operation for m in mismatches} == {2}
