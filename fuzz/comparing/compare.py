"""Two targets on the same histories, until they part (`parting.py`) or the budget is spent."""

from __future__ import annotations

import functools
import itertools
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ringfold.fuzz.comparing.parting import Divergence, Recorded, differing, divergence, record
from ringfold.fuzz.findings import failures
from ringfold.fuzz.histories.generate import history
from ringfold.fuzz.histories.trace import Trace, TraceError, digest, save, unroll, validate
from ringfold.fuzz.judging.frame import Dead
from ringfold.fuzz.running import hunt
from ringfold.fuzz.target import Device, RefusedError, Target, refusal
from ringfold.sim.setup import Setup, SetupError
from ringfold.sim.situations import reachable_situations


class Report(msgspec.Struct):
    """What came of comparing two targets."""

    targets: tuple[str, str]
    device: Device
    seed: int
    bits: bool
    """Whether a bit was enough."""
    histories: int = 0
    windows: int = 0
    """Row-windows of each."""
    compared: dict[str, int] = {}
    """Outputs of a window and states after an operation that both have."""
    identical: dict[str, int] = {}
    """Those of them that have the same bits."""
    wrong_alike: int = 0
    """Histories in which the oracle finds the same fault with both."""
    left_out: dict[str, int] = {}
    """Histories that could not be walked on both, by reason."""
    folds: tuple[int, int] = (0, 0)
    """Steps of a row that folded."""
    divergence: Divergence | None = None
    trace: str = ""
    reproduce: list[str] = []
    identities: dict[str, dict[str, str]] = {}
    inconclusive: list[str] = []
    seconds: float = 0.0


