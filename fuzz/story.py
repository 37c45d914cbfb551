"""A history in the making: where each request is, and what may come next.

The story knows what a scheduler knows (who is seated, which windows are in flight, how long a
window may be) and the protocol's cursors; it never sees a target. `rules` choose operations,
`Story.tell` takes them in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ringfold.fuzz.draws import Draw
from ringfold.fuzz.frame import Dead
from ringfold.fuzz.profiles import PROFILES
from ringfold.fuzz.steering import Unseen
from ringfold.fuzz.swarm import Temper
from ringfold.fuzz.trace import (
    Admit,
    Commit,
    Decode,
    Donate,
    Evict,
    Fork,
    Free,
    Hit,
    Operation,
    Place,
    Prefill,
    Repeat,
    Restore,
    Save,
    Verify,
)
from ringfold.sim.cursors import Cursors, committed
from ringfold.sim.dialects import DIALECTS, protocol_of
from ringfold.sim.setup import Setup


class Plan(NamedTuple):
    """What is common to the histories of one configuration."""

    setup: Setup
    target: str
    operations: frozenset[str]
    """Kinds of operation that the target owns."""
    rows: int
    """Most rows in a batch."""
    steps: int
    """Steps of a random history."""
    directed: bool
    """Whether history 0 is the directed one; else all are random."""
    worst: Dead = "nan"
    """The worst that dead memory is filled with."""
    horizon: int = 0
    """Most row-windows of one `repeat`; 0 for none."""
    lockstep: bool = False
    """Whether the target steps as a server does (`fuzz.lockstep`)."""
    quota: int = 0
    """Row-windows after which this configuration has had its share; 0: never."""


class Seat(NamedTuple):
    """Where a request is."""

    cursors: Cursors
    bound: int
    """The longest window that it may bring next."""


class Told:
    """What has been told: operations, and where every request is behind them."""

    def __init__(self, setup: Setup, unseen: Unseen | None = None) -> None:
        """`unseen` loses the transitions that are told."""
        self.setup, self.unseen = setup, unseen
        self.dialect, self.protocol = DIALECTS[setup.dialect], protocol_of(setup)
        self.fresh = Seat(self.protocol.reset(setup.ring, setup.window), setup.window)
        self.seats: dict[int, Seat] = {}
        self.saved: dict[int, Seat] = {}
        self.prefixes: list[int] = []
        self.flights: list[Verify] = []
        self.operations: list[Operation] = []
        self.tag = self.requests = self.kept = 0
        self.steps = self.windows = 0

    # What there is.

    @property
    def vacant(self) -> int:
        """How many requests could be seated."""
        return self.setup.slots - 1 - len(self.seats) - len(self.prefixes)

    def idle(self) -> list[int]:
        """Seated requests without a window in flight."""
        flying = {row for flight in self.flights for row in flight.rows}
        return [request for request in self.seats if request not in flying]

    def longest(self, request: int, accepted: int) -> int:
        """The longest window that fits behind the history once `accepted` tokens are committed."""
        after = self.after(self.seats[request].cursors, accepted, self.setup.window)
        return min(self.setup.window, self.setup.ring - int(after.write_pos))

    def after(self, cursors: Cursors, accepted: int, bound: int) -> Cursors:
        """Cursors after a commit."""
        return committed(self.protocol, cursors, accepted, self.setup.ring, bound)

    # What happens.

    def tell(self, operations: Iterable[Operation]) -> None:
        """These operations come next."""
        for operation in operations:
            self.operations.append(operation)
            self._happen(operation)

    def _happen(self, operation: Operation) -> None:
        self.tag = max(self.tag, getattr(operation, "tag", 0))
        match operation:
            case Verify(rows=rows):
                self.flights.append(operation)
                self._verified(sum(row is not None for row in rows))
            case Commit():
                self._commit(operation)
            case Decode(rows=rows):
                some = [row for row in rows if row is not None]
                self._verified(len(some))
                for request in some:
                    self._move(request, 1, 1, self.setup.window)
            case Prefill():
                self.steps += 1  # no target need own it: whatever waits may go on waiting
            case Repeat(times=times, operations=operations):
                for _ in range(times):
                    for inner in operations:
                        self._happen(inner)
            case _:
                self._live(operation)

    def _live(self, operation: Operation) -> None:
        """A request comes, goes or changes its place."""
        match operation:
            case Admit(request=request) | Fork(request=request) | Hit(request=request):
                self._seat(request, self.fresh)
            case Place():
                at = Cursors(operation.records, operation.base, int(operation.flush))
                self._seat(operation.request, Seat(at, self.setup.window))
            case Free(request=request):
                del self.seats[request]
            case Save(request=request):
                self.saved[request] = self.seats.pop(request)
            case Restore(request=request):
                saved = self.saved.pop(request)
                self.seats[request] = saved if self.dialect.saves == "records" else self.fresh
            case Donate(request=request, prefix=prefix):
                del self.seats[request]
                self.prefixes.append(prefix)
                self.kept = max(self.kept, prefix + 1)
            case Evict(prefix=prefix):
                self.prefixes.remove(prefix)

    def _seat(self, request: int, seat: Seat) -> None:
        self.seats[request] = seat
        self.requests = max(self.requests, request + 1)

    def _verified(self, windows: int) -> None:
        self.windows += windows
        self.steps += 1

    def _commit(self, commit: Commit) -> None:
        flight = next(flight for flight in self.flights if flight.tag == commit.tag)
        self.flights.remove(flight)
        bound = commit.bound or self.setup.window
        for row, length, n in zip(flight.rows, flight.lengths, commit.accepted, strict=True):
            if row is not None and n is not None:
                self._move(row, length, n, bound)

    def _move(self, request: int, length: int, accepted: int, bound: int) -> None:
        before = self.seats[request].cursors
        if self.unseen is not None:
            self.unseen.visit(before, length, accepted)
        self.seats[request] = Seat(self.after(before, accepted, bound), bound)


class Story(Told):
    """A history in the making, and what a rule needs to go on."""

    unseen: Unseen

    def __init__(
        self, plan: Plan, draw: Draw, temper: Temper, unseen: Unseen, windows_max: int | None = None
    ) -> None:
        super().__init__(plan.setup, unseen)
        self.plan, self.draw, self.temper = plan, draw, temper
        self.windows_max = windows_max
        self.intents: dict[int, Mapping[int, int]] = {}
        """By tag and request: how much is to be accepted, where that was decided at the verify."""
        unseen.survey()

    @property
    def room(self) -> int:
        """Row-windows that may still be verified."""
        return 2**62 if self.windows_max is None else self.windows_max - self.windows

    def settled(self) -> list[int]:
        """Idle requests that are where a history without tightened bounds may be."""
        return [
            request
            for request in self.idle()
            if self.seats[request].bound == self.setup.window
            and self.unseen.reachable(self.seats[request].cursors)
        ]

    # What is drawn alike by many rules.

    def next_tag(self) -> int:
        """A tag that stands for no window yet."""
        return self.tag + 1

    def dead(self) -> Dead:
        """What becomes of dead memory after an operation."""
        return self.draw.pick(self.temper.dead)

    def profile(self) -> str | None:
        """Now and then a window's numbers are of another kind than the history's."""
        return self.draw.pick(sorted(PROFILES)) if self.draw.chance(self.temper.colour) else None

    def padded(self, rows: Iterable[int]) -> tuple[int | None, ...]:
        """Rows of a batch with padding anywhere between them."""
        padded: list[int | None] = [*rows]
        while self.draw.chance(self.temper.padding) and len(padded) < 2 * self.plan.rows:
            padded.insert(self.draw.integer(0, len(padded)), None)
        return tuple(padded)
