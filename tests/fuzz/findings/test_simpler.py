"""Do the shrinker's passes reach what no single edit does, and at what cost?

Each pass is a list of candidates, so what it must hold is written down by hand. Whether two
failures then end in one trace is asked of the shrinker itself, of bugs that only some numbers show
and of targets whose fault is a line long: the starts are histories at which it used to stop, one
simpler than the other. The walk is the judge of what fails.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from ringfold.fuzz.findings.shrink import WALKS_MAX, shrink
from ringfold.fuzz.findings.simpler.edits import nearer
from ringfold.fuzz.findings.simpler.numbers import larger_heads, other_shapes
from ringfold.fuzz.findings.simpler.order import apart, size
from ringfold.fuzz.findings.simpler.requests import alone, freed, padded, renamed
from ringfold.fuzz.findings.simpler.reseeded import RARE_SEEDS, other_numbers, rare_numbers
from ringfold.fuzz.findings.simpler.seats import fewer_records, nearer_bases, placed
from ringfold.fuzz.findings.simpler.steps import moved, plain_steps, reordered, written_out
from ringfold.fuzz.findings.simpler.windows import plainer_stores
from ringfold.fuzz.histories.trace import (
    Admit,
    Commit,
    Decode,
    Donate,
    Evict,
    Free,
    Hit,
    Idle,
    Operation,
    PayloadSpec,
    Place,
    Prefill,
    Repeat,
    Restore,
    Save,
    Trace,
    TraceError,
    Verify,
    digest,
    validate,
)
from ringfold.fuzz.target import Inputs, Target
from ringfold.fuzz.targets.registry import resolve
from ringfold.fuzz.targets.simulated import SimulatedTarget
from ringfold.sim.setup import Geometry, Setup


def trace_of(
    *operations: Operation,
    ring: int = 32,
    window: int = 1,
    slots: int = 2,
    seed: int = 0,
    key_dim: int = 1,
    value_dim: int = 1,
) -> Trace:
    """A history of heads of one element, with plain numbers."""
    return Trace(
        setup=Setup("ring", Geometry(1, 1, key_dim, value_dim), ring, window, slots),
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


# ------------------------------------------------------------------ requests

BOTH = Admit(request=0, tag=1), Admit(request=1, tag=2)


def batch(
    rows: tuple[int | None, ...], lengths: tuple[int, ...], accepted: tuple[int | None, ...]
) -> tuple[Verify, Commit]:
    """A step of several rows."""
    return Verify(tag=3, rows=rows, lengths=lengths), Commit(tag=3, accepted=accepted)


def test_a_request_gives_way_to_padding() -> None:
    """Its rows stay and nothing is committed there, or they go and its seat is an idle batch."""
    seats = Admit(request=0, tag=1, dead="nan"), BOTH[1]
    trace = trace_of(*seats, *batch((1, 0), (1, 2), (1, 2)), Free(request=1), slots=3, window=2)

    tried = [candidate.operations for candidate in padded(trace)]

    assert tried == [
        (seats[1], *batch((1, None), (1, 2), (1, None)), Free(request=1)),
        (Idle(rows=1, dead="nan"), seats[1], *batch((1,), (1,), (1,)), Free(request=1)),
        (seats[0], *batch((None, 0), (1, 2), (None, 2))),
        (seats[0], Idle(rows=1), *batch((0,), (2,), (2,))),
    ]


def test_a_batch_of_padding_alone_is_an_idle_one() -> None:
    """Whatever it is called in a trace; idle is the simpler name."""
    verify, commit = batch((None, None), (1, 2), (None, None))
    trace = trace_of(BOTH[0], verify, Free(request=0), commit, window=2)

    (idle,) = (other for other in plain_steps(trace) if other != trace)

    assert idle.operations == (BOTH[0], Idle(rows=1), Free(request=0))
    alike = trace_of(BOTH[0], Idle(rows=2), Free(request=0), window=2)
    assert size(idle) < size(alike) < size(trace)
    assert apart(verify)
    assert not apart(TURN[0])


def test_one_request_alone_is_not_tried_as_padding() -> None:
    """Nothing would be left."""
    assert not list(padded(with_records(3)))


def test_less_is_stored() -> None:
    """Of all operations of a kind, then of each: all of that is simpler."""
    prefill = Prefill(tag=9, rows=(0, 1), lengths=(65, 1), branch=64)
    decode, donate = Decode(tag=10, rows=(1, 0), stores=(0, 1)), Donate(request=0, prefix=7, cut=2)
    trace = trace_of(*BOTH, prefill, decode, donate, slots=3)

    tried = [candidate.operations[2:] for candidate in plainer_stores(trace)]

    assert tried == [
        (prefill, decode, msgspec.structs.replace(donate, cut=0)),
        (msgspec.structs.replace(prefill, branch=None), decode, donate),
        (prefill, msgspec.structs.replace(decode, stores=()), donate),
        (prefill, decode, msgspec.structs.replace(donate, cut=0)),
        (prefill, decode, msgspec.structs.replace(donate, cut=1)),
        (prefill, msgspec.structs.replace(decode, stores=(1,)), donate),
        (prefill, msgspec.structs.replace(decode, stores=(0,)), donate),
    ]
    assert all(size(candidate) < size(trace) for candidate in plainer_stores(trace))


def test_what_a_step_stores_goes_with_its_row() -> None:
    """And has its name, or is padding's no more."""
    decode = Decode(tag=10, rows=(1, 0), stores=(0, 1))
    trace = trace_of(*BOTH, decode, slots=3)

    one, padding = next(alone(trace, suspect=1)), next(padded(trace))

    assert one.operations == (BOTH[1], Decode(tag=10, rows=(1,), stores=(1,)))
    assert padding.operations == (BOTH[1], Decode(tag=10, rows=(1, None), stores=(1,)))
    assert renamed(one).operations[1:] == (Decode(tag=2, rows=(0,), stores=(0,)),)


