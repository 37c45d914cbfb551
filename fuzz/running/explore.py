"""Exploring: every step that the protocol allows, on the real target, judged by the same walk.

Every transition is in exactly one tour (`tours.py`), and tours share large batches. Dead memory is
NaN throughout, unless something milder is asked for. Tours that fail together are cut in two until
single transitions fail (or what fails only as a whole), and the shortest of each cause is shrunk.
Every input of the cursors is tried besides (`cursor_inputs.py`).
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Final

import msgspec

from ringfold.fuzz.findings import failures
from ringfold.fuzz.findings import shrink as shrinking
from ringfold.fuzz.findings.shrink import Written
from ringfold.fuzz.histories.trace import Symptom, Trace
from ringfold.fuzz.judging.frame import Dead
from ringfold.fuzz.judging.walk import Verdict, walk
from ringfold.fuzz.running.crew import POLL_SECONDS, Clock, Crew, cores, raise_to, target_of
from ringfold.fuzz.running.cursor_inputs import CursorsWalked, walk_cursors
from ringfold.fuzz.running.tours import Plan, Tour, cut, history, lots, protocol_steps
from ringfold.fuzz.running.watch import Hang, Watch
from ringfold.fuzz.target import Device
from ringfold.sim.dialects import DIALECTS
from ringfold.sim.setup import Setup

WORKERS_MAX: Final = {"cpu": 64, "cuda": 16}
FAILING_MAX: Final = 2
"""Failing transitions that are isolated in one lot; what is left of it then counts as uncovered,
or a target that is wrong everywhere would have to be walked row by row."""
WARMING_UP: Final = 8
"""Tours whose first step compiles what is needed."""
REPORT_SECONDS: Final = 2.0
"""How often the report so far is written."""


class Explored(msgspec.Struct):
    """What an exploration covered and found."""

    target: str
    device: Device
    setup: str
    states: int
    """Reachable cursor states."""
    transitions: int
    """Those states crossed with every window length and every count accepted."""
    workers: int = 0
    covered: int = 0
    """Transitions that were walked to their end, or shown to fail by themselves."""
    coverage: float = 0.0
    failing: int = 0
    """Transitions that fail by themselves, and tours that fail only as a whole."""
    windows: int = 0
    """Row-windows verified and judged."""
    cursor_inputs: int = 0
    """Inputs of a commit's cursors that were tried, reachable or not."""
    cursor_inputs_wrong: int = 0
    cursor_example: str = ""
    """The first that is wrong."""
    counterexamples: list[Written] = []
    """The shortest for each cause."""
    hanging: str = ""
    """The line that replays the history that the target did not come back from."""
    largest: dict[str, float] = {}
    """Largest error that was seen, over what is allowed, by check."""
    compile_seconds: float = 0.0
    """Until every worker had started, built the target and compiled its kernels."""
    seconds: float = 0.0
    """From the first window after that on, until the last."""
    rate: float = 0.0
    """Row-windows a second, over these."""
    spent: dict[str, float] = {}
    """Seconds of all workers together, by what they went into."""
    inconclusive: list[str] = []


class Walked(msgspec.Struct):
    """What came of one lot."""

    covered: int = 0
    windows: int = 0
    failing: list[tuple[Trace, Symptom]] = []
    """A history that shows it, and why it fails."""
    largest: dict[str, float] = {}
    spent: dict[str, float] = {}


# ------------------------------------------------------------------ in a worker


