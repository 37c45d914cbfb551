"""A history drawn as text: each line is the protocol after one operation.

The rings below are written by hand for a ring of eight and windows of up to two, where a reader can
follow them with a finger: a window that wraps, a fold in flight, a slot's second life. No target
runs, so what is drawn is what should be, and a trace says itself where it was not.
"""

from __future__ import annotations

import msgspec

from ringfold.fuzz.findings.explain import Lane, explain
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
    Verify,
    validate,
)
from ringfold.sim.setup import Geometry, Setup

SETUP = Setup("ring", Geometry(1, 2, 16, 8), ring=8, window=2, slots=4)


def trace(*operations: Operation, dialect: str = "ring") -> Trace:
    setup = msgspec.structs.replace(SETUP, dialect=dialect)
    made = Trace(setup=setup, payload=PayloadSpec(7, "ordinary"), operations=operations)
    validate(made)
    return made


def step(tag: int, length: int, accepted: int, request: int = 0) -> tuple[Operation, Operation]:
    return (
        Verify(tag=tag, rows=(request,), lengths=(length,)),
        Commit(tag=tag, accepted=(accepted,)),
    )


def drawn(made: Trace) -> list[str]:
    """The ring of every line's first request."""
    return [line.lanes[0].ring if line.lanes else "" for line in explain(made)]


FOLD = trace(
    Admit(request=0, tag=1),
    *step(2, 2, 2),
    *step(3, 2, 2),
    *step(4, 2, 1),
    *step(5, 1, 1),
    *step(6, 2, 2),
    *step(7, 2, 2),
)


def test_a_ring_fills_folds_and_wraps() -> None:
    """Live records, a window in flight, records that are folded but still claimed, dead rows."""
    assert drawn(FOLD) == [
        "........",
        "ww......",
        "##......",
        "##ww....",
        "####....",
        "####ww..",
        "#####...",  # one of two kept
        "fffffw..",  # the fold is the verify's; the window goes behind what it folds
        ".....#..",
        ".....#ww",  # ends at the ring's end
        ".....###",
        "ww...###",  # wraps
        "##...###",
    ]


def test_cursors_stand_beside_the_ring() -> None:
    """With what the operation did to each request, in words."""
    lines = list(explain(FOLD))

    assert lines[6].lanes == [Lane(0, "1 of 2 kept", 5, 0, 1, "#####...")]
    assert lines[7].lanes == [Lane(0, "window of 1, folds", 5, 0, 1, "fffffw..")]
    assert lines[8].lanes == [Lane(0, "1 of 1 kept", 1, 5, 0, ".....#..")]
    assert [line.number for line in lines] == list(range(13))
    assert lines[7].operation == "verify [0] (tag 5)"


def test_batches_forks_and_second_lives() -> None:
    """Padding is a dash; a freed request has no lane and loses its window; a new one is empty."""
    made = trace(
        Place(request=4, tag=1, base=6, records=3, flush=False),
        Admit(request=7, tag=2),
        Fork(request=2, source=7),
        Verify(tag=3, rows=(7, None, 4), lengths=(1, 2, 2)),
        Free(request=7),
        Commit(tag=3, accepted=(None, None, 0)),
        Decode(tag=4, rows=(None, 2)),
        Idle(rows=3),
        Admit(request=7, tag=5),
    )
    lines = list(explain(made))

    assert [line.operation for line in lines] == [
        "place 4",
        "admit 7",
        "fork 2 from 7",
        "verify [7 - 4] (tag 3)",
        "free 7",
        "commit (tag 3)",
        "decode [- 2]",
        "idle, 3 padding rows",
        "admit 7",
    ]
    assert [(lane.request, lane.ring) for lane in lines[3].lanes] == [
        (7, "w......."),
        (4, "#ww...##"),
    ]
    assert [(lane.request, lane.did) for lane in lines[5].lanes] == [(4, "0 of 2 kept")]
    assert drawn(made)[5:] == ["#.....##", "#.......", "", "........"]
    assert lines[4].lanes == []


def test_saved_and_donated_requests_have_no_lane() -> None:
    """A restored request has its ring again, or an empty one where the dialect folds."""
    lives = (
        Place(request=0, tag=1, base=6, records=3, flush=False),
        Save(request=0),
        Restore(request=0),
        Donate(request=0, prefix=5),
        Hit(request=1, prefix=5),
        Evict(prefix=5),
    )
    lines, folding = list(explain(trace(*lives))), list(explain(trace(*lives, dialect="compact")))

    assert [line.operation for line in lines] == [
        "place 0",
        "save 0",
        "restore 0",
        "donate 0 as prefix 5, without 3 records that wait",
        "hit of prefix 5 by 1",
        "evict prefix 5",
    ]
    assert drawn(trace(*lives)) == ["#.....##", "", "#.....##", "", "........", ""]
    assert folding[2].lanes == [Lane(0, "seated, folded", 0, 0, 0, "........")]
    assert folding[3].operation == "donate 0 as prefix 5"


def test_a_fold_in_the_commit_empties_the_ring() -> None:
    """On `compact`, five records and two windows more than fill a ring of eight."""
    made = trace(
        Admit(request=0, tag=1), *step(2, 2, 2), *step(3, 2, 2), *step(4, 2, 1), dialect="compact"
    )

    assert drawn(made)[-2:] == ["####ww..", "........"]
    assert list(explain(made))[-1].lanes[0].cache_base == 5


def test_without_a_ring_nothing_is_live() -> None:
    """Where a commit stores the state at once, no records wait."""
    made = trace(Admit(request=0, tag=1), *step(2, 2, 2), dialect="snapshots")

    assert "#" not in "".join(drawn(made))


def test_what_failed_is_marked_where_it_failed() -> None:
    """Each check once, at the operation that the trace recorded; edited records are passed over."""
    seen = (
        {"operation": 7, "check": "outputs"},
        {"operation": 7, "check": "outputs", "row": 1},
        {"operation": 7, "check": "exactness"},
        {"operation": "here", "check": "frame"},
        {"where": "nowhere"},
    )

    failed = [line.failed for line in explain(msgspec.structs.replace(FOLD, seen=seen))]

    assert failed == [["outputs", "exactness"] if i == 7 else [] for i in range(13)]


def test_a_repeat_is_unrolled_with_its_iterations() -> None:
    """A line for each operation that a walk does."""
    made = trace(Admit(request=0, tag=1), Repeat(times=3, operations=step(2, 1, 1)))

    lines = list(explain(made))

    assert [line.iteration for line in lines] == [0, 0, 0, 1, 1, 2, 2]
    assert drawn(made)[-1] == "###....."


def test_much_padding_is_counted() -> None:
    """A captured graph has a hundred rows of it, and a line has not."""
    rows = (None, None, None, 0, *[None] * 4)
    lines = [*explain(trace(Admit(request=0, tag=1), Verify(tag=2, rows=rows, lengths=(1,) * 8)))]

    assert lines[1].operation == "verify [- - - 0 - x 4] (tag 2)"
