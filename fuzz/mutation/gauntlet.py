"""What a target is put through before a fault in it counts as missed.

First every situation, by directed histories: on packed memory, of the target's twin, far apart, and
with strides and fences; between them every input of the cursors, heads of other sizes and batches
of many rows; then random histories without end, on each layout in turn.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from ringfold.fuzz.histories.directed import GATED
from ringfold.fuzz.histories.generate import history, told
from ringfold.fuzz.histories.payload import Payload
from ringfold.fuzz.histories.story import Plan
from ringfold.fuzz.histories.trace import Admit, Commit, Operation, PayloadSpec, Trace, Verify
from ringfold.fuzz.judging.walk import Walk
from ringfold.fuzz.mutation.layouts import LAYOUTS, Layout
from ringfold.fuzz.running import tours
from ringfold.fuzz.running.cursor_inputs import walk_cursors
from ringfold.fuzz.running.hunt import plans, plans_with_twin
from ringfold.fuzz.target import Device, Target
from ringfold.fuzz.targets.dropin import DropInRing
from ringfold.sim.setup import Geometry, Setup, SetupError

STEPS_FIRST: Final = 4
STEPS_SIZES: Final = 10
SIZES: Final = (
    ("wide", Geometry(1, 2, 160, 72), 32, 6),
    ("middle", Geometry(2, 2, 97, 64), 8, 2),
    ("narrow", Geometry(3, 3, 32, 8), 8, 2),
)
"""Geometry, ring and window: 5 tiles of 32 along K, and along V a second one of 64, which is not
full; 4 tiles, of which the last has one column, beside one that is full, and as many key heads as
value heads, which are even; and less than the smallest tile along V, with a third key head."""

CROWDS: Final[Sequence[tuple[str, int, Layout]]] = (("crowd", 131, "apart"), ("dozens", 19, "far"))
"""Requests of a batch: more than the 128 rows that kernels of batches look at together, and so few
that they may order them otherwise."""
CROWDED: Final = (Geometry(1, 1, 32, 8), 4, 2)
"""Geometry, ring and window. A row is due to fold as soon as it keeps a token."""

OutOfTime = Callable[[], bool]


class Found(NamedTuple):
    """What a stage came to."""

    check: str
    """The first that failed; empty if none did."""
    sentence: str
    windows: int


Run = Callable[[Target, OutOfTime], Found]

TWIN: Final = "twin"
"""The stage in which the target's twin is walked as a target."""


class Stage(NamedTuple):
    """One part of the gauntlet."""

    name: str
    layout: Layout
    run: Run
    """To be given a target whose memory is laid out so; in stage `TWIN`, the target's twin."""

    def __str__(self) -> str:
        return f"{self.name}, {self.layout}"


def gauntlet(target: Target, name: str, device: Device, seed: int) -> Iterator[Stage]:
    """Every stage, those that take longest behind others, without end."""
    every = plans(target, device, name=name)
    planned = [plan for plan in every if plan.directed]
    # In float32 a fault is not lost in rounding; the last one keeps what was planned, 16 bits.
    directed = [_in_float32(plan) for plan in planned]
    far = min(planned, key=lambda plan: (plan.rows, plan.setup.ring, -plan.setup.window))
    layouts: tuple[Layout, ...] = LAYOUTS if device == "cpu" else ("packed", "apart")
    yield _history(directed[0], seed, 0, "packed")
    cursors = functools.partial(_cursors, plan=tours.Plan(name, device, directed[0].setup))
    yield Stage("cursors", "packed", cursors)
    for plan in plans_with_twin(target, device)[len(every) :]:
        yield _history(_in_float32(plan), seed, 0, "apart")._replace(name=TWIN)
    yield from _sizes(target, name, device, seed)
    yield from _splits(target, name, device, seed)
    yield from (stage for stage in _crowds(target, name, device, seed) if stage.layout in layouts)
    if "far" in layouts:
        yield _history(far, seed, 0, "far")
    yield _history(directed[1 % len(directed)], seed, 0, "apart")
    turn = itertools.cycle(layouts)
    for number in itertools.count(1):
        for plan in every:
            yield _history(plan, seed, number, next(turn))


def _sizes(target: Target, name: str, device: Device, seed: int) -> Iterator[Stage]:
    """Heads of several tiles, and of less than one; a window longer than the shortest block."""
    for size, geometry, ring, window in SIZES:
        for plan in _planned(target, name, device, geometry, ring, window):
            if "verify" in plan.operations:
                payload = PayloadSpec(seed=seed, profile=GATED)
                trace = told(plan, payload, tuple(two_folds(plan.setup)))
                yield Stage(size, "apart", functools.partial(_walked, trace=trace))
            else:
                short = plan._replace(directed=False, steps=STEPS_SIZES)
                yield _history(short, seed, 0, "apart")._replace(name=size)


