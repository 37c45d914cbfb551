"""A sample of a target's mutants, each of which is run, and what that says of the tester."""

from __future__ import annotations

import ast
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ringfold.fuzz.findings.failures import write_json
from ringfold.fuzz.mutation import argued, worker
from ringfold.fuzz.mutation.operators import Mutant, functions, mutants, same_program
from ringfold.fuzz.mutation.worker import Order, Outcome, Probed
from ringfold.fuzz.target import Device


class Result(msgspec.Struct):
    """One mutant, named by where it is and what was done there, and what came of it."""

    file: str
    line: int
    column: int
    operator: str
    variant: int
    outcome: str
    """killed, survived, timed out, or argued: it survived, and is argued to change nothing."""
    by: str
    """The check that failed first, or what else ended the process."""
    stage: str
    windows: int
    seconds: float


class Times(msgspec.Struct):
    """Seconds from a mutant's start to its death, by the clock."""

    median: float = 0.0
    nine_in_ten: float = 0.0
    most: float = 0.0
    total: float = 0.0


class Report(msgspec.Struct):
    """What `ringfold mutate --json` prints."""

    target: str
    device: Device
    seed: int
    sample: int
    max_time: float
    """Seconds of processor time."""
    workers: int
    identity: dict[str, str] = {}
    """Versions, and the SHA-256 of each mutated file."""
    mutants: int = 0
    """All there are in lines that run."""
    not_reached: dict[str, int] = {}
    """Those in lines that no situation runs, by file: they are not drawn."""
    killed: int = 0
    timed_out: int = 0
    survived: int = 0
    argued: int = 0
    score: float = 0.0
    """Killed or timed out, of all that were drawn."""
    score_without_argued: float = 0.0
    kill_seconds: Times = msgspec.field(default_factory=Times)
    killed_by: dict[str, int] = {}
    killed_in: dict[str, int] = {}
    operators: dict[str, list[int]] = {}
    """Noticed and drawn, by operator."""
    left_out: dict[str, str] = {}
    """Parts of the gauntlet that the target fails without a fault."""
    seconds: float = 0.0
    results: list[Result] = []
    inconclusive: list[str] = []


Shown = Callable[[Report, str], None]
"""Hears the report so far, and a line about the mutant that was just run."""


