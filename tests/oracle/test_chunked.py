"""Two derivations of one recurrence: `gdn.scan` token by token, `chunked` by a triangular system.

They share the gates and the normalised keys and nothing after that: the chunked form never forms
a state inside a chunk. So an error in either would have to be made twice, in different algebra, to
stay hidden. They are compared over random geometries, gates, chunk lengths and ragged windows.
"""

import numpy as np
import pytest
from numpy.typing import NDArray

from ringfold.oracle.chunked import chunked, forward_substitution, segment_sums
from ringfold.oracle.gdn import Parameters, Tokens, Updates, l2norm, prepare, scan

Array = NDArray[np.float64]
AGREE_TOL = 1e-12  # of the largest state or value; seen 2e-15 below, 4e-15 over 240 more

GATES = {  # (A_log, mean of a, spread of a): log decays of a token
    "ordinary": (0.0, 0.0, 1.0),  # about -1
    "strong": (4.0, 5.0, 20.0),  # from 0 to -2,000: running sums far below -1e4
    "none": (0.0, -1e4, 0.0),  # exactly 0
    "slow": (-3.0, -2.0, 1.0),  # about -0.01
}


def draw(
    rng: np.random.Generator,
    gates: str,
    batch: tuple[int, ...] = (),
    tokens: int = 150,
    duplicates: bool = False,
    norm: bool = True,
) -> tuple[Array, Updates]:
    """A random state and T tokens of a random geometry with gates from the table."""
    A_log, mean, spread = GATES[gates]
    H, K, V = rng.integers(1, [4, 40, 40])
    HV = H * rng.integers(1, 4)
    q, k = rng.standard_normal((2, *batch, tokens, H, K))
    if duplicates:
        k = rng.standard_normal(K) + 1e-3 * k
    if not norm:
        k = 1.4 * l2norm(k)  # beta |k|^2 stays under 2, beyond which the recurrence diverges
    v = rng.standard_normal((*batch, tokens, HV, V))
    a = mean + spread * rng.standard_normal((*batch, tokens, HV))
    b = 3 * rng.standard_normal((*batch, tokens, HV))
    parameters = Parameters(np.full(HV, A_log), rng.standard_normal(HV), norm)
    state = rng.standard_normal((*batch, HV, V, K))
    return state, prepare(Tokens(q, k, v, a, b), parameters)


def disagreement(one: tuple[Array, Array], other: tuple[Array, Array], updates: Updates) -> float:
    """Largest difference of outputs or states, relative to the largest state or value."""
    scale = max(np.abs(other[1]).max(), np.abs(updates.v).max())
    return float(max(np.abs(x - y).max() for x, y in zip(one, other, strict=True)) / scale)


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("duplicates", [False, True])
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_the_recurrence(gates: str, duplicates: bool, norm: bool, seed: int) -> None:
    """Over random geometries, all strengths of gates, and keys that nearly repeat."""
    rng = np.random.default_rng([seed, duplicates, norm])
    state, updates = draw(rng, gates, duplicates=duplicates, norm=norm)

    assert disagreement(chunked(state, updates), scan(state, updates), updates) < AGREE_TOL


@pytest.mark.parametrize("chunk", [1, 2, 7, 64, 1_000])
def test_the_chunk_length_does_not_matter(chunk: int) -> None:
    """From single tokens to everything at once, whether or not it divides T."""
    state, updates = draw(np.random.default_rng(1), "ordinary")

    assert disagreement(chunked(state, updates, chunk=chunk), scan(state, updates), updates) < (
        AGREE_TOL
    )


def test_ragged_rows_agree_and_ignore_what_lies_behind() -> None:
    """Lengths broadcast against [layer, row]; a NaN past them reaches nothing."""
    lengths = np.array([0, 1, 63, 64, 65, 150])
    state, updates = draw(np.random.default_rng(2), "ordinary", batch=(2, 6))
    for x in updates:
        for row, n in enumerate(lengths):
            x[:, row, n:] = np.nan
    got = chunked(state, updates, lengths)
    expected = scan(state, updates, lengths)

    assert np.isfinite(got[0]).all()
    assert disagreement(got, expected, Updates(*(x[:, -1] for x in updates))) < AGREE_TOL
    assert np.array_equal(got[1][:, 0], state[:, 0])


def test_no_tokens_no_change() -> None:
    """A window of length zero returns the state."""
    state, updates = draw(np.random.default_rng(3), "ordinary", tokens=0)

    assert np.array_equal(chunked(state, updates)[1], state)


def test_segment_sums_keep_a_weak_gate_behind_a_strong_one() -> None:
    """Differences of running sums would return 0.1 with only 4 of its digits after -1e12."""
    g = np.array([-0.3, -1e12, -0.1, -0.2])
    sums = segment_sums(g)

    assert sums[3, 1] == g[2] + g[3]
    assert sums[2, 1] == g[2]
    assert sums[1, 0] == g[1]
    assert np.diag(sums).tolist() == [0, 0, 0, 0]
    assert np.isneginf(sums[np.triu_indices(4, 1)]).all()
    running = np.cumsum(g)
    assert abs(running[2] - running[1] - g[2]) > 1e-6  # what the plain way would have done


def test_forward_substitution_solves_the_unit_lower_system() -> None:
    """The diagonal and what is above it are taken as those of the identity, whatever they hold."""
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((3, 9, 9)), rng.standard_normal((3, 9, 2))
    x = forward_substitution(a, b)

    np.testing.assert_allclose((np.eye(9) + np.tril(a, -1)) @ x, b, atol=1e-12)