def test_a_request_is_freed_in_place_of_saved() -> None:
    """Then nobody restores it; another one's restoring stays."""
    saves = Save(request=0), Save(request=1)
    trace = trace_of(*BOTH, *saves, Restore(request=0), Restore(request=1), slots=3)

    one, other = (candidate.operations for candidate in freed(trace))

    assert one == (*BOTH, Free(request=0), saves[1], Restore(request=1))
    assert other == (*BOTH, saves[0], Free(request=1), Restore(request=0))


def test_a_request_is_freed_in_place_of_donated() -> None:
    """Then nobody is seated on its prefix, which nobody evicts."""
    trace = trace_of(
        *BOTH, Donate(request=0, prefix=7), Hit(request=2, prefix=7), Evict(prefix=7), slots=4
    )

    (candidate,) = freed(trace)

    assert candidate.operations == (*BOTH, Free(request=0))


# ------------------------------------------------------------------ orders


def test_requests_change_their_roles() -> None:
    """Seats and rows the other way round, and then the names: one of these alone is no simpler."""
    trace = trace_of(*BOTH, *batch((0, 1), (1, 1), (1, 0)), slots=3)

    exchanged = trace_of(*BOTH, *batch((0, 1), (1, 1), (0, 1)), slots=3)

    assert exchanged in reordered(trace)
    assert size(exchanged) < size(trace)
    rows_alone = trace_of(*BOTH, *batch((1, 0), (1, 1), (0, 1)), slots=3)
    assert rows_alone in reordered(trace)
    assert size(rows_alone) > size(trace)


def test_one_operation_moves_while_another_goes() -> None:
    """A slot that one request saves before another comes is one slot fewer."""
    place = Place(request=1, tag=2, base=0, records=1, flush=False)
    end = Restore(request=0)
    long = trace_of(
        BOTH[0], place, Free(request=1), Save(request=0), Admit(request=2, tag=3), end, slots=3
    )

    assert trace_of(BOTH[0], Save(request=0), place, Free(request=1), end) in moved(long)


def test_only_a_history_that_one_can_read_has_its_operations_moved() -> None:
    """There are a thousand ways in one of eight, and most are no history."""
    eight = trace_of(*BOTH, *(TURN * 3), slots=3)
    nine = trace_of(*BOTH, *(TURN * 3), Free(request=0), slots=3)

    assert list(moved(eight))
    assert not list(moved(nine))


def wrong(holds: Callable[[SimulatedTarget, Sequence[int | None]], bool]) -> Target:
    """A target whose outputs are off by one in each batch of such rows."""

    class Wrong(SimulatedTarget):
        def verify(
            self, rows: Sequence[int | None], lengths: Sequence[int], inputs: Inputs
        ) -> NDArray[Any]:
            outputs: NDArray[Any] = super().verify(rows, lengths, inputs)
            if holds(self, rows):
                outputs[:, np.repeat([row is not None for row in rows], lengths)] += 1
            return outputs

    return Wrong()