def compare(
    one: Target,
    other: Target,
    traces: Iterator[Trace],
    *,
    names: tuple[str, str] | None = None,
    bits: bool = False,
    seed: int = 0,
    device: Device = "cpu",
    seconds_max: float | None = None,
    windows_max: int | None = None,
    folder: Path = Path(),
    run_dir: Path | None = None,
    on_progress: Callable[[Report], None] = lambda report: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Report:
    """Walk histories on both until they part, or the budget or the histories end.

    Args:
        one: a target, not opened.
        other: another one.
        traces: histories; see `histories`.
        names: by which the command line resolves them; their own, unless given.
        bits: whether a bit is enough.
        seed: for the report.
        device: of both.
        seconds_max: the first walk of a history ends after so many seconds.
        windows_max: or after so many row-windows.
        folder: where explicit tensors of the traces lie.
        run_dir: where failures/ goes; None writes nothing.
        on_progress: hears of every history.
        stopped: whether somebody wants an end; what was compared by then is told.
    """
    start = time.perf_counter()
    names = names or (one.name, other.name)
    report = Report(names, device, seed, bits)
    compared, identical, left_out = Counter[str](), Counter[str](), Counter[str]()
    seen = [Counter[str](), Counter[str]()]

    def seconds() -> float:
        return time.perf_counter() - start

    def out_of_time() -> bool:
        return stopped() or (seconds_max is not None and seconds() > seconds_max)

    may_fold = [False, False]
    for trace in traces:
        on_progress(report)
        if out_of_time() or (windows_max is not None and report.windows >= windows_max):
            break
        try:
            setups = [_setup_on(target, trace.setup) for target in (one, other)]
            validate(msgspec.structs.replace(trace, setup=setups[1]))
            both = _both(trace, (one, other), folder, out_of_time)
            walks = [walk._replace(target=n) for n, walk in zip(names, both, strict=True)]
        except (SetupError, TraceError, RefusedError) as error:
            left_out[str(error).partition(":")[0]] += 1
            continue
        report.histories += 1
        report.windows += min(walk.verdict.windows for walk in walks)
        for i, (walk, setup) in enumerate(zip(walks, setups, strict=True)):
            may_fold[i] |= "fold" in reachable_situations(setup)
            seen[i] += Counter(walk.verdict.situations)
        for key in walks[0].seen.keys() & walks[1].seen.keys():
            compared[key.what] += 1
            identical[key.what] += not differing(*(walk.seen[key] for walk in walks)).any()
        report.divergence = divergence(walks[0], walks[1], bits)
        if report.divergence is not None:
            _keep(report, trace, walks, (one, other), run_dir, device)
            break
        report.wrong_alike += all(walk.verdict.mismatches for walk in walks)
    report.compared, report.identical = dict(compared), {w: identical[w] for w in compared}
    report.left_out, report.seconds = dict(left_out), round(seconds(), 3)
    report.folds = (seen[0]["fold"], seen[1]["fold"])
    if report.histories:
        pairs = zip(names, (one, other), strict=True)
        report.identities = {name: dict(target.identity()) for name, target in pairs}
    report.inconclusive = ["stopped by hand"] if stopped() else []
    report.inconclusive += dict.fromkeys(_open_questions(report, may_fold))
    return report


def _both(
    trace: Trace, targets: Sequence[Target], folder: Path, out_of_time: Callable[[], bool]
) -> list[Recorded]:
    """Walk a trace on one target and as far on the other, even if time is out by then."""
    reached = 0

    def leads() -> bool:
        nonlocal reached
        ends = out_of_time()
        reached += not ends
        return ends

    def follows() -> bool:
        nonlocal reached
        reached -= 1
        return reached < 0

    return [
        record(trace, target, folder, hook)
        for target, hook in zip(targets, (leads, follows), strict=True)
    ]


def _open_questions(report: Report, may_fold: Sequence[bool]) -> Iterator[str]:
    if not report.compared.get("output"):
        reasons = "; ".join(report.left_out) or "no history was walked on both"
        yield f"nothing was compared: {reasons}"
        return
    if report.divergence is not None:
        return
    for name, possible, folds in zip(report.targets, may_fold, report.folds, strict=True):
        if possible and not folds:
            yield f"{name} never folded, so its flush was not compared: give it longer histories"


def _setup_on(target: Target, setup: Setup) -> Setup:
    """The setup with the target's own dialect; raises for one that it can't run."""
    own = msgspec.structs.replace(setup, dialect=target.dialect.name)
    if because := refusal(target, own):
        raise RefusedError(f"{target.name} refuses a setup: {because}")
    return own


def histories(
    one: Target,
    other: Target,
    seed: int,
    device: Device = "cpu",
    *,
    worst: Dead = "nan",
    **fixed: Any,
) -> Iterator[Trace]:
    """Histories that both can walk, configuration after configuration, without end.

    They are drawn for the dialect of `one`; where the other's is another, nothing is placed, since
    a place in the middle of one protocol means nothing in the other.
    """
    owned = one.operations & other.operations
    if one.dialect.name != other.dialect.name:
        owned = owned - {"place"}
    plans = [
        plan._replace(operations=owned, horizon=0)
        for plan in hunt.plans(one, device, worst=worst, **fixed)
        if _takes(other, plan.setup)
    ]
    for number in itertools.count() if plans else ():
        for plan in plans:
            yield history(plan, seed, number)


def _takes(target: Target, setup: Setup) -> bool:
    try:
        _setup_on(target, setup)
    except (SetupError, RefusedError):
        return False
    return True


def _keep(
    report: Report,
    trace: Trace,
    walks: Sequence[Recorded],
    targets: tuple[Target, Target],
    run_dir: Path | None,
    device: Device,
) -> None:
    """Write the history down, up to where they part."""
    found = report.divergence
    if run_dir is None or found is None:
        return
    again = functools.partial(_again, report, device)
    for name, walk, target in zip(report.targets, walks, targets, strict=True):
        if mismatches := walk.failed(found.operation):
            named = msgspec.structs.replace(trace, target=name)
            failure = failures.as_failure(named, mismatches, dict(target.identity()))
            path = failures.write(failure, mismatches, run_dir, device)
            report.trace = str(path)
            report.reproduce = [again(path), failures.reproduce(path, name, device)]
            return
    whole = tuple(operation for operation, _ in unroll(trace.operations))
    cut = msgspec.structs.replace(trace, operations=whole[: found.operation + 1])
    path = run_dir / failures.FOLDER / f"differ-{digest(cut)}" / failures.TRACE
    save(cut, path)
    failures.write_text(path.parent / failures.ACCOUNT, f"{found.sentence()}\n\n{again(path)}\n")
    report.trace, report.reproduce = str(path), [again(path)]


def _again(report: Report, device: Device, path: Path) -> str:
    bits = ["--bits"] if report.bits else []
    on = ["--device", device] if device != "cpu" else []
    line = ["ringfold", "compare", *report.targets, "--trace", str(path), *bits, *on]
    return f"reproduce: {shlex.join(line)}"
