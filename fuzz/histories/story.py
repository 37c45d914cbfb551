"""A history in the making: where each request is, and what may come next.

The story knows what a scheduler knows (who is seated, which windows are in flight, how long a
window may be) and the protocol's cursors; it never sees a target. `rules` choose operations,
`Story.tell` takes them in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from ringfold.fuzz.histories.draws import Draw, Ints
from ringfold.fuzz.histories.numbered import Numbered
from ringfold.fuzz.histories.profiles import PROFILES
from ringfold.fuzz.histories.steering import Unseen
from ringfold.fuzz.histories.swarm import Temper
from ringfold.fuzz.histories.trace import (
    CHUNK,
    REQUEST_MAX,
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
from ringfold.fuzz.judging.frame import Dead
from ringfold.sim.cursors import Cursors
from ringfold.sim.dialects import DIALECTS
from ringfold.sim.setup import Setup

PADDING: Final = -1
"""Stands for no request in arrays of rows, and for no count beside it."""


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
    """Whether the target steps as a server does (`histories.lockstep`)."""
    quota: int = 0
    """Row-windows after which this configuration has had its share; 0: never."""
    seed: int | None = None
    """Of its histories, where it is not the run's."""
    chunk: int = CHUNK
    """Tokens of a prompt that the target stores a state behind."""


class Flight(NamedTuple):
    """A window that was verified and not yet committed."""

    tag: int
    rows: Ints
    """[row] requests; `PADDING` for none."""
    lengths: Ints


class Told:
    """What has been told: operations, and where every request is behind them."""

    def __init__(self, setup: Setup, unseen: Unseen | None = None) -> None:
        """`unseen` loses the transitions that are told."""
        self.setup, self.unseen = setup, unseen
        self.dialect, self.numbered = DIALECTS[setup.dialect], Numbered.of(setup)
        reset = self.numbered.protocol.reset(setup.ring, setup.window)
        self.fresh = self.numbered.place(reset)
        self.places = np.zeros(REQUEST_MAX + 1, np.int64)
        """[request] its cursors, by their number."""
        self.bounds = np.zeros(len(self.places), np.int64)
        """[request] the longest window that it may bring next."""
        self.seated = np.zeros(len(self.places), np.bool_)
        self.flying = np.zeros(len(self.places), np.bool_)
        self.saved: list[int] = []
        self.prefixes: list[int] = []
        self.flights: list[Flight] = []
        self.operations: list[Operation] = []
        self.tag = self.requests = self.kept = 0
        self.steps = self.windows = 0

    # What there is.

    @property
    def seats(self) -> Ints:
        """Requests that are seated."""
        return np.flatnonzero(self.seated[: self.requests])

    @property
    def vacant(self) -> int:
        """How many requests could be seated."""
        seated = np.count_nonzero(self.seated[: self.requests])
        return self.setup.slots - 1 - int(seated) - len(self.prefixes)

    def idle(self) -> Ints:
        """Seated requests without a window in flight."""
        known = slice(self.requests)
        return np.flatnonzero(self.seated[known] & ~self.flying[known])

    def waiting(self, requests: Ints) -> Ints:
        """[row] how many records these requests have in the ring."""
        return self.numbered.records(self.places[requests])

    def longest(self, requests: Ints, accepted: Ints | int) -> Ints:
        """[row] the longest window that fits behind the history and so many more tokens."""
        T = self.setup.window
        after = self.numbered.after(self.places[requests], accepted, T)
        return np.minimum(T, self.setup.ring - self.numbered.records(after))

    # What happens.

    def tell(self, operations: Iterable[Operation]) -> None:
        """These operations come next."""
        for operation in operations:
            self.operations.append(operation)
            self._meaning(operation)()

    def _meaning(self, operation: Operation) -> Callable[[], None]:
        """What an operation does, told once and, in a repeat, done many times."""
        self.tag = max(self.tag, getattr(operation, "tag", 0))
        match operation:
            case Verify(tag=tag, rows=rows, lengths=lengths):
                return partial(self._verify, Flight(tag, as_rows(rows), np.array(lengths)))
            case Commit(tag=tag, accepted=accepted, bound=bound):
                counts = as_rows(accepted)
                return partial(self._commit, tag, counts, bound or self.setup.window)
            case Decode(rows=rows):
                return partial(self._decode, as_rows(rows))
            case Prefill():
                return self._prefill
            case Repeat(times=times, operations=operations):
                turn = [self._meaning(inner) for inner in operations]
                return partial(_do, turn * times)
            case _:
                return partial(self._live, operation)

    def _live(self, operation: Operation) -> None:
        """A request comes, goes or changes its place."""
        match operation:
            case Admit(request=request) | Fork(request=request) | Hit(request=request):
                self._seat(request, self.fresh)
            case Place(request=request, records=records, base=base, flush=flush):
                self._seat(request, self.numbered.place(Cursors(records, base, int(flush))))
            case Free(request=request):
                self.seated[request] = False
            case Save(request=request):
                self.seated[request] = False
                self.saved.append(request)
            case Restore(request=request):
                self.saved.remove(request)
                self.seated[request] = True
                if self.dialect.saves != "records":
                    self._seat(request, self.fresh)
            case Donate(request=request, prefix=prefix):
                self.seated[request] = False
                self.prefixes.append(prefix)
                self.kept = max(self.kept, prefix + 1)
            case Evict(prefix=prefix):
                self.prefixes.remove(prefix)

    def _seat(self, request: int, place: int) -> None:
        self.places[request], self.bounds[request] = place, self.setup.window
        self.seated[request], self.flying[request] = True, False
        self.requests = max(self.requests, request + 1)

    def _verify(self, flight: Flight) -> None:
        requests = flight.rows[flight.rows != PADDING]
        self.flying[requests] = True
        self.flights.append(flight)
        self._verified(len(requests))

    def _commit(self, tag: int, accepted: Ints, bound: int) -> None:
        at = next(i for i, flight in enumerate(self.flights) if flight.tag == tag)
        flight = self.flights.pop(at)
        self.flying[flight.rows[flight.rows != PADDING]] = False
        kept = accepted != PADDING
        self._move(flight.rows[kept], flight.lengths[kept], accepted[kept], bound)

    def _decode(self, rows: Ints) -> None:
        requests = rows[rows != PADDING]
        self._verified(len(requests))
        ones = np.ones_like(requests)
        self._move(requests, ones, ones, self.setup.window)

    def _prefill(self) -> None:
        self.steps += 1  # no target need own it: whatever waits may go on waiting

    def _verified(self, windows: int) -> None:
        self.windows += windows
        self.steps += 1

    def _move(self, requests: Ints, lengths: Ints, accepted: Ints, bound: int) -> None:
        before = self.places[requests]
        if self.unseen is not None:
            self.unseen.visit(before, lengths, accepted)
        self.places[requests] = self.numbered.after(before, accepted, bound)
        self.bounds[requests] = bound


