"""What is compared with what, and how far it may be off: the design's checks, one function each.

Every function gets arrays that are already gathered for the rows of one operation and returns at
most one `Finding`: its worst element, in units of what is allowed. It also returns the largest
ratio seen when nothing fails, since a limit means little without the margin that was observed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.judging.arrays import DTYPES, bits
from ringfold.fuzz.judging.mismatch import Check
from ringfold.oracle.gdn import Updates
from ringfold.oracle.units import (
    FLOOR,
    TINY,
    UNIT,
    Trail,
    Units,
    output_limit,
    sizes,
    state_limit,
    ulp_distance,
)

Array = NDArray[np.float64]

GATE_ROUNDINGS: Final = 8.0
"""Roundings of float32 on the way to a stored gate: exp, log and exp again at 2 ULP, products."""

KEY_ROUNDINGS: Final = 8.0
"""The same for a normalised key: the sum of squares, the root, the division."""


WRONG: Final = "an output is not the recurrence's"


class Finding(NamedTuple):
    """The worst element of a check that failed; `where` is an index into the compared arrays."""

    check: Check
    symptom: str
    where: tuple[int, ...]
    expected: float
    got: float
    error: float
    allowed: float
    ulp: int
    elements: int

    @property
    def units(self) -> float:
        """Error over what is allowed."""
        return _ratio(self.error, self.allowed)


class Judged(NamedTuple):
    """Largest error over limit that was seen, and the failure if there is one."""

    seen: float
    finding: Finding | None

    def after(self, rows: int) -> Judged:
        """The same, said of arrays [layer, row, ...] that have so many rows in front."""
        if self.finding is None:
            return self
        layer, row, *rest = self.finding.where
        return self._replace(finding=self.finding._replace(where=(layer, row + rows, *rest)))


def worst(parts: Sequence[Judged]) -> Judged:
    """Of what was found in each part of an array, what is found in the whole."""
    most = max(parts, key=lambda part: part.seen)
    if most.finding is None:
        return most
    elements = sum(part.finding.elements for part in parts if part.finding is not None)
    return most._replace(finding=most.finding._replace(elements=elements))


def eps(dtype: str) -> float:
    """Relative rounding of a dtype: half the spacing of its numbers around 1."""
    return float(_info(dtype).eps) / 2


def tiny(dtype: str) -> float:
    """What rounding to a dtype may lose absolutely, below its smallest normal number."""
    return float(_info(dtype).smallest_subnormal)


def largest(dtype: str) -> float:
    """The largest finite number of a dtype."""
    return float(_info(dtype).max)


def _info(dtype: str) -> Any:
    return ml_dtypes.finfo(DTYPES[dtype])  # type: ignore[no-untyped-call]


def outputs_limit(
    dtype: str,
    trail: Trail,
    query: Array,  # |q| [layer, row, T, HV, 1]
    eps_dot: float,
    floor: Array,  # absolute, of the same shape
    query_slack: Array | None = None,  # [layer, row, T, HV]
) -> Array:
    """What outputs may be off by, [layer, row, T, HV, V].

    `query_slack` is what queries may be off by, in 2-norm, before anything is done with them.
    """
    limit = output_limit(
        query[..., 0],
        trail.errors,
        trail.masses,
        trail.outputs,
        eps_dot,
        eps(dtype),
        FLOOR + tiny(dtype) + floor,
    )
    if query_slack is not None:
        limit += query_slack[..., None] * (trail.masses + UNIT * trail.errors)
    return limit


def outputs(
    got: NDArray[Any],  # [layer, row, T, HV, V]
    expected: Array,
    limits: Sequence[Array],
    live: NDArray[np.bool_],  # [row, T]
) -> list[Judged]:
    """Outputs are what the recurrence returns from the committed state, by each of these limits."""
    seen, mask = got.astype(np.float64), among(live, got)
    with np.errstate(invalid="ignore"):
        error = np.abs(seen - expected)
    infinite = np.isinf(seen)
    if not infinite.any():
        return [judge("outputs", WRONG, seen, expected, error, limit, mask) for limit in limits]
    # What exceeds the output's dtype may be infinite, with the right sign.
    infinite &= np.sign(seen) == np.sign(expected)
    most = largest(got.dtype.name)
    over = [infinite & (np.abs(expected) + limit > most) for limit in limits]
    return [
        judge("outputs", WRONG, seen, expected, np.where(fits, 0.0, error), limit, mask)
        for fits, limit in zip(over, limits, strict=True)
    ]


def padding(got: NDArray[Any]) -> Judged:
    """Outputs of padding rows [layer, token, HV, V] are zeros."""
    seen = got.astype(np.float64)
    zeros = np.zeros_like(seen)
    symptom = "a padding row's output is not zero"
    return judge("outputs", symptom, seen, zeros, np.abs(seen), zeros)


def state(
    check: Check,
    got: Array,  # [layer, row, HV, V, K]
    expected: Array,
    error_units: Array,  # [layer, row, HV, V]
    dtype: str,
    which: str = "state",
) -> Judged:
    """The represented state is the committed one; rows over K are judged in 2-norm.

    `dtype` is the checkpoint's: a row of 256 numbers that each lose a last subnormal digit may be
    off by 16 of those.
    """
    difference = got - expected
    error = sizes(difference)
    limit = state_limit(Units(error_units, error_units)) + 16 * tiny(dtype)
    symptom = f"the {which} is not the committed one"
    judged = judge(check, symptom, error, np.zeros_like(error), error, limit)
    if judged.finding is None:
        return judged
    f = judged.finding
    row = np.nan_to_num(np.abs(difference[f.where]), nan=np.inf)
    at = (*f.where, int(np.argmax(row)))
    finding = f._replace(
        where=at,
        expected=float(expected[at]),
        got=float(got[at]),
        ulp=int(ulp_distance(got[at], expected[at], np.float32)),
    )
    return Judged(judged.seen, finding)


def gate(
    name: str,  # g or beta
    got: NDArray[Any],  # stored, [layer, row, T, HV]
    updates: Updates,
    exp_A: Array,  # [layer, 1, 1, HV]
    live: NDArray[np.bool_],
) -> Judged:
    """A stored gate is the recurrence's, within rounding."""
    if name == "g":
        expected = updates.log_decay
        scale = exp_A + np.abs(expected)
    else:
        expected = updates.beta
        # exp as a power of two rounds its exponent, and near beta = 0 that exponent is ln beta.
        scale = (1.0 - np.log(np.maximum(expected, TINY))) * expected
    limit = GATE_ROUNDINGS * UNIT * scale + TINY
    seen = got.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(seen - expected)
    symptom = f"a stored {name} is not the gate"
    return judge("records", symptom, seen, expected, error, limit, among(live, got))


