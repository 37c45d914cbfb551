"""The ledger knows from the protocol alone where every request is in its step.

Cursors are compared with the table of `ringfold.sim.cursors` on random lives; what an operation may
write, and what is dead, with sets that are written out here by hand for a ring of eight. Seats are
chosen so that a slot is never its request's number, nor its place among the running ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ringfold.fuzz.judging.frame import Region
from ringfold.fuzz.judging.ledger import Ledger
from ringfold.sim import cursors as rules
from ringfold.sim.cursors import Cursors
from ringfold.sim.dialects import DIALECTS
from ringfold.sim.setup import Geometry, Setup

SEATS = ({"slot": 3, "request": 1}, {"slot": 1, "request": 4})


def ledger(dialect: str = "ring") -> Ledger:
    setup = Setup(dialect, Geometry(1, 2, 4, 4), ring=8, window=2, slots=5)
    return Ledger(setup, DIALECTS[dialect])


def step(made: Ledger, request: int, length: int, accepted: int) -> None:
    made.verify([request], [length])
    made.commit([request], [accepted], 2)


def pairs(region: Region, *axes: str) -> set[tuple[int, ...]]:
    return set(zip(*(region[axis].tolist() for axis in axes), strict=True))


def ring_rows(regions: dict[str, list[Region]], name: str, place: str = "slot") -> set[Any]:
    return {pair for region in regions[name] for pair in pairs(region, place, "ring")}


@pytest.mark.parametrize("seed", range(5))
def test_cursors_move_by_the_table(seed: int) -> None:
    """Any life of a request moves its cursors as the table says, step by step."""
    random, made = np.random.default_rng(seed), ledger()
    made.admit(7, SEATS[0])
    expected = rules.reset(8, 2)
    for _ in range(40):
        length = int(random.integers(1, 3))
        accepted, bound = int(random.integers(length + 1)), 2
        folds = made.verify([7], [length])
        assert folds == expected.is_flush
        made.commit([7], [accepted], bound)
        expected = rules.commit(expected, accepted, 8, bound)

        assert made.entry(7).cursors == expected
        assert made.cursors([7]).write_pos.tolist() == [expected.write_pos]


def test_between_a_flushing_verify_and_its_commit_the_checkpoint_lags_behind_nothing() -> None:
    """The cursors still claim the records that it already holds."""
    made = ledger()
    made.admit(0, SEATS[0])
    for _ in range(3):
        step(made, 0, 2, 2)
    assert (made.entry(0).lag, made.lagging([0]).write_pos.tolist()) == (6, [6])

    assert made.verify([0], [2])
    assert (made.entry(0).lag, made.cursors([0]).write_pos.tolist()) == (0, [6])

    made.commit([0], [1], 2)
    assert made.entry(0).lag == 1
    assert made.entry(0).cursors == Cursors(1, 6, 0)


def test_a_verify_may_write_its_window_and_a_flushing_one_the_checkpoint() -> None:
    """Rows of the ring by slot, across the wrap, and checkpoints of rows that fold alone."""
    made = ledger()
    made.admit(0, SEATS[0])
    made.admit(1, SEATS[1])
    for _ in range(3):
        step(made, 0, 2, 2)
    step(made, 0, 2, 2)  # folds: position 2, base 6
    made.verify([0], [2])
    made.verify([1], [1])

    allowed = made.verify_may_write([0, 1])

    assert ring_rows(allowed, "rawk") == {(3, 0), (3, 1), (1, 0)}
    assert set(allowed) == {"d", "k", "g", "rawv", "rawk", "beta"}
    made.commit([0], [2], 2)
    made.commit([1], [0], 2)
    step(made, 0, 2, 1)  # position 5: due
    made.verify([0], [1])
    allowed = made.verify_may_write([0])
    assert ring_rows(allowed, "d") == {(3, 3)}  # base 6 and five records: row 11 modulo 8
    assert [r["slot"].tolist() for r in allowed["checkpoint"]] == [[3]]


def test_a_commit_may_write_its_rows_cursors() -> None:
    """Of the batch, and of nobody else."""
    made = ledger()
    made.admit(0, SEATS[0])
    made.admit(1, SEATS[1])
    made.verify([0], [1])
    made.commit([0], [1], 2)

    allowed = made.commit_may_write([0])

    assert {name for name, regions in allowed.items() if regions[0]["slot"].size} == {
        "write_pos",
        "cache_base",
        "is_flush",
    }
    assert allowed["is_flush"][0]["slot"].tolist() == [3]
    assert allowed["checkpoint"][0]["slot"].tolist() == []


def test_without_a_ring_a_commit_writes_checkpoints_of_rows_that_keep_a_token() -> None:
    """A row that rejects its window keeps its checkpoint."""
    made = ledger("snapshots")
    made.admit(0, SEATS[0])
    made.admit(1, SEATS[1])
    made.verify([0], [2])
    made.verify([1], [2])
    allowed = made.verify_may_write([0, 1])
    assert pairs(allowed["snapshots"][0], "request", "step") == {(1, 0), (1, 1), (4, 0), (4, 1)}

    made.commit([0], [0], 2)
    made.commit([1], [1], 2)

    assert made.commit_may_write([0, 1])["checkpoint"][0]["slot"].tolist() == [1]


def test_compact_folds_in_the_commit_that_leaves_no_room() -> None:
    """Its rings and cursors are keyed by the running request, its checkpoint by the slot."""
    made = ledger("compact")
    made.admit(0, SEATS[0])
    step(made, 0, 2, 2)
    step(made, 0, 2, 2)
    assert made.commit_may_write([0])["checkpoint"][0]["slot"].tolist() == []

    step(made, 0, 2, 1)  # five records and two windows exceed eight

    assert made.entry(0).cursors == Cursors(0, 5, 0)
    allowed = made.commit_may_write([0])
    assert allowed["checkpoint"][0]["slot"].tolist() == [3]
    assert allowed["write_pos"][0]["request"].tolist() == [1]
    made.verify([0], [2])
    assert ring_rows(made.verify_may_write([0]), "d", "request") == {(1, 5), (1, 6)}


def test_what_is_dead_and_what_is_not() -> None:
    """Live records and windows in flight are alive; all else in the rings is dead."""
    made = ledger()
    everything = {(slot, row) for slot in range(5) for row in range(8)}
    assert ring_rows(made.dead(), "rawv") == everything
    made.admit(0, SEATS[0])
    step(made, 0, 2, 2)
    step(made, 0, 2, 1)
    assert ring_rows(made.dead(), "g") == everything - {(3, 0), (3, 1), (3, 2)}

    made.verify([0], [1])
    alive = {(3, row) for row in range(4)}
    assert ring_rows(made.dead(), "rawk") == everything - alive
    assert [r["slot"].tolist() for r in made.dead()["checkpoint"]] == [[0, 1, 2, 4]]
    made.commit([0], [1], 2)
    step(made, 0, 2, 2)  # six records: the next verify folds

    made.verify([0], [2])
    assert ring_rows(made.dead(), "beta") == everything - {(3, 6), (3, 7)}  # f is dead already
    assert "write_pos" not in made.dead()

    made.free(0)
    assert ring_rows(made.dead(), "beta") == everything


def test_a_new_owner_is_stale_until_its_first_step() -> None:
    """When the last one left other cursors than a reset's; a slot that was only seated is not."""
    made = ledger()
    made.admit(0, SEATS[0])
    made.free(0)
    made.admit(1, SEATS[0])
    assert not made.entry(1).stale

    step(made, 1, 1, 1)
    made.free(1)
    made.admit(2, SEATS[0])
    made.admit(3, SEATS[1])
    assert made.entry(2).stale
    assert not made.entry(3).stale

    step(made, 2, 1, 0)
    assert not made.entry(2).stale


