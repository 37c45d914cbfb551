"""Slots are given out latest-freed first, once each, and never the null slot.

A request that inherits a slot finds the records of the one just before it: that is how stale state
becomes visible, so the order is part of what the tester promises.
"""

from __future__ import annotations

import pytest

from ringfold.sim.setup import NULL_SLOT
from ringfold.sim.slots import SlotError, Slots


def test_the_slot_freed_last_is_taken_first() -> None:
    """Untouched slots come after, in ascending order."""
    slots = Slots(5)
    taken = [slots.take() for _ in range(3)]
    slots.give(1)
    slots.give(3)

    assert taken == [1, 2, 3]
    assert [slots.take() for _ in range(3)] == [3, 1, 4]


def test_every_slot_but_the_null_slot_is_given_out_once() -> None:
    """Then taking one is an error that says what to do."""
    slots = Slots(4)
    taken = {slots.take() for _ in range(slots.free)}

    assert taken == {1, 2, 3}
    assert NULL_SLOT not in taken
    with pytest.raises(SlotError, match="all 3 slots are taken: free a request first"):
        slots.take()


@pytest.mark.parametrize("slot", [-1, NULL_SLOT, 4])
def test_a_slot_that_is_not_in_the_pool_is_refused(slot: int) -> None:
    """The message names the limit."""
    with pytest.raises(SlotError, match=rf"slot is {slot}, but must be in 1..3"):
        Slots(4).give(slot)


def test_a_slot_is_given_back_once() -> None:
    """Giving it twice would seat two requests in it."""
    slots = Slots(4)
    slot = slots.take()
    slots.give(slot)

    with pytest.raises(SlotError, match="slot 1 is free already"):
        slots.give(slot)