def sample(every: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """A share of each (file, operator), one at least while there are enough to go round.

    Which of a share are drawn, and in which order all are run, is random.
    """
    random = np.random.Generator(np.random.Philox(seed))
    strata: dict[tuple[str, str], list[Mutant]] = defaultdict(list)
    for i in random.permutation(len(every)):
        strata[every[i].file, every[i].operator].append(every[i])
    count = min(count, len(every))
    due = {key: max(1.0, count * len(some) / len(every)) for key, some in strata.items()}
    taken = dict.fromkeys(strata, 0)
    drawn: list[Mutant] = []
    while len(drawn) < count:
        open_ = [key for key in strata if taken[key] < len(strata[key])]
        key = max(open_, key=lambda key: (due[key] - taken[key], key))
        drawn.append(strata[key][taken[key]])
        taken[key] += 1
    return [drawn[i] for i in random.permutation(len(drawn))]


def found(probed: Probed) -> tuple[list[Mutant], Counter[str]]:
    """The mutants in lines that ran, and how many there are in others, by file."""
    trees = {file: ast.parse(source) for file, source in probed.sources.items()}
    known = frozenset[str]().union(*map(functions, trees.values()))
    reached, others = [], Counter[str]()
    for file, source in sorted(probed.sources.items()):
        lines = set(probed.reached[file])
        for mutant in mutants(file, source, known):
            if lines.isdisjoint(range(mutant.first, mutant.last + 1)):
                others[file] += 1
            else:
                reached.append(mutant)
    return reached, others


def mutate(
    target: str,
    device: Device = "cpu",
    *,
    count: int,
    seed: int,
    seconds_max: float,
    workers: int = 1,
    run_dir: Path | None = None,
    arguments: Path | None = None,
    on_progress: Shown = lambda report, line: None,
) -> Report:
    """Draw `count` mutants of a target's kernels and run each for `seconds_max` at most.

    So many `workers` run one each, and a mutant's seconds are those of its processor.
    With `run_dir`, the report so far is written to ``mutation.json`` there after each of them.
    After Ctrl-C it is of those that were run by then.

    Raises:
        ArgumentError: the file of arguments cannot be read.
        KeyboardInterrupt: before there was any result.
        RuntimeError: the target cannot be walked at all.
    """
    start = time.monotonic()
    because = argued.load(arguments)
    report = Report(target, device, seed, count, seconds_max, workers)
    with worker.Server(device) as server:
        order = Order(target, device, seed, seconds_max)
        on_progress(report, "walking it without a fault, to see which lines run")
        probed = worker.probe(server, order)
        # Lines are traced on the CPU; where mutants run, `report.device` says.
        report.identity = {k: v for k, v in probed.identity.items() if k != "device"}
        report.left_out = probed.failing
        order = order._replace(left_out=frozenset(probed.failing))
        every, others = found(probed)
        report.mutants, report.not_reached = len(every), dict(others)
        if not every:
            report.inconclusive.append("no Triton kernel was loaded whose source could be changed")
            return report
        on_progress(report, "walking it once more for as long as a mutant, which nothing may kill")
        control = worker.run(server, order, None)
        if control.outcome != "survived":
            report.inconclusive.append(
                f"it fails without a fault ({control.by} in {control.stage}): {control.sentence}"
            )
            return report
        drawn = [
            mutant
            for mutant in sample(every, count, seed)
            # None is a text that cannot be parsed, True the same syntax tree.
            if same_program(probed.sources[mutant.file], mutant) is False
        ]

        def keep() -> None:
            report.seconds = round(time.monotonic() - start, 3)
            if run_dir is not None:
                write_json(run_dir / "mutation.json", report)

        def hear(mutant: Mutant, outcome: Outcome) -> None:
            key = argued.key(probed.identity[mutant.file], mutant)
            if outcome.outcome == "survived" and key in because:
                outcome.outcome = "argued"
            _add(report, mutant, outcome)
            keep()
            on_progress(report, _line(mutant, probed.sources[mutant.file], outcome))

        try:
            _run_each(server, order, drawn, workers, hear)
        except KeyboardInterrupt:
            if not report.results:
                raise
            _count(report)  # it may have been amid that
            ran = f"{len(report.results)} of {len(drawn)} mutants were run"
            report.inconclusive.append(f"stopped by hand: {ran}")
            keep()
    return report


def _run_each(
    server: worker.Server,
    order: Order,
    drawn: Sequence[Mutant],
    workers: int,
    hear: Callable[[Mutant, Outcome], None],
) -> None:
    """Run each mutant, so many at a time, and tell of it in their order; an error ends all."""
    with ThreadPoolExecutor(workers) as pool:
        try:
            outcomes = pool.map(lambda mutant: worker.run(server, order, mutant), drawn)
            for mutant, outcome in zip(drawn, outcomes, strict=True):
                hear(mutant, outcome)
        except BaseException:  # the pool waits for all of them otherwise
            pool.shutdown(wait=False, cancel_futures=True)
            server.end()
            raise


def _line(mutant: Mutant, source: str, outcome: Outcome) -> str:
    seen = f" by {outcome.by}" if outcome.by else ""
    return (
        f"{outcome.outcome}{seen} ({outcome.seconds:.1f} s): {mutant.file}:{mutant.line} "
        f"{mutant.operator}: {mutant.change(source)}"
    )


def _add(report: Report, mutant: Mutant, outcome: Outcome) -> None:
    """One more result."""
    named: dict[str, Any] = {n: getattr(mutant, n) for n in Result.__struct_fields__[:5]}
    report.results.append(
        Result(
            **named,
            outcome=outcome.outcome,
            by=outcome.by,
            stage=outcome.stage,
            windows=outcome.windows,
            seconds=outcome.seconds,
        )
    )
    _count(report)


def _count(report: Report) -> None:
    """Every figure that follows from the results."""
    counts = Counter(result.outcome for result in report.results)
    report.killed, report.timed_out = counts["killed"], counts["timed out"]
    report.survived, report.argued = counts["survived"], counts["argued"]
    noticed = report.killed + report.timed_out
    drawn = len(report.results)
    report.score = round(noticed / drawn, 4)
    report.score_without_argued = round(noticed / max(1, drawn - report.argued), 4)
    dead = [result for result in report.results if result.outcome == "killed"]
    report.killed_by = dict(Counter(result.by for result in dead).most_common())
    report.killed_in = dict(Counter(result.stage for result in dead).most_common())
    if seconds := sorted(result.seconds for result in dead):
        nine_in_ten = seconds[(len(seconds) * 9 - 1) // 10]
        report.kill_seconds = Times(
            statistics.median(seconds), nine_in_ten, seconds[-1], round(sum(seconds), 3)
        )
    each: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for result in report.results:
        each[result.operator][0] += result.outcome in {"killed", "timed out"}
        each[result.operator][1] += 1
    report.operators = dict(sorted(each.items()))
