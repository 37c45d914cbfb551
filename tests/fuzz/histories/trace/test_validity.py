"""A history is legal exactly if the protocol allows it.

Placed states are compared with the enumeration of all reachable ones, a copy of no code of the
rehearsal; each other rule is broken once, and the message must name operation, value, limit and way
out. Long repeats are judged without being walked to their end, so what they come to is compared
with what arithmetic says.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ringfold.fuzz.histories.trace import (
    Admit,
    Commit,
    Decode,
    Donate,
    Evict,
    Fork,
    Free,
    Hit,
    Idle,
    Operation,
    PayloadSpec,
    Place,
    Repeat,
    Restore,
    Save,
    Trace,
    TraceError,
    Verify,
    validate,
)
from ringfold.fuzz.histories.trace.rehearsal import Rehearsal
from ringfold.sim.cursors import reachable
from ringfold.sim.dialects import DIALECTS
from ringfold.sim.setup import Geometry, Setup


def setup(
    dialect: str = "ring", ring: int = 8, window: int = 2, slots: int = 4, layers: int = 1
) -> Setup:
    return Setup(dialect, Geometry(1, 2, 4, 4), ring, window, slots, layers)


def history(*operations: Operation, setup: Setup = setup(), **rest: Any) -> Trace:  # noqa: B008
    """A trace of these operations."""
    rest = {"payload": PayloadSpec(seed=1, profile="ordinary")} | rest
    return Trace(setup=setup, operations=operations, **rest)


def step(tag: int, request: int = 0, length: int = 2, accepted: int = 1) -> list[Operation]:
    """A verify and its commit."""
    return [
        Verify(tag=tag, rows=(request,), lengths=(length,)),
        Commit(tag=tag, accepted=(accepted,)),
    ]


def in_ones(count: int) -> list[Operation]:
    """So many steps of one token, as which the next window is announced."""
    verifies = [Verify(tag=tag, rows=(0,), lengths=(1,)) for tag in range(1, count + 1)]
    return [o for v in verifies for o in (v, Commit(tag=v.tag, accepted=(1,), bound=1))]


@pytest.fixture
def rehearsed(monkeypatch: pytest.MonkeyPatch) -> list[Operation]:
    """Every operation that is walked, for how long a history takes to judge is their number."""
    walked = list[Operation]()
    apply = Rehearsal.apply

    def noted(rehearsal: Rehearsal, operation: Operation) -> None:
        walked.append(operation)
        apply(rehearsal, operation)

    monkeypatch.setattr(Rehearsal, "apply", noted)
    return walked


class TestLegal:
    """What a scheduler may do."""

    @pytest.mark.parametrize("dialect", ["ring", "snapshots"])
    def test_ordinary_life(self, dialect: str) -> None:
        """Zero and full acceptance, decode, idle, reuse of a slot and of a request's number."""
        validate(
            history(
                Admit(request=0, tag=0),
                *step(1, accepted=0),
                *step(2, accepted=2),
                Decode(tag=3, rows=(0, None)),
                Idle(rows=4),
                Free(request=0),
                Admit(request=0, tag=0),
                *step(4, length=1),
                setup=setup(dialect, slots=2),
            )
        )

    def test_other_requests_act_between_verify_and_commit(self) -> None:
        """One request's window in flight hinders no other request."""
        validate(
            history(
                Admit(request=0, tag=0),
                Verify(tag=1, rows=(0,), lengths=(2,)),
                Admit(request=1, tag=0),
                *step(2, request=1),
                Decode(tag=3, rows=(1,)),
                Commit(tag=1, accepted=(2,)),
            )
        )

    def test_a_long_repeat_is_cheap(self, rehearsed: list[Operation]) -> None:
        """Of a million operations a handful is walked: their cursors recur."""
        repeat = Repeat(times=499_999, operations=tuple(step(1)))

        validate(history(Admit(request=0, tag=0), repeat))

        assert 3 <= len(rehearsed) < 50  # seen 3

    @pytest.mark.parametrize(("ring", "window"), [(2, 1), (8, 1), (8, 2), (8, 3), (8, 4), (16, 4)])
    def test_placed_states_are_the_reachable_ones(self, ring: int, window: int) -> None:
        """Of all values of base, records and flag just those of the enumeration are accepted."""
        tested = setup(ring=ring, window=window)
        accepted = set()
        for base in range(ring + 1):
            for records in range(ring + 1):
                for flush in (False, True):
                    placed = Place(request=0, tag=0, base=base, records=records, flush=flush)
                    try:
                        validate(history(placed, setup=tested))
                    except TraceError:
                        continue
                    accepted.add((records, base, int(flush)))

        assert accepted == {tuple(state) for state in reachable(ring, window).states}

    def test_without_a_ring_everything_lies_in_the_checkpoint(self) -> None:
        """The dialect `snapshots` can be placed at the origin alone."""
        tested = setup("snapshots")
        validate(history(Place(request=0, tag=0, base=0, records=0, flush=False), setup=tested))

        with pytest.raises(TraceError, match=r"records is 1, but must be in 0\.\.0"):
            validate(history(Place(request=0, tag=0, base=0, records=1, flush=False), setup=tested))

    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_a_request_is_saved_and_donated_with_any_number_of_records(self, dialect: str) -> None:
        """And its slot is another's in between; a prefix keeps the slot of whom it came from."""
        validate(
            history(
                Admit(request=0, tag=0),
                *step(1),
                Save(request=0),
                Admit(request=1, tag=0),
                *step(2, request=1),
                Donate(request=1, prefix=0),
                Evict(prefix=0),
                Restore(request=0),
                *step(3),
                Donate(request=0, prefix=0),
                Admit(request=0, tag=0),  # who has donated is gone, and so is the name
                setup=setup(dialect, slots=3),
            )
        )

    def test_a_restored_request_is_where_its_dialect_says(self) -> None:
        """With its records it can't be forked; where they were folded it can."""
        lagging = [Admit(request=0, tag=0), *step(1), Save(request=0), Restore(request=0)]
        fork = Fork(request=1, source=0)

        validate(history(*lagging, fork, setup=setup("compact")))
        with pytest.raises(TraceError, match=r"operations\[5\] \(fork\).*lags behind 1 records"):
            validate(history(*lagging, fork))

    def test_a_repeat_that_saves_is_not_taken_for_one_that_recurs(self) -> None:
        """A request that is saved in the first turn can't be saved in the second."""
        repeat = Repeat(times=9, operations=(Save(request=0),))

        with pytest.raises(TraceError, match=r"request 0 is saved: restore it.*iteration 1 of 9"):
            validate(history(Admit(request=0, tag=0), repeat))

    def test_a_fork_needs_an_empty_ring(self) -> None:
        """After a commit of something it is refused; after a flush that accepted 0 it is not."""
        lagging = [Admit(request=0, tag=0), *step(1)]
        fork = Fork(request=1, source=0)
        flushed = Place(request=0, tag=0, base=3, records=5, flush=True)

        validate(history(flushed, *step(1, accepted=0), fork))
        with pytest.raises(TraceError, match=r"operations\[3\] \(fork\).*lags behind 1 records"):
            validate(history(*lagging, fork))
        validate(history(*lagging, fork, setup=setup("snapshots")))


