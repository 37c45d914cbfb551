"""Rare places of a protocol, by name: a run that never reached one says so.

A situation is a predicate on a `Step`, the cursors' view of one verify and its commit. Which
situations a setup can reach is found by asking the predicates about every reachable transition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringfold.sim.cursors import RING, Cursors, Protocol, Reachable, Transition, reachable
from ringfold.sim.dialects import DIALECTS, protocol_of
from ringfold.sim.setup import Setup

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Step(NamedTuple):
    """A verify and its commit as cursors see it: arrays over the rows that are not padding."""

    ring: int
    window: int
    """The longest window that a verify may bring."""
    before: Cursors
    """At the verify; zeros for a dialect without a ring."""
    lengths: Ints
    accepted: Ints
    stale: Mask
    """The slot's first verify for this request, and its last owner left other cursors than those
    of a reset in it (for a dialect without a ring: it had verified)."""
    padding: int
    """How many rows of the batch are padding."""
    protocol: Protocol = RING

    @property
    def folded(self) -> Ints:
        """How many records this step replays into each row's checkpoint, at verify or commit."""
        return np.asarray(
            self.protocol.folded(self.before, self.accepted, self.ring, self.window), np.int64
        )

    @property
    def end(self) -> Ints:
        """Where the window ends, counted from ring row 0 of the lap in which it starts."""
        start = (self.before.cache_base + self.before.write_pos) % self.ring
        return np.asarray(start + self.lengths)

    @property
    def folds(self) -> Mask:
        """Rows whose records go into the checkpoint in this step."""
        return np.asarray(self.folded > 0)

    @property
    def plain(self) -> Mask:
        """Rows that do not fold in this step."""
        return np.asarray(self.folded == 0)


class Situation(NamedTuple):
    """A place that a run should visit."""

    name: str
    sentence: str
    scope: Literal["row", "batch", "life"]
    """What decides: a row's cursors, the batch's composition, or the life of a slot."""
    holds: Callable[[Step], Any]
    requests: int = 1
    """How many requests it takes."""


def _some(step: Step) -> Mask:
    return np.asarray((step.accepted > 0) & (step.accepted < step.lengths))


def _differ(values: NDArray[Any]) -> bool:
    return bool(values.size) and bool(values.min() != values.max())


SITUATIONS: Final[tuple[Situation, ...]] = (
    Situation(
        "window wraps",
        "The window's records lie at the ring's end and at its beginning.",
        "row",
        lambda s: s.end > s.ring,
    ),
    Situation(
        "window ends at the ring's end",
        "The window's last record lies in ring row L-1, so the next one starts at row 0.",
        "row",
        lambda s: s.end == s.ring,
    ),
    Situation(
        "window fills the ring",
        "Behind the history the window takes the ring's last free row.",
        "row",
        lambda s: s.before.write_pos + s.lengths == s.ring,
    ),
    Situation(
        "history straddles the wrap",
        "Outputs read records on both sides of the step from ring row L-1 to row 0.",
        "row",
        lambda s: s.plain & (s.before.cache_base + s.before.write_pos > s.ring),
    ),
    Situation(
        "fold",
        "The step moves committed records into the checkpoint.",
        "row",
        lambda s: s.folds,
    ),
    Situation(
        "fold straddles the wrap",
        "The folded records lie on both sides of the step from ring row L-1 to row 0.",
        "row",
        lambda s: s.folds & (s.before.cache_base + s.folded > s.ring),
    ),
    Situation(
        "longest fold",
        "The fold takes L - T records, as many as the protocol ever lets pile up.",
        "row",
        lambda s: s.folds & (s.folded == s.ring - s.window),
    ),
    Situation(
        "forced fold",
        "The step folds because it is asked to, before the ring is full.",
        "row",
        lambda s: s.folds & (s.before.is_flush != 0) & (s.protocol.plain & (s.folded < s.ring)),
    ),
    Situation(
        "none accepted, no fold",
        "A row that does not fold rejects its whole window.",
        "row",
        lambda s: s.plain & (s.accepted == 0),
    ),
    Situation(
        "some accepted, no fold",
        "A row that does not fold keeps the first part of its window.",
        "row",
        lambda s: s.plain & _some(s),
    ),
    Situation(
        "all accepted, no fold",
        "A row that does not fold keeps its whole window.",
        "row",
        lambda s: s.plain & (s.accepted == s.lengths),
    ),
    Situation(
        "none accepted after a fold",
        "A row folds and rejects its whole window: the ring is empty and its base stays.",
        "row",
        lambda s: s.folds & (s.accepted == 0),
    ),
    Situation(
        "some accepted after a fold",
        "A row folds and keeps the first part of its window.",
        "row",
        lambda s: s.folds & _some(s),
    ),
    Situation(
        "all accepted after a fold",
        "A row folds and keeps its whole window.",
        "row",
        lambda s: s.folds & (s.accepted == s.lengths),
    ),
    Situation(
        "mixed batch",
        "Some rows of the batch fold and others do not.",
        "batch",
        lambda s: s.folds.any() and s.plain.any(),
        requests=2,
    ),
    Situation(
        "ragged batch",
        "Rows of the batch have windows of different length.",
        "batch",
        lambda s: _differ(s.lengths),
        requests=2,
    ),
    Situation(
        "padding row",
        "A row of the batch belongs to no request.",
        "batch",
        lambda s: s.padding > 0,
    ),
    Situation(
        "reused slot",
        "A request's first verify finds its slot as another one left it, cursors not at zero.",
        "life",
        lambda s: s.stale,
    ),
)