class Walker:
    """Walks lots of one plan, one after the other."""

    def __init__(
        self,
        plan: Plan,
        watch: Watch | None = None,
        out_of_time: Callable[[], bool] = lambda: False,
        on_windows: Callable[[int], None] = lambda count: None,
    ) -> None:
        """`watch` is posted what is walked; `out_of_time` and `on_windows` as a walk has them."""
        self.plan, self.watch = plan, watch
        self.out_of_time, self.on_windows = out_of_time, on_windows
        self.histories = 0

    def warm_up(self, together: Sequence[Tour]) -> None:
        """Compile what these tours need."""
        self._walk(history(self.plan, together), lambda count: None)

    def lot(self, together: Sequence[Tour]) -> Walked:
        """Walk tours as one batch; if that fails, its halves."""
        walked = Walked()
        if not self.out_of_time():
            self._halves(together, walked)
        return walked

    def cursors(self) -> CursorsWalked:
        """See `walk_cursors`."""
        self.histories += 1
        if self.watch is not None:
            self.watch.tell_none()
        try:
            return walk_cursors(self.plan, self._post)
        finally:
            self._rest()

    def shrunk(self, failure: Trace, run_dir: Path) -> Written | None:
        """The smallest history that fails for the same cause; none where it fails no more."""
        try:
            shrunk = shrinking.shrink(failure, target_of(self.plan.target, self.plan.device))
        except shrinking.NoFailureError:
            return None
        return shrinking.write(failure, shrunk, Path(), run_dir, self.plan.device)

    def _halves(self, together: Sequence[Tour], walked: Walked) -> bool:
        """Add to `walked`; returns whether these tours fail."""
        plan = self.plan
        trace = history(plan, together)
        verdict = self._walk(trace, self.on_windows)
        walked.windows += verdict.windows
        walked.spent = dict(Counter(walked.spent) + Counter(verdict.seconds))
        if not verdict.mismatches:
            a_step = 2 if DIALECTS[plan.setup.dialect].verifies else 1
            steps = (verdict.operations - len(together)) // a_step
            walked.covered += sum(max(0, min(len(tour), steps)) for tour in together)
            raise_to(walked.largest, verdict.largest)
            return False
        if len(walked.failing) >= FAILING_MAX:
            return True
        if halves := cut(together):
            fail = [self._halves(half, walked) for half in halves]
            if any(fail):
                return True
        else:
            walked.covered += 1
        # It fails by itself, or as tours whose halves do not.
        identity = dict(target_of(plan.target, plan.device).identity())
        failure = failures.as_failure(trace, verdict.mismatches, identity)
        walked.failing.append((failure, shrinking.cause(verdict.mismatches)))
        return True

    def _walk(self, trace: Trace, on_windows: Callable[[int], None]) -> Verdict:
        self.histories += 1
        if self.watch is not None:
            self.watch.tell(trace)
        self._post()  # it is opened
        target = target_of(self.plan.target, self.plan.device)
        try:
            return walk(trace, target, out_of_time=self._post, on_windows=on_windows)
        finally:
            self._rest()

    def _rest(self) -> None:
        """Tell the parent that nothing is being walked."""
        if self.watch is not None:
            self.watch.done()

    def _post(self) -> bool:
        """Tell the parent that the next operation begins; returns `out_of_time`."""
        if self.watch is not None:
            self.watch.begin(0, self.histories)
        return self.out_of_time()


_walker: Walker


def _start_worker(watch: Watch, clock: Clock, plan: Plan) -> None:
    global _walker  # noqa: PLW0603 - set once, when the process starts
    _walker = Walker(plan, watch, clock.out_of_time, clock.count)


def _work(what: str, *arguments: Any) -> Any:
    """One of the methods of this process's walker."""
    return getattr(_walker, what)(*arguments)


# ------------------------------------------------------------------ in the parent


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
    """Every transition and every cursor input of `setup` on the target called `name`.

    Args:
        name: of the target, which is built in every worker.
        setup: what is explored; its `slots` are chosen here.
        device: where the target runs.
        dead: what dead memory is filled with.
        run_dir: where failures go and, while it goes on, the report.
        workers: processes; one a core unless given.
        seconds_max: from the first window on, when all is compiled; then each worker returns what
            it has done of its lot.
        on_progress: hears the report so far, often.

    Raises `RefusedError` for a setup that the target can't run.
    """
    plan = Plan(name, device, setup, dead)
    return _Exploration(plan, run_dir, workers, seconds_max, on_progress).run()


