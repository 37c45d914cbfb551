"""Exploring: every step that the protocol allows, on the real target, judged by the same walk.

A *transition* is a reachable cursor state, the length of a window and how much of it is accepted.
Each becomes a row of a large batch: its request is placed in the state, verifies, commits, and
verifies and commits a full window more, so that what the first step wrote is read or folded. Dead
memory is NaN throughout, unless something milder is asked for. A batch that fails is cut in two
until single transitions fail (or batches whose halves do not), and the first of each cause is
shrunk.

The cursors' own kernel is small enough to try *every* input, reachable or not, in a few launches.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz import arrays, failures
from ringfold.fuzz import shrink as shrinking
from ringfold.fuzz.campaign import cores
from ringfold.fuzz.frame import Dead
from ringfold.fuzz.payload import Payload
from ringfold.fuzz.placing import place_cursors
from ringfold.fuzz.shrink import Written
from ringfold.fuzz.target import Device, RefusedError, Request, Target, refusal
from ringfold.fuzz.targets.registry import resolve
from ringfold.fuzz.trace import (
    Commit,
    Decode,
    Operation,
    PayloadSpec,
    Place,
    Symptom,
    Trace,
    Verify,
)
from ringfold.fuzz.walk import walk
from ringfold.sim.cursors import Cursors, Reachable, Transition, reachable
from ringfold.sim.dialects import DIALECTS, protocol_of
from ringfold.sim.setup import Setup

BATCH_ROWS_MAX: Final = {"cpu": 128, "cuda": 4096}
BATCH_ELEMENTS_MAX: Final = 2**23
"""State elements in a batch: the oracle walks float64 copies of them."""
CURSOR_ROWS_MAX: Final = 4096
WORKERS_MAX: Final = {"cpu": 64, "cuda": 8}
"""The oracle of a few processes keeps one GPU busy."""
FAILING_MAX: Final = 2
"""Failing transitions that are isolated in one batch; what is left of it then counts as uncovered,
or a target that is wrong everywhere would have to be walked row by row."""
PROFILE: Final = "slow-decay"


class Explored(msgspec.Struct):
    """What an exploration covered and found."""

    target: str
    device: Device
    setup: str
    states: int
    """Reachable cursor states."""
    transitions: int
    """Those states crossed with every window length and every count accepted."""
    covered: int = 0
    """Transitions that were walked to their end, or shown to fail by themselves."""
    coverage: float = 0.0
    failing: int = 0
    """Transitions that fail by themselves, and batches that fail only as a whole."""
    windows: int = 0
    """Row-windows verified and judged."""
    cursor_inputs: int = 0
    """Inputs of a commit's cursors that were tried, reachable or not."""
    cursor_inputs_wrong: int = 0
    cursor_example: str = ""
    """The first that is wrong."""
    counterexamples: list[Written] = []
    """The shortest for each cause."""
    largest: dict[str, float] = {}
    """Largest error that was seen, over what is allowed, by check."""
    seconds: float = 0.0
    inconclusive: list[str] = []


class Walked(msgspec.Struct):
    """What came of one batch."""

    covered: int = 0
    windows: int = 0
    failing: list[tuple[int, Trace, Symptom]] = []
    """Number of the (first) transition, the history that shows it, and why it fails."""
    largest: dict[str, float] = {}


class Plan(NamedTuple):
    """What every worker knows."""

    target: str
    device: Device
    setup: Setup
    dead: Dead = "nan"
    """What dead memory is filled with, after everything."""


# ------------------------------------------------------------------ one batch


def protocol_steps(setup: Setup) -> Reachable:
    """States and transitions of the setup's dialect."""
    return reachable(setup.ring, setup.window, protocol_of(setup))


def history(plan: Plan, transitions: Sequence[Transition]) -> Trace:
    """One request for each transition, all in one batch, and a padding row behind them."""
    count, T = len(transitions), plan.setup.window
    requests = range(count)
    rows = (*requests, None)
    places = [
        Place(
            request=request,
            tag=request,
            base=step.before.cache_base,
            records=step.before.write_pos,
            flush=bool(step.before.is_flush),
            # Between places memory is left alone, so that they are one operation.
            dead=plan.dead if request == count - 1 else "leave",
        )
        for request, step in zip(requests, transitions, strict=True)
    ]
    lengths = (*(step.length for step in transitions), 1)
    accepted = (*(step.accepted for step in transitions), None)
    steps: tuple[Operation, ...] = (
        Verify(tag=count, rows=rows, lengths=lengths, dead=plan.dead),
        Commit(tag=count, accepted=accepted, dead=plan.dead),
        Verify(tag=count + 1, rows=rows, lengths=(*[T] * count, 1), dead=plan.dead),
        Commit(tag=count + 1, accepted=(*[T] * count, None), dead=plan.dead),
    )
    if not DIALECTS[plan.setup.dialect].verifies:
        steps = tuple(Decode(tag=count + i, rows=rows, dead=plan.dead) for i in range(2))
    return Trace(
        setup=msgspec.structs.replace(plan.setup, slots=count + 1),
        payload=PayloadSpec(seed=0, profile=PROFILE),
        target=plan.target,
        operations=(*places, *steps),
    )


