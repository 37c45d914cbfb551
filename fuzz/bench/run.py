"""A run: every case, every peer; correct first, then timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from ringfold.fuzz.bench import measure
from ringfold.fuzz.bench.case import Case, cycle
from ringfold.fuzz.bench.floor import traffic
from ringfold.fuzz.bench.report import SCHEMA, Measured, Peer, Report, machine
from ringfold.fuzz.bench.steady import Steady, Work, seat
from ringfold.fuzz.target import Device, RefusedError
from ringfold.fuzz.targets.registry import resolve

PEERS: Final = (
    "sglang-snapshots==0.5.23",
    "sglang==0.5.16",
    "sglang==0.5.23",
    "triton",
)
"""Who is measured unless others are named."""

OUTPUT_LIMIT: Final = {"bfloat16": 2e-2, "float16": 4e-3, "float32": 4e-3}
"""2-norm of a row's output error over that of its outputs. A wrong slot, record or gate gives 1e-1
and more; the checks of `ringfold fuzz` are the fine ones."""
# Seen in the interpreter, all default peers: float16 4e-4, float32 3e-7 (no tf32 there).

COUNTED_ROWS: Final = 1024
"""Row-windows over which folds are counted, at least; always whole rounds of the steps."""

WRONG: Final = "outputs are wrong"
NEVER_FOLDED: Final = "no checkpoint was written: folds are not in these figures"


class Options(NamedTuple):
    """How a run is made."""

    steps: int = 32
    rounds: int = 15
    seed: int = 0
    workers: int = 1
    commit: str | None = None


class Bench:
    """Measures on a GPU, or runs the same steps unmeasured (`timed=False`) on any device."""

    def __init__(
        self,
        targets: Sequence[str],
        cases: Sequence[Case],
        device: Device,
        options: Options,
        timed: bool = True,
    ) -> None:
        self.targets, self.cases, self.device = tuple(targets), tuple(cases), device
        self.options, self.timed = options, timed
        self.report = Report(
            ringfold_bench=SCHEMA,
            machine={},
            options={**options._asdict(), "targets": list(targets), "timed": timed},
            identities={},
            bandwidth=None,
            measured=[],
            seconds={},
        )

    def run(
        self, on_case: Callable[[Report, str], Any], stopped: Callable[[], bool] = lambda: False
    ) -> Report:
        """Everything; `on_case` is told the report so far and what comes next.

        Once somebody has `stopped` it, it ends with the case that it is at.
        """
        self.resolved = {name: resolve(name, self.device) for name in self.targets}
        for name, target in self.resolved.items():
            self.report.identities[name] = dict(target.identity())
        self.report.machine = machine(self.device, self.options.commit)
        problems: dict[tuple[str, Case], str] = {}
        if self.timed:
            with self._counted("bandwidth"):
                self.report.bandwidth = measure.bandwidth()
            with self._counted("compile"):
                jobs = [(name, case) for case in self.cases for name in self.targets]
                problems = measure.compile_all(
                    jobs,
                    self.options.workers,
                    on_compiled=lambda n: on_case(self.report, f"{n} of {len(jobs)} compiled"),
                    stopped=stopped,
                )
        for i, case in enumerate(self.cases):
            if stopped():
                asked = f"{i} of {len(self.cases)} cases were measured"
                self.report.inconclusive.append(f"stopped by hand: {asked}")
                break
            on_case(self.report, f"case {i + 1} of {len(self.cases)}: {case}")
            with self._counted("cases"):
                self.report.measured.append(self._case(case, problems))
        on_case(self.report, "done")
        return self.report

    def _case(self, case: Case, problems: dict[tuple[str, Case], str]) -> Measured:
        work = Work(case, self.device, self.options.steps, self.options.seed)
        rounds = cycle(work.counts, case.ring, case.window)
        must = traffic(case, rounds)
        bandwidth = self.report.bandwidth
        floor = 1e6 * must.bytes / bandwidth.copy if bandwidth else None
        peers = [Peer(name) for name in self.targets]
        seated: dict[str, Steady] = {}
        for peer in peers:
            problem = problems.get((peer.target, case))
            if problem is None:
                try:
                    seated[peer.target] = self._seat(peer, work)
                    continue
                except RefusedError as error:
                    problem = f"refused: {error}"
                except RuntimeError as error:  # of torch or Triton: out of memory, say
                    problem = f"does not run: {error}"
            peer.flags.append(problem)
        if self.timed:
            self._time(peers, seated, case)
        for peer in peers:
            if (steady := seated.get(peer.target)) is not None:
                self._count(peer, steady)
            if floor is not None and peer.samples_us:
                peer.floor_ratio = peer.median_us / floor
        for steady in seated.values():
            steady.target.memory.clear()
        seated.clear()
        measure.release(self.device)
        return Measured(case, rounds, must, floor, peers)

    def _seat(self, peer: Peer, work: Work) -> Steady:
        """Seat a peer and compare its first steps with the oracle."""
        case = work.case
        if self.timed:
            weighed = measure.seat_and_weigh(self.resolved[peer.target], work)
            steady, (peer.held_bytes, peer.peak_bytes) = weighed
        else:
            steady = seat(self.resolved[peer.target], work)
        peer.output_error = steady.output_error(min(work.steps, max(4, case.ring // 2)))
        limit = OUTPUT_LIMIT[case.dtype]
        if not peer.output_error <= limit:
            peer.flags.append(f"{WRONG}: error {peer.output_error:.1e}, limit {limit:.1e}")
        return steady

    def _time(self, peers: Sequence[Peer], seated: dict[str, Steady], case: Case) -> None:
        """Time those that are right."""
        graphs = {}
        for peer in peers:
            if peer.target in seated and not peer.flags:
                try:
                    graphs[peer.target] = measure.capture(seated[peer.target])
                except RuntimeError as error:
                    peer.flags.append(f"can't be captured in a graph: {error}")
        if not graphs:
            return
        scale = 1e6 / (self.options.steps * case.layers)
        samples = measure.interleave(graphs, self.options.rounds)
        for peer in peers:
            peer.samples_us = [round(scale * s, 3) for s in samples.get(peer.target, [])]

    def _count(self, peer: Peer, steady: Steady) -> None:
        """Count who folds, in the steady state that was timed."""
        steps, batch = steady.work.steps, steady.work.case.batch
        wanted = COUNTED_ROWS // batch if self.timed else steps
        peer.written_share = steady.written_share(-(-wanted // steps) * steps)
        if not peer.written_share:
            peer.flags.append(NEVER_FOLDED)

    @contextmanager
    def _counted(self, part: str) -> Iterator[None]:
        """Add the time of this context to the report."""
        start = time.perf_counter()
        yield
        spent = time.perf_counter() - start
        self.report.seconds[part] = round(self.report.seconds.get(part, 0.0) + spent, 2)
