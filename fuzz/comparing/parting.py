"""Where two walks of one history part, and who is right.

Both are judged by the oracle as always, and what each target returned and stands for is kept
operation by operation. They part where the oracle finds fault with one of them and not with the
other; with `bits`, already where any number differs by a bit, whatever the oracle says of it.
States are compared as what memory stands for, so that two dialects can be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.histories.payload import Payload, load_tensors
from ringfold.fuzz.histories.trace import Operation, Trace
from ringfold.fuzz.judging import arrays
from ringfold.fuzz.judging.differential import Rows
from ringfold.fuzz.judging.mismatch import Mismatch
from ringfold.fuzz.judging.truth import GLOBAL, Window
from ringfold.fuzz.judging.walk import Verdict, Walk
from ringfold.fuzz.target import Request, Target
from ringfold.oracle.units import ulp_distance

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
        parting |= {
            key.operation for key in both if differing(one.seen[key], other.seen[key]).any()
        }
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


def differing(one: Seen, other: Seen) -> NDArray[np.bool_]:
    """Elements whose bits differ; two NaN do not. Of two dtypes, their values count."""
    a, b = one.got, other.got
    if a.dtype != b.dtype:
        a, b = a.astype(np.float64), b.astype(np.float64)
    return np.asarray((arrays.bits(a) != arrays.bits(b)) & ~(np.isnan(a) & np.isnan(b)))


def _value(key: Key, one: Seen, other: Seen) -> Value | None:
    differ = differing(one, other)
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