@functools.cache
def _target(name: str, device: Device) -> Target:
    """One instance a process, since its modules and compiled kernels are worth keeping."""
    return resolve(name, device)


def walk_batch(plan: Plan, numbers: Sequence[int]) -> Walked:
    """Walk some of the transitions as one batch; if it fails, its halves."""
    walked = Walked()
    _walk_halves(plan, numbers, walked)
    return walked


def _walk_halves(plan: Plan, numbers: Sequence[int], walked: Walked) -> bool:
    """Add to `walked`; returns whether these transitions fail."""
    steps, target = protocol_steps(plan.setup).transitions, _target(plan.target, plan.device)
    trace = history(plan, [steps[i] for i in numbers])
    verdict = walk(trace, target)
    walked.windows += verdict.windows
    if not verdict.mismatches:
        walked.covered += len(numbers)
        for check, ratio in verdict.largest.items():
            walked.largest[check] = max(walked.largest.get(check, 0.0), ratio)
        return False
    if len(numbers) == 1:
        walked.covered += 1
    elif len(walked.failing) >= FAILING_MAX:
        return True
    else:
        half = (len(numbers) + 1) // 2
        halves = [_walk_halves(plan, some, walked) for some in (numbers[:half], numbers[half:])]
        if any(halves):
            return True
    # It fails by itself, or as a batch whose halves do not.
    failure = failures.as_failure(trace, verdict.mismatches, dict(target.identity()))
    walked.failing.append((numbers[0], failure, shrinking.cause(verdict.mismatches)))
    return True


