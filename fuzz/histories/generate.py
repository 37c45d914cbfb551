"""Histories: a directed one that visits every situation of a setup, and random ones.

Where there is no directed one, the first random one begins with its part that layers and heads
matter to: two requests that share a state and cross their steps. Where batches are large, many
requests then step side by side; at last a large state is erased. Plain decoding has the latter two,
and what the directed history says of numbers at the edge.

A history is a function of (setup, seed, number) and of what earlier histories visited, where it is
told (see `steering.py`). It looks at the protocol's cursors, never at the target, so its windows
are counted before it is walked.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import count
from typing import Final, get_args

import msgspec

from ringfold.fuzz.histories.directed import SLOW, directed, erased, extremes, many_rows, two_lives
from ringfold.fuzz.histories.draws import Draw, Seeded
from ringfold.fuzz.histories.lockstep import in_lockstep
from ringfold.fuzz.histories.profiles import PROFILES
from ringfold.fuzz.histories.rules import commit, rest_of_prompts, usual, whatever_is_next
from ringfold.fuzz.histories.steering import Peaks, Unseen
from ringfold.fuzz.histories.story import Plan, Story
from ringfold.fuzz.histories.swarm import temper
from ringfold.fuzz.histories.trace import (
    Admit,
    Decode,
    Operation,
    PayloadSpec,
    Repeat,
    Trace,
    Verify,
)
from ringfold.fuzz.judging.frame import Dead

DIRECTED: Final = 0
"""Number of the directed history, where a plan has one; the random ones follow."""

SEVERITY: Final = get_args(Dead)


def history(
    plan: Plan,
    seed: int,
    number: int,
    *,
    unseen: Unseen | None = None,
    peaks: Peaks | None = None,
    windows_max: int | None = None,
) -> Trace:
    """History `number` of a run with this seed.

    Args:
        plan: of its configuration.
        seed: of the run.
        number: of the history in its configuration.
        unseen: what earlier ones left to visit; this one seeks that and takes it away. Without it
            a history seeks nothing.
        peaks: what raised the largest errors; now and then one of those is told on.
        windows_max: row-windows that it may verify at most.
    """
    # The setup is part of the key: else all configurations would live through the same story.
    draw = Seeded((seed << 32 | zlib.crc32(str(plan.setup).encode()), number))
    payload = PayloadSpec(seed=draw.integer(0, 2**32 - 1), profile=SLOW)
    first = plan.directed and number == DIRECTED and "verify" in plan.operations
    if not first and draw.chance(0.5):
        payload = msgspec.structs.replace(payload, profile=draw.pick(sorted(PROFILES)))
    habits = temper(draw, usual(plan.operations), seeks=unseen is not None)
    story = Story(plan, draw, habits, unseen or Unseen(plan.setup), windows_max)
    if first:
        story.tell(within(tuple(directed(plan)), windows_max))
    else:
        if number == DIRECTED:
            requests, tags = count(), count(1)
            parts = [two_lives, many_rows, erased]
            if plan.directed:  # nothing is verified
                parts.append(extremes)
            first_steps = [step for part in parts for step in part(plan, requests, tags)]
            story.tell(within(first_steps, windows_max))
        elif peaks is not None and (old := peaks.resumed(draw)) is not None:
            payload = old.payload
            story.tell(within(_cut(draw, old.operations), windows_max))
        _at_random(story)
    return told(plan, payload, story.operations)


def told(plan: Plan, payload: PayloadSpec, operations: Sequence[Operation]) -> Trace:
    """The trace of a story."""
    if plan.lockstep:
        tracks, overlaps = (what in plan.operations for what in ("track", "overlap"))
        operations = in_lockstep(
            operations, plan.setup, tracks=tracks, overlaps=overlaps, chunk=plan.chunk
        )
    return Trace(
        setup=plan.setup,
        payload=payload,
        target=plan.target,
        operations=tuple(_capped(operation, plan.worst) for operation in operations),
    )


def windows(operations: Sequence[Operation]) -> int:
    """Row-windows that a walk verifies, if no finding stops it."""
    total = 0
    for operation in operations:
        match operation:
            case Verify(rows=rows) | Decode(rows=rows):
                total += len(rows) - rows.count(None)
            case Repeat(times=times, operations=inside):
                total += times * windows(inside)
    return total


def _at_random(story: Story) -> None:
    """Follow the rules until there were as many steps as planned, or windows are used up."""
    end = story.steps + story.plan.steps
    if not len(story.seats):
        story.tell(full_house(story))
    while story.steps < end and story.room > 0:
        story.tell(whatever_is_next(story))
    while story.flights:
        story.tell(commit(story))


def full_house(story: Story) -> Sequence[Operation]:
    """Many requests at once, so that batches are as large as they can be from the start."""
    count = story.draw.integer(1, story.vacant)
    first, tag, dead = story.requests, story.next_tag(), story.dead()
    admissions = [
        # Between admissions memory is left alone, so that they are one operation.
        Admit(request=first + i, tag=tag + i, dead=dead if i == count - 1 else "leave")
        for i in range(count)
    ]
    some = [admission.request for admission in admissions[: story.plan.rows]]
    return [*admissions, *rest_of_prompts(story, some, tag + count)]


def _cut(draw: Draw, operations: Sequence[Operation]) -> Sequence[Operation]:
    """A beginning of at least half of them."""
    return operations[: draw.integer(len(operations) // 2, len(operations))]


def within(operations: Sequence[Operation], windows_max: int | None) -> Sequence[Operation]:
    """As many of them as a budget of row-windows allows."""
    left = windows_max
    if left is None:
        return operations
    for i, operation in enumerate(operations):
        left -= windows([operation])
        if left < 0:
            return operations[:i]
    return operations


def _capped(operation: Operation, worst: Dead) -> Operation:
    """The same operation; what it does to dead memory is `worst` at most."""
    if isinstance(operation, Repeat):
        inside = tuple(_capped(inner, worst) for inner in operation.operations)
        operation = msgspec.structs.replace(operation, operations=inside)
    if SEVERITY.index(operation.dead) <= SEVERITY.index(worst):
        return operation
    return msgspec.structs.replace(operation, dead=worst)
