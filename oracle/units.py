"""How far may a right fp32 computation lie from the truth? A running bound instead of a tolerance.

Beside each row of the state (over K, in 2-norms) runs a number R [..., HV, V]. One *unit* is
2^-24 R: what the roundings of a straightforward fp32 computation can add up to by now. A token does

    R <- max(1, |1 - beta |k|^2|) * exp(g) * R            the past error, carried as the state is
         + 8 * (|S|                                        rounding of the new state
                + (1 + |ln beta|) * max(1, |k|) * |u|      rounding of what is written
                + (exp(A_log) + |g|) * |exp(g) S_prev|)    rounding of the gate
         + 2^-102 * (|S_prev| + max(1, |k|) * |u| / beta)  underflow of exp(g) and of beta

The delta rule is contractive, so old errors fade at the rate of the gate while new ones come in,
and R settles. The reasons, term by term, each met by a right computation that the bound without it
called wrong (`tests/oracle/test_units.py` has them):

* exp(A_log) + |g|. In fp32, log(1 + exp(x)) is off by 2^-24 absolutely (it returns 0 for x < -17,
  where the truth is exp(x)), which exp(A_log) multiplies; and a relative rounding of g is an
  absolute one of |g| 2^-24 in the exponent.
* |ln beta|. Likewise for beta = 1 / (1 + exp(-b)) at b << 0: a GPU computes exp(x) as
  2^(x * log2(e)) and rounds the exponent, which is -ln beta.
* 8. The scalars that multiply a whole row (beta, 1/|k|, exp(g)) each come out of three or four
  operations, some of which a GPU gets right to 2 ulp only, and their errors do not average out over
  the row. One token with correctly rounded operations was seen to need 2.3; one with divisions and
  exponentials that err by up to 2 ulp, and roots and logarithms by 1 ulp, 5.8.
* 2^-102. Below 2^-126 = 2^-102 units a result may lose all its digits. Where that happens to exp(g)
  or beta, what they multiply may be large: 2^-128 of a state of 2^40 is an ordinary number.

A state is judged twice. *Local*: the truth is walked from the target's own previous state, R
starting at zero, over just the tokens committed or folded since. *Global*: both since admission.

Outputs are read from checkpoint and records in one go, so their error must not accumulate. Their
scale is the mass W [..., HV, V]: |S| at the last fold plus the sum of all max(1, |k|) |u| written
since, both decayed to now. Unlike |S| it does not cancel.
"""

from typing import NamedTuple

import ml_dtypes  # noqa: F401  (gives NumPy the name "bfloat16")
import numpy as np
from numpy.typing import DTypeLike, NDArray

from ringfold.oracle.gdn import (
    Array,
    Lengths,
    Updates,
    Values,
    advance,
    live,
    spread,
    token,
    until,
)

UNIT = 2.0**-24  # half the spacing of fp32 above 1: one correct rounding errs by this at most
TINY = 2.0**-126  # smallest normal fp32: an operation whose result lies below may lose all of it
ROUNDINGS = 8.0
UNDERFLOW = TINY / UNIT

FLOOR = 16 * TINY
"""Absolute allowance on a row: the 2-norm of K = 256 entries that were each flushed to zero."""


class Units(NamedTuple):
    """What is carried beside each row of a state."""

    error: Array  # R [..., HV, V], in units of 2^-24
    mass: Array  # W [..., HV, V]


class Walked(NamedTuple):
    """The tokens of a walk; those at or past a row's length are neutral, see `gdn.until`."""

    updates: Updates
    live: NDArray[np.bool_] | None
    """Which of them count, [..., T]; None if all do."""
    k: Array  # |k| [..., T, HV, 1]
    carry: Array  # what an earlier error is multiplied by, at most, [..., T, HV, 1]
    written: Array  # max(1, |k|) |u|, which is added to the mass, [..., T, HV, V]

    def counted(self, x: Array) -> Array:
        """`x` [..., T, HV, V] of tokens that count, zero of others; in place."""
        if self.live is not None:
            x *= self.live[..., None, None]
        return x


class Trail(NamedTuple):
    """A walk with its error units, token by token and at its end."""

    outputs: Array  # [..., T, HV, V]
    errors: Array  # R after each token, [..., T, HV, V]
    masses: Array  # W after each token, [..., T, HV, V]
    state: Array  # [..., HV, V, K]
    units: Units
    tokens: Walked
    """What the walk was made of."""


def sizes(state: Values) -> Array:
    """2-norm of each row over K: [..., V, K] -> [..., V]."""
    state = np.asarray(state, np.float64)
    return np.asarray(np.sqrt(np.vecdot(state, state)))


def zero(state: Values) -> Units:
    """No error yet, and all mass in the state [..., HV, V, K]: after an admission or a fold."""
    mass = sizes(state)
    return Units(np.zeros_like(mass), mass)


def rebase(units: Units, state: Values) -> Units:
    """After a fold the checkpoint holds everything: the mass is that of the state again."""
    return Units(units.error, sizes(state))


def round_state(units: Units, state: Values, eps: float, smallest: float = 0.0) -> Units:
    """After storing the state [..., HV, V, K] in a narrower type.

    `eps` is the type's relative rounding (2^-8 for bfloat16, 2^-11 for float16), `smallest` half of
    its smallest subnormal, which every entry may be off by (2^-25 for float16; that of bfloat16
    lies below the floor).
    """
    stored = eps * sizes(state) + smallest * np.sqrt(state.shape[-1])
    return Units(units.error + stored / UNIT, units.mass)


