"""Metamorphic checks: two tellings of one history are walked on a target, and compared.

No limit and no oracle is needed for that: where a target claims that a variation makes no
difference, in its `repeats_bits`, both walks must have the same bits. For all other variations the
oracle judges both walks as it always does, and so they agree within error units.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from ringfold.fuzz.comparing.variations import CHEAP, Variation, Varied
from ringfold.fuzz.findings.failures import as_failure, reproduce, write
from ringfold.fuzz.histories.payload import Payload
from ringfold.fuzz.histories.story import Plan
from ringfold.fuzz.histories.trace import Free, Operation, Place, Trace
from ringfold.fuzz.histories.trace.writing import replacing
from ringfold.fuzz.judging import arrays
from ringfold.fuzz.judging.differential import Rows
from ringfold.fuzz.judging.judge import Judge, Position
from ringfold.fuzz.judging.mismatch import Check, Mismatch
from ringfold.fuzz.judging.truth import Window
from ringfold.fuzz.judging.walk import Walk
from ringfold.fuzz.running.course import Course
from ringfold.fuzz.target import Device, Request, Target, refusal
from ringfold.sim.dialects import physical

TENSORS: Final = "tensors.safetensors"
"""Beside the trace of a variation: what a window under a new tag shares with the old one."""


class Key(NamedTuple):
    """What both walks must have: a window's outputs, or a buffer's part in the end."""

    request: Request
    what: str
    tag: int = 0


class Seen(NamedTuple):
    """What one walk had there, and when."""

    at: Position
    axes: tuple[str, ...]
    values: NDArray[Any]


class _Deaf(Judge):
    """A judge who lets everything pass but a target that raises."""

    def _mismatch(self, check: Check, symptom: str, **details: Any) -> None:
        if check == "crash":
            super()._mismatch(check, symptom, **details)


class Witness(Walk):
    """A walk that remembers outputs, and what each request leaves behind or has in the end.

    Without `oracle` it goes on whatever the checks say.
    """

    def __init__(
        self,
        varied: Varied,
        target: Target,
        *,
        oracle: bool,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        trace, spec = varied.trace, varied.trace.payload
        payload = Payload(trace.setup, spec.seed, spec.profile, varied.tensors)
        super().__init__(trace, target, payload, out_of_time=stopped)
        self.origin, self.tag = varied.origin, 0
        self.seen: dict[Key, Seen] = {}
        if not oracle:
            self.twin = None
            self.judge = _Deaf(self.setup, target, None, self.ledger, self.truth)

    def remember(self, requests: Sequence[Request]) -> None:
        """Checkpoint and live records, oldest first, wherever they lie."""
        for request in requests:
            entry = self.ledger.entry(request)
            rows = physical(entry.cursors.cache_base, np.arange(entry.lag), self.setup.ring)
            for name, buffer in self.mirror.buffers.items():
                if "step" in buffer.axes or "layer" not in buffer.axes:
                    continue
                seat = entry.seat[buffer.axes[1]]
                if "ring" in buffer.axes:
                    region = {buffer.axes[1]: np.full(rows.shape, seat), "ring": rows}
                else:
                    region = {buffer.axes[1]: np.array([seat])}
                values = self.mirror.take(name, region)
                self.seen[Key(request, name)] = Seen(self.judge.position, (), values)

    def _walk(self, kind: str, together: Sequence[Operation]) -> None:
        operation = together[0]
        self.tag = getattr(operation, "tag", 0)
        if isinstance(operation, Free) and operation.request in self.ledger:
            self.remember([operation.request])
        super()._walk(kind, together)

    def _judge_outputs(
        self, outputs: NDArray[Any], rows: Rows, lengths: Sequence[int], window: Window
    ) -> None:
        super()._judge_outputs(outputs, rows, lengths, window)
        ends = np.cumsum(lengths)
        axes = ("layer", "token", "value_head", "v")
        for request, row in zip(window.requests, window.batch_rows, strict=True):
            key = Key(request, "outputs", self.origin.get(self.tag, self.tag))
            values = outputs[:, ends[row] - lengths[row] : ends[row]].copy()
            self.seen[key] = Seen(self.judge.position, axes, values)


class Testimony(NamedTuple):
    """What a walk found wrong by itself, and what it saw."""

    mismatches: list[Mismatch]
    seen: dict[Key, Seen]
    windows: int
    complete: bool
    """Whether it came to the history's end, or to what it found."""