def keys(
    got: NDArray[Any],  # stored normalised keys [layer, row, T, H, K]
    low: NDArray[Any] | None,  # what rounding cut off them, where that is kept too
    expected: Array,
    live: NDArray[np.bool_],
    slack: Array | float = 0.0,
) -> Judged:
    """Stored keys are the normalised ones, within rounding of the record's dtype.

    `slack` is what they may be off by before they are rounded.
    """
    dtype = got.dtype.name
    seen = got.astype(np.float64)
    rounding = eps(dtype)
    if low is not None:
        seen = seen + low.astype(np.float64)
        rounding = rounding**2
    limit = (rounding + KEY_ROUNDINGS * UNIT) * np.abs(expected) + tiny(dtype) + FLOOR + slack
    with np.errstate(invalid="ignore"):
        error = np.abs(seen - expected)
    symptom = "a stored key is not the normalised one"
    return judge("records", symptom, seen, expected, error, limit, among(live, got))


def raw(
    name: str,
    got: NDArray[Any],  # [layer, row, T, heads, width]
    expected: NDArray[Any],  # the inputs, in the record's dtype
    live: NDArray[np.bool_],
) -> Finding | None:
    """Raw records are the inputs, bit for bit."""
    symptom = f"a record in {name} is not the input"
    return same_bits("records", symptom, got, expected, among(live, got))


def convolved(
    name: str,
    got: NDArray[Any],  # stored, [layer, row, T, heads, width]
    expected: Array,
    slack: Array,  # of the same shape: what each may be off by in the dtype of the activations
    activation: str,
    live: NDArray[np.bool_],
) -> Judged:
    """Raw records are what the convolution makes of the projections, within rounding."""
    dtype = got.dtype.name
    limit = slack
    if eps(dtype) > eps(activation):
        limit = slack + eps(dtype) * (np.abs(expected) + slack) + tiny(dtype)
    seen = got.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(seen - expected)
    symptom = f"a record in {name} is not what the convolution makes"
    return judge("records", symptom, seen, expected, error, limit, among(live, got))


def among(live: NDArray[np.bool_], values: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Which of `values` [layer, row, T, ...] are of tokens that are there; None: all of them."""
    if live.all():
        return None
    return np.broadcast_to(live.reshape(1, *live.shape, *[1] * (values.ndim - 3)), values.shape)


def same_bits(
    check: Check,
    symptom: str,
    got: NDArray[Any],
    expected: NDArray[Any],
    mask: NDArray[np.bool_] | None = None,
) -> Finding | None:
    """Bitwise equality of two arrays of one dtype."""
    differs = bits(got) != bits(expected)
    if mask is not None:
        differs &= mask
    if not differs.any():
        return None
    a, b = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(a - b)
    size = np.where(differs, np.nan_to_num(error, nan=np.inf), -1.0)
    where = tuple(int(i) for i in np.unravel_index(np.argmax(size), size.shape))
    return Finding(
        check=check,
        symptom=symptom,
        where=where,
        expected=float(b[where]),
        got=float(a[where]),
        error=float(error[where]),
        allowed=0.0,
        ulp=int(ulp_distance(got[where], expected[where], got.dtype)),
        elements=int(differs.sum()),
    )


def judge(
    check: Check,
    symptom: str,
    got: Array,
    expected: Array,
    error: Array,
    limit: Array,
    mask: NDArray[np.bool_] | None = None,
) -> Judged:
    """The worst element where `mask` holds; a NaN in `error` is worse than any number."""
    if error.size == 0:
        return Judged(0.0, None)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = error / limit
        if mask is not None:
            ratio = np.where(mask, ratio, 0.0)
        if (most := ratio.max()) <= 1.0:  # and so there is no NaN
            return Judged(float(most), None)
        ratio[error <= 0.0] = 0.0
        ratio[np.isnan(ratio)] = np.inf
    where = tuple(int(i) for i in np.unravel_index(np.argmax(ratio), ratio.shape))
    seen = float(ratio[where])
    if seen <= 1.0:
        return Judged(seen, None)
    never = np.isnan(got[where])
    if never:
        symptom = symptom.replace("is not", "is NaN, not")
    finding = Finding(
        check=check,
        symptom=symptom,
        where=where,
        expected=float(expected[where]),
        got=float(got[where]),
        error=float(error[where]),
        allowed=float(limit[where]),
        ulp=int(ulp_distance(got[where], expected[where], np.float32)),
        elements=int((ratio > 1.0).sum()),
    )
    return Judged(seen, finding)


def _ratio(error: float, allowed: float) -> float:
    if error <= 0.0:
        return 0.0
    return error / allowed if allowed > 0.0 else float("inf")
