"""What a convolution makes of projections, by the oracle, and what a right one may be off by.

A kernel computes in float32 and hands on queries, keys and values in the activations' dtype, so
that each element y = silu(s), with s the sum over taps of w x, is off by

    d = min(1.1, sigmoid(s + ds) (1 + |s| + ds)) ds       the slope of silu, times what s may be off
      + 8 (1 + softplus(-s)) 2^-24 |y|                    its sigmoid: as for beta in `oracle.units`
      + 2^-119                                            where exp(-s) overflows, y is 0
    slack = d + eps (|y| + d) + smallest                  rounding to the activations' dtype

where ds = (W 2^-24 + p) sum |w x|: W additions, and W products that lose p each, 2^-24 unless a
target multiplies in the dtype of the activations (`Precision.convolution`), where they also lose
what underflows there. A key is divided by its norm, which
multiplies what it is off by, in 2-norm, by at most 1 / (norm - slack). A token whose key is off by
dk and value by dv, on a state row of size |S| and with a write of size |u|, adds to the row's error

    beta (dv + |S| dk) (|k| + dk)  +  |u| dk

over and above its error units, and an output adds |S| dq. In float32 that is a few units more; in a
16-bit dtype it is far more than everything else, and says what that dtype costs.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.judging.checks import eps, tiny
from ringfold.oracle.convolution import convolve
from ringfold.oracle.gdn import L2NORM_EPS, Tokens, sigmoid
from ringfold.oracle.units import ROUNDINGS, TINY, UNIT, Trail, accumulate, sizes
from ringfold.sim.convolution import projections, replaced
from ringfold.sim.setup import Setup

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

SLOPE: Final = 1.1
"""The steepest that silu gets, at s = 2.4: 1.0998."""

UNDERFLOW: Final = 128 * TINY
"""exp(-s) overflows float32 from s = -88.7 on, where silu is still 2^-120."""


class Convolved(NamedTuple):
    """A window's tokens behind the convolution; each array [layer, row, T, ...]."""

    projections: Array  # [..., channel]
    k: Array  # [..., H, K] as it is recorded: not normalised
    v: Array  # [..., HV, V]
    k_slack: Array  # [..., H, K] what each element may be off by
    v_slack: Array  # [..., HV, V]
    unit_k_slack: Array  # [..., H, K] of the key as the recurrence consumes it
    key: Array  # [..., HV] the same in 2-norm over K
    query: Array  # [..., HV] likewise of the query

    def rows(self, some: slice | Ints) -> Convolved:
        """The same for some rows."""
        return Convolved(*(x[:, some] for x in self))

    def widened(self, trail: Trail) -> Trail:
        """`trail` with what its tokens may be off by."""
        updates, _, k, carry, written = trail.tokens
        beta, dk = updates.beta[..., None], self.key[..., None]
        faded = trail.masses - written
        fresh = beta * (self.v_slack + faded * dk) * (k + dk) + written * dk
        lost = trail.tokens.counted(fresh) / UNIT
        more = accumulate(np.zeros_like(trail.units.error), carry, lost)
        return trail._replace(
            errors=trail.errors + more[..., 1:, :, :],
            units=trail.units._replace(error=trail.units.error + more[..., -1, :, :]),
        )


def convolved(
    setup: Setup,
    weight: Array,
    past: Array,
    tokens: Tokens,
    lengths: Ints,
    product: float = UNIT,
) -> tuple[Tokens, Convolved]:
    """What the recurrence gets in place of projections.

    Args:
        setup: of the walk.
        weight: [layer, channel, W].
        past: the committed windows [layer, row, channel, W - 1].
        tokens: [layer, row, T, ...], whose q, k and v are projections.
        lengths: [row]; what stands behind is zero.
        product: relative rounding of each product w x.
    """
    x = projections(tokens).astype(np.float64)
    each = [convolve(p, t, w, lengths=lengths)[0] for p, t, w in zip(past, x, weight, strict=True)]
    y = np.stack(each)
    off = replaced(tokens, _slack(weight, past, x, y, setup.dtypes.activation, product))
    made = replaced(tokens, y)
    _, query = _consumed(made.q, off.q, setup)
    unit_k, key = _consumed(made.k, off.k, setup)
    scale = setup.geometry.key_dim**-0.5
    return made, Convolved(x, made.k, made.v, off.k, off.v, unit_k, key, scale * query)


def advanced(weight: Array, past: Array, x: Array, counts: Ints) -> Array:
    """Windows [layer, row, channel, W - 1] after the first `counts` [row] projections of `x`."""
    return np.stack(
        [convolve(p, t, w, lengths=counts)[1] for p, t, w in zip(past, x, weight, strict=True)]
    )


def _slack(
    weight: Array, past: Array, x: Array, y: Array, activation: str, product: float
) -> Array:
    """What each element of y [layer, row, T, channel] may be off by: see above."""
    taps, T = weight.shape[-1], x.shape[2]
    seen = np.concatenate([past.swapaxes(2, 3), x], axis=2)  # [layer, row, W - 1 + T, channel]
    total, size = np.zeros((2, *x.shape))
    for tap in range(taps):
        term = weight[:, None, None, :, tap] * seen[:, :, tap : tap + T]
        total += term
        size += np.abs(term)
    off = (taps * UNIT + product) * size
    if product > UNIT:
        off += taps * tiny(activation)
    slope = np.minimum(SLOPE, sigmoid(total + off) * (1 + np.abs(total) + off))
    relative = ROUNDINGS * UNIT * (1 + np.logaddexp(0, -total))
    exact = slope * off + relative * np.abs(y) + UNDERFLOW
    return np.asarray(exact + eps(activation) * (np.abs(y) + exact) + tiny(activation))


def _consumed(x: Array, off: Array, setup: Setup) -> tuple[Array, Array]:
    """How far vectors are off that the recurrence consumes.

    Returns the elements' [..., H, K] and, for each value head, the 2-norm's [..., HV].
    """
    far = sizes(off)[..., None]
    if setup.l2norm:
        norm = np.sqrt(np.sum(x * x, -1, keepdims=True) + L2NORM_EPS)
        near = np.maximum(norm - far, far / 2)  # no unit vector is off by more than 2
        off, far = (off + np.abs(x / norm) * far) / near, far / near
    return off, np.repeat(far[..., 0], setup.geometry.group, axis=-1)
