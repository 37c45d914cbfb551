"""A campaign: many histories on some targets, in worker processes, within a budget.

Which histories run, and in which order, is a `Course`: the same seed and the same number of windows
give the same traces and the same verdicts, by any number of workers, unless a time limit cuts the
list.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from ringfold.fuzz import failures, lockstep
from ringfold.fuzz import shrink as shrinking
from ringfold.fuzz.course import Budget, Course, Lot, Turns
from ringfold.fuzz.legality import Class, classify, rank
from ringfold.fuzz.shrink import Shrunk
from ringfold.fuzz.story import Plan
from ringfold.fuzz.target import Device, Target
from ringfold.fuzz.targets.registry import resolve
from ringfold.fuzz.trace import Admit, Commit, Operation, PayloadSpec, Trace, Verify
from ringfold.fuzz.walk import Verdict, walk
from ringfold.fuzz.watch import HANG_SECONDS, Hang, HangingError, Watch
from ringfold.fuzz.workers import Workers
from ringfold.sim.dialects import DIALECTS
from ringfold.sim.situations import reachable_situations

Engine = Literal["seeded", "hypothesis"]
"""Who makes the choices of a history."""

KEPT_MAX: Final = 5
"""Failures of one symptom that are written to disk; all are counted."""

WORKERS_MAX: Final = {"cpu": 64, "cuda": 15}
"""A GPU is so fast that telling histories keeps a core of its own busy."""
ABREAST: Final = 1.5
"""Lots under way for each worker: the next one waits where a worker finds it."""

SHORT_NAMED: Final = 6
"""Configurations short of their quota that a sentence names; the report has all."""

POLL_SECONDS: Final = 0.2
REPORT: Final = "report.json"
REPORT_SECONDS: Final = 5.0
"""How often the report so far is written."""


class Walked(msgspec.Struct):
    """What came of one history."""

    configuration: int
    number: int
    verdict: Verdict
    failure: Trace | None = None
    flaky: bool = False
    """A second walk of the failing trace did not find the same."""


class Finding(msgspec.Struct):
    """Mismatches that share check, symptom and target."""

    target: str
    check: str
    symptom: str
    histories: int
    """In how many histories it was seen."""
    sentence: str
    """The first of them."""
    trace: str
    """The smallest history that shows it, if it was shrunk."""
    reproduce: str
    flaky: bool
    """Nowhere did it repeat."""
    found: str = ""
    """The history that showed it first, as it was found."""
    digest: str = ""
    """Of the shrunk trace: findings of one target that share it are one."""
    steps: int = 0
    legality: Class | None = None
    """Who can meet it; none where the target is no release."""


class Tally(msgspec.Struct):
    """What was done with one configuration of one target."""

    target: str
    setup: str
    windows: int = 0
    histories: int = 0
    mismatches: int = 0
    quota: int = 0
    """Row-windows that were asked for; 0: as many as there is time for."""
    compile_seconds: float = 0.0
    compared: dict[str, int] = {}
    largest: dict[str, float] = {}
    failed: dict[str, int] = {}
    """Histories in which a check failed, by check."""


class Report(msgspec.Struct):
    """A campaign's outcome, as `--json` prints it."""

    targets: list[str]
    device: str
    seed: int
    workers: int
    windows: int = 0
    """Row-windows verified and judged."""
    histories: int = 0
    mismatches: int = 0
    """Histories in which some check failed."""
    findings: list[Finding] = []
    situations: dict[str, int] = {}
    """How often each was visited: rows, or batches where that decides."""
    missed: list[str] = []
    """Situations that some configuration can reach, and none did."""
    largest: dict[str, float] = {}
    """Largest error that was seen, over what is allowed, by check."""
    compared: dict[str, int] = {}
    """How many comparisons each check made."""
    skipped: dict[str, int] = {}
    """Operations that a target does not own, by kind."""
    seconds: dict[str, float] = {}
    """Time of all workers together, by what it went into, and `telling`: that of their parent."""
    elapsed: float = 0.0
    """Seconds from the first window on."""
    rate: float = 0.0
    """Row-windows a second, from the first one on."""
    configurations: list[Tally] = []
    identities: dict[str, dict[str, str]] = {}
    inconclusive: list[str] = []
    """Why the run proves less than it was asked to."""


# ------------------------------------------------------------------ in a worker