class Story(Told):
    """A history in the making, and what a rule needs to go on."""

    unseen: Unseen

    def __init__(
        self, plan: Plan, draw: Draw, temper: Temper, unseen: Unseen, windows_max: int | None = None
    ) -> None:
        super().__init__(plan.setup, unseen)
        self.plan, self.draw, self.temper = plan, draw, temper
        self.windows_max = windows_max
        self.intents: dict[int, Ints] = {}
        """[row] by tag: how much is to be accepted, where that was decided at the verify, or -1."""
        unseen.survey()

    @property
    def room(self) -> int:
        """Row-windows that may still be verified."""
        return 2**62 if self.windows_max is None else self.windows_max - self.windows

    def settled(self) -> Ints:
        """Idle requests that are where a history without tightened bounds may be."""
        idle = self.idle()
        untightened = self.bounds[idle] == self.setup.window
        settled: Ints = idle[untightened & self.unseen.map.reached[self.places[idle]]]
        return settled

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

    def padded(self, requests: Ints) -> Ints:
        """Rows of a batch with padding anywhere between them."""
        rows = requests
        while self.draw.chance(self.temper.padding) and len(rows) < 2 * self.plan.rows:
            rows = np.insert(rows, self.draw.integer(0, len(rows)), PADDING)
        return rows


def as_rows(told: Sequence[int | None]) -> Ints:
    """The rows of a batch, or what goes with them, as a trace has them; `PADDING` for none."""
    return np.array([PADDING if row is None else row for row in told], np.int64)


def as_told(rows: Ints) -> tuple[int | None, ...]:
    """The same as a trace has it."""
    return tuple([None if row == PADDING else row for row in rows.tolist()])


def _do(meanings: Iterable[Callable[[], None]]) -> None:
    for meaning in meanings:
        meaning()
