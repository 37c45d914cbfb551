"""An implementation on its way through the long text of `ringfold.sim.drift`.

The study is the simulator's own: its texts, its points, its figures. Only what is walked differs.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.histories.payload import packed, padded
from ringfold.fuzz.judging import arrays
from ringfold.fuzz.target import HeadParameters, Inputs, RefusedError, Target, refusal
from ringfold.oracle.gdn import Tokens
from ringfold.sim.cursors import Cursors
from ringfold.sim.drift import PRECISIONS, Array, Case, Text, Walker
from ringfold.sim.precision import rounded
from ringfold.sim.setup import Dtypes, Setup


def cases_on(
    target: Target,
    precisions: Sequence[str],
    rings: Sequence[int],
    acceptances: Sequence[float],
) -> list[Case]:
    """As `cases_of`: every precision whose dtypes differ, then other rings and other rates.

    How a target computes is its own; of a precision only the dtypes are the study's.
    """
    dialect, verifies = target.dialect, "verify" in target.operations
    found: dict[Dtypes, Case] = {}
    for name in precisions:
        case = Case(dialect.name, name, rings[0], acceptances[0], target.name)
        found.setdefault(dtypes_of(name), case)
    chosen = list(found.values())
    base = next((c for c in chosen if dtypes_of(c.precision).record != "float32"), chosen[0])
    if dialect.has_ring:
        chosen += [msgspec.structs.replace(base, ring=length) for length in rings[1:]]
    if verifies:
        chosen += [msgspec.structs.replace(base, acceptance=rate) for rate in acceptances[1:]]
    return chosen


def dtypes_of(precision: str) -> Dtypes:
    """Implementations keep records as they get them: activations have the records' dtype."""
    dtypes = PRECISIONS[precision].dtypes
    return msgspec.structs.replace(dtypes, activation=dtypes.record)


class TargetWalker(Walker):
    """One case on a target, which is opened for it: a target is walked by one case at a time."""

    def __init__(self, target: Target, case: Case, text: Text) -> None:
        """Raises `RefusedError` if the target can't run the case."""
        self.target = target
        super().__init__(case, text)

    def setup(self) -> Setup:
        """As the study's, in dtypes that an implementation has."""
        return msgspec.structs.replace(super().setup(), dtypes=dtypes_of(self.case.precision))

    def open(self, text: Text) -> None:
        """Seat every row on the state that the text begins with."""
        setup = self.setup()
        if why := refusal(self.target, setup):
            raise RefusedError(why)
        A_log = text.A_log.astype(np.float32)
        self.target.open(setup, HeadParameters(A_log, np.zeros_like(A_log)))
        self.rows = list(range(self.study.rows))
        for row in self.rows:
            self.target.admit(row, text.state[:, row].astype(np.float32))

    @property
    def verifies(self) -> bool:
        """Whether it verifies drafts; else it decodes."""
        return "verify" in self.target.operations

    def step(self, window: Tokens, accepted: int) -> Array:
        """Verify a window of every row and commit `accepted` tokens."""
        lengths = np.full(len(self.rows), window.q.shape[2])
        got = self.target.verify(self.rows, lengths.tolist(), self.inputs(window, lengths))
        self.target.commit(self.rows, [accepted] * len(self.rows), self.study.window)
        return padded(got, lengths).astype(np.float64)

    def decode(self, token: Tokens) -> Array:
        """Decode one token of every row."""
        ones = np.ones(len(self.rows), np.int64)
        got = self.target.decode(self.rows, self.inputs(token, ones))
        return padded(got, ones).astype(np.float64)

    def inputs(self, tokens: Tokens, lengths: NDArray[np.int64]) -> Inputs:
        """Packed, in values that the activations' dtype holds: float16 lacks the smallest."""
        dtype = self.setup().dtypes.activation
        return Inputs(*(rounded(packed(x, lengths).astype(np.float32), dtype) for x in tokens))

    def represented(self) -> Array:
        """The committed state that the memory stands for, by its own cursors."""
        views, dialect = self.target.views(), self.target.dialect
        seats = [self.target.seat(row) for row in self.rows]

        def of_rows(name: str, axis: int) -> NDArray[np.generic]:
            buffer, array = views[name]
            at = np.array([seat[buffer.axes[axis]] for seat in seats])
            return arrays.to_numpy(array).take(at, axis)

        gathered = {name: of_rows(name, 1) for name in dialect.represents if name in views}
        cursors = (of_rows(f, 0) if f in views else np.zeros(1, np.int64) for f in Cursors._fields)
        return dialect.represented(gathered, Cursors(*cursors), self.setup())