def records(target: SimulatedTarget, request: int | None) -> int | None:
    """How many wait in a request's slot; padding has none."""
    if request is None:
        return None
    return int(target.machine.waiting(np.array([target.seats[request]]))[0])


def reach(target: SimulatedTarget) -> int:
    """Elements up to the end of the last slot that is taken, from that of the null slot on."""
    g = target.machine.setup.geometry
    return max(target.seats.values()) * g.value_heads * g.key_dim * g.value_dim


def full(request: int) -> Place:
    """With the one record that a ring of two holds."""
    return Place(request=request, tag=1 + request, base=0, records=1, flush=True)


ONE_TRACE = [
    pytest.param(
        wrong(lambda target, rows: [records(target, row) for row in rows[:2]] == [1, 0]),
        [
            trace_of(full(0), BOTH[1], Verify(tag=3, rows=(0, 1), lengths=(1, 1)), slots=3, ring=2),
            trace_of(BOTH[0], full(1), Verify(tag=3, rows=(1, 0), lengths=(1, 1)), slots=3, ring=2),
        ],
        id="seats the other way round",
    ),
    pytest.param(
        wrong(lambda target, rows: len(rows) > 1 and rows[1] is not None),
        [
            trace_of(*BOTH, Verify(tag=3, rows=(1, 0), lengths=(1, 1)), slots=3, ring=2),
            trace_of(BOTH[0], Verify(tag=2, rows=(None, 0), lengths=(1, 1)), ring=2),
        ],
        id="padding for a request",
    ),
    pytest.param(
        wrong(lambda target, rows: reach(target) > 90),
        [
            trace_of(*BOTH, Verify(tag=3, rows=(0,), lengths=(1,)), slots=3, ring=2, key_dim=64),
            trace_of(BOTH[0], Verify(tag=2, rows=(0,), lengths=(1,)), ring=2, value_dim=91),
        ],
        id="elements",
    ),
]


@pytest.mark.parametrize(("target", "ends"), ONE_TRACE)
def test_what_two_edits_join_ends_in_one_trace(target: Target, ends: list[Trace]) -> None:
    """The last of those at which shrinks used to end, which is the simplest."""
    for end in ends:
        shrunk = shrink(end, target)

        assert shrunk.complete
        assert shrunk.cause.check == "outputs"
        assert shrunk.digest == digest(ends[-1])


# ------------------------------------------------------------------ shapes


def test_fewer_requests_come_with_the_largest_head() -> None:
    """What takes the memory of many slots may take one, and no shape is larger."""
    trace = trace_of(*BOTH, Verify(tag=3, rows=(1,), lengths=(1,)), slots=3)

    tried = list(larger_heads(trace))

    assert [len(candidate.operations) for candidate in tried] == [1, 2]
    assert {candidate.setup.geometry for candidate in tried} == {Geometry(1, 1, 256, 256)}


def test_a_number_of_elements_is_found_by_halves() -> None:
    """Each is the widest head of so many or some more; 4,097 of them are 17 rows of 241."""
    trace = msgspec.structs.replace(
        with_records(0), setup=Setup("ring", Geometry(1, 1, 32, 256), 2, 1, 2)
    )

    shapes = [candidate.setup.geometry for candidate in other_shapes(trace)]

    assert shapes[:13] == [
        Geometry(1, 1, -(-n // 256), -(-n // -(-n // 256))) for n in nearer(8192)
    ]
    assert list(nearer(8192))[:3] == [4096, 6144, 7168]
    assert list(nearer(1)) == []


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
    """In the smallest shape, and in the trace's own; of a profile that is not plain, twice."""
    shapes = [Geometry(1, 1, 1, 1), EPSILON[0].setup.geometry]
    large = msgspec.structs.replace(EPSILON[0], payload=PayloadSpec(seed=3, profile="large"))

    for trace, profiles in ((EPSILON[0], ["slow-decay"]), (large, ["slow-decay", "large"])):
        tried = [(c.payload.profile, c.setup.geometry) for c in rare_numbers(trace)]

        assert [kind for kind, _ in itertools.groupby(tried)] == [
            (profile, shape) for profile in profiles for shape in shapes
        ]
        assert len(tried) == 2 * len(profiles) * len(RARE_SEEDS)