def testify(varied: Varied, target: Target, oracle: bool, stopped: Callable[[], bool]) -> Testimony:
    """Walk a trace on `target`, which is opened anew; see `Witness` for `oracle`."""
    witness = Witness(varied, target, oracle=oracle, stopped=stopped)
    verdict = witness.run()
    if not verdict.mismatches:
        witness.remember(list(witness.ledger.lines))
    return Testimony(verdict.mismatches, witness.seen, verdict.windows, verdict.complete)


def contradiction(
    variation: Variation, plain: Mapping[Key, Seen], varied: Mapping[Key, Seen]
) -> Mismatch | None:
    """The first thing in which two walks differ by a bit."""
    for key, (_, axes, expected) in plain.items():
        at, _, got = varied[key]
        different = arrays.bits(expected) != arrays.bits(got)
        different &= ~(np.isnan(expected) & np.isnan(got))
        if not different.any():
            continue
        first = tuple(int(i) for i in np.argwhere(different)[0])
        named = [f"{axis} {i}" for axis, i in zip(axes, first, strict=False)]
        place = f"outputs of window {key.tag}" if key.what == "outputs" else key.what
        return Mismatch(
            check="exactness",
            symptom=f"not indifferent to {variation.holds} ({variation.name})",
            **msgspec.structs.asdict(at),
            request=key.request,
            where=", ".join([place, *named]),
            expected=f"{float(expected[first]):.9g}",
            got=f"{float(got[first]):.9g}",
            elements=int(different.sum()),
        )
    return None


# ------------------------------------------------------------------ many of them


class Finding(msgspec.Struct):
    """One property that does not hold, or what a walk found by itself."""

    variation: str
    sentence: str
    symptom: str
    reproduce: tuple[str, ...] = ()


class Variations(msgspec.Struct):
    """What came of varying the histories of a target."""

    target: str
    device: Device
    seed: int
    compared: dict[str, int] = {}
    """Pairs of walks that were compared bit for bit, by variation."""
    judged: dict[str, int] = {}
    """Varied walks that the oracle judged, by variation."""
    histories: int = 0
    windows: int = 0
    seconds: float = 0.0
    findings: list[Finding] = []
    inconclusive: list[str] = []


