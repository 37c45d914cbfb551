"""The causal depthwise convolution in front of the recurrence, and its rolling window.

Channel `c` of token `t` becomes silu(bias[c] + sum over j of weight[c, j] * x[t - W + 1 + j, c]):
the last weight meets the token itself. What came before the first token is remembered as a window
of W - 1 inputs, oldest first. That window belongs to the committed state: committing n of T
drafted tokens leaves the window as it stood after n tokens, just as it leaves the matrix.
"""

import numpy as np

from ringfold.oracle.gdn import Array, Lengths, Values, live, sigmoid


def silu(x: Array) -> Array:
    """Multiply by its own sigmoid."""
    return np.asarray(x * sigmoid(x))


def convolve(
    window: Values,
    x: Values,
    weight: Values,
    bias: Values | None = None,
    lengths: Lengths | None = None,
) -> tuple[Array, Array]:
    """Convolve T tokens: window [..., C, W-1], x [..., T, C], weight [C, W], bias [C].

    `lengths [...]` says how many tokens of each row count (all, if None): the outputs of the rest
    are zero, and nothing in them, NaN included, reaches an output or the window.
    Returns y [..., T, C] and the window [..., C, W-1] after `lengths` tokens.
    Raises ValueError for a length outside 0 .. T.
    """
    weight = np.asarray(weight, np.float64)
    tokens, width = x.shape[-2], weight.shape[-1]
    lengths = np.asarray(tokens if lengths is None else lengths)
    counts = live(lengths, tokens)
    x = np.where(counts[..., None], np.asarray(x, np.float64), 0.0)

    batch = np.broadcast_shapes(window.shape[:-2], x.shape[:-2])
    past = np.broadcast_to(np.swapaxes(window, -1, -2), (*batch, width - 1, weight.shape[0]))
    seen = np.concatenate([past, np.broadcast_to(x, (*batch, *x.shape[-2:]))], axis=-2)

    y = np.zeros((*batch, *x.shape[-2:])) if bias is None else np.asarray(bias, np.float64)
    for j in range(width):
        y = y + weight[:, j] * seen[..., j : j + tokens, :]
    y = np.where(counts[..., None], silu(y), 0.0)

    newest = np.broadcast_to(lengths, batch)[..., None] + np.arange(width - 1)  # rows of `seen`
    return y, np.swapaxes(np.take_along_axis(seen, newest[..., None], axis=-2), -1, -2)
