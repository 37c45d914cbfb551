"""Histories: a directed one that visits every situation of a setup, and seeded random ones.

A history is a pure function of (setup, seed, number): it looks at the protocol's cursors, never at
the target, so that any worker can make it and its windows can be counted before it is walked.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, get_args

import msgspec
import numpy as np

from ringfold.fuzz.frame import Dead
from ringfold.fuzz.profiles import PROFILES
from ringfold.fuzz.trace import (
    Admit,
    Commit,
    Decode,
    Fork,
    Free,
    Idle,
    Operation,
    PayloadSpec,
    Place,
    Trace,
    Verify,
)
from ringfold.sim.cursors import Cursors, reachable
from ringfold.sim.dialects import DIALECTS, protocol_of
from ringfold.sim.setup import Setup
from ringfold.sim.situations import directed_steps

DIRECTED: Final = 0
"""Number of the directed history, where a plan has one; the random ones follow."""

SLOW: Final = "slow-decay"
"""Strong forgetting hides a lifecycle bug within a step or two, so the directed history decays
slowly, and so does every other random one."""


GATED: Final = "ordinary"

TRACKING: Final = 0.3
"""How many commits also store a state for a prefix cache, where the target can."""


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


def history(plan: Plan, seed: int, number: int) -> Trace:
    """History `number` of a run with this seed."""
    # The setup is part of the key: else all configurations would live through the same story.
    key = [seed << 32 | zlib.crc32(str(plan.setup).encode()), number]
    random = np.random.Generator(np.random.Philox(key=key))
    payload_seed = int(random.integers(2**32))
    if plan.directed and number == DIRECTED and "verify" in plan.operations:
        profile, operations = SLOW, tuple(_directed(plan))
    else:
        names = sorted(PROFILES)
        profile = SLOW if random.random() < 0.5 else names[random.integers(len(names))]
        operations = tuple(_Random(plan, random).history())
    operations = tuple(_capped(operation, plan.worst) for operation in operations)
    return Trace(
        setup=plan.setup,
        payload=PayloadSpec(seed=payload_seed, profile=profile),
        target=plan.target,
        operations=operations,
    )


def _capped(operation: Operation, worst: Dead) -> Operation:
    """The same operation; what it does to dead memory is `worst` at most."""
    severity = get_args(Dead)
    if severity.index(operation.dead) <= severity.index(worst):
        return operation
    return msgspec.structs.replace(operation, dead=worst)


def windows(trace: Trace) -> int:
    """Row-windows that a walk of `trace` verifies, if no finding stops it."""
    return sum(
        sum(row is not None for row in operation.rows)
        for operation in trace.operations
        if isinstance(operation, Verify | Decode)
    )


# ------------------------------------------------------------------ the directed history


def _directed(plan: Plan) -> Iterator[Operation]:
    """Every situation of a row by its shortest path, then those of a batch and of a slot's life.

    Paths are walked side by side, as many as there are slots; each group meets the slots of the
    one before it, with what that left in them.
    """
    setup, ring = plan.setup, DIALECTS[plan.setup.dialect].has_ring
    paths = directed_steps(setup)
    runs = [*paths.values()]
    if ring:
        # A request on the brink of a fold beside one that is far from it makes a batch mixed and
        # ragged. The other has a record too, if the ring has room, which must not fold as well.
        brink, T = paths["fold"][:-1], setup.window
        calm = [(T, 0)] * len(brink)
        if calm and not protocol_of(setup).due(1, setup.ring, T):
            calm[0] = (T, 1)
        runs += [[*brink, (T, T)], [*calm, (1, 1)]][: setup.slots - 1]
    together = min(plan.rows, setup.slots - 1)
    runs.sort(key=len)  # those walked side by side end at about the same time
    tag, request = 0, 0
    for start in range(0, len(runs), together):
        group = dict(enumerate(runs[start : start + together], start=request))
        request += len(group)
        for member in group:
            tag += 1
            yield Admit(request=member, tag=tag, dead="nan")
        for step in range(max(map(len, group.values()))):
            tag += 1
            going = {member: run[step] for member, run in group.items() if step < len(run)}
            rows: list[int | None] = [*going]
            lengths = [length for length, _ in going.values()]
            accepted: list[int | None] = [n for _, n in going.values()]
            at = tag % (len(going) + 1)  # the padding row stands now in front, now behind
            rows.insert(at, None)
            lengths.insert(at, 1)
            accepted.insert(at, None)
            yield Verify(tag=tag, rows=tuple(rows), lengths=tuple(lengths), dead="nan")
            yield Commit(tag=tag, accepted=tuple(accepted), dead="nan")
        for member in group:
            yield Free(request=member)
    yield from _two_lives(plan, request, tag)


def _two_lives(plan: Plan, first: int, tag: int) -> Iterator[Operation]:
    """Two requests in used slots: one forks from the other, their steps cross, a batch idles.

    Their gates are ordinary: what slow ones would hide from a check of outputs shows here. Dead
    memory is finite: who writes where NaN was, from NaN, changes nothing that a frame could see.
    """
    T, second = plan.setup.window, first + 1
    alone, crossed, together = tag + 2, tag + 3, tag + 4
    idle = [Idle(rows=2)] if "idle" in plan.operations else []
    yield Admit(request=first, tag=tag + 1, dead="garbage")
    yield Verify(tag=alone, rows=(first,), lengths=(T,), profile=GATED)
    if plan.setup.slots <= 2:
        yield Commit(tag=alone, accepted=(1,))
        return
    yield Commit(tag=alone, accepted=(0,))
    if "fork" in plan.operations:
        yield Fork(request=second, source=first)
    else:
        yield Admit(request=second, tag=tag + 2)
    yield Verify(tag=crossed, rows=(first,), lengths=(T,), profile=GATED)
    yield Verify(tag=together, rows=(second,), lengths=(T,), profile=GATED)
    yield from idle
    yield Commit(tag=crossed, accepted=(1,))
    yield from idle
    yield Commit(tag=together, accepted=(T,))
    yield Verify(tag=together + 1, rows=(second, first), lengths=(1, T), profile=GATED)
    yield Commit(tag=together + 1, accepted=(0, T))


# ------------------------------------------------------------------ random histories


class _Flight(NamedTuple):
    """A verify that is not committed yet."""

    tag: int
    rows: tuple[int | None, ...]
    lengths: tuple[int, ...]


class _Random:
    """One random history in the making; how often things happen is itself drawn, per history."""

    def __init__(self, plan: Plan, random: np.random.Generator) -> None:
        self.plan, self.setup, self.random = plan, plan.setup, random
        self.ring = DIALECTS[plan.setup.dialect].has_ring
        self.protocol = protocol_of(plan.setup)
        self.cursors: dict[int, Cursors] = {}
        self.bounds: dict[int, int] = {}  # the longest window that a request may bring next
        self.flights: list[_Flight] = []
        self.tag = self.next_request = 0
        self.dead: tuple[Dead, ...] = (("leave",), ("garbage",), ("nan",), ("leave", "nan"))[
            random.integers(4)
        ]
        self.padding, self.partial, self.ragged = random.random(3) * (0.5, 1.0, 1.0)
        self.greed = random.choice((0.2, 0.6, 0.9))  # how much of a window tends to be accepted
        self.tightening = random.choice((0.0, 0.0, 0.5))  # how often a commit's bound is drawn
        self.colour = random.choice((0.0, 0.1, 0.5))  # how often a window has its own profile
        choices: dict[str, tuple[float, Callable[[], Iterator[Operation]]]] = {
            "verify": (10.0, self._verify),
            "commit": (10.0, self._commit),
            "admit": (2.0, self._admit),
            "place": (2.0, self._place),
            "free": (1.5, self._free),
            "fork": (3.0, self._fork),
            "decode": (1.5, self._decode),
            "idle": (0.5, self._idle),
        }
        self.kinds = [kind for kind in choices if kind in plan.operations]
        self.make = {kind: choices[kind][1] for kind in self.kinds}
        # Most kinds are now and then off altogether: what they interrupt then runs long.
        keep = {"verify", "commit", "admit"} if "verify" in self.kinds else {"decode", "admit"}
        weights = np.array(
            [choices[k][0] * (k in keep or random.random() < 0.7) for k in self.kinds]
        )
        self.weights = weights / weights.sum()

    def history(self) -> Iterator[Operation]:
        steps = 0
        # Seat a full house first: batches are as large as they can be.
        for _ in range(int(self.random.integers(1, self._seats() + 1))):
            yield from self._admit()
        while steps < self.plan.steps:
            for operation in self.make[str(self.random.choice(self.kinds, p=self.weights))]():
                yield operation
                steps += isinstance(operation, Verify | Decode)
        while self.flights:
            yield from self._commit()

    def _admit(self) -> Iterator[Operation]:
        if len(self.cursors) < self._seats():
            request = self._seat(self.protocol.reset(self.setup.ring, self.setup.window))
            yield Admit(request=request, tag=self._tag(), dead=self._dead())

    def _place(self) -> Iterator[Operation]:
        if self.ring and len(self.cursors) < self._seats():
            states = reachable(self.setup.ring, self.setup.window, self.protocol).states
            at = states[self.random.integers(len(states))]
            yield Place(
                request=self._seat(at),
                tag=self._tag(),
                base=at.cache_base,
                records=at.write_pos,
                flush=bool(at.is_flush),
                profile=self._profile(),
                dead=self._dead(),
            )

    def _free(self) -> Iterator[Operation]:
        if len(self.cursors) > 1:
            request = self._some(list(self.cursors), 1)[0]
            del self.cursors[request]
            yield Free(request=request, dead=self._dead())

    def _fork(self) -> Iterator[Operation]:
        idle = [r for r in self._idle_requests() if self.cursors[r].write_pos == 0]
        if idle and len(self.cursors) < self._seats():
            source = self._some(idle, 1)[0]
            request = self._seat(self.protocol.reset(self.setup.ring, self.setup.window))
            yield Fork(request=request, source=source, dead=self._dead())

    def _verify(self) -> Iterator[Operation]:
        if not (idle := self._idle_requests()):
            return
        most = min(len(idle), self.plan.rows)
        count = most
        if self.random.random() < self.partial:
            count = int(self.random.integers(1, most + 1))
        rows = self._padded(self._some(idle, count))
        T = self.setup.window
        lengths = np.array([T if row is None else self.bounds[row] for row in rows])
        if self.random.random() < self.ragged:
            lengths = self.random.integers(1, lengths + 1)
        flight = _Flight(self._tag(), rows, tuple(map(int, lengths)))
        self.flights.append(flight)
        yield Verify(
            tag=flight.tag,
            rows=rows,
            lengths=flight.lengths,
            profile=self._profile(),
            dead=self._dead(),
        )

    def _commit(self) -> Iterator[Operation]:
        if not self.flights:
            return
        flight = self.flights.pop(self.random.integers(len(self.flights)))
        accepted: list[int | None] = []
        counts: dict[int, int] = {}
        for row, length in zip(flight.rows, flight.lengths, strict=True):
            if row is None or row not in self.cursors:
                accepted.append(None)
                continue
            drawn = self.random.random()
            n = (
                int(self.random.binomial(length, self.greed))
                if drawn < 0.7
                else (0, length)[int(drawn < 0.85)]
            )
            accepted.append(n)
            counts[row] = n
        bound = self._advance(counts)
        track = None
        if "track" in self.plan.operations and self.random.random() < TRACKING:
            track = int(self.random.integers(1, self.setup.window + 1))
        yield Commit(
            track=track,
            tag=flight.tag,
            accepted=tuple(accepted),
            bound=None if bound == self.setup.window else bound,
            dead=self._dead(),
        )

    def _decode(self) -> Iterator[Operation]:
        # A decode commits with the longest bound, for which a tight one may have left no room.
        room = {request: self._room(request, 1) for request in self._idle_requests()}
        if idle := [request for request, longest in room.items() if longest == self.setup.window]:
            most = min(len(idle), self.plan.rows)
            some = self._some(idle, int(self.random.integers(1, most + 1)))
            self._move(dict.fromkeys(some, 1), self.setup.window)
            yield Decode(
                tag=self._tag(),
                rows=self._padded(some),
                profile=self._profile(),
                dead=self._dead(),
            )

    def _idle(self) -> Iterator[Operation]:
        yield Idle(rows=int(self.random.integers(1, 4)), dead=self._dead())

    # What is drawn.

    def _seats(self) -> int:
        return self.setup.slots - 1

    def _seat(self, cursors: Cursors) -> int:
        request = self.next_request
        self.next_request += 1
        self.cursors[request], self.bounds[request] = cursors, self.setup.window
        return request

    def _idle_requests(self) -> list[int]:
        """Seated requests without a window in flight."""
        flying = {row for flight in self.flights for row in flight.rows}
        return [request for request in self.cursors if request not in flying]

    def _some(self, requests: Sequence[int], count: int) -> list[int]:
        return [int(r) for r in self.random.permutation(requests)[:count]]

    def _padded(self, rows: list[int]) -> tuple[int | None, ...]:
        padded: list[int | None] = [*rows]
        while self.random.random() < self.padding:
            padded.insert(int(self.random.integers(len(padded) + 1)), None)
        return tuple(padded)

    def _advance(self, counts: dict[int, int]) -> int:
        """Commit `counts` tokens by request; returns the bound, which every row has room for."""
        bound = min([self.setup.window, *(self._room(r, n) for r, n in counts.items())])
        if self.random.random() < self.tightening:
            bound = int(self.random.integers(1, bound + 1))
        self._move(counts, bound)
        return bound

    def _room(self, request: int, accepted: int) -> int:
        """The longest window that fits behind the history once `accepted` tokens are committed."""
        after, T = self._committed(request, accepted, self.setup.window), self.setup.window
        return min(T, self.setup.ring - int(after.write_pos))

    def _move(self, counts: dict[int, int], bound: int) -> None:
        for request, n in counts.items():
            self.cursors[request] = self._committed(request, n, bound)
            self.bounds[request] = bound

    def _committed(self, request: int, accepted: int, bound: int) -> Cursors:
        return self.protocol.commit(self.cursors[request], accepted, self.setup.ring, bound)

    def _profile(self) -> str | None:
        """Now and then a window's numbers are of another kind than the history's."""
        if self.random.random() >= self.colour:
            return None
        names = sorted(PROFILES)
        return names[self.random.integers(len(names))]

    def _tag(self) -> int:
        self.tag += 1
        return self.tag

    def _dead(self) -> Dead:
        return self.dead[self.random.integers(len(self.dead))]
