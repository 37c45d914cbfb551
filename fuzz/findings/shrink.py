"""Shrinking: from a failing history to the smallest one that fails for the same cause.

A trace is simpler when it has fewer requests, then fewer steps, then plainer everything else
(`simpler/order.py`). The shrinker tries simpler neighbours (`simpler.QUICK`) and keeps each that
still fails for the same cause, until none does. Then it looks at *every* history that is as short
(`simpler.THOROUGH`), so that the result depends on the cause and hardly on where one started: equal
results, one finding.

docs/shrinking.md tells what counts as the same cause, and what is lost by that.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from ringfold.fuzz.findings import failures
from ringfold.fuzz.findings.simpler import QUICK, THOROUGH
from ringfold.fuzz.findings.simpler.order import size, steps
from ringfold.fuzz.findings.simpler.requests import alone
from ringfold.fuzz.histories.trace import Symptom, Trace, TraceError, digest, validate
from ringfold.fuzz.judging.mismatch import Check, Mismatch
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.target import Device, Target

SECONDS_MAX: Final = 60.0
"""For one finding, unless the caller says otherwise; then the best so far is the result."""

WALKS_MAX: Final = 2000
"""The same for those who walk fast, and a limit that strikes at the same place every time: by time
alone the result would depend on how busy the machine is. Seen: 1,057 at most, of 116 bugs."""

SHARPNESS: Final[tuple[Check, ...]] = (
    "crash", "cursors", "records", "convolution", "frame",
    "state-local", "state-global", "outputs", "exactness",
)  # fmt: skip
"""One bug often fails several checks at once. The first of these that failed names the cause: an
integer or a record says more than the wrong state that comes of it, and a wrong state more than
the outputs. Exactness comes last, since a fold that is wrong by far is inexact as well."""


class NoFailureError(ValueError):
    """A trace that shows no mismatch on its target."""


class Shrunk(msgspec.Struct):
    """What became of a failing trace."""

    trace: Trace
    """The smallest, with what was seen on it."""
    mismatches: list[Mismatch]
    cause: Symptom
    walks: int
    """How many candidates were walked."""
    seconds: float
    complete: bool
    """False when a limit came first, of time or of walks."""

    @property
    def digest(self) -> str:
        """Failures with the same one have the same cause, as far as anybody can tell."""
        return digest(self.trace)

    @property
    def steps(self) -> int:
        """Its length."""
        return steps(self.trace)


def cause(mismatches: Sequence[Mismatch]) -> Symptom:
    """What failures of one cause share: the sharpest finding of the first operation that failed.

    Whether dead memory was NaN makes no difference, and neither does which of the two state checks
    failed.
    """
    first = min((m.iteration, m.operation) for m in mismatches)
    together = [m for m in mismatches if (m.iteration, m.operation) == first]
    sharpest = min(together, key=lambda m: SHARPNESS.index(m.check))
    check: Check = "state-local" if sharpest.check == "state-global" else sharpest.check
    return Symptom(check=check, symptom=sharpest.symptom.replace("is NaN, not", "is not"))


def shrink(
    trace: Trace,
    target: Target,
    *,
    folder: Path | None = None,
    seconds_max: float = SECONDS_MAX,
    walks_max: int = WALKS_MAX,
    on_progress: Callable[[Trace, int], None] = lambda best, walks: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Shrunk:
    """The smallest trace found that fails on `target` for the same cause as `trace`.

    `folder` is where the trace's explicit tensors lie, if it has any. `on_progress` hears the best
    so far and the number of candidates walked, which are `walks_max` at most.

    Raises:
        NoFailureError: the trace shows no mismatch.
    """
    return _Shrinker(
        trace, target, folder or Path(), seconds_max, walks_max, on_progress, stopped
    ).run()


class Written(msgspec.Struct):
    """A shrunk failure on disk."""

    trace: str
    target: str | None
    cause: Symptom
    account: str
    """What was made of the trace, in a sentence."""
    sentence: str
    """What fails."""
    reproduce: str
    digest: str
    steps: int
    operations: int
    walks: int
    seconds: float
    complete: bool
    mismatches: list[Mismatch]


def write(found: Trace, shrunk: Shrunk, folder: Path, run_dir: Path, device: Device) -> Written:
    """Save a shrunk failure under `run_dir`, with the tensors in `folder` that it still needs."""
    trace = shrunk.trace
    path = failures.write(trace, shrunk.mismatches, run_dir, device)
    if (tensors := trace.payload.tensors) is not None:
        shutil.copyfile(folder / tensors, path.parent / tensors)
    limit = "" if shrunk.complete else " A limit came first: this is the best so far."
    return Written(
        trace=str(path),
        target=trace.target,
        cause=shrunk.cause,
        account=f"{steps(found)} steps ({len(found.operations)} operations, {found.setup}) became "
        f"{shrunk.steps} ({len(trace.operations)} operations, {trace.setup}) "
        f"in {shrunk.seconds:.1f} s and {shrunk.walks} walks.{limit}",
        sentence=shrunk.mismatches[0].sentence(),
        reproduce=failures.reproduce(path, trace.target, device),
        digest=shrunk.digest,
        steps=shrunk.steps,
        operations=len(trace.operations),
        walks=shrunk.walks,
        seconds=shrunk.seconds,
        complete=shrunk.complete,
        mismatches=shrunk.mismatches,
    )


class _Shrinker:
    """The best trace so far, and what was tried."""

    def __init__(
        self,
        trace: Trace,
        target: Target,
        folder: Path,
        seconds_max: float,
        walks_max: int,
        on_progress: Callable[[Trace, int], None],
        stopped: Callable[[], bool],
    ) -> None:
        self.target, self.folder, self.on_progress = target, folder, on_progress
        self.stopped = stopped
        self.started = time.monotonic()
        self.seconds_max, self.walks_max = seconds_max, walks_max
        self.walks = 0
        self.tried: set[str] = set()
        # What a replay expects and what was seen belong to the trace that was found.
        self.best = msgspec.structs.replace(trace, expected="agree", seen=(), identity={})
        mismatches = self._walk(self.best, limited=False)
        if not mismatches:
            raise NoFailureError(
                "the trace shows no mismatch on this target: there is nothing to shrink "
                "(a failure that comes and goes depends on more than the history)"
            )
        self.cause = cause(mismatches)
        self._keep(self.best, mismatches)

    def run(self) -> Shrunk:
        """Pass after pass, until a whole round changes nothing or time is out."""
        complete = True
        try:
            while self._round():
                pass
        except TimeoutError:
            complete = False
        self.mismatches = self._walk(self.best, limited=False)
        trace = failures.as_failure(self.best, self.mismatches, dict(self.target.identity()))
        seconds = round(time.monotonic() - self.started, 3)
        return Shrunk(trace, self.mismatches, self.cause, self.walks, seconds, complete)

    def _round(self) -> bool:
        improved = False
        for simplify in (self._alone, *QUICK):
            while self._improve(simplify(self.best)):
                improved = True
        return improved or any(self._improve(simplify(self.best)) for simplify in THOROUGH)

    def _alone(self, trace: Trace) -> Iterator[Trace]:
        suspect = next((m.request for m in self.mismatches if m.request is not None), None)
        return alone(trace, suspect)

    def _improve(self, candidates: Iterator[Trace]) -> bool:
        """Take the first candidate that is simpler and fails for the same cause."""
        limit = size(self.best)
        for candidate in candidates:
            if not _is_legal(candidate):
                continue
            name = digest(candidate)
            if name in self.tried or size(candidate) >= limit:
                continue
            self.tried.add(name)
            mismatches = self._walk(candidate)
            if mismatches and cause(mismatches) == self.cause:
                self._keep(candidate, mismatches)
                return True
        return False

    def _keep(self, trace: Trace, mismatches: list[Mismatch]) -> None:
        """A new best, cut behind the operation that failed."""
        self.best = failures.as_failure(trace, [_first(mismatches)], {})
        self.best = msgspec.structs.replace(self.best, expected="agree", seen=())
        self.mismatches = mismatches
        self.on_progress(self.best, self.walks)

    def _walk(self, trace: Trace, limited: bool = True) -> list[Mismatch]:
        """What a walk finds; nothing where the target refuses the setup."""
        late = time.monotonic() - self.started > self.seconds_max
        if limited and (late or self.walks >= self.walks_max or self.stopped()):
            raise TimeoutError
        self.walks += 1
        try:
            return walk(trace, self.target, folder=self.folder).mismatches
        except Exception:  # noqa: BLE001 - a target may refuse a smaller setup in any way
            return []


def _is_legal(trace: Trace) -> bool:
    try:
        validate(trace)
    except TraceError:
        return False
    return True


def _first(mismatches: Sequence[Mismatch]) -> Mismatch:
    return min(mismatches, key=lambda m: (m.iteration, m.operation))
