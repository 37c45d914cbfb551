"""Where every request is in its step, by the protocol alone: the truth for cursors and memory.

The ledger holds cursors, seats and pending windows, no payload. From them follow which buffer
elements an operation may write, which are alive, and how far the checkpoint lags behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.frame import Region
from ringfold.fuzz.target import Request
from ringfold.sim.cursors import Cursors, committed
from ringfold.sim.dialects import CONVOLUTION, Buffer, Dialect, physical, protocol_of
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
    stored: bool = False
    """The last commit wrote the checkpoint."""
    stale: bool = False
    """No step yet, and the slot's last owner left other cursors in it than those of a reset; for a
    dialect without a ring: it had verified."""
    used: bool = False
    """It has verified."""

    @property
    def lag(self) -> int:
        """Records that the checkpoint lacks."""
        return 0 if self.folded else self.cursors.write_pos


class Ledger:
    """Entries by request, and what the last owner of each slot left behind."""

    def __init__(self, setup: Setup, dialect: Dialect) -> None:
        self.setup = setup
        self.dialect = dialect
        self.buffers = (*dialect.kept(setup), *[CONVOLUTION] * (setup.convolution > 0))
        self.protocol = protocol_of(setup)
        self.entries: dict[Request, Entry] = {}
        self.saved: dict[Request, Entry] = {}
        self.prefixes: dict[int, Mapping[str, int]] = {}
        """Where each prefix lies that the prefix cache keeps."""
        self.left: dict[int, tuple[Cursors, bool]] = {}
        keyed = [b for b in self.buffers if b.role == "position"]
        self.cursor_axis = keyed[0].axes[0] if keyed else "slot"

    def admit(
        self, request: Request, seat: Mapping[str, int], cursors: Cursors | None = None
    ) -> None:
        """Seat a request with these cursors, or with those of a reset."""
        start = cursors or self.protocol.reset(self.setup.ring, self.setup.window)
        left, used = self.left.get(seat[self.cursor_axis], (start, False))
        stale = left != start or (used and not self.dialect.has_ring)
        self.entries[request] = Entry(seat, start, stale=stale)

    def placed(self, records: int, base: int, flush: bool) -> Cursors:
        """Cursors of a request that is seated with so many records, as far as the protocol goes."""
        setup, protocol = self.setup, self.protocol
        flagged = flush and any(protocol.flags(records, setup.ring, setup.window))
        return Cursors(records, 0 if protocol.plain else base, int(flagged))

    def free(self, request: Request) -> Entry:
        """Forget a request, but not the cursors that its slot keeps."""
        entry = self.entries.pop(request)
        self.left[entry.seat[self.cursor_axis]] = (entry.cursors, entry.used)
        return entry

    def save(self, request: Request) -> None:
        """A request leaves its seat for host memory."""
        self.saved[request] = self.free(request)

    def restore(self, request: Request, seat: Mapping[str, int]) -> bool:
        """It is seated again; returns whether records that waited are in its checkpoint now."""
        saved = self.saved.pop(request)
        folds = self.dialect.saves == "state"
        self.admit(request, seat, None if folds else saved.cursors)
        self.entries[request].used = saved.used
        return folds and saved.lag > 0

    def donate(self, request: Request, prefix: int, seat: Mapping[str, int]) -> None:
        """A request is gone, and the prefix that it left lies at `seat`."""
        self.free(request)
        self.prefixes[prefix] = seat

    def evict(self, prefix: int) -> None:
        """The prefix cache gives up a state."""
        del self.prefixes[prefix]

    @property
    def vacant(self) -> int:
        """How many requests could be seated now."""
        kept = sum("slot" in seat for seat in self.prefixes.values())
        return self.setup.slots - 1 - len(self.entries) - kept

    def verify(self, request: Request, length: int) -> bool:
        """A window of `length` tokens is in flight; returns whether this verify folds."""
        entry = self.entries[request]
        entry.pending, entry.used = length, True
        entry.folded = self.dialect.folds_at_verify and bool(entry.cursors.is_flush)
        return entry.folded

    def advance_in_place(self, request: Request) -> bool:
        """Its checkpoint was advanced in place; returns whether records were folded into it first.

        The ring is empty then, and begins behind them.
        """
        entry, setup = self.entries[request], self.setup
        if not (records := entry.cursors.write_pos):
            return False
        base = 0 if self.protocol.plain else physical(entry.cursors.cache_base, records, setup.ring)
        start = self.protocol.reset(setup.ring, setup.window)
        entry.cursors = start._replace(cache_base=base)
        return True

    def commit(self, request: Request, accepted: int, bound: int) -> None:
        """Move the cursors by the table."""
        entry, at = self.entries[request], (accepted, self.setup.ring, bound)
        if self.dialect.folds_at_verify:
            entry.stored = False
        elif self.dialect.has_ring:
            entry.stored = bool(self.protocol.folded(entry.cursors, *at))
        else:
            entry.stored = accepted > 0
        entry.cursors = committed(self.protocol, entry.cursors, *at)
        entry.pending = 0
        entry.folded = entry.stale = False

    def folds_at_commit(
        self, requests: Sequence[Request], accepted: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """[row] whether committing so many tokens would fold, with the longest bound."""
        setup = self.setup
        folded = self.protocol.folded(self.cursors(requests), accepted, setup.ring, setup.window)
        return np.asarray(folded) > 0

    # What the walk needs of many requests at once.

    def cursors(self, requests: Iterable[Request]) -> Cursors:
        """Cursors as arrays over `requests`."""
        return stacked([self.entries[r].cursors for r in requests])

    def lagging(self, requests: Iterable[Request]) -> Cursors:
        """Cursors whose `write_pos` is the number of records that the checkpoint lacks."""
        entries = [self.entries[r] for r in requests]
        lag = _ints([entry.lag for entry in entries])
        return stacked([entry.cursors for entry in entries])._replace(write_pos=lag)

    def seats(self, requests: Iterable[Request], axis: str) -> NDArray[np.int64]:
        """Indices of `requests` on a buffer's `slot` or `request` axis."""
        return np.array([self.entries[r].seat[axis] for r in requests], np.int64)

    def window(self, requests: Iterable[Request]) -> Region:
        """Where the pending windows of `requests` lie, on every axis that a record may have."""
        entries = [self.entries[r] for r in requests]
        return self._records(entries, _ints([e.cursors.write_pos for e in entries]))

    def _records(self, entries: Sequence[Entry], first: NDArray[np.int64]) -> Region:
        """Where records lie from logical position `first` [row] to the end of the window.

        A record's step is counted from there as well.
        """
        cursors = stacked([entry.cursors for entry in entries])
        counts = cursors.write_pos + _ints([entry.pending for entry in entries]) - first
        steps = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        region = {
            axis: np.repeat(_ints([entry.seat[axis] for entry in entries]), counts)
            for axis in ("slot", "request")
        }
        base, position = np.repeat(cursors.cache_base, counts), np.repeat(first, counts) + steps
        return {**region, "ring": physical(base, position, self.setup.ring), "step": steps}

    def place(self, requests: Iterable[Request]) -> Region:
        """Where `requests` sit, on every axis that names a request."""
        return {axis: self.seats(requests, axis) for axis in ("slot", "request")}

    def verify_may_write(self, requests: list[Request]) -> dict[str, list[Region]]:
        """Regions by buffer name, for a verify of `requests` whose windows are pending."""
        window = self.window(requests)
        allowed = {b.name: [window] for b in self.buffers if b.name in self.dialect.verify_writes}
        if folding := [r for r in requests if self.entries[r].folded]:
            allowed["checkpoint"] = [self.place(folding)]
        return allowed

    def commit_may_write(
        self, requests: list[Request], tracked: Iterable[Request] = ()
    ) -> dict[str, list[Region]]:
        """Regions by buffer name, for a commit of `requests` that stores some states apart."""
        stored = [r for r in requests if self.entries[r].stored]
        allowed = {name: [self.place(requests)] for name in self.dialect.commit_writes}
        tracks = [{"slot": self.seats([r], "track")} for r in tracked]
        allowed["checkpoint"] = [self.place(stored), *tracks]
        if self.setup.convolution:
            allowed[CONVOLUTION.name] = [self.place(requests), *tracks]
        return allowed

    def in_place_may_write(self, requests: Sequence[Request]) -> dict[str, list[Region]]:
        """Regions by buffer name, for tokens that are added to the checkpoints themselves.

        Where records wait they are folded first, and the cursors move.
        """
        allowed = {name: [self.place(requests)] for name in ("checkpoint", CONVOLUTION.name)}
        folding = [self.place([r]) for r in requests if self.entries[r].lag]
        cursors = [b.name for b in self.buffers if b.role in ("position", "flag")]
        return {**allowed, **dict.fromkeys(cursors, folding)}

    def admit_may_write(self, requests: Sequence[Request]) -> dict[str, list[Region]]:
        """Everything that belongs to the new owners."""
        return {buffer.name: [self.place(requests)] for buffer in self.buffers}

    def save_may_write(self, request: Request) -> dict[str, list[Region]]:
        """Nothing, unless what waits is folded on the way."""
        return self._fold_may_write(request) if self.dialect.saves == "state" else {}

    def donate_may_write(self, request: Request) -> dict[str, list[Region]]:
        """The cursors, for the ring of a prefix is empty; and the checkpoint, if that is folded.

        Else the convolution's window goes back to where the checkpoint is.
        """
        allowed = self._fold_may_write(request)
        if self.dialect.donates == "checkpoint":
            allowed[CONVOLUTION.name] = allowed.pop("checkpoint", [])
        return allowed

    def _fold_may_write(self, request: Request) -> dict[str, list[Region]]:
        place = [self.place([request])]
        names = [b.name for b in self.buffers if b.role in ("position", "flag")]
        if self.entries[request].lag:
            names.append("checkpoint")
        return dict.fromkeys(names, place)

    def dead(self) -> dict[str, list[Region]]:
        """Memory whose contents may have no influence on anything, cursors excepted."""
        setup = self.setup
        seats = [entry.seat for entry in self.entries.values()]
        # A pool may have more slots than it was asked for; what lies behind all seats stays alone.
        taken = [seat["slot"] for seat in (*seats, *self.prefixes.values()) if "slot" in seat]
        slots = max([setup.slots, *(slot + 1 for slot in taken)])
        seated = np.zeros(slots, bool)
        kinds = {(b.axes[1], row) for b in self.buffers if (row := _row_axis(b))}
        rows = {"ring": setup.ring, "step": setup.window}
        places = {"slot": slots, "request": setup.slots}
        live = {kind: np.zeros((places[kind[0]], rows[kind[1]]), bool) for kind in kinds}
        for seat in self.prefixes.values():
            if "slot" in seat:
                seated[seat["slot"]] = True
        entries = [*self.entries.values()]
        seated[_ints([entry.seat["slot"] for entry in entries])] = True
        written = _ints([entry.cursors.write_pos for entry in entries])
        lag = _ints([entry.lag for entry in entries])
        for axis, row in kinds:
            used = self._records(entries, written - lag if row == "ring" else written)
            live[axis, row][used[axis], used[row]] = True
        rings: dict[tuple[str, str], Region] = {
            kind: dict(zip(kind, np.nonzero(~used), strict=True)) for kind, used in live.items()
        }
        vacant: Region = {"slot": np.flatnonzero(~seated)}
        return {
            buffer.name: [rings[buffer.axes[1], row] if row else vacant]
            for buffer in self.buffers
            if (row := _row_axis(buffer)) or buffer.role in ("state", "activation")
        }


def _row_axis(buffer: Buffer) -> str:
    """The axis along which a buffer holds one thing a token, if it does."""
    return next((axis for axis in ("ring", "step") if axis in buffer.axes), "")


def stacked(rows: Sequence[Cursors]) -> Cursors:
    """Cursors of many requests as arrays."""
    return Cursors(*(_ints([row[i] for row in rows]) for i in range(3)))


def _ints(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, np.int64)
