"""The same recurrence derived a second time, with no loop over tokens touching the state.

Take a chunk of tokens 1 .. C that starts from the state S0, and write D[t, i] for the decay from
token i to token t, exp(g[i+1] + ... + g[t]), with i = 0 standing for the chunk's start. Unrolling
the recurrence gives

    S[t] = D[t, 0] S0 + sum over i <= t of D[t, i] outer(u[i], k[i])                            (1)

so the state is known as soon as the surprises u are. Put S[t-1] from (1) into
u[t] = beta[t] (v[t] - exp(g[t]) S[t-1] k[t]): the surprise depends on earlier surprises alone,

    u[t] + sum over i < t of A[t, i] u[i] = beta[t] (v[t] - D[t, 0] S0 k[t])
    A[t, i] = beta[t] D[t, i] k[t].k[i]

which is a unit lower triangular system (I + A) U = B. Forward substitution solves it, and (1)
gives outputs and the next state as matrix products. This is the UT transform: Yang, Wang, Zhang,
Shen, Kim, *Parallelizing Linear Transformers with the Delta Rule* (2024), section 3.2; with gates,
Yang, Kautz, Hatamizadeh, *Gated Delta Networks* (2024), section 3.3.

Why it checks `gdn.scan`: the two share inputs and arrive at outputs and states by different sums
in a different order. They meet to 1e-12 because both are right.
"""

import numpy as np

from ringfold.oracle.gdn import Array, Lengths, Updates, spread, until


def chunked(
    state: Array, updates: Updates, lengths: Lengths | None = None, chunk: int = 16
) -> tuple[Array, Array]:
    """Walk T tokens from state [..., HV, V, K], `chunk` at a time; arguments as `gdn.scan`.

    The result does not depend on `chunk`. Longer ones only tempt BLAS into spreading small products
    over several threads, which costs more than it brings.
    Returns the outputs [..., T, HV, V] and the new state.
    """
    updates = until(updates, lengths)
    state = spread(state, updates)
    tokens, heads, width = updates.v.shape[-3:]
    outputs = np.empty((*state.shape[:-3], tokens, heads, width))
    for start in range(0, tokens, chunk):
        now = slice(start, start + chunk)
        q, k, v = (np.moveaxis(x[..., now, :, :], -3, -2) for x in updates[:3])  # [..., HV, C, K]
        g, beta = (np.swapaxes(x[..., now, :], -1, -2) for x in updates[3:])  # [..., HV, C]
        out, state = one_chunk(state, q, k, v, g, beta)
        outputs[..., now, :, :] = np.moveaxis(out, -2, -3)
    return outputs, state


def one_chunk(
    state: Array, q: Array, k: Array, v: Array, g: Array, beta: Array
) -> tuple[Array, Array]:
    """One chunk: state [..., V, K]; q, k [..., C, K]; v [..., C, V]; g, beta [..., C]."""
    decay = np.exp(segment_sums(g))  # [..., C, C]; zero above the diagonal
    from_start = np.exp(np.cumsum(g, axis=-1))[..., None]  # [..., C, 1]
    to_end = decay[..., -1, :, None]  # [..., C, 1]
    keys, values = np.swapaxes(k, -1, -2), np.swapaxes(state, -1, -2)

    a = beta[..., None] * decay * (k @ keys)  # its diagonal and above are never read
    u = forward_substitution(a, beta[..., None] * (v - from_start * (k @ values)))

    outputs = from_start * (q @ values) + (decay * (q @ keys)) @ u
    state = from_start[..., -1:, :] * state + np.swapaxes(to_end * u, -1, -2) @ k
    return outputs, state


def segment_sums(g: Array) -> Array:
    """Sum g[i+1] + ... + g[t] for every t >= i, and -inf for t < i: [..., C] -> [..., C, C].

    Each sum is formed from its own terms. The difference of two running sums would lose the
    digits of a weak gate that follows a strong one (-1e4, say), and a quotient of their
    exponentials would be 0 / 0.
    """
    size = g.shape[-1]
    t, i = np.arange(size)[:, None], np.arange(size)
    terms = np.where(t > i, g[..., :, None], 0.0)  # [..., t, i]: token t's gate, if it is after i
    return np.where(t >= i, np.cumsum(terms, axis=-2), -np.inf)


def forward_substitution(a: Array, b: Array) -> Array:
    """Solve (I + strictly lower triangle of a) x = b: a [..., C, C], b [..., C, V]."""
    x = b.copy()
    for t in range(1, b.shape[-2]):
        x[..., t, :] -= np.vecmat(a[..., t, :t], x[..., :t, :])
    return x
