"""Do the shrinker's passes reach what no single edit does, and at what cost?

Each pass is a list of candidates, so what it must hold is written down by hand. Whether two
failures then end in one trace is asked of the shrinker itself, with bugs that only some numbers
show: the starts are histories at which it used to stop, one simpler than the other. The walk is the
judge of what fails.
"""

from __future__ import annotations

import itertools

import pytest

from ringfold.fuzz.findings.shrink import WALKS_MAX, shrink
from ringfold.fuzz.findings.simpler.order import size
from ringfold.fuzz.findings.simpler.reseeded import RARE_SEEDS, other_numbers, rare_numbers
from ringfold.fuzz.findings.simpler.seats import fewer_records, nearer_bases, placed
from ringfold.fuzz.findings.simpler.steps import written_out
from ringfold.fuzz.histories.trace import (
    Admit,
    Commit,
    Operation,
    PayloadSpec,
    Place,
    Repeat,
    Trace,
    TraceError,
    Verify,
    digest,
    validate,
)
from ringfold.fuzz.targets.registry import resolve
from ringfold.sim.setup import Geometry, Setup


def trace_of(
    *operations: Operation,
    ring: int = 32,
    window: int = 1,
    slots: int = 2,
    seed: int = 0,
    key_dim: int = 1,
) -> Trace:
    """A history of heads of one element, with plain numbers."""
    return Trace(
        setup=Setup("ring", Geometry(1, 1, key_dim, 1), ring, window, slots),
        payload=PayloadSpec(seed=seed, profile="slow-decay"),
        target="sim",
        operations=operations,
    )


def with_records(records: int, base: int = 0, seed: int = 0, ring: int = 32) -> Trace:
    """One place in so many records, and the window behind them."""
    return trace_of(
        Place(request=0, tag=1, base=base, records=records, flush=records + 2 > ring),
        Verify(tag=2, rows=(0,), lengths=(1,)),
        ring=ring,
        seed=seed,
    )


def is_legal(trace: Trace) -> bool:
    """Whether a scheduler could do it."""
    try:
        validate(trace)
    except TraceError:
        return False
    return True


# ------------------------------------------------------------------ places


def test_a_place_is_tried_with_every_smaller_number_of_records() -> None:
    """The fewest first; from row 0, from where they begin, and up to where they end."""
    seats = [candidate.operations[0] for candidate in fewer_records(with_records(3, base=30))]

    assert seats == [
        Admit(request=0, tag=1),
        *(Place(request=0, tag=1, base=base, records=0, flush=False) for base in (30, 1)),
        *(Place(request=0, tag=1, base=base, records=1, flush=False) for base in (0, 30)),
        *(Place(request=0, tag=1, base=base, records=2, flush=False) for base in (0, 30, 31)),
    ]


def test_a_place_is_tried_at_every_earlier_row() -> None:
    """With the records that it has."""
    seats = [candidate.operations[0] for candidate in nearer_bases(with_records(31, base=2))]

    assert seats == [
        Place(request=0, tag=1, base=base, records=31, flush=True) for base in range(2)
    ]


@pytest.mark.parametrize("ring", [2, 8, 32])
def test_each_state_that_is_tried_is_simpler_and_reachable(ring: int) -> None:
    """Its flag follows from its records."""
    trace = with_records(ring - 1, base=ring - 1, ring=ring)

    tried = [*fewer_records(trace), *nearer_bases(trace)]

    assert tried
    assert all(is_legal(candidate) and size(candidate) < size(trace) for candidate in tried)


# ------------------------------------------------------------------ repeats

TURN = (Verify(tag=2, rows=(0,), lengths=(1,)), Commit(tag=2, accepted=(1,)))
REJECTED = (Verify(tag=3, rows=(0,), lengths=(1,)), Commit(tag=3, accepted=(0,)))


def test_a_prefix_may_end_within_a_repeat() -> None:
    """The last of nine turns is left, behind a place with the records of the other eight."""
    trace = trace_of(Admit(request=0, tag=1), Repeat(times=9, operations=TURN))

    place, verify, commit = next(
        candidate.operations for candidate in placed(trace) if len(candidate.operations) == 3
    )

    assert isinstance(place, Place)
    assert (place.base, place.records) == (0, 8)
    assert isinstance(verify, Verify)
    assert isinstance(commit, Commit)
    assert verify.tag == commit.tag


def test_a_prefix_may_end_while_a_window_is_in_flight() -> None:
    """That window is verified behind the places; the other request's step is one of them."""
    verify, commit = TURN
    other = (Verify(tag=3, rows=(1,), lengths=(1,)), Commit(tag=3, accepted=(1,)))
    seats = Admit(request=0, tag=5), Admit(request=1, tag=6)
    trace = trace_of(*seats, verify, *other, commit, slots=3)

    first = next(c for c in placed(trace) if len(c.operations) == 4 and is_legal(c))

    assert first.operations == (
        Admit(request=0, tag=7),
        Place(request=1, tag=8, base=0, records=1, flush=False),
        verify,
        commit,
    )