def two_folds(setup: Setup) -> Iterator[Operation]:
    """Whole windows of one request until it has folded twice, beside one with ragged windows.

    That one has the last slot: what is read behind its state lies behind the pool.
    """
    last = setup.slots - 2
    for request in range(last + 1):
        yield Admit(request=request, tag=request, dead="nan")
    for step in range(2 * setup.ring // setup.window):
        lengths = (setup.window, 1, 1 + step % setup.window)
        accepted = (setup.window, None, step % (lengths[-1] + 1))
        tag = last + 1 + step
        yield Verify(tag=tag, rows=(0, None, last), lengths=lengths, dead="nan")
        yield Commit(tag=tag, accepted=accepted, dead="nan")


def _splits(target: Target, name: str, device: Device, seed: int) -> Iterator[Stage]:
    """Fold and verify launched one at a time, where a launch does both otherwise."""
    if isinstance(target, DropInRing) and target.launch_modes == ("both",):
        _, geometry, ring, window = SIZES[-1]
        for plan in _planned(target, name, device, geometry, ring, window):
            both = _history(plan, seed, 0, "packed")
            yield both._replace(name="split", run=functools.partial(_split, run=both.run))


def _crowds(target: Target, name: str, device: Device, seed: int) -> Iterator[Stage]:
    """Batches of many rows, by a target that verifies them."""
    for plan in _planned(target, name, device, *CROWDED):
        if "verify" in plan.operations and not plan.lockstep:
            for crowded, size, layout in CROWDS:
                roomy = msgspec.structs.replace(plan.setup, slots=size + 1)
                payload = PayloadSpec(seed=seed, profile=GATED)
                trace = told(plan._replace(setup=roomy), payload, tuple(crowd(size)))
                yield Stage(crowded, layout, functools.partial(_walked, trace=trace))


def crowd(size: int) -> Iterator[Operation]:
    """Steps of many requests: none is due to fold, then one in seven, most, and three in eight."""
    for request in range(size):
        # Between admissions memory is left alone, so that they are one operation.
        yield Admit(request=request, tag=request, dead="nan" if request == size - 1 else "leave")
    kept: tuple[Callable[[int], bool], ...] = (
        lambda request: request % 7 == 3,
        lambda request: request % 9 != 4,
        lambda request: request % 8 in (0, 3, 5),
        lambda request: request % 2 == 1,
    )
    for step, keeps in enumerate(kept):
        order = [(5 * i + step) % size for i in range(size)]
        rows = (None, *order[: size // 2], None, *order[size // 2 :])
        lengths = tuple(1 if row is None else 1 + row % 2 for row in rows)
        accepted = tuple(None if row is None else int(keeps(row)) for row in rows)
        tag = size + step
        yield Verify(tag=tag, rows=rows, lengths=lengths, dead="nan")
        yield Commit(tag=tag, accepted=accepted, dead="nan")


def _planned(
    target: Target, name: str, device: Device, geometry: Geometry, ring: int, window: int
) -> list[Plan]:
    """The plan of a size in float32; none if the target refuses it."""
    try:
        return plans(
            target,
            device,
            name=name,
            geometry=geometry,
            ring=ring,
            window=window,
            dtype="float32",
        )[:1]
    except SetupError:
        return []


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
    return _walked(target, out_of_time, history(plan, seed, number))


def _walked(target: Target, out_of_time: OutOfTime, trace: Trace) -> Found:
    """To the first mismatch: what a walk goes on to find after it would be found for nothing."""
    payload = Payload(trace.setup, trace.payload.seed, trace.payload.profile)

    def done() -> bool:
        return out_of_time() or bool(walk.judge.mismatches)

    walk = Walk(trace, target, payload, out_of_time=done)
    verdict = walk.run()
    if not verdict.mismatches:
        return Found("", "", verdict.windows)
    first = verdict.mismatches[0]
    return Found(first.check, first.sentence(), verdict.windows)


def _split(target: Target, out_of_time: OutOfTime, run: Run) -> Found:
    assert isinstance(target, DropInRing)
    modes = target.launch_modes
    target.launch_modes = ("flush", "verify")
    try:
        return run(target, out_of_time)
    finally:
        target.launch_modes = modes


def _cursors(target: Target, out_of_time: OutOfTime, plan: tours.Plan) -> Found:
    walked = walk_cursors(plan)
    if walked.refused:
        return Found("crash", walked.refused, 0)
    return Found("cursors" if walked.wrong else "", walked.example, 0)
