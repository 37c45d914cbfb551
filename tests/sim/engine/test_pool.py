"""A slot has one owner, and nobody reads what the last one left.

The pool is small enough to count by hand: what is taken, kept, evicted and given back is stated
slot by slot. What a server makes of it is tested with the scheduler.
"""

from __future__ import annotations

import pytest

from ringfold.sim.engine.pool import Pool
from ringfold.sim.slots import SlotError


@pytest.fixture
def pool() -> Pool:
    """Three slots beside the null slot; request 1 is seated."""
    pool = Pool(4)
    pool.alloc(1)
    pool.clear(1)
    return pool


def test_a_slot_must_be_cleared_before_it_is_read(pool: Pool) -> None:
    """Its last owner's state is still in it."""
    slot = pool.state(1)
    pool.free(1)
    pool.alloc(2)

    with pytest.raises(SlotError, match=f"slot {slot} of request 2 holds what its last owner left"):
        pool.state(2)
    pool.clear(2)
    assert pool.state(2) == slot


def test_a_copy_overwrites_what_was_left(pool: Pool) -> None:
    """A fork needs no clearing, but its source must hold a state."""
    pool.alloc(2)
    pool.fork(2, 1)
    pool.alloc(3)

    assert pool.state(2) != pool.state(1)
    with pytest.raises(SlotError, match="left"):
        pool.fork(2, 3)


def test_a_donated_slot_is_the_prefixs(pool: Pool) -> None:
    """No slot is taken or given back; a hit copies it into another one."""
    slot, free = pool.state(1), pool.slots.free
    pool.donate(1, 7)

    assert pool.prefixes == {7: slot}
    assert pool.slots.free == free
    with pytest.raises(SlotError, match="request 1 has no slot"):
        pool.state(1)
    pool.alloc(2)
    pool.hit(2, 7)
    assert pool.state(2) != slot == pool.prefixes[7]


def test_the_prefix_that_was_used_least_recently_makes_room(pool: Pool) -> None:
    """A hit counts as a use, and what is about to be hit is kept."""
    pool.donate(1, 1)
    for request in (2, 3):
        pool.alloc(request)
        pool.clear(request)
        pool.donate(request, request)

    assert pool.alloc(4, keep=1) == 2
    pool.hit(4, 1)
    assert pool.alloc(5) == 3
    assert pool.alloc(6) == 1
    with pytest.raises(SlotError, match="all 3 slots are taken"):
        pool.alloc(7)


def test_an_owner_has_one_slot(pool: Pool) -> None:
    """A second one would be lost."""
    with pytest.raises(SlotError, match="request 1 has slot"):
        pool.alloc(1)
    pool.donate(1, 1)
    pool.alloc(1)
    pool.clear(1)
    with pytest.raises(SlotError, match="prefix 1 has slot"):
        pool.donate(1, 1)
