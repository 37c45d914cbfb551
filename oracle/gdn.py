"""Gated DeltaNet: one matrix per value head that forgets, predicts, and writes its surprise.

The state `S [V, K]` of a head is an associative memory: `S @ k` is the value it holds under the
key `k`. Each token does, in this order,

    S = exp(g) * S                   forget: the gate g = log_decay <= 0
    u = beta * (v - S @ k)           what the memory did not predict, times the strength of writing
    S = S + outer(u, k)              write only that surprise
    out = S @ q                      read

With `|k| = 1` and `beta = 1` the memory afterwards returns `v` under `k` exactly, which is why
this is called the *delta rule*; `exp(g)` makes it *gated*.

Everything is NumPy float64. Leading axes `...` (layers, rows of a batch) are arbitrary and
broadcast against each other. T counts tokens, H key heads, HV value heads (H divides HV), K and V
are the widths of a key and of a value.

Source: Yang, Kautz, Hatamizadeh, *Gated Delta Networks* (2024), equation 10, with the gates as
Qwen3-Next and SGLang compute them.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Values: TypeAlias = NDArray[Any]  # of any dtype that converts to float64 without loss
Lengths: TypeAlias = NDArray[np.integer[Any]]

L2NORM_EPS = 1e-6  # inside the square root; part of the model, not a safety margin


class Tokens(NamedTuple):
    """What the model hands to the layer, q, k and v coming out of the convolution."""

    q: Values  # [..., T, H, K]
    k: Values  # [..., T, H, K]
    v: Values  # [..., T, HV, V]
    a: Values  # [..., T, HV]   the input of the gate
    b: Values  # [..., T, HV]   the logit of beta


class Parameters(NamedTuple):
    """The layer's learned and configured constants.

    `A_log` and `dt_bias` broadcast against `a [..., T, HV]`: one layer's are `[HV]`, those of
    several layers `[layer, 1, 1, HV]`.
    """

    A_log: Values  # [..., HV]
    dt_bias: Values  # [..., HV]
    l2norm: bool = True
    scale: float | None = None  # of q; None means K ** -0.5


class Updates(NamedTuple):
    """What the recurrence consumes: every head has its own key and query."""

    q: Array  # [..., T, HV, K]   normalised and scaled
    k: Array  # [..., T, HV, K]   normalised
    v: Array  # [..., T, HV, V]
    log_decay: Array  # [..., T, HV]   <= 0
    beta: Array  # [..., T, HV]   between 0 and 1


def softplus(x: Values) -> Array:
    """log(1 + exp(x)), without overflow and without losing small values.

    SGLang returns `x` itself above 20. This function is the truth there too: the two differ by
    less than exp(-20) = 2.1e-9, which is 1.1e-10 of the value and far below fp32's resolution.
    """
    x = np.asarray(x, np.float64)
    return np.asarray(np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))))


def sigmoid(x: Values) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    return np.asarray(np.exp(-softplus(-np.asarray(x, np.float64))))


def log_decay(a: Values, A_log: Values, dt_bias: Values) -> Array:
    """The gate g = -exp(A_log) * softplus(a + dt_bias), never positive."""
    rate = np.exp(np.asarray(A_log, np.float64))
    return np.asarray(-rate * softplus(np.asarray(a, np.float64) + dt_bias))


def l2norm(x: Values) -> Array:
    """Normalise over the last axis: x / sqrt(sum(x * x) + 1e-6)."""
    x = np.asarray(x, np.float64)
    return np.asarray(x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + L2NORM_EPS))


def prepare(tokens: Tokens, parameters: Parameters) -> Updates:
    """Compute the gates, normalise, scale, and give each value head its key head's q and k.

    Value head `hv` reads key head `hv // (HV // H)`. Raises ValueError if H does not divide HV.
    """
    q, k, v = (np.asarray(x, np.float64) for x in tokens[:3])
    key_heads, value_heads = k.shape[-2], v.shape[-2]
    if value_heads % key_heads:
        raise ValueError(
            f"{value_heads} value heads cannot share {key_heads} key heads evenly: "
            f"HV must be a multiple of H"
        )
    if parameters.l2norm:
        q, k = l2norm(q), l2norm(k)
    scale = k.shape[-1] ** -0.5 if parameters.scale is None else parameters.scale
    sharing = value_heads // key_heads
    return Updates(
        q=np.repeat(scale * q, sharing, axis=-2),
        k=np.repeat(k, sharing, axis=-2),
        v=v,
        log_decay=log_decay(tokens.a, parameters.A_log, parameters.dt_bias),
        beta=sigmoid(tokens.b),
    )


def advance(
    state: Array,
    q: Array,
    k: Array,
    v: Array,
    log_decay: Array,
    beta: Array,
    room: Array | None = None,
) -> tuple[Array, Array]:
    """The delta rule, for one token and in place.

    state [..., V, K] is overwritten; q, k [..., K]; v [..., V]; log_decay, beta [...].
    `room`, of the state's shape, spares an allocation in a loop.
    Returns the output and the surprise, both [..., V].
    """
    state *= np.exp(log_decay)[..., None, None]
    surprise = beta[..., None] * (v - np.matvec(state, k))
    state += np.multiply(surprise[..., :, None], k[..., None, :], out=room)
    return np.matvec(state, q), surprise


def step(
    state: Array, q: Array, k: Array, v: Array, log_decay: Array, beta: Array
) -> tuple[Array, Array]:
    """One token as a pure function: the output [..., V] and the new state [..., V, K].

    state [..., V, K]; q, k [..., K]; v [..., V]; log_decay, beta [...].
    """
    heads = np.broadcast_shapes(
        state.shape[:-2], q.shape[:-1], k.shape[:-1], v.shape[:-1], log_decay.shape, beta.shape
    )
    state = np.array(np.broadcast_to(state, heads + state.shape[-2:]), np.float64)
    output, _ = advance(state, q, k, v, log_decay, beta)
    return output, state


def scan(state: Array, updates: Updates, lengths: Lengths | None = None) -> tuple[Array, Array]:
    """Walk T tokens from state [..., HV, V, K].

    `lengths [...]` says how many tokens of each row count (all, if None): whatever stands behind
    them, NaN included, leaves the state alone and has an output of zero.
    Returns the outputs [..., T, HV, V] and the new state.
    """
    updates = until(updates, lengths)
    state = spread(state, updates)
    room = np.empty_like(state)
    tokens, heads, width = updates.v.shape[-3:]
    outputs = np.empty((*state.shape[:-3], tokens, heads, width))
    for t in range(tokens):
        outputs[..., t, :, :], _ = advance(state, *token(updates, t), room=room)
    return outputs, state


def token(updates: Updates, t: int) -> Updates:
    """The updates of token t, without the time axis."""
    q, k, v, log_decay, beta = updates
    return Updates(
        q[..., t, :, :], k[..., t, :, :], v[..., t, :, :], log_decay[..., t, :], beta[..., t, :]
    )


def live(lengths: Lengths, tokens: int) -> NDArray[np.bool_]:
    """Which of T tokens count, [..., T]; ValueError for a length outside 0 .. T."""
    lengths = np.asarray(lengths)
    if np.any((lengths < 0) | (lengths > tokens)):
        raise ValueError(
            f"lengths {lengths.tolist()} leave 0 .. {tokens}: a row has {tokens} tokens; "
            f"cut the lengths or pass more tokens"
        )
    return np.asarray(np.arange(tokens) < lengths[..., None])


def until(updates: Updates, lengths: Lengths | None) -> Updates:
    """Replace the tokens at and past each row's length by the neutral one, which is all zeros.

    It does not forget (g = 0), writes nothing (beta, k, v = 0) and reads nothing (q = 0).
    """
    if lengths is None or np.all(np.equal(lengths, updates.v.shape[-3])):
        return updates
    counts = live(lengths, updates.v.shape[-3])
    return Updates(
        *(np.where(counts[..., None, None], x, 0.0) for x in updates[:3]),
        *(np.where(counts[..., None], x, 0.0) for x in updates[3:]),
    )


def spread(state: Array, updates: Updates) -> Array:
    """A float64 copy of state [..., HV, V, K], broadcast against the batch axes of the updates."""
    batches = [x.shape[:-3] for x in updates[:3]] + [x.shape[:-2] for x in updates[3:]]
    batch = np.broadcast_shapes(state.shape[:-3], *batches)
    return np.array(np.broadcast_to(state, batch + state.shape[-3:]), dtype=np.float64)
