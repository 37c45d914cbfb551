"""What a target is put through before a fault in it counts as missed.

First every situation, by directed histories: on packed memory, of the target's twin, with strides
and fences, and far apart; then every input of the cursors; then random histories without end, on
each layout in turn.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from ringfold.fuzz import explore
from ringfold.fuzz.generate import history
from ringfold.fuzz.hunt import plans, plans_with_twin
from ringfold.fuzz.mutation.layouts import LAYOUTS, Layout
from ringfold.fuzz.payload import Payload
from ringfold.fuzz.story import Plan
from ringfold.fuzz.target import Device, Target
from ringfold.fuzz.walk import Walk
from ringfold.sim.setup import Geometry, SetupError

STEPS_FIRST: Final = 4
STEPS_SIZES: Final = 10
SIZES: Final = (
    ("wide", Geometry(1, 2, 160, 72), 32, 6),
    ("narrow", Geometry(1, 1, 32, 8), 8, 2),
)
"""Geometry, ring and window: 5 tiles of 32 along K, and along V a second one of 64, which is not
full; and less than the smallest tile along V."""

OutOfTime = Callable[[], bool]


class Found(NamedTuple):
    """What a stage came to."""

    check: str
    """The first that failed; empty if none did."""
    sentence: str
    windows: int


TWIN: Final = "twin"
"""The stage in which the target's twin is walked as a target."""


class Stage(NamedTuple):
    """One part of the gauntlet."""

    name: str
    layout: Layout
    run: Callable[[Target, OutOfTime], Found]
    """To be given a target whose memory is laid out so; in stage `TWIN`, the target's twin."""

    def __str__(self) -> str:
        return f"{self.name}, {self.layout}"


def gauntlet(target: Target, name: str, device: Device, seed: int) -> Iterator[Stage]:
    """Every stage in order, without end."""
    every = plans(target, device, name=name)
    planned = [plan for plan in every if plan.directed]
    # In float32 a fault is not lost in rounding; the last one keeps what was planned, 16 bits.
    directed = [_in_float32(plan) for plan in planned]
    far = min(planned, key=lambda plan: (plan.setup.ring, -plan.setup.window))
    layouts: tuple[Layout, ...] = LAYOUTS if device == "cpu" else ("packed", "apart")
    yield _history(directed[0], seed, 0, "packed")
    for plan in plans_with_twin(target, device)[len(every) :]:
        yield _history(_in_float32(plan), seed, 0, "apart")._replace(name=TWIN)
    yield _history(directed[1 % len(directed)], seed, 0, "apart")
    cursors = functools.partial(_cursors, plan=explore.Plan(name, device, directed[0].setup))
    yield Stage("cursors", "packed", cursors)
    if "far" in layouts:
        yield _history(far, seed, 0, "far")
    yield from _sizes(target, name, device, seed)
    turn = itertools.cycle(layouts)
    for number in itertools.count(1):
        for plan in every:
            yield _history(plan, seed, number, next(turn))


def _sizes(target: Target, name: str, device: Device, seed: int) -> Iterator[Stage]:
    """Heads of several tiles, and of less than one; a window longer than the shortest block."""
    for size, geometry, ring, window in SIZES:
        try:
            plan = plans(
                target,
                device,
                name=name,
                geometry=geometry,
                ring=ring,
                window=window,
                dtype="float32",
            )[0]
        except SetupError:
            continue  # the target refuses it
        plan = plan._replace(directed=False, steps=STEPS_SIZES)
        yield _history(plan, seed, 0, "apart")._replace(name=size)


def _in_float32(plan: Plan) -> Plan:
    dtypes = msgspec.structs.replace(plan.setup.dtypes, activation="float32", record="float32")
    return plan._replace(setup=msgspec.structs.replace(plan.setup, dtypes=dtypes))


def first_steps(target: Target, name: str, device: Device, seed: int) -> Iterator[Stage]:
    """A few steps of each configuration: code that only some of them run is run by this."""
    for plan in plans(target, device, name=name):
        yield _history(plan._replace(directed=False, steps=STEPS_FIRST), seed, 0, "packed")


def _history(plan: Plan, seed: int, number: int, layout: Layout) -> Stage:
    kind = "directed" if plan.directed and number == 0 else "random"
    return Stage(kind, layout, functools.partial(_walk, plan=plan, seed=seed, number=number))


def _walk(target: Target, out_of_time: OutOfTime, plan: Plan, seed: int, number: int) -> Found:
    """To the first mismatch: what a walk goes on to find after it would be found for nothing."""
    trace = history(plan, seed, number)
    payload = Payload(trace.setup, trace.payload.seed, trace.payload.profile)

    def done() -> bool:
        return out_of_time() or bool(walk.judge.mismatches)

    walk = Walk(trace, target, payload, out_of_time=done)
    verdict = walk.run()
    if not verdict.mismatches:
        return Found("", "", verdict.windows)
    first = verdict.mismatches[0]
    return Found(first.check, first.sentence(), verdict.windows)


def _cursors(target: Target, out_of_time: OutOfTime, plan: explore.Plan) -> Found:
    walked = explore.walk_cursors(plan)
    if walked.refused:
        return Found("crash", walked.refused, 0)
    return Found("cursors" if walked.wrong else "", walked.example, 0)
