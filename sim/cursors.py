"""The cursor machines of all protocols, as tables.

Each slot has three integers: `write_pos` (records that are live), `cache_base` (physical row of
the first) and `is_flush` (the next verify folds). They move at a commit and at a reset, and
nowhere else. To learn the rules read `COMMIT`; to change a rule change a line of it. A `Protocol`
is such a table with the moment of its fold; `RING` is the one that `COMMIT` belongs to, and what
the functions of this module follow unless told otherwise.

`L` is the ring's length, `T` the window bound that is handed to the commit: the flag says whether
the *next* window, if as long as the bound, could leave no room for the one after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Cursors(NamedTuple):
    """Cursors of one slot (ints) or of many (equal-shaped int64 arrays)."""

    write_pos: Any
    cache_base: Any
    is_flush: Any


class Rule(NamedTuple):
    """One row of the table: where `when` holds, the cursors become these."""

    name: str
    when: Callable[[Cursors, Ints], Any]
    write_pos: Callable[[Cursors, Ints], Any]
    cache_base: Callable[[Cursors, Ints, int], Any]


# c: cursors before the commit; n: tokens accepted; L: ring length
COMMIT: tuple[Rule, ...] = (
    Rule(
        "fold, keep n",
        when=lambda c, n: (c.is_flush != 0) & (n > 0),
        write_pos=lambda c, n: n,
        cache_base=lambda c, n, L: (c.cache_base + c.write_pos) % L,
    ),
    Rule(
        "fold, keep none",
        when=lambda c, n: (c.is_flush != 0) & (n == 0),
        write_pos=lambda c, n: n,
        cache_base=lambda c, n, L: c.cache_base,
    ),
    Rule(
        "append",
        when=lambda c, n: c.is_flush == 0,
        write_pos=lambda c, n: c.write_pos + n,
        cache_base=lambda c, n, L: c.cache_base,
    ),
)


def due(write_pos: Any, L: int, T: int) -> Any:
    """Whether a slot with `write_pos` live records must fold at its next verify."""
    return write_pos + 2 * T > L


def reset(L: int, T: int) -> Cursors:
    """Cursors of a slot that was just given to a request."""
    return Cursors(0, 0, int(due(0, L, T)))


def commit(
    cursors: Cursors, accepted: Any, L: int, T: int, rules: tuple[Rule, ...] = COMMIT
) -> Cursors:
    """Cursors after a commit of `accepted` tokens (0 up to the window's length, bonus included).

    Works on ints and, elementwise, on arrays.
    """
    after = _apply(rules, cursors, accepted, L)
    return _plain(after._replace(is_flush=due(after.write_pos, L, T).astype(np.int64)))


def _apply(rules: tuple[Rule, ...], cursors: Cursors, accepted: Any, L: int) -> Cursors:
    """Move `write_pos` and `cache_base` by the one rule that holds."""
    before = Cursors(*(np.asarray(c, np.int64) for c in cursors))
    n = np.asarray(accepted, np.int64)
    cases = [rule.when(before, n) for rule in rules]
    write_pos = np.select(cases, [np.asarray(r.write_pos(before, n)) for r in rules])
    base = np.select(cases, [np.asarray(r.cache_base(before, n, L)) for r in rules])
    return Cursors(write_pos, base, before.is_flush)


def _plain(cursors: Cursors) -> Cursors:
    """Ints for one slot, arrays for many."""
    return cursors if cursors.write_pos.ndim else Cursors(*(int(c) for c in cursors))


# c: cursors with the accepted tokens appended and the flag set anew; a fold empties the ring
FOLD_AT_COMMIT: tuple[Rule, ...] = (
    Rule(
        "fold all",
        when=lambda c, n: c.is_flush != 0,
        write_pos=lambda c, n: 0 * n,
        cache_base=lambda c, n, L: (c.cache_base + c.write_pos) % L,
    ),
    Rule(
        "append",
        when=lambda c, n: c.is_flush == 0,
        write_pos=lambda c, n: c.write_pos,
        cache_base=lambda c, n, L: c.cache_base,
    ),
)


# c: as above; records always start at ring row 0
DECODE: tuple[Rule, ...] = (
    Rule(
        "fold all",
        when=lambda c, n: c.is_flush != 0,
        write_pos=lambda c, n: 0 * n,
        cache_base=lambda c, n, L: c.cache_base,
    ),
    FOLD_AT_COMMIT[1],
)


class Protocol(NamedTuple):
    """How the cursors of one dialect move, and when its records reach the checkpoint."""

    name: str
    rules: tuple[Rule, ...]
    folds_at: Literal["verify", "commit"]
    due: Callable[[Any, int, int], Any]
    """Whether that many live records call for a fold: (write_pos, L, T)."""
    plain: bool = False
    """Nothing is drafted: a step is one token, which is kept. The ring starts at row 0, and whoever
    is about to read the checkpoint raises `is_flush`, at any time, to have the next step fold."""

    def reset(self, L: int, T: int) -> Cursors:
        """Cursors of a slot that was just given to a request."""
        return Cursors(0, 0, int(self.folds_at == "verify" and self.due(0, L, T)))

    def commit(self, cursors: Cursors, accepted: Any, L: int, T: int) -> Cursors:
        """Cursors after a commit of `accepted` tokens; ints, or elementwise on arrays."""
        if self.folds_at == "verify":
            return commit(cursors, accepted, L, T, self.rules)
        appended = np.asarray(cursors.write_pos, np.int64) + accepted
        due_now = self._due_now(cursors, appended, L, T).astype(np.int64)
        after = _apply(self.rules, Cursors(appended, cursors.cache_base, due_now), accepted, L)
        return _plain(after._replace(is_flush=np.zeros_like(after.write_pos)))

    def most(self, L: int, T: int) -> int:
        """How many records a commit leaves waiting at most."""
        if self.folds_at == "verify":
            return L - T
        return max(n for n in range(L) if not self.due(n, L, T))

    def folded(self, cursors: Cursors, accepted: Any, L: int, T: int) -> Any:
        """Records that a step which starts at `cursors` moves into the checkpoint."""
        if self.folds_at == "verify":
            return np.where(cursors.is_flush != 0, cursors.write_pos, 0)
        appended = np.asarray(cursors.write_pos, np.int64) + accepted
        return np.where(self._due_now(cursors, appended, L, T), appended, 0)

    def flags(self, write_pos: int, L: int, T: int) -> tuple[bool, ...]:
        """What `is_flush` may be between two steps, with so many live records."""
        if self.plain:
            return (False, True)
        return (self.folds_at == "verify" and bool(self.due(write_pos, L, T)),)

    def _due_now(self, cursors: Cursors, appended: Ints, L: int, T: int) -> NDArray[np.bool_]:
        """Whether a commit folds that leaves `appended` records waiting."""
        due = np.asarray(self.due(appended, L, T))
        return due | (np.asarray(cursors.is_flush) != 0) if self.plain else due


RING = Protocol("ring", COMMIT, "verify", due)
"""The next verify folds, once two windows might not fit."""

COMPACT = Protocol("compact", FOLD_AT_COMMIT, "commit", due)
"""The commit folds at once, and what it has just accepted too."""

COMPACT_NARROW = Protocol("compact, every commit", FOLD_AT_COMMIT, "commit", lambda n, L, T: n > 0)
"""The same where the checkpoint is narrower than float32: nothing ever waits."""

DECODE_RING = Protocol("decode ring", DECODE, "commit", lambda n, L, T: n >= L, plain=True)
"""Plain decoding: a step that finds L - 1 records, or is asked to, folds them and its own token."""

NO_RING = Protocol(
    "no ring",
    (Rule("stay", lambda c, n: n >= 0, lambda c, n: 0 * n, lambda c, n, L: 0 * n),),
    "commit",
    lambda n, L, T: n < 0,
)
"""There are no cursors: they stand for an empty ring all the time."""


@lru_cache(maxsize=2**16)
def committed(protocol: Protocol, cursors: Cursors, accepted: int, L: int, T: int) -> Cursors:
    """`Protocol.commit` of one slot, remembered: batches of thousands ask the same many times."""
    return protocol.commit(cursors, accepted, L, T)


class Transition(NamedTuple):
    """A verify of `length` tokens in state `before`, then a commit of `accepted` of them."""

    before: Cursors
    length: int
    accepted: int
    after: Cursors


class Reachable(NamedTuple):
    """Every state that a slot can be in after a reset, and every step between two of them."""

    states: tuple[Cursors, ...]  # in breadth-first order from the reset
    transitions: tuple[Transition, ...]

    def path(self, goal: Callable[[Transition], bool]) -> list[Transition]:
        """The shortest run of steps from a reset whose last step satisfies `goal`.

        Empty when no reachable step does.
        """
        arrived: dict[Cursors, Transition | None] = {self.states[0]: None}
        for step in self.transitions:  # breadth-first order, so first arrivals are shortest
            if goal(step):
                run = [step]
                while (previous := arrived[run[-1].before]) is not None:
                    run.append(previous)
                return run[::-1]
            arrived.setdefault(step.after, step)
        return []


@cache
def reachable(L: int, T: int, protocol: Protocol = RING) -> Reachable:
    """Enumerate the protocol: every window length 1..T and every count accepted 0..length.

    Of plain decoding: every step of one token, asked to fold or not.
    """
    start = protocol.reset(L, T)
    states: dict[Cursors, None] = {start: None}
    transitions: list[Transition] = []
    queue = deque([start])

    def arrive(after: Cursors) -> None:
        if after not in states:
            states[after] = None
            queue.append(after)

    while queue:
        before = queue.popleft()
        if protocol.plain:
            arrive(before._replace(is_flush=1))
        for step in _steps(before, L, T, protocol):
            transitions.append(step)
            arrive(step.after)
    return Reachable(tuple(states), tuple(transitions))


def _steps(before: Cursors, L: int, T: int, protocol: Protocol) -> Iterator[Transition]:
    if protocol.plain:
        yield Transition(before, 1, 1, protocol.commit(before, 1, L, T))
        return
    after = [protocol.commit(before, n, L, T) for n in range(T + 1)]
    for length in range(1, T + 1):
        for n in range(length + 1):
            yield Transition(before, length, n, after[n])
