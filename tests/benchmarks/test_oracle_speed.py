"""The oracle must be fast enough to stand beside every kernel, so it works on all heads at once.

What it is measured against is what anyone would write first: a loop over tokens and heads, one
small matrix at a time (`per_head`), from the model's tensors to outputs and state. All three give
the same numbers, which is asserted even where nothing is timed. To measure, at the size of a
Qwen3-Next layer: `pytest tests/benchmarks/test_oracle_speed.py --benchmark-enable`.
"""

import math
from collections.abc import Callable
from timeit import repeat
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ringfold.oracle.chunked import chunked
from ringfold.oracle.gdn import Parameters, Tokens, Updates, prepare, scan

Array = NDArray[np.float64]
Walk = Callable[[Array, Updates], tuple[Array, Array]]

H, HV, K, V = 16, 32, 128, 128
T = 128
AGREE_TOL = 1e-12  # of values around 1; seen 8e-16


def per_head(state: Array, tokens: Tokens, parameters: Parameters) -> tuple[Array, Array]:
    """One token, one head, one matrix at a time."""
    state = state.copy()
    outputs = np.empty((len(tokens.v), HV, V))
    for t in range(len(tokens.v)):
        for hv in range(HV):
            h = hv // (HV // H)
            x = tokens.a[t, hv] + parameters.dt_bias[hv]
            g = -math.exp(parameters.A_log[hv]) * math.log1p(math.exp(x))
            beta = 1 / (1 + math.exp(-tokens.b[t, hv]))
            q, k = tokens.q[t, h], tokens.k[t, h]
            q = K**-0.5 * q / np.sqrt(np.sum(q * q) + 1e-6)
            k = k / np.sqrt(np.sum(k * k) + 1e-6)
            faded = math.exp(g) * state[hv]
            u = beta * (tokens.v[t, hv] - faded @ k)
            state[hv] = faded + np.outer(u, k)
            outputs[t, hv] = state[hv] @ q
    return outputs, state


@pytest.fixture(scope="module")
def history() -> tuple[Array, Tokens, Parameters]:
    """A state and T tokens of one row of one layer."""
    rng = np.random.default_rng(1)
    shapes = ((H, K), (H, K), (HV, V), (HV,), (HV,))
    tokens = Tokens(*(rng.standard_normal((T, *shape)) for shape in shapes))
    A_log, dt_bias = rng.standard_normal((2, HV))
    return rng.standard_normal((HV, V, K)), tokens, Parameters(A_log - 2, dt_bias)


@pytest.mark.parametrize(
    ("walk", "times"),
    [(scan, 1.5), (chunked, 4.0)],  # seen 1.8 and 5.3 times a loop of 1,150 tokens a second
    ids=["plain", "chunked"],
)
def test_tokens_per_second(
    benchmark: Any,  # pytest-benchmark's fixture is typed in part only
    history: tuple[Array, Tokens, Parameters],
    walk: Walk,
    times: float,
) -> None:
    """The plain form does at least 1.5 times the tokens of the per-head loop, the chunked 4."""
    state, tokens, parameters = history
    outputs, after = benchmark.pedantic(
        lambda: walk(state, prepare(tokens, parameters)), rounds=9, warmup_rounds=1
    )

    expected = per_head(*history)
    np.testing.assert_allclose(outputs, expected[0], atol=AGREE_TOL)
    np.testing.assert_allclose(after, expected[1], atol=AGREE_TOL)
    if benchmark.enabled:
        seconds = min(repeat(lambda: per_head(*history), number=1, repeat=5))
        ratio = seconds / benchmark.stats.stats.min
        benchmark.extra_info["tokens_per_second"] = round(T / benchmark.stats.stats.min)
        benchmark.extra_info["per_head_tokens_per_second"] = round(T / seconds)
        benchmark.extra_info["times_per_head"] = round(ratio, 2)
        assert ratio >= times
