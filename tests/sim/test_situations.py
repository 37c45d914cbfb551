"""Situations name what they say, can be reached when they should, and are reached as directed.

Each predicate is asked about a step written by hand that is in the situation and one that is just
not. Which situations a setup can reach is compared with an argument on paper for small rings, and
the directed steps are walked by the cursor table itself.
"""

from __future__ import annotations

import numpy as np
import pytest

from ringfold.sim.cursors import Cursors, commit, reset
from ringfold.sim.setup import Geometry, Setup
from ringfold.sim.situations import (
    SITUATIONS,
    Step,
    directed_steps,
    reachable_situations,
    situations_of,
)

ALL = {s.name for s in SITUATIONS}
FORCED = {"forced fold"}  # nobody asks a verify to fold
PARTIAL = {"some accepted, no fold", "some accepted after a fold"}
STRADDLES = {"history straddles the wrap", "fold straddles the wrap"}


def setup_of(dialect: str, L: int, T: int, slots: int = 3) -> Setup:
    return Setup(dialect, Geometry(1, 1, 4, 4), ring=L, window=T, slots=slots)


def step_of(*rows: tuple[int, int, int, int, int], padding: int = 0, stale: bool = False) -> Step:
    """L = 16, T = 4; a row is (write_pos, cache_base, is_flush, length, accepted)."""
    columns = np.array(rows, np.int64).T
    return Step(
        16, 4, Cursors(*columns[:3]), columns[3], columns[4], np.full(len(rows), stale), padding
    )


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("window wraps", (5, 8, 0, 4, 0), (5, 8, 0, 3, 0)),
        ("window ends at the ring's end", (5, 8, 0, 3, 0), (5, 8, 0, 4, 0)),
        ("window ends at the ring's end", (8, 4, 0, 4, 0), (8, 3, 0, 4, 0)),
        ("window fills the ring", (12, 3, 1, 4, 0), (12, 3, 1, 3, 0)),
        ("history straddles the wrap", (8, 9, 0, 1, 0), (8, 8, 0, 1, 0)),
        ("fold", (9, 0, 1, 1, 0), (8, 0, 0, 1, 0)),
        ("fold straddles the wrap", (9, 8, 1, 1, 0), (9, 7, 1, 1, 0)),
        ("longest fold", (12, 0, 1, 1, 0), (11, 0, 1, 1, 0)),
        ("none accepted, no fold", (0, 0, 0, 2, 0), (0, 0, 0, 2, 1)),
        ("some accepted, no fold", (0, 0, 0, 2, 1), (0, 0, 0, 2, 2)),
        ("all accepted, no fold", (0, 0, 0, 2, 2), (9, 0, 1, 2, 2)),
        ("none accepted after a fold", (9, 0, 1, 2, 0), (9, 0, 1, 2, 1)),
        ("some accepted after a fold", (9, 0, 1, 2, 1), (0, 0, 0, 2, 1)),
        ("all accepted after a fold", (9, 0, 1, 2, 2), (9, 0, 1, 2, 0)),
    ],
)
def test_a_row_is_in_a_situation(
    name: str, inside: tuple[int, int, int, int, int], outside: tuple[int, int, int, int, int]
) -> None:
    """One step is in it, its neighbour is not."""
    assert name in situations_of(step_of(inside))
    assert name not in situations_of(step_of(outside))


def test_a_batch_is_in_a_situation() -> None:
    """Mixed, ragged and padded batches are told from plain ones."""
    fold, plain, longer = (9, 0, 1, 2, 1), (3, 0, 0, 2, 1), (3, 0, 0, 3, 1)

    assert "mixed batch" in situations_of(step_of(fold, plain))
    assert "mixed batch" not in situations_of(step_of(plain, plain))
    assert "ragged batch" in situations_of(step_of(plain, longer))
    assert "ragged batch" not in situations_of(step_of(plain, fold))
    assert "padding row" in situations_of(step_of(plain, padding=1))
    assert "padding row" not in situations_of(step_of(plain))
    assert "reused slot" in situations_of(step_of(plain, stale=True))
    assert "reused slot" not in situations_of(step_of(plain))


def test_a_batch_of_padding_alone_is_in_one_situation() -> None:
    """There is no row to be in another."""
    none = np.zeros(0, np.int64)
    nobody = Step(16, 4, Cursors(none, none, none), none, none, none != 0, padding=2)

    assert situations_of(nobody) == {"padding row"}


@pytest.mark.parametrize(
    ("L", "T", "unreachable"),
    [
        (8, 2, FORCED),
        (16, 4, FORCED),
        (64, 8, FORCED),
        # A window of one never wraps, is never split and is never longer than another.
        (8, 1, {"window wraps", "ragged batch"} | PARTIAL | FORCED),
        # One record cannot straddle anything.
        (2, 1, {"window wraps", "ragged batch"} | STRADDLES | PARTIAL | FORCED),
    ],
)
def test_a_ring_reaches(L: int, T: int, unreachable: set[str]) -> None:
    """All situations but those that a window of one excludes."""
    assert reachable_situations(setup_of("ring", L, T)) == ALL - unreachable


def test_a_decode_ring_reaches_folds_of_both_kinds() -> None:
    """It folds when it is full and when it is asked to; nothing wraps, nothing is rejected."""
    assert reachable_situations(setup_of("decode-ring", 8, 1)) == {
        "window ends at the ring's end",
        "window fills the ring",
        "fold",
        "forced fold",
        "longest fold",
        "all accepted, no fold",
        "all accepted after a fold",
        "mixed batch",
        "padding row",
        "reused slot",
    }


def test_snapshots_reach_what_has_no_ring_in_it() -> None:
    """Acceptance, raggedness, padding and reuse; nothing wraps, fills or folds."""
    assert reachable_situations(setup_of("snapshots", 8, 2)) == {
        "none accepted, no fold",
        "some accepted, no fold",
        "all accepted, no fold",
        "ragged batch",
        "padding row",
        "reused slot",
    }


def test_one_slot_has_no_mixed_batch() -> None:
    """What takes two requests cannot happen to one."""
    both = reachable_situations(setup_of("ring", 8, 2, slots=3))
    alone = reachable_situations(setup_of("ring", 8, 2, slots=2))

    assert both - alone == {"mixed batch", "ragged batch"}


@pytest.mark.parametrize("dialect", ["ring", "snapshots"])
@pytest.mark.parametrize(("L", "T"), [(2, 1), (8, 1), (8, 2), (16, 4)])
def test_directed_steps_lead_where_they_say(dialect: str, L: int, T: int) -> None:
    """Walked by the cursor table, the last step is in the situation; every row's has a run."""
    setup = setup_of(dialect, L, T)
    runs = directed_steps(setup)
    rows = {s.name for s in SITUATIONS if s.scope == "row"}

    assert set(runs) == reachable_situations(setup) & rows
    for name, run in runs.items():
        cursors = reset(L, T)
        for _, accepted in run[:-1]:
            cursors = commit(cursors, accepted, L, T) if dialect == "ring" else cursors
        length, accepted = run[-1]
        last = Step(
            L,
            T,
            Cursors(*(np.array([c]) for c in cursors)),
            np.array([length]),
            np.array([accepted]),
            np.array([False]),
            padding=0,
        )

        assert name in situations_of(last)


def test_a_wrapped_window_is_kept() -> None:
    """The directed run commits what it wrote across the wrap, so that later steps read it."""
    assert directed_steps(setup_of("ring", 8, 2))["window wraps"][-1] == (2, 2)
