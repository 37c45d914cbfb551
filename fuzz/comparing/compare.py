"""Two targets on the same histories: the first thing in which they part, and who is right.

Both walk a history, judged by the oracle as always, and what each returned and stands for is kept
operation by operation. They part where the oracle finds fault with one of them and not with the
other; with `bits`, already where any number differs by a bit, whatever the oracle says of it.
States are compared as what memory stands for, so that two dialects can be.
"""

from __future__ import annotations

import functools
import itertools
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.findings import failures
from ringfold.fuzz.histories.generate import history
from ringfold.fuzz.histories.payload import Payload, load_tensors
from ringfold.fuzz.histories.trace import (
    Operation,
    Trace,
    TraceError,
    digest,
    save,
    unroll,
    validate,
)
from ringfold.fuzz.judging import arrays
from ringfold.fuzz.judging.differential import Rows
from ringfold.fuzz.judging.frame import Dead
from ringfold.fuzz.judging.mismatch import Mismatch
from ringfold.fuzz.judging.truth import GLOBAL, Window
from ringfold.fuzz.judging.walk import Verdict, Walk
from ringfold.fuzz.running import hunt
from ringfold.fuzz.target import Device, RefusedError, Request, Target, refusal
from ringfold.oracle.units import ulp_distance
from ringfold.sim.setup import Setup, SetupError
from ringfold.sim.situations import reachable_situations

OUTPUTS: Final = ("layer", "token", "value_head", "v")
STATE: Final = ("layer", "value_head", "v", "k")


class Key(NamedTuple):
    """Something that both walks have."""

    operation: int
    axes: tuple[str, ...]
    request: Request

    @property
    def what(self) -> str:
        """In a word."""
        return "output" if self.axes == OUTPUTS else "state"


class Seen(NamedTuple):
    """What one target had there, and what the recurrence has."""

    got: NDArray[Any]
    expected: NDArray[np.float64]


class Recorder(Walk):
    """A walk that keeps what was judged."""

    def __init__(self, trace: Trace, target: Target, payload: Payload, **hooks: Any) -> None:
        super().__init__(trace, target, payload, **hooks)
        self.seen: dict[Key, Seen] = {}
        self.kinds: dict[int, str] = {}
        """Of the operations, by number."""

    def _walk(self, kind: str, together: Sequence[Operation]) -> None:
        self.kinds[self.judge.position.operation] = kind
        super()._walk(kind, together)

    def _judge_outputs(
        self, outputs: NDArray[Any], rows: Rows, lengths: Sequence[int], window: Window
    ) -> None:
        expected = self.truth.outputs(window).outputs  # [layer, row, T, HV, V]
        ends = np.cumsum(lengths)
        for i, (request, row) in enumerate(zip(window.requests, window.batch_rows, strict=True)):
            own = outputs[:, ends[row] - lengths[row] : ends[row]].copy()
            key = Key(self.judge.position.operation, OUTPUTS, request)
            self.seen[key] = Seen(own, expected[:, i, : lengths[row]])
        super()._judge_outputs(outputs, rows, lengths, window)

    def _judge_state(self, requests: Sequence[Request], *, restart: bool = False) -> None:
        if requests:
            expected = self.truth.expected(list(requests))[0][GLOBAL]
            got = self.judge.represented(requests)
            for i, request in enumerate(requests):
                key = Key(self.judge.position.operation, STATE, request)
                self.seen[key] = Seen(got[:, i].copy(), expected[:, i].copy())
        super()._judge_state(requests, restart=restart)


class Recorded(NamedTuple):
    """One walk."""

    target: str
    verdict: Verdict
    seen: dict[Key, Seen]
    kinds: dict[int, str]

    def failed(self, operation: int) -> list[Mismatch]:
        """What the oracle found there."""
        return [m for m in self.verdict.mismatches if m.operation == operation]


class Value(msgspec.Struct, frozen=True):
    """The number at which two targets differ most."""

    what: str
    request: int
    where: str
    values: tuple[str, str]
    expected: str
    """By the recurrence."""
    difference: str
    ulp: str
    elements: int
    """How many differ there."""