ADMITTED = Admit(request=0, tag=0)
VERIFY = Verify(tag=1, rows=(0,), lengths=(2,))


@pytest.mark.parametrize(
    ("operations", "says"),
    [
        ([VERIFY], r"operations\[0\] \(verify\): request 0 is not seated: admit, fork or place"),
        ([Decode(tag=1, rows=(0,))], "request 0 is not seated"),
        ([Free(request=0)], "request 0 is not seated"),
        ([Fork(request=1, source=0)], "request 0 is not seated"),
        ([ADMITTED, ADMITTED], r"operations\[1\] \(admit\): request 0 is seated already: free it"),
        ([ADMITTED, Fork(request=0, source=0)], "request 0 is seated already"),
        (
            [Admit(request=r, tag=0) for r in range(4)],
            r"request 3 finds no slot, 3 of 4 are taken .*: free a request, .*raise setup\.slots",
        ),
        ([Save(request=0)], "request 0 is not seated"),
        ([ADMITTED, VERIFY, Save(request=0)], "request 0 has the window with tag 1 in flight"),
        ([ADMITTED, Save(request=0), VERIFY], "request 0 is saved: restore it first"),
        ([ADMITTED, Save(request=0), Free(request=0)], "request 0 is saved: restore it first"),
        ([ADMITTED, Save(request=0), ADMITTED], "request 0 is saved: restore it, or seat another"),
        ([ADMITTED, Restore(request=0)], "request 0 is not saved: save it first"),
        (
            [
                ADMITTED,
                Save(request=0),
                *(Admit(request=r, tag=0) for r in (1, 2, 3)),
                Restore(request=0),
            ],
            "request 0 finds no slot, 3 of 4 are taken",
        ),
        ([ADMITTED, VERIFY, Donate(request=0, prefix=0)], "request 0 has the window with tag 1"),
        ([ADMITTED, Hit(request=1, prefix=0)], "prefix 0 is not kept: donate it first"),
        ([Evict(prefix=0)], "prefix 0 is not kept: donate it first"),
        ([ADMITTED, Donate(request=0, prefix=0), VERIFY], "request 0 is not seated"),
        (
            [
                *(Admit(request=r, tag=0) for r in (0, 1)),
                *(Donate(request=r, prefix=0) for r in (0, 1)),
            ],
            "prefix 0 is kept already: evict it first, or use another name",
        ),
        (
            [
                ADMITTED,
                Donate(request=0, prefix=0),
                *(Hit(request=r, prefix=0) for r in (1, 2, 3)),
            ],
            "request 3 finds no slot, 3 of 4 are taken .*: free a request, evict a prefix, or",
        ),
        ([ADMITTED, VERIFY, VERIFY], "tag 1 stands for an earlier window: give every"),
        (
            [ADMITTED, VERIFY, msgspec.structs.replace(VERIFY, tag=2)],
            r"operations\[2\] \(verify\): request 0 has the window with tag 1 in flight: commit",
        ),
        ([ADMITTED, VERIFY, Decode(tag=2, rows=(0,))], "request 0 has the window with tag 1"),
        ([ADMITTED, VERIFY, Fork(request=1, source=0)], "request 0 has the window with tag 1"),
        (
            [ADMITTED, Verify(tag=1, rows=(0,), lengths=(3,))],
            r"lengths\[0\] is 3, but must be in 0\.\.2: shorten the window, or raise setup\.window",
        ),
        ([Verify(tag=1, rows=(None,), lengths=(3,))], r"lengths\[0\] is 3, but must be in 0\.\.2"),
        ([ADMITTED, Verify(tag=1, rows=(0,), lengths=(1, 1))], "2 lengths for 1 rows"),
        (
            [ADMITTED, Verify(tag=1, rows=(0, None, 0), lengths=(1, 1, 1))],
            "request 0 has two rows: a batch holds a request once",
        ),
        ([ADMITTED, Decode(tag=1, rows=(0, 0))], "request 0 has two rows"),
        ([ADMITTED, Decode(tag=1, rows=(0,), stores=(1,))], "stores names 1, but it is none of"),
        ([ADMITTED, Commit(tag=1, accepted=(1,))], "no window with tag 1 is in flight: commit the"),
        ([ADMITTED, *step(1), Commit(tag=1, accepted=(1,))], "no window with tag 1 is in flight"),
        ([ADMITTED, *step(1, accepted=3)], r"accepted\[0\] is 3, .* window of 2 .*: accept 0\.\.2"),
        ([ADMITTED, *step(1, length=1, accepted=2)], r"window of 1 in flight: accept 0\.\.1"),
        (
            [ADMITTED, VERIFY, Commit(tag=1, accepted=(None,))],
            r"accepted\[0\] is None, but request 0 has a window of 2 in flight: accept 0\.\.2",
        ),
        ([ADMITTED, VERIFY, Commit(tag=1, accepted=(1, 1))], "2 counts for the 1 rows"),
        (
            [
                Verify(tag=1, rows=(None,), lengths=(1,)),
                Commit(tag=1, accepted=(0,)),
            ],
            r"accepted\[0\] is 0, but its row is padding or was freed .*: write null",
        ),
        (
            [ADMITTED, VERIFY, Free(request=0), ADMITTED, Commit(tag=1, accepted=(1,))],
            "was freed since its verify: write null",
        ),
        ([ADMITTED, VERIFY, Commit(tag=1, accepted=(1,), bound=3)], r"bound is 3, .* 1\.\.2"),
        (
            [ADMITTED, *in_ones(7), *step(8)],
            r"\(verify\): lengths\[0\] is 2, .* bound 1, .* 7 records there is room for 1: shorten",
        ),
        (
            [
                ADMITTED,
                VERIFY,
                *(
                    operation
                    for tag in range(1, 7)
                    for operation in (
                        Commit(tag=tag, accepted=(1,), bound=1),
                        Verify(tag=tag + 1, rows=(0,), lengths=(1,)),
                    )
                ),
                Commit(tag=7, accepted=(1,)),
            ],
            r"operations\[14\] \(commit\): bound is 2, but behind 7 records .* 8 has room for 1: a",
        ),
        (
            [Place(request=0, tag=0, base=8, records=0, flush=False)],
            r"base is 8, but must be in 0\.\.7: name a physical row",
        ),
        ([Place(request=0, tag=0, base=0, records=7, flush=True)], r"records is 7, .* 0\.\.6"),
        (
            [Place(request=0, tag=0, base=0, records=5, flush=False)],
            r"flush is False, but 5 records in this ring mean True",
        ),
        (
            [ADMITTED, msgspec.structs.replace(VERIFY, profile="odd")],
            r"operations\[1\]\.profile is 'odd', but must be one of ordinary, .*: name a profile",
        ),
        (
            [Repeat(times=5, operations=(ADMITTED,))],
            r"operations\[0\]\.operations\[0\] \(admit\): .*\[in iteration 1 of 5\]",
        ),
        (
            [
                ADMITTED,
                VERIFY,
                Free(request=0),
                Repeat(times=9, operations=(Commit(tag=1, accepted=(None,)),)),
            ],
            "no window with tag 1 is in flight.*iteration 1 of 9",
        ),
        (
            [Repeat(times=1000, operations=(Repeat(times=1001, operations=(Idle(rows=1),)),))],
            "has 1001000 operations with its repeats unrolled, but at most 1000000 are allowed",
        ),
    ],
)
def test_an_illegal_history_is_refused(operations: list[Operation], says: str) -> None:
    """Each rule broken once; the message names operation, value, limit and way out."""
    with pytest.raises(TraceError, match=says):
        validate(history(*operations))


