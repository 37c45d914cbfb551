"""Where every request is in its step, by the protocol alone: the truth for cursors and memory.

The ledger holds cursors, seats and pending windows, no payload. From them follow which buffer
elements an operation may write, which are alive, and how far the checkpoint lags behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.frame import Region
from ringfold.fuzz.target import Request
from ringfold.sim import cursors as rules
from ringfold.sim.cursors import Cursors
from ringfold.sim.dialects import Dialect, physical
from ringfold.sim.setup import Setup


@dataclass
class Entry:
    """One seated request."""

    seat: Mapping[str, int]
    cursors: Cursors
    pending: int = 0
    """Length of the window that was verified and not yet committed."""
    folded: bool = False
    """A flushing verify already moved the records that the cursors still claim."""
    stale: bool = False
    """No step yet, and the slot's last owner left other cursors in it than those of a reset."""

    @property
    def lag(self) -> int:
        """Records that the checkpoint lacks."""
        return 0 if self.folded else self.cursors.write_pos


class Ledger:
    """Entries by request, and what the last owner of each slot left behind."""

    def __init__(self, setup: Setup, dialect: Dialect) -> None:
        self.setup = setup
        self.dialect = dialect
        self.entries: dict[Request, Entry] = {}
        self.left: dict[int, Cursors] = {}

    def admit(self, request: Request, seat: Mapping[str, int]) -> None:
        """Seat a request with the cursors of a reset."""
        start = Cursors(0, 0, 0)
        if self.dialect.has_ring:
            start = rules.reset(self.setup.ring, self.setup.window)
        left = self.left.get(seat["slot"], start)
        self.entries[request] = Entry(seat, start, stale=left != start)

    def free(self, request: Request) -> None:
        """Forget a request, but not the cursors that its slot keeps."""
        entry = self.entries.pop(request)
        self.left[entry.seat["slot"]] = entry.cursors

    def verify(self, request: Request, length: int) -> bool:
        """A window of `length` tokens is in flight; returns whether this verify folds."""
        entry = self.entries[request]
        entry.pending = length
        entry.folded = self.dialect.folds_at_verify and bool(entry.cursors.is_flush)
        return entry.folded

    def commit(self, request: Request, accepted: int, bound: int) -> None:
        """Move the cursors by the table."""
        entry = self.entries[request]
        if self.dialect.has_ring:
            entry.cursors = rules.commit(entry.cursors, accepted, self.setup.ring, bound)
        entry.pending = 0
        entry.folded = entry.stale = False

    # What the walk needs of many requests at once.

    def cursors(self, requests: Iterable[Request]) -> Cursors:
        """Cursors as arrays over `requests`."""
        return _stack([self.entries[r].cursors for r in requests])

    def lagging(self, requests: Iterable[Request]) -> Cursors:
        """Cursors whose `write_pos` is the number of records that the checkpoint lacks."""
        entries = [self.entries[r] for r in requests]
        return _stack([e.cursors._replace(write_pos=e.lag) for e in entries])

    def seats(self, requests: Iterable[Request], axis: str) -> NDArray[np.int64]:
        """Indices of `requests` on a buffer's `slot` or `request` axis."""
        return np.array([self.entries[r].seat[axis] for r in requests], np.int64)

    def window(self, requests: Iterable[Request]) -> dict[str, Region]:
        """Where the pending windows of `requests` lie, by the buffers' innermost place axis."""
        slots, rings, places, steps = [], [], [], []
        for request in requests:
            entry = self.entries[request]
            base, position = entry.cursors.cache_base, entry.cursors.write_pos
            for t in range(entry.pending):
                slots.append(entry.seat["slot"])
                rings.append(physical(base, position + t, self.setup.ring))
                places.append(entry.seat["request"])
                steps.append(t)
        return {
            "ring": {"slot": _ints(slots), "ring": _ints(rings)},
            "step": {"request": _ints(places), "step": _ints(steps)},
        }

    def verify_may_write(self, requests: list[Request]) -> dict[str, list[Region]]:
        """Regions by buffer name, for a verify of `requests` whose windows are pending."""
        window = self.window(requests)
        allowed: dict[str, list[Region]] = {}
        for buffer in self.dialect.buffers:
            if buffer.name in self.dialect.verify_writes:
                allowed[buffer.name] = [window["ring" if "ring" in buffer.axes else "step"]]
        if folding := [r for r in requests if self.entries[r].folded]:
            allowed["checkpoint"] = [{"slot": self.seats(folding, "slot")}]
        return allowed

    def commit_may_write(self, requests: list[Request]) -> dict[str, list[Region]]:
        """Regions by buffer name, for a commit of `requests`."""
        slots: Region = {"slot": self.seats(requests, "slot")}
        return {name: [slots] for name in self.dialect.commit_writes}

    def admit_may_write(self, request: Request) -> dict[str, list[Region]]:
        """Everything that belongs to the new owner."""
        seat = self.entries[request].seat
        return {
            buffer.name: [{a: _ints([i]) for a, i in seat.items() if a in buffer.axes}]
            for buffer in self.dialect.buffers
        }

    def dead(self) -> dict[str, list[Region]]:
        """Memory whose contents may have no influence on anything, cursors excepted."""
        setup = self.setup
        seated = np.zeros(setup.slots, bool)
        live = {
            "ring": np.zeros((setup.slots, setup.ring), bool),
            "step": np.zeros((setup.slots, setup.window), bool),
        }
        for entry in self.entries.values():
            slot, place = entry.seat["slot"], entry.seat["request"]
            seated[slot] = True
            first = 0 if not entry.folded else entry.cursors.write_pos
            positions = np.arange(first, entry.cursors.write_pos + entry.pending)
            live["ring"][slot, physical(entry.cursors.cache_base, positions, setup.ring)] = True
            live["step"][place, : entry.pending] = True
        dead: dict[str, list[Region]] = {}
        for buffer in self.dialect.buffers:
            if "ring" in buffer.axes:
                slots, rings = np.nonzero(~live["ring"])
                dead[buffer.name] = [{"slot": slots, "ring": rings}]
            elif "step" in buffer.axes:
                places, steps = np.nonzero(~live["step"])
                dead[buffer.name] = [{"request": places, "step": steps}]
            elif buffer.role == "state":
                dead[buffer.name] = [{"slot": np.flatnonzero(~seated)}]
        return dead


def _stack(rows: list[Cursors]) -> Cursors:
    return Cursors(*(_ints([row[i] for row in rows]) for i in range(3)))


def _ints(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, np.int64)