class Clock:
    """Time and windows, shared by all workers: it starts at the first window of any."""

    def __init__(self, context: Any) -> None:
        self.started = context.Value("d", 0.0)
        self.windows = context.Value("q", 0)
        self.stopped = context.Value("b", 0)

    def count(self, windows: int) -> None:
        """Add to the windows verified so far."""
        with self.windows.get_lock():
            self.windows.value += windows
            if not self.started.value:
                self.started.value = time.monotonic()

    def elapsed(self) -> float:
        """Seconds since the first window; 0 before it."""
        return time.monotonic() - self.started.value if self.started.value else 0.0

    def stop(self) -> None:
        """Let every worker finish the operation that it is at, and return what it has."""
        self.stopped.value = 1


class Orders(NamedTuple):
    """What every worker of a campaign knows."""

    device: Device
    time_max: float | None
    clock: Clock

    def out_of_time(self) -> bool:
        """Whether the budget of time is spent, or somebody stopped the campaign."""
        late = self.time_max is not None and self.clock.elapsed() > self.time_max
        return late or bool(self.clock.stopped.value)


_orders: Orders
_watch: Watch


def _start_worker(watch: Watch, orders: Orders) -> None:
    global _orders, _watch
    _orders, _watch = orders, watch


@functools.cache
def _target(name: str, device: Device) -> Target:
    """One instance a process, since its modules and compiled kernels are worth keeping."""
    return resolve(name, device)


def _warm_up(plan: Plan) -> tuple[dict[str, str], float]:
    """Compile what the plan's setup needs; returns the target's identity and the seconds."""
    start = time.perf_counter()
    target, setup = _target(plan.target, _orders.device), plan.setup
    rows = tuple(range(min(plan.rows, setup.slots - 1)))
    step: list[Operation] = [
        *(Admit(request=row, tag=row) for row in rows),
        Verify(tag=len(rows), rows=rows, lengths=(setup.window,) * len(rows)),
        Commit(tag=len(rows), accepted=(1,) * len(rows)),
    ]
    payload = PayloadSpec(seed=0, profile="ordinary")
    walk(Trace(setup=setup, payload=payload, operations=tuple(step)), target)
    return dict(target.identity()), time.perf_counter() - start


def _walk_lot(lot: Lot) -> list[Walked]:
    target = _target(lot.plan.target, _orders.device)
    walked = list[Walked]()

    def walk_next(trace: Trace) -> Verdict:
        number = lot.first + len(walked)
        post = functools.partial(_post, lot.configuration, number)
        post()
        verdict = walk(trace, target, out_of_time=post, on_windows=_orders.clock.count)
        result = Walked(lot.configuration, number, verdict)
        if verdict.mismatches:
            identity = dict(target.identity())
            result.failure = failures.as_failure(trace, verdict.mismatches, identity)
            again = {mismatch.key for mismatch in walk(result.failure, target).mismatches}
            result.flaky = verdict.mismatches[0].key not in again
        walked.append(result)
        return verdict

    try:
        for trace in lot.traces:
            if _orders.out_of_time():
                break
            walk_next(trace)
        if lot.windows:
            _let_hypothesis_tell(lot, walk_next)
    finally:
        _watch.done()
    return walked


def _let_hypothesis_tell(lot: Lot, walk_next: Callable[[Trace], Verdict]) -> None:
    from ringfold.fuzz.machine import examine

    def told(trace: Trace) -> Verdict:
        _watch.tell(trace)  # nobody else has it
        return walk_next(trace)

    out_of_time = _orders.out_of_time
    examine(lot.plan, lot.seed, told, windows_max=lot.windows, out_of_time=out_of_time)


def _post(configuration: int, number: int) -> bool:
    """Tell the parent that the next operation of this history begins; returns `out_of_time`."""
    _watch.begin(configuration, number)
    return _orders.out_of_time()


def _shrink(failure: Trace, seconds_max: float) -> Shrunk | None:
    """The smallest history that fails for the same cause; none where it fails no more."""
    try:
        return shrinking.shrink(
            failure,
            _target(failure.target or "", _orders.device),
            seconds_max=seconds_max,
            stopped=lambda: bool(_orders.clock.stopped.value),
        )
    except shrinking.NoFailureError:
        return None


# ------------------------------------------------------------------ in the parent


