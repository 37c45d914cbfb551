"""One token of GDN at a chosen precision, in the order of operations of the recurrent kernel.

The recurrent verify and the ring's fold both call `advance`, and nothing else touches a state:
that is why a folded checkpoint can equal, bit for bit, the state that plain decoding reaches.
All functions compute in the dtype of their arrays. (The definition of GDN is `ringfold.oracle`.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

EPSILON = 1e-6
"""Added under the root of the L2 norm, as the kernels do."""


class Writes(NamedTuple):
    """What tokens do to a state; `k` is what the state sees: normalised, one per value head."""

    k: Array  # [layer, row, HV, T, K]
    v: Array  # [layer, row, HV, T, V]
    g: Array  # [layer, row, HV, T]
    beta: Array  # [layer, row, HV, T]


def norm(x: Array) -> Array:
    """sqrt(sum(x * x) + 1e-6) over the last axis, kept as an axis of one."""
    squares = np.asarray(np.einsum("...k,...k->...", x, x))
    return np.asarray(np.sqrt(squares + x.dtype.type(EPSILON)))[..., None]


def gates(
    a: Array, b: Array, A_log: Array, dt_bias: Array, linear_from: float
) -> tuple[Array, Array]:
    """Log decay `g` = -exp(A_log) softplus(a + dt_bias) and `beta` = sigmoid(b)."""
    x = a + dt_bias
    softplus = np.where(x <= linear_from, np.log(1 + np.exp(x)), x)
    return -np.exp(A_log) * softplus, 1 / (1 + np.exp(-b))


def advance(state: Array, k: Array, v: Array, g: Array, beta: Array) -> Array:
    """The state [..., V, K] after one more token: k [..., K], v [..., V], g and beta [...]."""
    return advance_with_delta(state, k, v, g, beta)[0]


def advance_with_delta(
    state: Array, k: Array, v: Array, g: Array, beta: Array
) -> tuple[Array, Array]:
    """The same, and what the token wrote along k: [..., V]."""
    faded = state * np.exp(g)[..., None, None]
    u = (v - read(faded, k)) * beta[..., None]
    return np.asarray(faded + u[..., :, None] * k[..., None, :]), u


def read(state: Array, q: Array) -> Array:
    """What a state [..., V, K] holds under q [..., K]: [..., V]."""
    # Not `@`: each sum runs over one contiguous row, so its rounding knows nothing of the batch.
    return np.asarray(np.einsum("...vk,...k->...v", state, q))


def replay(
    state: Array, writes: Writes, counts: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Advance row r of `state` [layer, row, HV, V, K] in place by its first `counts[r]` tokens.

    Yields (t, rows) after each token: the rows that token t belonged to.
    """
    for t in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > t)
        state[:, rows] = advance(
            state.take(rows, 1), *(field.take(t, 3).take(rows, 1) for field in writes)
        )
        yield t, rows


class Deltas(NamedTuple):
    """What tokens wrote to a state, as it was worked out when they did."""

    d: Array  # [layer, row, HV, T, V]
    k: Array  # [layer, row, HV, T, K], normalised
    g: Array  # [layer, row, HV, T]


def replay_deltas(state: Array, deltas: Deltas, counts: NDArray[np.int64]) -> None:
    """Write the first `counts[r]` deltas to row r of `state` [layer, row, HV, V, K], in place."""
    for t in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > t)
        d, k, g = (field.take(t, 3).take(rows, 1) for field in deltas)
        faded = state.take(rows, 1) * np.exp(g)[..., None, None]
        state[:, rows] = faded + d[..., :, None] * k[..., None, :]
