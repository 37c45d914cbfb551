"""The causal convolution equals its formula spelled out number by number in plain Python.

Its window is the other half of the committed state, so the second claim is the one that matters to
speculative decoding: the window after n of T tokens is the window of a run that only ever saw n.
"""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from ringfold.oracle.convolution import convolve

Array = NDArray[np.float64]
HAND_TOL = 1e-14  # of values around 1; seen 9e-16


def draw(
    rng: np.random.Generator, batch: tuple[int, ...] = (), tokens: int = 6, width: int = 4
) -> tuple[Array, Array, Array, Array]:
    """A window, T inputs, weights and a bias, of five channels."""
    return (
        rng.standard_normal((*batch, 5, width - 1)),
        rng.standard_normal((*batch, tokens, 5)),
        rng.standard_normal((5, width)),
        rng.standard_normal(5),
    )


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("biased", [True, False])
def test_equals_the_formula_by_hand(width: int, biased: bool) -> None:
    """The last weight meets the token itself, earlier ones its past, oldest first."""
    window, x, weight, bias = draw(np.random.default_rng(width), width=width)
    y, after = convolve(window, x, weight, bias if biased else None)

    for c in range(5):
        seen = [*window[c].tolist(), *x[:, c].tolist()]
        for t in range(6):
            z = float(bias[c]) if biased else 0.0
            z += sum(float(weight[c, j]) * seen[t + j] for j in range(width))
            assert y[t, c] == pytest.approx(z / (1 + math.exp(-z)), rel=HAND_TOL, abs=HAND_TOL)
        assert after[c].tolist() == seen[6:]


@pytest.mark.parametrize("n", range(7))
def test_committing_n_tokens_rolls_the_window_to_n(n: int) -> None:
    """Rejecting the rest and going on gives what a run without the rejected tokens gives."""
    window, x, weight, bias = draw(np.random.default_rng(1))
    _, committed = convolve(window, x, weight, bias, np.array(n))
    _, plain = convolve(window, x[:n], weight, bias)
    resumed, _ = convolve(committed, x[n:], weight, bias)
    whole, _ = convolve(window, x, weight, bias)

    assert np.array_equal(committed, plain)
    np.testing.assert_allclose(resumed, whole[n:], atol=HAND_TOL)


def test_rows_are_ragged_and_garbage_behind_them_is_not_seen() -> None:
    """[layer, row] with a length a row; NaN past it reaches neither outputs nor window."""
    lengths = np.array([0, 2, 6])
    window, x, weight, bias = draw(np.random.default_rng(2), batch=(2, 3))
    for row, n in enumerate(lengths):
        x[:, row, n:] = np.nan
    y, after = convolve(window, x, weight, bias, lengths)

    for layer, row in np.ndindex(2, 3):
        n = lengths[row]
        expected = convolve(window[layer, row], x[layer, row, :n], weight, bias)
        np.testing.assert_allclose(y[layer, row, :n], expected[0], atol=HAND_TOL)
        assert not y[layer, row, n:].any()
        assert np.array_equal(after[layer, row], expected[1])


def test_impossible_lengths_are_refused() -> None:
    """A row cannot commit more tokens than it has."""
    window, x, weight, bias = draw(np.random.default_rng(3))

    with pytest.raises(ValueError, match=r"lengths 7 leave 0 .. 6"):
        convolve(window, x, weight, bias, np.array(7))