def test_deep_repeats_are_refused() -> None:
    """Three repeats may be nested and no fourth."""
    operation: Operation = Idle(rows=1)
    for _ in range(3):
        operation = Repeat(times=1, operations=(operation,))
    validate(history(operation))

    with pytest.raises(TraceError, match="is nested 4 deep, but at most 3 are allowed: multiply"):
        validate(history(Repeat(times=1, operations=(operation,))))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"payload": PayloadSpec(1, "odd")}, "payload.profile is 'odd', but must be one of"),
        ({"payload": PayloadSpec(1, "large", "../x")}, "must be a bare file name: put the file"),
        ({"payload": PayloadSpec(1, "large", "")}, "must be a bare file name"),
    ],
)
def test_a_wrong_head_is_refused(changes: dict[str, Any], says: str) -> None:
    """An unknown profile, and a tensors file outside of the trace's folder."""
    with pytest.raises(TraceError, match=says):
        validate(msgspec.structs.replace(history(ADMITTED), **changes))


class TestRepeatedForks:
    """Whether a fork is legal depends on cursors, which may take long to come back."""

    def body(self, accepted: list[int]) -> list[Operation]:
        """A step of all requests, in which each accepts its own number."""
        rows = tuple(range(len(accepted)))
        return [
            Verify(tag=1, rows=rows, lengths=(16,) * len(rows)),
            Commit(tag=1, accepted=tuple(accepted)),
        ]

    def trace(self, accepted: list[int], *after: Operation) -> Trace:
        """Many steps, then `after`."""
        admitted = [Admit(request=r, tag=0) for r in range(len(accepted))]
        repeat = Repeat(times=400_000, operations=tuple(self.body(accepted)))
        return history(*admitted, repeat, *after, setup=setup(ring=512, window=16, slots=41))

    def test_a_late_fork_sees_the_right_cursors(self) -> None:
        """After 400,000 steps that are skipped, they are what arithmetic says.

        From a reset 3 more are accepted each time until over 480 records are there (161 steps),
        then a flush leaves 3: after n steps there are 3 * ((n - 1) mod 161 + 1) records.
        """
        records = 3 * ((400_000 - 1) % 161 + 1)

        with pytest.raises(TraceError, match=f"lags behind {records} records"):
            validate(self.trace([3], Fork(request=1, source=0)))

    def test_cursors_that_do_not_recur_are_given_up(self, rehearsed: list[Operation]) -> None:
        """With 39 requests that flush at different times, and a fork at the end, within seconds."""
        accepted = [1 + r % 16 for r in range(39)]

        with pytest.raises(TraceError, match="do not come back to the cursors that they had"):
            validate(self.trace(accepted, Fork(request=50, source=0)))

        assert sum(len(one.rows) for one in rehearsed if isinstance(one, Verify)) < 1e6  # seen 8e4

    def test_without_a_fork_they_do_not_matter(self, rehearsed: list[Operation]) -> None:
        """The same history without its fork is legal, and found so at once."""
        validate(self.trace([1 + r % 16 for r in range(39)]))

        assert 41 <= len(rehearsed) < 50  # the admissions, and a step or two
