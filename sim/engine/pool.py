"""Who owns which slot of the state pool: a running request, or the prefix cache.

A slot comes to its new owner with what the last one left in it. It is cleared before a prefill
starts from nothing, or overwritten by a copy; nothing else may be read from it.
"""

from __future__ import annotations

from ringfold.sim.slots import SlotError, Slots


class Pool:
    """`count` slots, the null slot included."""

    def __init__(self, count: int) -> None:
        self.slots = Slots(count)
        self.requests: dict[int, int] = {}
        self.prefixes: dict[int, int] = {}
        """Least recently used first."""
        self._dirty: set[int] = set()

    def alloc(self, request: int, keep: int | None = None) -> int | None:
        """Take a slot for `request`; returns the prefix that was evicted for it, never `keep`.

        Raises `SlotError` when every slot is a running request's, or `keep`'s.
        """
        if request in self.requests:
            raise SlotError(f"request {request} has slot {self.requests[request]}: free it first")
        evicted = None
        if not self.slots.free:
            evicted = next((prefix for prefix in self.prefixes if prefix != keep), None)
            if evicted is not None:
                self.slots.give(self.prefixes.pop(evicted))
        slot = self.requests[request] = self.slots.take()
        self._dirty.add(slot)
        return evicted

    def clear(self, request: int) -> None:
        """Zero a slot, for a prefill that starts from nothing."""
        self._dirty.discard(self.requests[request])

    def state(self, request: int) -> int:
        """The slot of a request whose state may be read; raises `SlotError` for another."""
        if request not in self.requests:
            raise SlotError(f"request {request} has no slot: alloc one first")
        slot = self.requests[request]
        if slot in self._dirty:
            raise SlotError(
                f"slot {slot} of request {request} holds what its last owner left: "
                "clear it, or copy a state into it"
            )
        return slot

    def fork(self, request: int, source: int) -> None:
        """Copy the state of `source` into the slot of `request`."""
        self.state(source)
        self.clear(request)

    def donate(self, request: int, prefix: int) -> None:
        """Leave a request's slot to the prefix cache; raises `SlotError` if `prefix` is there."""
        if prefix in self.prefixes:
            raise SlotError(f"prefix {prefix} has slot {self.prefixes[prefix]}: evict it first")
        self.prefixes[prefix] = self.state(request)
        del self.requests[request]

    def hit(self, request: int, prefix: int) -> None:
        """Copy what is kept under `prefix` into the slot of `request`."""
        self.prefixes[prefix] = self.prefixes.pop(prefix)
        self.clear(request)

    def free(self, request: int) -> None:
        """Give a request's slot back, as it is."""
        slot = self.requests.pop(request)
        self._dirty.discard(slot)
        self.slots.give(slot)
