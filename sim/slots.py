"""Which slot a request gets: the one that was freed last.

So the records that a request leaves behind meet a new owner as soon as possible.
"""

from __future__ import annotations

from ringfold.sim.setup import NULL_SLOT


class SlotError(RuntimeError):
    """A slot that cannot be taken or given back."""


class Slots:
    """The free slots of a pool of `count`; the null slot is never among them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, NULL_SLOT, -1))  # the last one is taken next

    def take(self) -> int:
        """A free slot, most recently freed first, then in ascending order.

        Raises `SlotError` when all are taken.
        """
        if not self._free:
            raise SlotError(
                f"all {self.count - 1 - NULL_SLOT} slots are taken: free a request first, "
                "or give the setup more slots"
            )
        return self._free.pop()

    def give(self, slot: int) -> None:
        """Make `slot` free again; raises `SlotError` unless it was taken."""
        if not NULL_SLOT < slot < self.count:
            raise SlotError(
                f"slot is {slot}, but must be in {NULL_SLOT + 1}..{self.count - 1}: "
                "give back what take() returned"
            )
        if slot in self._free:
            raise SlotError(f"slot {slot} is free already: give it back once")
        self._free.append(slot)

    @property
    def free(self) -> int:
        """How many requests could be seated now."""
        return len(self._free)