def vary(
    plans: Sequence[Plan],
    target: Target,
    seed: int,
    windows_max: int,
    *,
    device: Device = "cpu",
    run_dir: Path | None = None,
    oracle: bool = True,
    bits: frozenset[str] | None = None,
    variations: Sequence[Variation] = CHEAP,
    seconds_max: float | None = None,
    on_progress: Callable[[Variations], None] = lambda report: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Variations:
    """Walk histories and all their variations, until `windows_max` row-windows are verified.

    Args:
        plans: whose histories; see `hunt.plans`.
        target: under test, not opened.
        seed: decides every history and every variation.
        windows_max: row-windows of all walks together.
        device: on which the target runs.
        run_dir: where failures/ goes; None writes nothing.
        oracle: whether checks other than these count.
        bits: variations that must keep the bits; what the target claims, unless given.
        variations: which to try.
        seconds_max: or until so many seconds are over.
        on_progress: hears of every walk.
        stopped: whether somebody wants an end; what was compared by then is told.
    """
    start = time.perf_counter()
    claimed = getattr(target, "repeats_bits", frozenset()) if bits is None else bits
    report = Variations(target=plans[0].target if plans else target.name, device=device, seed=seed)

    def late() -> bool:
        return seconds_max is not None and time.perf_counter() - start > seconds_max

    def out_of_time() -> bool:
        return stopped() or late()

    for number, trace in _histories(plans, seed, device):
        if report.windows >= windows_max or out_of_time():
            break
        on_progress(report)
        plain = testify(Varied(trace), target, oracle, out_of_time)
        report.windows += plain.windows
        report.histories += plain.complete
        if plain.mismatches:
            _found(report, "none", [Varied(trace)], plain.mismatches, target, run_dir)
            continue
        for variation, varied, retold in _retellings(variations, trace, target, seed, number):
            if out_of_time():
                break
            on_progress(report)
            other = testify(varied, retold, oracle, out_of_time)
            report.windows += other.windows
            if not (other.complete or other.mismatches):
                break
            report.judged[variation.name] = report.judged.get(variation.name, 0) + 1
            if other.mismatches:
                _found(report, variation.name, [varied], other.mismatches, target, run_dir)
            elif variation.bits and variation.name in claimed:
                report.compared[variation.name] = report.compared.get(variation.name, 0) + 1
                if mismatch := contradiction(variation, plain.seen, other.seen):
                    pair = [Varied(trace), varied]
                    _found(report, variation.name, pair, [mismatch], target, run_dir)
    report.seconds = round(time.perf_counter() - start, 3)
    report.inconclusive += _open_question(report, len(variations), stopped(), late())
    return report


def _open_question(report: Variations, asked: int, stopped: bool, late: bool) -> Iterator[str]:
    """Why the run proves less than it was asked to."""
    judged = f"{len(report.judged)} of {asked} variations were judged"
    if stopped:
        yield f"stopped by hand: {judged}"
    elif late and len(report.judged) < asked:
        yield f"the time was over: {judged}: give it more"
    elif not report.judged and not report.findings:
        yield "no history could be varied on this target"


def _histories(plans: Sequence[Plan], seed: int, device: Device) -> Iterator[tuple[int, Trace]]:
    # A variation tells operations one by one, so there are no repeats.
    course = Course([plan._replace(horizon=0) for plan in plans], seed, None, device, steered=False)
    while (lot := course.lot()) is not None:
        yield from enumerate(lot.traces, start=lot.first)
        course.hear(lot, [])


def _retellings(
    variations: Sequence[Variation], trace: Trace, target: Target, seed: int, number: int
) -> Iterator[tuple[Variation, Varied, Target]]:
    """What can be made of a history, and whom it is told to."""
    for variation in variations:
        key = [seed << 32 | zlib.crc32(variation.name.encode()), number]
        varied = variation.make(trace, np.random.Generator(np.random.Philox(key=key)))
        if varied is None or not _owns(target, varied.trace):
            continue
        if (retold := variation.retell(target)) is not None:
            yield variation, varied, retold


def _owns(target: Target, trace: Trace) -> bool:
    """Whether the target takes the setup, and places requests where a variation does."""
    places = any(isinstance(operation, Place) for operation in trace.operations)
    return not refusal(target, trace.setup) and ("place" in target.operations or not places)


def _found(
    report: Variations,
    variation: str,
    traces: Sequence[Varied],
    mismatches: list[Mismatch],
    target: Target,
    run_dir: Path | None,
) -> None:
    """Report a symptom once a variation, and write down its trace, or the pair of them."""
    first = mismatches[0]
    if any((f.variation, f.symptom) == (variation, first.symptom) for f in report.findings):
        return
    lines: list[str] = []
    if run_dir is not None:
        # Of a pair neither trace fails by itself, so a replay of either must agree.
        fails = len(traces) == 1
        lines = [
            _kept(varied, mismatches, fails, target, run_dir, report.device) for varied in traces
        ]
    report.findings.append(Finding(variation, first.sentence(), first.symptom, tuple(lines)))


def _kept(
    varied: Varied,
    mismatches: list[Mismatch],
    fails: bool,
    target: Target,
    run_dir: Path,
    device: Device,
) -> str:
    """Write a trace and its tensors; returns the line that replays it."""
    trace, tensors = varied.trace, varied.tensors
    if tensors:
        spec = msgspec.structs.replace(trace.payload, tensors=TENSORS)
        trace = msgspec.structs.replace(trace, payload=spec)
    if fails:
        trace = as_failure(trace, mismatches, dict(target.identity()))
    path = write(trace, mismatches, run_dir, device)
    if tensors:
        whole = {name: np.ascontiguousarray(values) for name, values in tensors.items()}
        with replacing(path.parent / TENSORS) as part:
            save_file(whole, part)
    return reproduce(path, trace.target, device)