def batches(plan: Plan) -> Iterator[range]:
    """Numbers of the transitions, batch by batch."""
    g = plan.setup.geometry
    elements = plan.setup.layers * g.value_heads * g.key_dim * g.value_dim
    most = max(1, min(BATCH_ROWS_MAX[plan.device], BATCH_ELEMENTS_MAX // elements))
    total = len(protocol_steps(plan.setup).transitions)
    for start in range(0, total, most):
        yield range(start, min(start + most, total))


# ------------------------------------------------------------------ the cursors alone


class CursorInputs(NamedTuple):
    """Commits as cursors see them, arrays [input]."""

    before: Cursors
    accepted: NDArray[np.int64]
    bound: NDArray[np.int64]


def cursor_inputs(setup: Setup) -> CursorInputs:
    """Every input for which there is room in the ring: a superset of what is reachable."""
    L, T, protocol = setup.ring, setup.window, protocol_of(setup)
    at_verify = protocol.folds_at == "verify"
    flags = (0, 1) if at_verify else (0,)
    grid = itertools.product(range(L + 1), range(L), flags, range(T + 1), range(1, T + 1))
    write_pos, base, flag, accepted, bound = np.array(list(grid), np.int64).T
    fits = (write_pos + accepted <= L) | (flag != 0)
    return CursorInputs(
        Cursors(write_pos[fits], base[fits], flag[fits]), accepted[fits], bound[fits]
    )


class CursorsWalked(msgspec.Struct):
    """What came of all inputs."""

    inputs: int = 0
    wrong: int = 0
    example: str = ""
    """The first that is wrong."""
    refused: str = ""
    """Why they could not be tried."""


def walk_cursors(plan: Plan) -> CursorsWalked:
    """Commit every input on the target, without a verify before: the rings hold nothing.

    Each batch has a padding row at either end. Only cursors are looked at.
    """
    setup, target = plan.setup, _target(plan.target, plan.device)
    walked = CursorsWalked()
    dialect = DIALECTS[setup.dialect]
    if not dialect.has_ring or not dialect.verifies:  # a decode step has no commit of its own
        return walked
    if because := refusal(target, setup):
        raise RefusedError(f"target {target.name}: {because}")
    inputs = cursor_inputs(setup)
    g = setup.geometry
    state = np.zeros((setup.layers, g.value_heads, g.value_dim, g.key_dim), np.float32)
    rows = min(CURSOR_ROWS_MAX, inputs.accepted.size)
    target.open(
        msgspec.structs.replace(setup, slots=rows + 1), Payload(setup, 0, PROFILE).parameters()
    )
    requests = list(range(rows))
    for request in requests:
        target.admit(request, state)
    for bound in range(1, setup.window + 1):
        at = np.flatnonzero(inputs.bound == bound)
        for start in range(0, at.size, rows):
            some = at[start : start + rows]
            before = Cursors(*(c[some] for c in inputs.before))
            accepted = inputs.accepted[some]
            try:
                got = _committed(target, requests[: some.size], before, accepted, bound)
            except Exception as error:  # noqa: BLE001 - a target may insist on a verify
                walked.refused = f"a commit without a verify raised {error!r}"
                return walked
            right = protocol_of(setup).commit(before, accepted, setup.ring, bound)
            differs = np.any(np.array(got) != np.array(right), axis=0)
            walked.inputs += some.size
            walked.wrong += int(differs.sum())
            if differs.any() and not walked.example:
                i = int(np.flatnonzero(differs)[0])
                walked.example = (
                    f"commit of {accepted[i]} with bound {bound} at {_shown(before, i)}: "
                    f"expected {_shown(right, i)}, got {_shown(got, i)}"
                )
    return walked


def _committed(
    target: Target,
    requests: Sequence[Request],
    before: Cursors,
    accepted: NDArray[np.int64],
    bound: int,
) -> Cursors:
    """What the target makes of `before`."""
    place_cursors(target, requests, before)
    target.commit([None, *requests, None], [0, *map(int, accepted), 0], bound)
    views = target.views()
    after = []
    for name in Cursors._fields:
        axis = views[name].buffer.axes[0]
        at = np.array([target.seat(request)[axis] for request in requests])
        after.append(arrays.take(views[name].array, (at,)).astype(np.int64))
    return Cursors(*after)


def _shown(cursors: Cursors, i: int) -> str:
    return f"({', '.join(f'{name} {int(c[i])}' for name, c in cursors._asdict().items())})"


# ------------------------------------------------------------------ all of it


def _shrunk(plan: Plan, failure: Trace, run_dir: Path, seconds_max: float) -> Written:
    target = _target(plan.target, plan.device)
    shrunk = shrinking.shrink(failure, target, seconds_max=seconds_max)
    return shrinking.write(failure, shrunk, Path(), run_dir, plan.device)


def explore(
    name: str,
    setup: Setup,
    device: Device = "cpu",
    *,
    dead: Dead = "nan",
    run_dir: Path | None = None,
    workers: int | None = None,
    seconds_max: float | None = None,
    on_progress: Callable[[Explored], None] = lambda report: None,
) -> Explored:
    """Every transition and every cursor input of `setup` on the target called `name`."""
    started = time.monotonic()
    plan, steps = Plan(name, device, setup, dead), protocol_steps(setup)
    report = Explored(name, device, str(setup), len(steps.states), len(steps.transitions))
    todo = list(batches(plan))
    # One thread of linear algebra a worker: the workers are the parallelism.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    count = workers or min(cores(), WORKERS_MAX[device], len(todo) + 1)
    failing: list[tuple[int, Trace, Symptom]] = []
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        cursors = pool.submit(walk_cursors, plan)
        futures = [pool.submit(walk_batch, plan, numbers) for numbers in todo]
        try:
            left = None if seconds_max is None else seconds_max - (time.monotonic() - started)
            for future in as_completed(futures, left):
                walked = future.result()
                report.covered += walked.covered
                report.windows += walked.windows
                failing += walked.failing
                for check, ratio in walked.largest.items():
                    report.largest[check] = max(report.largest.get(check, 0.0), ratio)
                on_progress(report)
        except TimeoutError:
            report.inconclusive.append("the time limit came first")
        for future in futures:
            future.cancel()
        alone = cursors.result()
        report.cursor_inputs, report.cursor_inputs_wrong = alone.inputs, alone.wrong
        report.cursor_example = alone.example
        if alone.refused:
            report.inconclusive.append(f"the cursors alone could not be tried: {alone.refused}")
        report.failing = len(failing)
        report.coverage = report.covered / report.transitions
        first: dict[tuple[str, str], Trace] = {}
        for _, trace, cause in sorted(failing, key=lambda each: each[0]):
            first.setdefault((cause.check, cause.symptom), trace)
        shrunk = [
            pool.submit(_shrunk, plan, trace, run_dir or Path(), shrinking.SECONDS_MAX)
            for trace in first.values()
        ]
        written = {one.digest: one for one in (future.result() for future in shrunk)}
    report.counterexamples = sorted(written.values(), key=lambda one: (one.steps, one.operations))
    if report.coverage < 1.0 and failing:
        report.inconclusive.append(
            f"{report.transitions - report.covered} transitions share a batch with ones that fail: "
            "repair those first"
        )
    report.largest = dict(sorted(report.largest.items()))
    report.seconds = round(time.monotonic() - started, 3)
    return report