def situations_of(step: Step) -> set[str]:
    """Names of the situations that some row of `step`, or its batch, is in."""
    return {s.name for s in SITUATIONS if np.any(s.holds(step))}


def reachable_situations(setup: Setup) -> set[str]:
    """Names of the situations that some history of `setup` is in."""
    step = _everything(setup)
    requests = setup.slots - 1
    return {s.name for s in SITUATIONS if s.requests <= requests and np.any(s.holds(step))}


def directed_steps(setup: Setup) -> dict[str, list[tuple[int, int]]]:
    """For each reachable situation of a row, a shortest run of steps from a reset into it.

    A step is (length of the window, tokens accepted). The last one is in the situation, and
    accepts as much as the situation allows, so that later steps depend on what it wrote.
    """
    protocol, step = _protocol(setup), _everything(setup)
    runs = {}
    for situation in SITUATIONS:
        found = np.flatnonzero(situation.holds(step)) if situation.scope == "row" else ()
        if len(found):
            goal = _accepting_most([protocol.transitions[i] for i in found[: setup.window + 1]])
            runs[situation.name] = [(t.length, t.accepted) for t in protocol.path(goal.__eq__)]
    return runs


def _accepting_most(transitions: list[Transition]) -> Transition:
    """Of those with the first one's state and window, the one that accepts most."""
    first = transitions[0]
    alike = (t for t in transitions if (t.before, t.length) == (first.before, first.length))
    return max(alike, key=lambda t: t.accepted)


def _protocol(setup: Setup) -> Reachable:
    """States and transitions of the setup's dialect; one state where there are no cursors."""
    return reachable(setup.ring, setup.window, protocol_of(setup))


def _everything(setup: Setup) -> Step:
    """Every reachable transition as one batch, with a padding row; any of them in a reused slot."""
    every = _protocol(setup)
    before = np.array([t.before for t in every.transitions], np.int64).T
    windows = np.array([(t.length, t.accepted) for t in every.transitions], np.int64)
    leaves_cursors = len(every.states) > 1 or not DIALECTS[setup.dialect].has_ring
    return Step(
        setup.ring,
        setup.window,
        Cursors(*before),
        lengths=windows[:, 0],
        accepted=windows[:, 1],
        stale=np.full(len(windows), leaves_cursors),
        padding=1,
        protocol=protocol_of(setup),
    )
