"""A history walked through seats and windows alone, at some 300,000 rows a second.

What an operation may do depends on who is seated, who is saved, what the prefix cache keeps and
which windows are in flight; forks and lowered bounds depend on cursors besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ringfold.fuzz.histories.trace import operations as ops
from ringfold.fuzz.histories.trace.history import TraceError, shown
from ringfold.sim.cursors import Cursors, Protocol
from ringfold.sim.dialects import DIALECTS, protocol_of
from ringfold.sim.setup import Setup

REHEARSED_ROWS_MAX: Final = 250_000
"""Rows that are walked again in repeats, waiting for their cursors to recur: about 1 s."""


@dataclass(slots=True)
class Seat:
    """What decides whether the next operation of a request is legal."""

    cursors: Cursors
    bound: int
    pending: int | None = None  # the tag of the window in flight
    length: int = 0

    def key(self) -> tuple[int, ...]:
        """All of it but `cache_base`, on which no rule depends."""
        c = self.cursors
        return (c.write_pos, c.is_flush, self.bound, -1 if self.pending is None else self.pending)


class Rehearsal:
    """Where a history has come to. Each operation is a method by its name in the file."""

    def __init__(self, setup: Setup, with_cursors: bool) -> None:
        """Without cursors a repeat recurs in a turn or two."""
        self.setup = setup
        self.has_ring = DIALECTS[setup.dialect].has_ring
        self.protocol = protocol_of(setup)
        self.moves_cursors = self.has_ring and with_cursors
        self.carries_records = DIALECTS[setup.dialect].saves == "records"
        self.seats: dict[int, Seat] = {}
        self.saved: dict[int, Seat] = {}
        self.prefixes: dict[int, None] = {}  # in the order in which they were donated
        self.verified: dict[int, ops.Verify] = {}  # windows in flight, by tag
        self.rows = 0
        self.rows_again = 0

    def run(self, operations: tuple[ops.Operation, ...], where: str) -> None:
        """Raise `TraceError` at the first operation that no scheduler could do."""
        for i, operation in enumerate(operations):
            here = f"{where}[{i}]"
            if isinstance(operation, ops.Repeat):
                self.repeat(operation, here)
                continue
            try:
                self.apply(operation)
            except TraceError as error:
                raise TraceError(f"{here} ({ops.kind(operation)}): {error}") from None

    def apply(self, operation: ops.Operation) -> None:
        """Go on by one operation that is not a repeat."""
        getattr(self, ops.kind(operation))(operation)
        self.rows += 1

    def repeat(self, operation: ops.Repeat, where: str) -> None:
        """Iterate until the seats are as they were before: from there on nothing new can happen."""
        met: dict[int, int] = {}
        i = 0
        while i < operation.times:
            seats, saved = (
                frozenset((request, seat.key()) for request, seat in those.items())
                for those in (self.seats, self.saved)
            )
            state = hash((seats, saved, frozenset(self.prefixes), frozenset(self.verified)))
            if state in met:
                period = i - met[state]
                i = operation.times - (operation.times - i) % period
                met.clear()
                if i == operation.times:
                    return
            met[state] = i
            before = self.rows
            try:
                self.run(operation.operations, f"{where}.operations")
                if i:
                    self._spend(self.rows - before + len(self.seats) + len(self.verified))
            except TraceError as error:
                late = f" [in iteration {i} of {operation.times}]" if i else ""
                raise TraceError(f"{error}{late}") from None
            i += 1

    def _spend(self, rows: int) -> None:
        """Count rows that were walked again."""
        self.rows_again += rows
        if self.rows_again > REHEARSED_ROWS_MAX:
            raise TraceError(
                f"its repeats have walked {REHEARSED_ROWS_MAX} rows and do not come back to the "
                f"cursors that they had: repeat fewer times, or take the forks out"
            )

    # ------------------------------------------------------------ seats and prefixes

    def admit(self, operation: ops.Admit) -> None:
        """On the cursors of a reset."""
        self._seat(operation.request, self._fresh())

    def free(self, operation: ops.Free) -> None:
        """A window in flight is lost with it."""
        self._seated(operation.request)
        del self.seats[operation.request]

    def fork(self, operation: ops.Fork) -> None:
        """Of a source without records, since its checkpoint is what is copied."""
        source = self._ready(operation.source)
        if source.cursors.write_pos:
            raise TraceError(
                f"the checkpoint of source {operation.source} lags behind "
                f"{source.cursors.write_pos} records: fork right after an admission, "
                f"or after a flush that accepted 0"
            )
        self._seat(operation.request, self._fresh())

    def place(self, operation: ops.Place) -> None:
        """States that `sim.cursors.reachable` holds: any base, and records that may wait."""
        base, records = operation.base, operation.records
        L, T = (self.setup.ring, self.setup.window) if self.has_ring else (1, 1)
        if base >= (1 if self.protocol.plain else L):
            raise TraceError(
                f"base is {base}, but must be in 0..{0 if self.protocol.plain else L - 1}: "
                "name a physical row of the ring"
            )
        most = self.protocol.most(L, T)
        if records > most:
            raise TraceError(
                f"records is {records}, but must be in 0..{most}: "
                f"no commit leaves more than {most} records in this ring"
            )
        flags = self.protocol.flags(records, L, T)
        if operation.flush not in flags:
            raise TraceError(
                f"flush is {operation.flush}, but {records} records in this ring mean {flags[0]} "
                f"(records + 2 * window > ring): change either"
            )
        cursors = Cursors(records, base, int(operation.flush))
        self._seat(operation.request, Seat(cursors, self.setup.window))

    def save(self, operation: ops.Save) -> None:
        """Between steps, its slot is another's."""
        self._ready(operation.request)
        self.saved[operation.request] = self.seats.pop(operation.request)

    def restore(self, operation: ops.Restore) -> None:
        """With its records, or where they were folded with none."""
        seat = self.saved.pop(operation.request, None)
        if seat is None:
            raise TraceError(f"request {operation.request} is not saved: save it first")
        self._seat(operation.request, seat if self.carries_records else self._fresh())

    def donate(self, operation: ops.Donate) -> None:
        """The slot stays taken, by a prefix."""
        self._ready(operation.request)
        if operation.prefix in self.prefixes:
            raise TraceError(
                f"prefix {operation.prefix} is kept already: evict it first, or use another name"
            )
        del self.seats[operation.request]
        self.prefixes[operation.prefix] = None

    def hit(self, operation: ops.Hit) -> None:
        """As an admission."""
        self._kept(operation.prefix)
        self._seat(operation.request, self._fresh())

    def evict(self, operation: ops.Evict) -> None:
        """Who was seated on a copy stays."""
        self._kept(operation.prefix)
        del self.prefixes[operation.prefix]

    def _fresh(self) -> Seat:
        return Seat(self.protocol.reset(self.setup.ring, self.setup.window), self.setup.window)

    def _seat(self, request: int, seat: Seat) -> None:
        if request in self.seats:
            raise TraceError(f"request {request} is seated already: free it first")
        if request in self.saved:
            raise TraceError(f"request {request} is saved: restore it, or seat another one")
        taken = len(self.seats) + len(self.prefixes)
        if taken >= self.setup.slots - 1:
            raise TraceError(
                f"request {request} finds no slot, {taken} of {self.setup.slots} are "
                f"taken and one is the null slot: free a request, evict a prefix, "
                f"or raise setup.slots"
            )
        self.seats[request] = seat

    def _seated(self, request: int | None) -> Seat:
        if request in self.saved:
            raise TraceError(f"request {request} is saved: restore it first")
        if request not in self.seats:
            raise TraceError(f"request {request} is not seated: admit, fork or place it first")
        return self.seats[request]

    def _ready(self, request: int) -> Seat:
        seat = self._seated(request)
        if seat.pending is not None:
            raise TraceError(
                f"request {request} has the window with tag {seat.pending} in flight: "
                f"commit that first (0 rejects all of it)"
            )
        return seat

    def _kept(self, prefix: int) -> None:
        if prefix not in self.prefixes:
            raise TraceError(f"prefix {prefix} is not kept: donate it first")

    # ------------------------------------------------------------ windows

    def idle(self, operation: ops.Idle) -> None:
        """Padding is never in the way."""

    def decode(self, operation: ops.Decode) -> None:
        """A window of one, committed at once."""
        self._batch(operation.rows)
        if others := set(operation.stores).difference(operation.rows):
            raise TraceError(f"stores names {min(others)}, but it is none of rows: leave it out")
        for request in operation.rows:
            if request is not None:
                self._advance(self._ready(request), 1, self.setup.window)

    def prefill(self, operation: ops.Prefill) -> None:
        """No rule counts on what it folds, since not every target owns it."""
        self._batch(operation.rows, operation.lengths)
        for request in operation.rows:
            self._ready(request)

    def verify(self, operation: ops.Verify) -> None:
        """Of windows no longer than was announced, or than the ring has room for."""
        self._batch(operation.rows, operation.lengths)
        window = self.setup.window
        for row, (request, length) in enumerate(
            zip(operation.rows, operation.lengths, strict=True)
        ):
            if not 0 <= length <= window:
                raise TraceError(
                    f"lengths[{row}] is {length}, but must be in 0..{window}: "
                    f"shorten the window, or raise setup.window"
                )
            if request is None:
                continue
            seat = self._ready(request)
            room = self.setup.ring - seat.cursors.write_pos
            if length > max(seat.bound, room):
                raise TraceError(
                    f"lengths[{row}] is {length}, but request {request} was last committed with "
                    f"bound {seat.bound}, and behind its {seat.cursors.write_pos} records there is "
                    f"room for {room}: shorten the window, or raise that commit's bound"
                )
            seat.pending, seat.length = operation.tag, length
        self.verified[operation.tag] = operation

    def commit(self, operation: ops.Commit) -> None:
        """Of a window in flight, as many of its tokens as it has."""
        verify = self.verified.pop(operation.tag, None)
        if verify is None:
            raise TraceError(
                f"no window with tag {operation.tag} is in flight: "
                f"commit the tag of an earlier verify, once"
            )
        rows, accepted, window = verify.rows, operation.accepted, self.setup.window
        if len(accepted) != len(rows):
            raise TraceError(
                f"{len(accepted)} counts for the {len(rows)} rows of its verify: "
                f"give one for each row"
            )
        bound = window if operation.bound is None else operation.bound
        if not 1 <= bound <= window:
            raise TraceError(
                f"bound is {bound}, but must be in 1..{window}: lower it, or raise setup.window"
            )
        if operation.track is not None and operation.track > window:
            raise TraceError(
                f"track is {operation.track}, but must be in 1..{window}: "
                f"a window has no more tokens; lower it, or raise setup.window"
            )
        self.rows += len(rows)
        for row, (request, count) in enumerate(zip(rows, accepted, strict=True)):
            seat = None if request is None else self.seats.get(request)
            if seat is None or seat.pending != operation.tag:
                if count is not None:
                    raise TraceError(
                        f"accepted[{row}] is {count}, but its row is padding or was freed since "
                        f"its verify: write null"
                    )
            elif count is None or not 0 <= count <= seat.length:
                raise TraceError(
                    f"accepted[{row}] is {shown(count)}, but request {request} has a window of "
                    f"{seat.length} in flight: accept 0..{seat.length}"
                )
            else:
                self._advance(seat, count, bound)

    def _batch(self, rows: Sequence[int | None], lengths: Sequence[int] | None = None) -> None:
        if lengths is not None and len(lengths) != len(rows):
            raise TraceError(f"{len(lengths)} lengths for {len(rows)} rows: give one for each row")
        self.rows += len(rows)
        met: set[int] = set()
        for request in rows:
            if request in met:
                raise TraceError(f"request {request} has two rows: a batch holds a request once")
            if request is not None:
                met.add(request)

    def _advance(self, seat: Seat, accepted: int, bound: int) -> None:
        if self.moves_cursors:
            L = self.setup.ring
            seat.cursors = _committed(self.protocol, seat.cursors, accepted, L, bound)
            if (records := seat.cursors.write_pos) + bound > L:
                raise TraceError(
                    f"bound is {bound}, but behind {records} records a ring of {L} has room for "
                    f"{L - records}: a bound may grow only as far as that"
                )
        seat.bound, seat.pending = bound, None


@lru_cache(maxsize=65_536)
def _committed(
    protocol: Protocol, cursors: Cursors, accepted: int, ring: int, bound: int
) -> Cursors:
    return protocol.commit(cursors, accepted, ring, bound)