class Campaign:
    """Runs lots and adds up what comes of them, in the order in which they were planned."""

    def __init__(
        self,
        plans: Sequence[Plan],
        device: Device,
        seed: int,
        budget: Budget,
        run_dir: Path | None,
        workers: int | None = None,
        shrink_max: float = 0.0,
        hang_max: float = HANG_SECONDS,
        engine: Engine = "seeded",
    ) -> None:
        """`shrink_max`: seconds for shrinking the first finding of a kind; 0 leaves it as found.

        `hang_max`: seconds after which an operation is given up. `engine`: who tells histories.
        """
        self.plans, self.budget, self.shrink_max = plans, budget, shrink_max
        self.run_dir = run_dir or Path()
        self.report_path = run_dir / REPORT if run_dir else None
        self.written = self.telling = 0.0
        self.device, self.seed = device, seed
        visible = gpus() if device == "cuda" else ()
        count = workers or min(cores(), WORKERS_MAX[device] * max(1, len(visible)))
        self.report = Report(
            targets=list(dict.fromkeys(plan.target for plan in plans)),
            device=device,
            seed=seed,
            workers=count,
            configurations=[
                Tally(plan.target, str(plan.setup), quota=plan.quota) for plan in plans
            ],
        )
        self.clock = Clock(multiprocessing.get_context("spawn"))
        self.course: Course | Turns = (
            Course(plans, seed, budget.windows_max, device)
            if engine == "seeded"
            else Turns(plans, seed, budget.windows_max)
        )
        self.orders = Orders(device, budget.time_max, self.clock)
        self.workers = Workers(
            count, _start_worker, self.orders, hang_max=hang_max, visible=visible
        )
        self.findings: dict[tuple[str, str, str], Finding] = {}
        self.firsts: dict[tuple[str, str, str], Trace] = {}
        self.flying: deque[tuple[Lot, Future[list[Walked]]]] = deque()

    def run(self, on_progress: Callable[[Report, int, float], None]) -> Report:
        """Run to the end of the budget; `on_progress` hears (report, windows, seconds) often."""
        report = self.report
        with self.workers:
            try:
                self._compile(on_progress)
                self._walk(on_progress)
                self._shrink_findings(on_progress)
            except HangingError as hanging:
                self._hangs(hanging.hang)
            except BrokenProcessPool:
                report.inconclusive.append(self._account_of_death())
            except KeyboardInterrupt:
                report.inconclusive.append("stopped by hand")
                self._stop()
            except BaseException:
                self._stop_workers()
                raise
        self._conclude()
        self._write()
        return report

    def _write(self) -> None:
        self.written = time.monotonic()
        if self.report_path is not None:
            failures.write_json(self.report_path, self.report)

    def _compile(self, on_progress: Callable[[Report, int, float], None]) -> None:
        """Build every target, and on a GPU compile every configuration, before the clock starts."""
        plans = _first_of_each_target(self.plans)
        if self.device == "cuda":
            # In turns, so that no worker has yet to start, and to find the device, when it matters.
            count = max(len(self.plans), self.report.workers)
            plans = list(islice(cycle(self.plans), count))
        futures = [self.workers.submit(_warm_up, plan) for plan in plans]
        for plan, future in zip(plans, futures, strict=True):
            while not future.done() and not self.orders.out_of_time():
                self._pause(future, on_progress)
            if not future.done():
                self.workers.pool.shutdown(wait=False, cancel_futures=True)
                return
            identity, seconds = future.result()
            self.report.identities[plan.target] = identity
            tally = self.report.configurations[self.plans.index(plan)]
            tally.compile_seconds = max(tally.compile_seconds, round(seconds, 3))

    def _walk(self, on_progress: Callable[[Report, int, float], None]) -> None:
        while True:
            while self._idle() and not self.course.waits and not self.orders.out_of_time():
                start = time.perf_counter()
                lot = self.course.lot()
                self.telling += time.perf_counter() - start
                if lot is None:
                    break
                self.flying.append((lot, self.workers.submit(_walk_lot, lot)))
            if not self.flying:
                return
            _, future = self.flying[0]
            if not future.done():
                self._pause(future, on_progress)
                continue
            self._land()
            if time.monotonic() - self.written > REPORT_SECONDS:
                self._write()

    def _idle(self) -> bool:
        """Whether another lot should start; those that wait to be added up are done."""
        busy = sum(not future.done() for _, future in self.flying)
        return busy < ABREAST * self.report.workers

    def _land(self) -> None:
        """Add what came of the lot that has been flying longest."""
        lot, future = self.flying[0]
        done = future.result()
        self.flying.popleft()
        for walked in done:
            self._add(walked)
        sound = (w.verdict.complete and not w.verdict.mismatches for w in done)
        self.course.hear(
            lot, [w.verdict.largest if right else {} for w, right in zip(done, sound, strict=True)]
        )

    def _stop_workers(self) -> None:
        """Wait until each has returned what it has; whoever presses Ctrl-C again does not wait."""
        self.clock.stop()
        try:
            self.workers.pool.shutdown(cancel_futures=True)
        except KeyboardInterrupt:
            for worker in multiprocessing.active_children():
                worker.kill()
            raise

    def _stop(self) -> None:
        """Keep what the workers have found by now."""
        self._stop_workers()
        while self.flying:
            _, future = self.flying[0]
            if future.cancelled():
                self.flying.popleft()
            else:
                self._land()

    def _account_of_death(self) -> str:
        """Keep the histories that may have killed a worker, and what others returned."""
        suspects: list[Lot] = []
        for lot, future in self.flying:
            if future.done() and future.exception() is None:
                for walked in future.result():
                    self._add(walked)
            elif len(suspects) < self.report.workers:
                suspects.append(lot)
        watch = self.workers.watch
        listed = [trace for lot in suspects for trace in lot.traces]
        told = [trace for trace in map(watch.told, watch.walking()) if trace is not None]
        paths = [failures.write_suspect(trace, self.run_dir) for trace in listed or told]
        if not paths:
            return (
                "a worker process died, but not while it walked a history: "
                "it was building the target, or shrinking what it found"
            )
        lines = "; ".join(failures.reproduce(p, None, self.device) for p in paths)
        return (
            f"a worker process died, in one of {len(paths)} histories: "
            f"replay each by itself to see which ({lines})"
        )

    def _pause(
        self, future: Future[Any], on_progress: Callable[[Report, int, float], None]
    ) -> None:
        try:
            future.exception(timeout=POLL_SECONDS)
        except TimeoutError:
            on_progress(self.report, self.clock.windows.value, self.clock.elapsed())
        self.workers.look()

    def _hangs(self, hang: Hang) -> None:
        """Keep what others returned, and the history that does not end as a finding."""
        trace = self.workers.watch.told(hang.worker)
        for lot, future in self.flying:
            if future.done() and future.exception() is None:
                for walked in future.result():
                    self._add(walked)
            elif lot.configuration == hang.configuration and hang.number in lot.numbers:
                trace = lot.traces[hang.number - lot.first]
        if trace is not None:
            mismatch = hang.mismatch(trace, self.workers.hang_max)
            verdict = Verdict(mismatches=[mismatch], complete=False)
            failure = failures.as_failure(trace, [mismatch], {})
            self._add(Walked(hang.configuration, hang.number, verdict, failure))
        self.report.inconclusive.append(
            "a target does not come back, so its worker was killed and the run ended there"
        )

    def _add(self, walked: Walked) -> None:
        report, verdict = self.report, walked.verdict
        tally = report.configurations[walked.configuration]
        for counts in (report, tally):
            counts.windows += verdict.windows
            counts.histories += 1
            counts.mismatches += bool(verdict.mismatches)
            _raise_to(counts.largest, verdict.largest)
        for total, part in (
            (report.situations, verdict.situations),
            (report.compared, verdict.compared),
            (tally.compared, verdict.compared),
            (tally.failed, dict.fromkeys({m.check for m in verdict.mismatches}, 1)),
            (report.skipped, verdict.skipped),
            (report.seconds, verdict.seconds),
        ):
            total.update(Counter(total) + Counter(part))
        report.elapsed = round(self.clock.elapsed(), 3)
        report.rate = round(report.windows / report.elapsed, 1) if report.elapsed else 0.0
        if walked.failure is not None:
            self._found(walked.failure, walked)

    def _found(self, failure: Trace, walked: Walked) -> None:
        """Write the failure unless enough of its kind are there."""
        first = walked.verdict.mismatches[0]
        target = failure.target or ""
        key = (target, *first.key)
        known = self.findings.get(key)
        seen = known.histories if known else 0
        # A failure that repeats speaks for its kind, rather than one that does not.
        speaks = known is None or (known.flaky and not walked.flaky)
        if speaks or seen < KEPT_MAX:
            path = failures.write(failure, walked.verdict.mismatches, self.run_dir, self.device)
        if known is None or speaks:
            known = self.findings[key] = Finding(
                target=target,
                check=first.check,
                symptom=first.symptom,
                histories=seen,
                sentence=first.sentence(),
                trace=str(path),
                reproduce=failures.reproduce(path, target, self.device),
                flaky=walked.flaky,
                legality=classify(failure),
            )
            self.firsts[key] = failure
        known.histories += 1
        self._rank_findings()

    def _shrink_findings(self, on_progress: Callable[[Report, int, float], None]) -> None:
        """Shrink the first finding of each kind; those that become one trace become one finding."""
        if not self.shrink_max:
            return
        self._write()
        futures = {
            key: self.workers.submit(_shrink, failure, self.shrink_max)
            for key, failure in self.firsts.items()
            if not self.findings[key].flaky
        }
        causes: dict[tuple[str, str], Finding] = {}
        for key, future in futures.items():
            while not future.done():
                self._pause(future, on_progress)
            if (shrunk := future.result()) is None:
                continue
            finding = self.findings[key]
            if known := causes.get((finding.target, shrunk.digest)):
                known.histories += finding.histories
                del self.findings[key]
                continue
            causes[finding.target, shrunk.digest] = finding
            written = shrinking.write(self.firsts[key], shrunk, Path(), self.run_dir, self.device)
            finding.check, finding.symptom = shrunk.mismatches[0].key
            finding.found, finding.trace = finding.trace, written.trace
            finding.sentence, finding.reproduce = written.sentence, written.reproduce
            finding.digest, finding.steps = written.digest, written.steps
            finding.legality = classify(shrunk.trace)
        self._rank_findings()

    def _rank_findings(self) -> None:
        """What a user of a server can meet comes first."""
        found = self.findings.values()
        self.report.findings = sorted(found, key=lambda finding: rank(finding.legality))

    def _conclude(self) -> None:
        """What the run leaves open."""
        report = self.report
        stepping = [plan for plan in self.plans if _step_of(plan) in plan.operations]
        # What can be reached depends on the protocol, and on slots as far as there are few.
        by_slots = sorted(stepping, key=lambda plan: plan.setup.slots)
        protocols = {_protocol_of(plan): plan for plan in by_slots}
        reachable = set().union(*map(_reachable, protocols.values()))
        report.missed = sorted(reachable - set(report.situations))
        report.situations = dict(sorted(report.situations.items()))
        report.seconds["telling"] = self.telling
        report.seconds = {part: round(s, 3) for part, s in sorted(report.seconds.items())}
        if report.missed and not report.mismatches:
            report.inconclusive.append(
                f"{len(report.missed)} reachable situations were not reached "
                f"({', '.join(report.missed)}): give it more time or windows"
            )
        if short := [tally for tally in report.configurations if tally.windows < tally.quota]:
            named = [f"{t.target}, {t.setup}: {t.windows} of {t.quota}" for t in short]
            more = ["..."] if len(named) > SHORT_NAMED else []
            report.inconclusive.append(
                f"{len(short)} of {len(report.configurations)} configurations are short of their "
                f"row-windows ({'; '.join(named[:SHORT_NAMED] + more)}): give it more time"
            )
        if any(finding.flaky for finding in report.findings):
            report.inconclusive.append(
                "a failure did not repeat: the target's results depend on more than its inputs"
            )


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> tuple[str, ...]:
    """The GPUs that this process may use, by the names that `CUDA_VISIBLE_DEVICES` has for them."""
    import torch

    if named := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return tuple(named.split(","))
    return tuple(map(str, range(torch.cuda.device_count())))


def _protocol_of(plan: Plan) -> tuple[object, ...]:
    """What decides its transitions."""
    setup = plan.setup
    return setup.dialect, setup.ring, setup.window, setup.dtypes.state, plan.lockstep


def _step_of(plan: Plan) -> str:
    """The kind of operation by which the protocol of a plan goes from situation to situation."""
    return "verify" if DIALECTS[plan.setup.dialect].verifies else "decode"


def _reachable(plan: Plan) -> frozenset[str]:
    """Situations that histories of this plan can reach."""
    reachable = frozenset(reachable_situations(plan.setup))
    return reachable - lockstep.UNREACHABLE if plan.lockstep else reachable


def _first_of_each_target(plans: Sequence[Plan]) -> list[Plan]:
    first: dict[str, Plan] = {}
    for plan in plans:
        first.setdefault(plan.target, plan)
    return list(first.values())


def _raise_to(largest: dict[str, float], seen: dict[str, float]) -> None:
    for check, ratio in seen.items():
        largest[check] = max(largest.get(check, 0.0), ratio)