class Divergence(msgspec.Struct, frozen=True):
    """Where two targets part."""

    operation: int
    kind: str
    targets: tuple[str, str]
    oracle: tuple[str, str]
    """What the oracle says of each: the finding, or empty if it is within limits."""
    value: Value | None
    """None where no number differs: a cursor, a frame, or bits that one of them claims."""

    def sentence(self) -> str:
        """A lab note."""
        a, b = self.targets
        text = f"{a} and {b} part at operation {self.operation} ({self.kind})"
        if v := self.value:
            one, other = v.values
            text += (
                f", request {v.request}, {v.what} at {v.where}: {one} and {other}, "
                f"the recurrence has {v.expected}; they differ by {v.difference} ({v.ulp} ULP)"
            )
            if v.elements > 1:
                text += f", and so do {v.elements} elements"
        wrong = [name for name, said in zip(self.targets, self.oracle, strict=True) if said]
        if not wrong:
            return f"{text}. Both are within the oracle's limits."
        who = f"{wrong[0]} is" if len(wrong) == 1 else "Both are"
        return f"{text}. {who} wrong. {' '.join(filter(None, self.oracle))}"


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


def record(
    trace: Trace,
    target: Target,
    folder: Path = Path(),
    out_of_time: Callable[[], bool] = lambda: False,
) -> Recorded:
    """Walk `trace` on `target`, which is opened anew; explicit tensors, if any, lie in `folder`."""
    spec = trace.payload
    tensors = load_tensors(folder / spec.tensors, trace.setup) if spec.tensors else None
    payload = Payload(trace.setup, spec.seed, spec.profile, tensors)
    walk = Recorder(trace, target, payload, out_of_time=out_of_time)
    return Recorded(target.name, walk.run(), walk.seen, walk.kinds)


def divergence(one: Recorded, other: Recorded, bits: bool = False) -> Divergence | None:
    """The first operation at which two walks of one history part; None if they do not."""
    both = one.seen.keys() & other.seen.keys()
    parting = {
        m.operation
        for mine, its in ((one, other), (other, one))
        for m in mine.verdict.mismatches
        if m.key not in {n.key for n in its.failed(m.operation)}
    }
    if bits:
        parting |= {key.operation for key in both if _differ(one.seen[key], other.seen[key]).any()}
    reached = min(walk.verdict.operations for walk in (one, other))
    if not (parting := {operation for operation in parting if operation < reached}):
        return None
    first = min(parting)
    oracle = [_said(walk.failed(first)) for walk in (one, other)]
    here = sorted(key for key in both if key.operation == first)
    values = [v for key in here if (v := _value(key, one.seen[key], other.seen[key])) is not None]
    value = max(values, key=lambda v: np.nan_to_num(float(v.difference), nan=np.inf), default=None)
    return Divergence(
        first, one.kinds[first], (one.target, other.target), (oracle[0], oracle[1]), value
    )


def _said(mismatches: Sequence[Mismatch]) -> str:
    more = f" ({len(mismatches) - 1} more checks fail.)" if len(mismatches) > 1 else ""
    return f"{mismatches[0].sentence()}{more}" if mismatches else ""


def _differ(one: Seen, other: Seen) -> NDArray[np.bool_]:
    """Elements whose bits differ; two NaN do not. Of two dtypes, their values count."""
    a, b = one.got, other.got
    if a.dtype != b.dtype:
        a, b = a.astype(np.float64), b.astype(np.float64)
    return np.asarray((arrays.bits(a) != arrays.bits(b)) & ~(np.isnan(a) & np.isnan(b)))


def _value(key: Key, one: Seen, other: Seen) -> Value | None:
    differ = _differ(one, other)
    if not differ.any():
        return None
    a, b = one.got.astype(np.float64), other.got.astype(np.float64)
    with np.errstate(invalid="ignore"):
        size = np.where(differ, np.nan_to_num(np.abs(a - b), nan=np.inf), -1.0)
    at = tuple(int(i) for i in np.unravel_index(np.argmax(size), size.shape))
    dtype = one.got.dtype if key.axes == OUTPUTS else np.dtype(np.float32)
    return Value(
        key.what,
        key.request,
        ", ".join(f"{axis} {i}" for axis, i in zip(key.axes, at, strict=True)),
        (f"{a[at]:.9g}", f"{b[at]:.9g}"),
        f"{one.expected[at]:.9g}",
        f"{abs(a[at] - b[at]):.3g}",
        str(int(ulp_distance(a[at].astype(dtype), b[at].astype(dtype), dtype))),
        int(differ.sum()),
    )


# ------------------------------------------------------------------ many histories


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
            identical[key.what] += not _differ(*(walk.seen[key] for walk in walks)).any()
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
