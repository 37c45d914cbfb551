"""Where every request is in its step, by the protocol alone: the truth for cursors and memory.

The ledger holds cursors, seats and pending windows, no payload. From them follow which buffer
elements an operation may write, which are alive, and how far the checkpoint lags behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.judging.frame import Region
from ringfold.fuzz.target import Request
from ringfold.sim.cursors import Cursors
from ringfold.sim.dialects import CONVOLUTION, Buffer, Dialect, physical, protocol_of
from ringfold.sim.setup import Setup

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

PLACES: Final = ("slot", "request")
FLAGS: Final = ("folded", "stored", "stale", "used")
COLUMNS: Final = np.dtype(
    [(name, np.int64) for name in (*PLACES, *Cursors._fields, "pending")]
    + [(name, np.bool_) for name in FLAGS]
)
"""A line of the ledger's table: see `Entry`."""


class Entry(NamedTuple):
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
    """A line for each seated request, and what the last owner of each slot left behind."""

    def __init__(self, setup: Setup, dialect: Dialect) -> None:
        self.setup = setup
        self.dialect = dialect
        self.buffers = (*dialect.kept(setup), *[CONVOLUTION] * (setup.convolution > 0))
        self.protocol = protocol_of(setup)
        self.table = np.zeros(setup.slots, COLUMNS)
        self.lines: dict[Request, int] = {}
        """Where each seated request stands in the table."""
        self.blank = list(range(setup.slots))[::-1]
        self.homes: dict[Request, Mapping[str, int]] = {}
        """The seat of each, on whatever axes it has."""
        self.saved: dict[Request, Entry] = {}
        self.prefixes: dict[int, Mapping[str, int]] = {}
        """Where each prefix lies that the prefix cache keeps."""
        self.held: dict[Request, list[int]] = {}
        """Where the states lie that were stored apart of each request."""
        self.left: dict[int, tuple[Cursors, bool]] = {}
        keyed = [b for b in self.buffers if b.role == "position"]
        self.cursor_axis = keyed[0].axes[0] if keyed else "slot"

    def __contains__(self, request: Request) -> bool:
        return request in self.lines

    def entry(self, request: Request) -> Entry:
        """What is known of a request."""
        line = self.table[self.lines[request]]
        cursors = Cursors(*(int(line[name]) for name in Cursors._fields))
        flags = (bool(line[name]) for name in FLAGS)
        return Entry(self.homes[request], cursors, int(line["pending"]), *flags)

    def admit(
        self, request: Request, seat: Mapping[str, int], cursors: Cursors | None = None
    ) -> None:
        """Seat a request with these cursors, or with those of a reset."""
        start = cursors or self.protocol.reset(self.setup.ring, self.setup.window)
        left, used = self.left.get(seat[self.cursor_axis], (start, False))
        stale = left != start or (used and not self.dialect.has_ring)
        if not self.blank:  # more than the pool has slots for, where there is no pool
            self.blank = list(range(len(self.table), 2 * len(self.table)))[::-1]
            self.table = np.concatenate([self.table, np.zeros_like(self.table)])
        line = self.lines[request] = self.blank.pop()
        self.table[line] = (*(seat[axis] for axis in PLACES), *start, 0, False, False, stale, False)
        self.homes[request] = seat

    def placed(self, records: int, base: int, flush: bool) -> Cursors:
        """Cursors of a request that is seated with so many records, as far as the protocol goes."""
        setup, protocol = self.setup, self.protocol
        flagged = flush and any(protocol.flags(records, setup.ring, setup.window))
        return Cursors(records, 0 if protocol.plain else base, int(flagged))

    def move(self, requests: Sequence[Request], cursors: Cursors) -> None:
        """Requests stand at these cursors [row] now."""
        at = self.at(requests)
        for name, values in cursors._asdict().items():
            self.table[name][at] = values

    def free(self, request: Request) -> Entry:
        """Forget a request, but not the cursors that its slot keeps."""
        entry = self.entry(request)
        self.held.pop(request, None)
        self.blank.append(self.lines.pop(request))
        del self.homes[request]
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
        self.table["used"][self.lines[request]] = saved.used
        return folds and saved.lag > 0

    def donate(self, request: Request, prefix: int, seat: Mapping[str, int]) -> None:
        """A request is gone, and the prefix that it left lies at `seat`."""
        self.free(request)
        self.prefixes[prefix] = seat

    def evict(self, prefix: int) -> None:
        """The prefix cache gives up a state."""
        del self.prefixes[prefix]

    def hold(self, request: Request, slots: list[int]) -> None:
        """These slots alone hold what was stored apart of a request."""
        self.held[request] = slots

    def let_go(self, requests: Sequence[Request]) -> None:
        """What was stored apart where the seats of `requests` say may be written over."""
        for request in requests:
            slot = self.homes[request]["track"]
            self.held[request] = [one for one in self.held.get(request, []) if one != slot]

    @property
    def vacant(self) -> int:
        """How many requests could be seated now."""
        kept = sum("slot" in seat for seat in self.prefixes.values())
        return self.setup.slots - 1 - len(self.lines) - kept

    # What a step does to many requests at once; arrays are [row].

    def verify(self, requests: Sequence[Request], lengths: Sequence[int] | Ints) -> Mask:
        """Windows of `lengths` tokens are in flight; returns which rows this verify folds."""
        at = self.at(requests)
        folds: Mask = (self.table["is_flush"][at] != 0) & self.dialect.folds_at_verify
        self.table["pending"][at], self.table["used"][at] = lengths, True
        self.table["folded"][at] = folds
        return folds

    def advance_in_place(self, requests: Sequence[Request]) -> Mask:
        """Checkpoints were advanced in place; returns into which records were folded first.

        The ring is empty then, and begins behind them.
        """
        setup, before = self.setup, self.cursors(requests)
        folded = before.write_pos > 0
        base = physical(before.cache_base, before.write_pos, setup.ring) * (not self.protocol.plain)
        start = self.protocol.reset(setup.ring, setup.window)
        after = (start.write_pos, base, start.is_flush)
        moved = Cursors(*(np.where(folded, a, b) for a, b in zip(after, before, strict=True)))
        self.move(requests, moved)
        return np.asarray(folded)

    def commit(
        self, requests: Sequence[Request], accepted: Sequence[int] | Ints, bound: int
    ) -> None:
        """Move the cursors by the table."""
        at, before, ring = self.at(requests), self.cursors(requests), self.setup.ring
        counts = np.asarray(accepted, np.int64)
        stored: Any = False
        if not self.dialect.has_ring:
            stored = counts > 0
        elif not self.dialect.folds_at_verify:
            stored = self.protocol.folded(before, counts, ring, bound) > 0
        self.move(requests, self.protocol.commit(before, counts, ring, bound))
        self.table["stored"][at] = stored
        self.table["pending"][at] = 0
        self.table["folded"][at] = self.table["stale"][at] = False

    def folds_at_commit(self, requests: Sequence[Request], accepted: Ints) -> Mask:
        """Whether committing so many tokens would fold, with the longest bound."""
        setup = self.setup
        folded = self.protocol.folded(self.cursors(requests), accepted, setup.ring, setup.window)
        return np.asarray(folded) > 0

    def folds(
        self, requests: Sequence[Request], accepted: Ints, bound: int
    ) -> tuple[list[Request], Cursors]:
        """Of whom this commit folds records, and which ones: cursors that count them."""
        if self.protocol.folds_at != "commit" or not self.dialect.has_ring:
            return [], self.cursors([])
        before = self.cursors(requests)
        count = np.asarray(self.protocol.folded(before, accepted, self.setup.ring, bound))
        rows = np.flatnonzero(count)
        folded = [requests[i] for i in rows]
        return folded, Cursors(*(x[rows] for x in before._replace(write_pos=count)))

    # What the walk needs of many requests at once.

    def at(self, requests: Sequence[Request]) -> Ints:
        """Their lines in the table."""
        return np.fromiter(map(self.lines.__getitem__, requests), np.int64, len(requests))

    def column(self, name: str, requests: Sequence[Request]) -> NDArray[Any]:
        """One column of the table."""
        return np.asarray(self.table[name][self.at(requests)])

    def cursors(self, requests: Sequence[Request]) -> Cursors:
        """Cursors as arrays over `requests`."""
        return self._cursors(self.at(requests))

    def lagging(self, requests: Sequence[Request]) -> Cursors:
        """Cursors whose `write_pos` is the number of records that the checkpoint lacks."""
        at = self.at(requests)
        return self._cursors(at)._replace(write_pos=self._lag(at))

    def _cursors(self, at: Ints) -> Cursors:
        return Cursors(*(self.table[name][at] for name in Cursors._fields))

    def _lag(self, at: Ints) -> Ints:
        return np.where(self.table["folded"][at], 0, self.table["write_pos"][at])

    def seats(self, requests: Sequence[Request], axis: str) -> Ints:
        """Indices of `requests` on an axis that their seats name."""
        if axis in PLACES:
            return self.column(axis, requests)
        return np.array([self.homes[r][axis] for r in requests], np.int64)

    def window(self, requests: Sequence[Request]) -> Region:
        """Where the pending windows of `requests` lie, on every axis that a record may have."""
        at = self.at(requests)
        return self._records(at, self.table["write_pos"][at])

    def _records(self, at: Ints, first: Ints) -> Region:
        """Where records lie from logical position `first` [row] to the end of the window.

        A record's step is counted from there as well.
        """
        cursors = self._cursors(at)
        counts = cursors.write_pos + self.table["pending"][at] - first
        steps = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        region = {axis: np.repeat(self.table[axis][at], counts) for axis in PLACES}
        base, position = np.repeat(cursors.cache_base, counts), np.repeat(first, counts) + steps
        return {**region, "ring": physical(base, position, self.setup.ring), "step": steps}

    def place(self, requests: Sequence[Request]) -> Region:
        """Where `requests` sit, on every axis that names a request."""
        at = self.at(requests)
        return {axis: self.table[axis][at] for axis in PLACES}

    def verify_may_write(self, requests: list[Request]) -> dict[str, list[Region]]:
        """Regions by buffer name, for a verify of `requests` whose windows are pending."""
        window = self.window(requests)
        allowed = {b.name: [window] for b in self.buffers if b.name in self.dialect.verify_writes}
        folding = self.column("folded", requests)
        if folding.any():
            allowed["checkpoint"] = [chosen(self.place(requests), folding)]
        return allowed

    def commit_may_write(
        self, requests: list[Request], tracked: Sequence[Request] = ()
    ) -> dict[str, list[Region]]:
        """Regions by buffer name, for a commit of `requests` that stores some states apart."""
        place = self.place(requests)
        allowed: dict[str, list[Region]] = {name: [place] for name in self.dialect.commit_writes}
        tracks: list[Region] = [{"slot": self.seats(tracked, "track")}] if tracked else []
        stored = chosen(place, self.column("stored", requests))
        allowed["checkpoint"] = [stored, *tracks]
        if self.setup.convolution:
            allowed[CONVOLUTION.name] = [place, *tracks]
        return allowed

    def in_place_may_write(
        self, requests: Sequence[Request], tracked: Sequence[Request] = ()
    ) -> dict[str, list[Region]]:
        """Regions by buffer name, for tokens that are added to the checkpoints themselves.

        Where records wait they are folded first, and the cursors move. Of `tracked` requests a
        state is stored apart.
        """
        place = self.place(requests)
        tracks: list[Region] = [{"slot": self.seats(tracked, "track")}] if tracked else []
        allowed = {name: [place, *tracks] for name in ("checkpoint", CONVOLUTION.name)}
        folding = [chosen(place, self.lagging(requests).write_pos > 0)]
        cursors = [b.name for b in self.buffers if b.role in ("position", "flag")]
        return {**allowed, **dict.fromkeys(cursors, folding)}

    def admit_may_write(self, requests: Sequence[Request]) -> dict[str, list[Region]]:
        """Everything that belongs to the new owners."""
        place = self.place(requests)
        return {buffer.name: [place] for buffer in self.buffers}

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
        if self.entry(request).lag:
            names.append("checkpoint")
        return dict.fromkeys(names, place)

    def spared(self, allowed: Mapping[str, Iterable[Region]]) -> dict[str, list[Region]]:
        """`allowed`, but for states that wait in a slot for those who will begin from them."""
        kept = self._kept()
        outside = {name: [*regions] for name, regions in allowed.items()}
        for name in {"checkpoint", CONVOLUTION.name} & outside.keys() if kept else ():
            outside[name] = [
                chosen(region, ~np.isin(region["slot"], kept)) for region in outside[name]
            ]
        return outside

    def _kept(self) -> list[int]:
        """Slots of prefixes, and of what was stored apart."""
        prefixes = [seat["slot"] for seat in self.prefixes.values() if "slot" in seat]
        return [*prefixes, *(slot for slots in self.held.values() for slot in slots)]

    def dead(self) -> dict[str, list[Region]]:
        """Memory whose contents may have no influence on anything, cursors excepted."""
        setup = self.setup
        at = np.fromiter(self.lines.values(), np.int64, len(self.lines))
        # A pool may have more slots than it was asked for; what lies behind all seats stays alone.
        kept = [seat["slot"] for seat in self.prefixes.values() if "slot" in seat]
        taken = np.array([*self.table["slot"][at], *kept], np.int64)
        slots = max(setup.slots, int(taken.max(initial=0)) + 1)
        seated = np.zeros(slots, bool)
        seated[taken] = True
        seated[[slot for slot in self._kept() if slot < slots]] = True
        kinds = {(b.axes[1], row) for b in self.buffers if (row := _row_axis(b))}
        rows = {"ring": setup.ring, "step": setup.window}
        places = {"slot": slots, "request": setup.slots}
        live = {kind: np.zeros((places[kind[0]], rows[kind[1]]), bool) for kind in kinds}
        written = self.table["write_pos"][at]
        for axis, row in kinds:
            used = self._records(at, written - self._lag(at) if row == "ring" else written)
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


def chosen(region: Region, rows: Mask) -> Region:
    """The same for some rows."""
    return {axis: indices[rows] for axis, indices in region.items()}