def scan_units(
    state: Array,
    units: Units,
    updates: Updates,
    exp_A: Values,
    lengths: Lengths | None = None,
    *,
    in_place: bool = False,
) -> Trail:
    """`gdn.scan` with its error units: state [..., HV, V, K], exp_A = exp(A_log) [..., HV].

    `exp_A` broadcasts against log_decay [..., T, HV]. Tokens at or past a row's length leave its
    state and units alone. `in_place`: `state` has the batch's axes and may be overwritten.
    """
    neutral = until(updates, lengths)
    counts = None if lengths is None or neutral is updates else live(lengths, updates.v.shape[-3])
    updates = neutral
    if not in_place:
        state = spread(state, updates)
    room = np.empty_like(state)
    batch, (tokens, heads, width) = state.shape[:-3], updates.v.shape[-3:]
    outputs, written = np.empty((2, *batch, tokens, heads, width))
    rows = np.empty((*batch, tokens + 1, heads, width))  # |S| before the first and after each token
    rows[..., 0, :, :] = np.vecdot(state, state)
    for t in range(tokens):
        outputs[..., t, :, :], written[..., t, :, :] = advance(state, *token(updates, t), room=room)
        rows[..., t + 1, :, :] = np.vecdot(state, state)
    np.sqrt(rows, out=rows)

    g = updates.log_decay[..., None]  # [..., T, HV, 1], as all that is of a head
    beta = np.maximum(updates.beta, np.finfo(np.float64).tiny)[..., None]  # no log of zero
    k = sizes(updates.k)[..., None]
    decay = np.exp(g)
    carry = np.maximum(1.0, np.abs(1.0 - beta * k * k)) * decay
    before, after = rows[..., :-1, :, :], rows[..., 1:, :, :]
    written = np.maximum(1.0, k) * np.abs(written)
    walked = Walked(updates, counts, k, carry, written)

    gate = ROUNDINGS * (np.asarray(exp_A)[..., None] - g) * decay + UNDERFLOW
    write = ROUNDINGS * (1.0 - np.log(beta)) + UNDERFLOW / beta
    fresh = walked.counted(ROUNDINGS * after + write * written + gate * before)
    errors = accumulate(units.error, carry, fresh)
    masses = accumulate(units.mass, decay, written)
    return Trail(
        outputs,
        errors[..., 1:, :, :],
        masses[..., 1:, :, :],
        state,
        Units(errors[..., -1, :, :], masses[..., -1, :, :]),
        walked,
    )


def accumulate(start: Array, carry: Array, fresh: Array) -> Array:
    """Run x <- carry * x + fresh over T, from start [..., HV, V]: [..., T+1, HV, V] with it."""
    tokens, heads, width = fresh.shape[-3:]
    batch = np.broadcast_shapes(start.shape[:-2], fresh.shape[:-3])
    values = np.empty((*batch, tokens + 1, heads, width))
    values[..., 0, :, :] = start
    for t in range(tokens):
        now = values[..., t + 1, :, :]
        np.multiply(carry[..., t, :, :], values[..., t, :, :], out=now)
        now += fresh[..., t, :, :]
    return values


def state_limit(units: Units) -> Array:
    """What each row of the state may be off by, in 2-norm over K: [..., HV, V]."""
    return np.asarray(UNIT * units.error + FLOOR)


def output_limit(
    q: Array,
    error: Array,
    mass: Array,
    output: Array,
    eps_dot: float | Array,
    eps_cast: float,
    floor: float | Array = FLOOR,
) -> Array:
    """What each output [..., T, HV, V] may be off by.

    q [..., T, HV] is the 2-norm of the query as the recurrence consumes it; error and mass are R
    and W after each token; output is the true one. `eps_dot` is the relative rounding of all that
    is multiplied on the way to an output, `eps_cast` that of the output's type, and `floor` what
    that type loses where it underflows (2^-25 for float16).

    An output rebuilt from records passes two dot products, scores = k.q and then scores.u, so four
    operands are rounded: `eps_dot` is 4 * 2^-24 for ieee dots and 4 * 2^-10 for truncated tf32,
    whose errors all point the same way. With near-duplicate keys and q = k, 2.5 of the 4 were seen.
    """
    q = q[..., None]
    # A query below the smallest normal loses digits itself: FLOOR * mass.
    return np.asarray(
        q * (UNIT * error + eps_dot * mass + FLOOR)
        + FLOOR * mass
        + eps_cast * np.abs(output)
        + floor
    )


def ulp_distance(x: Values, y: Values, dtype: DTypeLike) -> NDArray[np.int64]:
    """How many representable values of `dtype` (float64 down to bfloat16) lie from x to y.

    Both are rounded to `dtype` first; zeros of either sign are one value. A NaN is 0 from a NaN and
    further from any number than numbers can be from each other. This is for reports alone: near
    a cancellation a right result may be any number of ULP away.
    """
    dtype = np.dtype(dtype)
    bits = np.dtype(f"i{dtype.itemsize}")
    with np.errstate(over="ignore", invalid="ignore"):
        x, y = (np.asarray(z).astype(dtype) for z in (x, y))
        nans = np.isnan(x).astype(int) + np.isnan(y)
    lines = []
    for z in (x, y):
        raw = z.view(bits).astype(np.int64)
        lines.append(np.where(raw < 0, np.iinfo(bits).min - raw, raw))  # ordered as the values are
    # As unsigned integers even the distance between the ends of float64 is exact.
    ends = np.maximum(*lines).view(np.uint64), np.minimum(*lines).view(np.uint64)
    far = np.uint64(min(2 ** (8 * dtype.itemsize), np.iinfo(np.int64).max))
    with np.errstate(over="ignore"):  # they wrap, as they are meant to
        distance = np.minimum(ends[0] - ends[1], far)
    return np.asarray(np.choose(nans, [distance, far, 0]), np.int64)
