"""Runs lots and adds up what comes of them, in the order in which they were planned."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final, Literal

from ringfold.fuzz.histories.story import Plan
from ringfold.fuzz.histories.trace import Trace
from ringfold.fuzz.judging.walk import Verdict
from ringfold.fuzz.running.campaign import worker
from ringfold.fuzz.running.campaign.findings import Findings
from ringfold.fuzz.running.campaign.report import Report, Tally
from ringfold.fuzz.running.campaign.worker import Walked
from ringfold.fuzz.running.course import Budget, Course, Lot, Turns
from ringfold.fuzz.running.crew import POLL_SECONDS, Crew, cores, gpus
from ringfold.fuzz.running.watch import Hang
from ringfold.fuzz.target import Device

Engine = Literal["seeded", "hypothesis"]
"""Who makes the choices of a history."""

WORKERS_MAX: Final = {"cpu": 64, "cuda": 15}
"""A GPU is so fast that telling histories keeps a core of its own busy."""
ABREAST: Final = 1.5
"""Lots under way for each worker: the next one waits where a worker finds it."""
REPORT_SECONDS: Final = 5.0
"""How often the report so far is written."""

OnProgress = Callable[[Report, int, float], None]
"""Hears the report so far, row-windows and seconds, often."""


class Campaign(Crew):
    """The same seed and number of windows give the same report, by any number of workers."""

    def __init__(
        self,
        plans: Sequence[Plan],
        device: Device,
        seed: int,
        budget: Budget,
        run_dir: Path | None,
        workers: int | None = None,
        shrink_max: float = 0.0,
        engine: Engine = "seeded",
    ) -> None:
        """`shrink_max`: seconds for shrinking the first finding of a kind; 0 leaves it as found.

        `engine`: who tells histories.
        """
        most = WORKERS_MAX[device] * (max(1, len(gpus())) if device == "cuda" else 1)
        count = workers or min(cores(), most)
        super().__init__(
            count,
            worker.start,
            device,
            device=device,
            run_dir=run_dir,
            seconds_max=budget.time_max,
        )
        self.plans, self.first, self.shrink_max = plans, budget.first, shrink_max
        self.report = Report(
            targets=list(dict.fromkeys(plan.target for plan in plans)),
            device=device,
            seed=seed,
            workers=count,
            configurations=[
                Tally(plan.target, str(plan.setup), quota=plan.quota) for plan in plans
            ],
        )
        self.course: Course | Turns = (
            Course(plans, seed, budget.windows_max, device)
            if engine == "seeded"
            else Turns(plans, seed, budget.windows_max)
        )
        self.telling = 0.0
        self.findings = Findings(self.run_dir, device)
        self.flying: deque[tuple[Lot, Future[list[Walked]]]] = deque()
        self.heard: set[int] = set()
        """Of the lots that are flying, those that the course has heard of, by identity."""

    def run(self, on_progress: OnProgress) -> Report:
        """Run to the end of the budget."""
        self.on_progress = on_progress
        self.work(self._compile, self._walk, self._shrink, self._confirm)
        self.report.conclude(self.plans, self.telling, bool(self.clock.enough.value))
        self.write(self.report)
        return self.report

    # ------------------------------------------------------------ its parts

    def _compile(self) -> None:
        """Build every target, and on a GPU compile every configuration, before the clock starts."""
        first = {plan.target: plan for plan in reversed(self.plans)}
        plans = [first[name] for name in self.report.targets]
        if self.device == "cuda":
            # In turns, so that no worker has yet to start, and to find the device, when it matters.
            count = max(len(self.plans), self.report.workers)
            plans = list(islice(cycle(self.plans), count))
        futures = [self.workers.submit(worker.warm_up, plan) for plan in plans]
        for plan, future in zip(plans, futures, strict=True):
            while not future.done() and not self.clock.out_of_time():
                self._pause(future)
            if not future.done():
                self.workers.pool.shutdown(wait=False, cancel_futures=True)
                return
            identity, seconds = future.result()
            self.report.identities[plan.target] = identity
            tally = self.report.configurations[self.plans.index(plan)]
            tally.compile_seconds = max(tally.compile_seconds, round(seconds, 3))

    def _walk(self) -> None:
        while True:
            self._hear()
            while self._idle() and not self.course.waits and not self.clock.out_of_time():
                start = time.perf_counter()
                lot = self.course.lot()
                self.telling += time.perf_counter() - start
                if lot is None:
                    break
                self.flying.append((lot, self.workers.submit(worker.walk_lot, lot)))
            if not self.flying:
                return
            _, future = self.flying[0]
            if not future.done():
                self._pause(future)
                continue
            self._land()
            self.write(self.report, REPORT_SECONDS)
            if self.first and self.findings.to_shrink():
                self.clock.enough.value = 1
                self.flying.clear()  # whatever it has is later in the course
                return

    def _shrink(self) -> None:
        """Shrink the first finding of each kind."""
        if not self.shrink_max:
            return
        self.write(self.report)
        futures = {
            key: self.workers.submit(worker.shrunk, failure, self.shrink_max)
            for key, failure in self.findings.to_shrink().items()
        }
        for key, future in futures.items():
            while not future.done():
                self._pause(future)
            if (shrunk := future.result()) is not None:
                self.findings.shrunk(key, shrunk)
        self.report.findings = self.findings.ranked()

    def _confirm(self) -> None:
        """Replay each finding as its line does: in a process that has walked nothing before."""
        for finding in self.report.findings:
            if not finding.flaky:
                self.findings.confirm(finding)

    def _idle(self) -> bool:
        """Whether another lot should start; those that wait to be added up are done."""
        busy = sum(not future.done() for _, future in self.flying)
        return busy < ABREAST * self.report.workers

    def _pause(self, future: Future[Any]) -> None:
        try:
            future.exception(timeout=POLL_SECONDS)
        except TimeoutError:
            self.on_progress(self.report, self.clock.windows.value, self.clock.elapsed())
        self.workers.look()

    def _hear(self) -> None:
        """Let the course hear of what is done, the lots of a configuration in their order."""
        slow = set[int]()
        for lot, future in self.flying:
            if not future.done():
                slow.add(lot.configuration)
            elif lot.configuration not in slow and id(lot) not in self.heard:
                self.heard.add(id(lot))
                verdicts = [walked.verdict for walked in future.result()]
                self.course.hear(
                    lot, [v.largest if v.complete and not v.mismatches else {} for v in verdicts]
                )

    def _land(self) -> None:
        """Add what came of the lot that has been flying longest."""
        lot, future = self.flying[0]
        done = future.result()
        self.flying.popleft()
        self.heard.discard(id(lot))
        for walked in done:
            self._add(walked)

    def _add(self, walked: Walked) -> None:
        self.report.add(walked.configuration, walked.verdict, self.clock.elapsed())
        if walked.failure is not None:
            self.findings.add(walked.failure, walked)
            self.report.findings = self.findings.ranked()

    # ------------------------------------------------------------ when it is cut short

    def interrupted(self) -> None:
        """Keep what the workers have found by now."""
        early = f" before the first window ({self.report.preparing()})"
        self.report.inconclusive.append("stopped by hand" + early * (not self.clock.elapsed()))
        self.stop_workers()
        while self.flying:
            _, future = self.flying[0]
            # Whoever ends a whole group of processes ends the workers too.
            if future.cancelled() or isinstance(future.exception(), BrokenProcessPool):
                self.flying.popleft()
            else:
                self._land()

    def died(self) -> None:
        """Keep the histories that may have done it, and what others returned."""
        suspects = self._lost()[: self.report.workers]
        lines = self.suspects([trace for lot in suspects for trace in lot.traces])
        self.report.inconclusive.append(
            f"a worker process died, in one of {len(lines)} histories: "
            f"replay each by itself to see which ({'; '.join(lines)})"
            if lines
            else "a worker process died, but not while it walked a history: "
            "it was building the target, or shrinking what it found"
        )

    def hangs(self, hang: Hang) -> None:
        """Keep what others returned, and the history that does not end as a finding."""
        trace: Trace | None = self.workers.watch.told(hang.worker)
        for lot in self._lost():
            if lot.configuration == hang.configuration and hang.number in lot.numbers:
                trace = lot.traces[hang.number - lot.first]
        if trace is not None:
            failure, mismatch = self.hanging(hang, trace)
            verdict = Verdict(mismatches=[mismatch], complete=False)
            self._add(Walked(hang.configuration, hang.number, verdict, failure))
        self.report.inconclusive.append(
            "a target does not come back, so its worker was killed and the run ended there"
        )

    def _lost(self) -> list[Lot]:
        """Add what was returned of the lots under way; returns those of which nothing was."""
        lost: list[Lot] = []
        for lot, future in self.flying:
            if future.done() and future.exception() is None:
                for walked in future.result():
                    self._add(walked)
            else:
                lost.append(lot)
        return lost