class _Exploration(Crew):
    """Shares lots out among workers and adds up what comes of them."""

    def __init__(
        self,
        plan: Plan,
        run_dir: Path | None,
        workers: int | None,
        seconds_max: float | None,
        on_progress: Callable[[Explored], None],
    ) -> None:
        self.plan, self.on_progress = plan, on_progress
        steps = protocol_steps(plan.setup)
        self.lots = lots(plan)
        count = workers or min(cores(), WORKERS_MAX[plan.device], len(self.lots) + 1)
        super().__init__(
            count,
            _start_worker,
            plan,
            device=plan.device,
            run_dir=run_dir,
            seconds_max=seconds_max,
        )
        self.report = Explored(
            plan.target,
            plan.device,
            str(plan.setup),
            len(steps.states),
            len(steps.transitions),
            workers=count,
        )
        self.pending: set[Future[Any]] = set()
        self.failing: list[tuple[Trace, Symptom]] = []

    def run(self) -> Explored:
        """To the end, to a limit, or until the target hangs or dies."""
        self.work(self._walk, self._shrink)
        self._conclude()
        self.write(self.report)
        return self.report

    def _walk(self) -> None:
        started = time.monotonic()
        some = [tour[:1] for tour in self.lots[0][:WARMING_UP]]
        self._submit(*[("warm_up", some)] * self.report.workers)
        self._land()
        self.report.compile_seconds = round(time.monotonic() - started, 3)
        self._submit(("cursors",), *(("lot", together) for together in self.lots))
        self._land()

    def _shrink(self) -> None:
        """The shortest history of each cause."""
        first: dict[tuple[str, str], Trace] = {}
        for trace, cause in sorted(self.failing, key=lambda each: len(each[0].operations)):
            first.setdefault((cause.check, cause.symptom), trace)
        self._submit(*(("shrunk", trace, self.run_dir) for trace in first.values()))
        self._land()
        if first and not self.report.counterexamples:
            self.report.inconclusive.append(
                "no failure repeated: the target's results depend on more than its inputs"
            )

    def _submit(self, *work: tuple[Any, ...]) -> None:
        self.pending |= {self.workers.submit(_work, *each) for each in work}

    def _land(self) -> None:
        """Wait for all that was submitted, and tell what comes of it as it comes."""
        while self.pending:
            wait(self.pending, POLL_SECONDS, FIRST_COMPLETED)
            self._add_what_is_done()
            self._tell()
            self.workers.look()

    def _add_what_is_done(self) -> None:
        for future in [each for each in self.pending if each.done()]:
            result = future.result()
            self.pending.remove(future)
            self._add(result)

    def _add(self, result: Walked | CursorsWalked | Written | None) -> None:
        report = self.report
        match result:
            case Walked():
                report.covered += result.covered
                report.coverage = report.covered / report.transitions
                report.windows += result.windows
                self.failing += result.failing
                report.failing = len(self.failing)
                raise_to(report.largest, result.largest)
                spent = Counter(report.spent) + Counter(result.spent)
                report.spent = {part: round(s, 3) for part, s in sorted(spent.items())}
                report.seconds = round(self.clock.elapsed(), 3)
            case CursorsWalked():
                report.cursor_inputs, report.cursor_inputs_wrong = result.inputs, result.wrong
                report.cursor_example = result.example
                if result.refused:
                    report.inconclusive.append(
                        f"the cursors alone could not be tried: {result.refused}"
                    )
                if result.left:
                    report.inconclusive.append(f"no time was left for {result.left} cursor inputs")
            case Written() if all(one.digest != result.digest for one in report.counterexamples):
                report.counterexamples.append(result)
                report.counterexamples.sort(key=lambda one: (one.steps, one.operations))

    def _tell(self) -> None:
        if elapsed := self.clock.elapsed():
            self.report.rate = round(self.clock.windows.value / elapsed, 1)
        self.on_progress(self.report)
        self.write(self.report, REPORT_SECONDS)

    def interrupted(self) -> None:
        """Keep what the workers have found by now."""
        self.clock.stop()
        self.report.inconclusive.append("stopped by hand")
        # Whoever ends a whole group of processes ends the workers too.
        with contextlib.suppress(BrokenProcessPool):
            self._land()

    def hangs(self, hang: Hang) -> None:
        """Keep the history that does not end as a finding."""
        report = self.report
        trace = self.workers.watch.told(hang.worker)
        where = "" if trace else " from a commit of cursors alone"
        report.inconclusive.append(
            f"the target does not come back{where}: its worker was killed, and the run ended there"
        )
        if trace is not None:
            failure, mismatch = self.hanging(hang, trace)
            path = failures.write(failure, [mismatch], self.run_dir, self.device)
            report.hanging = failures.reproduce(path, failure.target, self.device)
            report.failing += 1

    def died(self) -> None:
        """Keep the histories that were being walked."""
        lines = self.suspects()
        self.report.inconclusive.append(
            "a worker process died: "
            + (
                f"replay each of {len(lines)} histories by itself to see which ({'; '.join(lines)})"
                if lines
                else "it was building the target, or shrinking what it found"
            )
        )

    def _conclude(self) -> None:
        report = self.report
        report.largest = dict(sorted(report.largest.items()))
        if report.seconds:
            report.rate = round(self.report.windows / report.seconds, 1)
        left = report.transitions - report.covered
        if left:
            report.inconclusive.append(
                f"{left} transitions were not covered: "
                + (
                    "they share a lot with ones that fail, so repair those first"
                    if report.failing
                    else "give it more time"
                )
            )