@pytest.mark.parametrize("dialect", ["ring", "compact"])
def test_a_saved_request_comes_back_where_the_dialect_says(dialect: str) -> None:
    """With its cursors, elsewhere; or folded. Its records are dead as soon as it is saved."""
    made = ledger(dialect)
    made.admit(0, SEATS[0])
    step(made, 0, 2, 2)
    writes = made.save_may_write(0)
    made.save(0)
    assert len(ring_rows(made.dead(), "d", made.cursor_axis)) == 5 * 8

    folded = made.restore(0, SEATS[1])

    if dialect == "ring":
        assert (folded, writes) == (False, {})
        assert made.entry(0).cursors == Cursors(2, 0, 0)
    else:
        assert folded
        assert set(writes) == {"write_pos", "cache_base", "is_flush", "checkpoint"}
        assert made.entry(0).cursors == Cursors(0, 0, 0)


def test_a_prefix_takes_the_slot_and_leaves_the_ring() -> None:
    """Its checkpoint is alive until it is evicted, and nobody may write it."""
    made = ledger()
    made.admit(0, SEATS[0])
    step(made, 0, 2, 2)
    assert made.vacant == 3
    assert "checkpoint" not in made.donate_may_write(0)

    made.donate(0, 7, {"slot": 3})

    assert made.vacant == 3
    assert 0 not in made
    assert made.dead()["checkpoint"][0]["slot"].tolist() == [0, 1, 2, 4]
    assert (3, 0) in ring_rows(made.dead(), "rawk")
    made.evict(7)
    assert made.vacant == 4
    assert made.dead()["checkpoint"][0]["slot"].tolist() == [0, 1, 2, 3, 4]
    made.admit(1, SEATS[0])
    assert made.entry(1).stale


def test_a_request_is_seated_in_all_of_its_memory() -> None:
    """An admission may write everything of its own slot and place, and of no other."""
    made = ledger("compact")
    made.admit(0, SEATS[0])
    made.admit(1, SEATS[1])

    allowed = made.admit_may_write([1])

    assert set(allowed) == {b.name for b in DIALECTS["compact"].kept(made.setup)}
    assert allowed["checkpoint"][0]["slot"].tolist() == [1]
    assert allowed["d"][0]["request"].tolist() == [4]