def test_a_repeat_is_written_out_with_those_inside_it() -> None:
    """Every window has a tag of its own; what a scheduler could do, it still could."""
    inside = Repeat(times=2, operations=TURN)
    trace = trace_of(Admit(request=0, tag=1), Repeat(times=3, operations=(inside, *REJECTED)))

    (written,) = written_out(trace)

    validate(written)
    assert len(written.operations) == 1 + 3 * (2 * 2 + 2)
    tags = [operation.tag for operation in written.operations if isinstance(operation, Verify)]
    assert len(set(tags)) == len(tags) == 9


def test_a_window_that_began_before_its_repeat_keeps_its_tag() -> None:
    """Only windows that begin in a turn get another one."""
    verify, commit = TURN
    trace = trace_of(Admit(request=0, tag=1), verify, Repeat(times=1, operations=(commit,)))

    (written,) = written_out(trace)

    assert written.operations == (Admit(request=0, tag=1), verify, commit)


def test_a_repeat_of_thousands_is_left_as_it_is() -> None:
    """Nobody would read it."""
    trace = trace_of(Admit(request=0, tag=1), Repeat(times=100_000, operations=TURN))

    assert not list(written_out(trace))


# ------------------------------------------------------------------ every short history


def test_a_step_less_may_take_louder_memory() -> None:
    """A fold that replays a rejected draft, or garbage behind a placed record."""
    start = trace_of(
        Place(request=0, tag=1, base=0, records=1, flush=True),
        Verify(tag=2, rows=(0,), lengths=(1,)),
        Commit(tag=2, accepted=(1,)),
        Verify(tag=3, rows=(0,), lengths=(1,)),
        ring=2,
    )

    shrunk = shrink(start, resolve("sim:fold-one-too-many"))

    assert shrunk.trace.operations == (
        Place(request=0, tag=1, base=0, records=1, flush=True, dead="garbage"),
        Verify(tag=2, rows=(0,), lengths=(1,)),
    )


# ------------------------------------------------------------------ other seeds


def test_fewer_records_come_with_other_numbers() -> None:
    """Sixteen records fewer and another seed are one step of shrinking."""
    assert with_records(4, seed=2) in other_numbers(with_records(20, base=3, seed=9))


def test_other_numbers_cost_less_than_a_shrink_may() -> None:
    """In a ring of 32, where states alone are a thousand; most of them are no simpler."""
    trace = with_records(31, base=31)

    tried = {digest(other) for other in other_numbers(trace) if size(other) < size(trace)}

    assert len(tried) == 784
    assert len(tried) < WALKS_MAX / 2


REPEATED = trace_of(
    Admit(request=0, tag=1),
    Repeat(times=20, operations=TURN),
    Verify(tag=4, rows=(0,), lengths=(1,)),
    seed=1,
)
CUT = [  # Each takes some 700 walks, 3 to 4 s: two of them are enough for every run.
    pytest.param(with_records(20), id="fewer records need another seed"),
    pytest.param(with_records(17, seed=2), id="nothing is simpler", marks=pytest.mark.slow),
    pytest.param(with_records(22, base=18), id="across the ring's end", marks=pytest.mark.slow),
    pytest.param(REPEATED, id="within a repeat"),
]


@pytest.mark.parametrize("start", CUT)
def test_a_fault_of_many_records_ends_in_one_trace(start: Trace) -> None:
    """A history cut at sixteen shows with seventeen, from the first small seed that shows it."""
    shrunk = shrink(start, resolve("sim:history-cut-at-sixteen"))

    assert shrunk.complete
    assert shrunk.trace.operations == with_records(17).operations
    assert shrunk.trace.setup == with_records(17).setup
    assert shrunk.trace.payload.seed == 2  # 0 and 1 show it from 19 and from 21 on


EPSILON = [
    # A key that an epsilon would have kept from being NaN behind a window's end alone: one number
    # in thirty. Each was the end of a shrink, one with fewer elements, one with a smaller seed.
    trace_of(
        Admit(request=0, tag=1),
        Verify(tag=2, rows=(0,), lengths=(1,)),
        ring=4, window=2, key_dim=2,
    ),
    trace_of(
        Admit(request=1, tag=6),
        Verify(tag=5, rows=(1,), lengths=(1,)),
        ring=4, window=2, seed=1352847442,
    ),
]  # fmt: skip


def test_a_fault_that_one_number_in_thirty_shows_ends_in_one_trace() -> None:
    """Sixty-four seeds are enough for it to show on one element, with a seed that one can type."""
    target = resolve("sim:epsilon-left-out")

    one, other = (shrink(start, target) for start in EPSILON)

    assert one.digest == other.digest
    assert one.trace.setup.geometry == Geometry(1, 1, 1, 1)
    assert one.trace.payload.seed in RARE_SEEDS


def test_rare_numbers_are_no_more_than_two_rounds_of_seeds() -> None:
    """In the smallest shape, and in the trace's own."""
    shapes = [candidate.setup.geometry for candidate in rare_numbers(EPSILON[0])]

    assert [shape for shape, _ in itertools.groupby(shapes)] == [
        Geometry(1, 1, 1, 1), EPSILON[0].setup.geometry
    ]  # fmt: skip
    assert len(shapes) == 2 * len(RARE_SEEDS)
