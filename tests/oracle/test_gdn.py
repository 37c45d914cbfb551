"""The recurrence in `ringfold.oracle.gdn` is the definition that everything else is judged by.

What judges it? A second spelling in plain Python, one number at a time, with the `math` module and
no arrays (`by_hand`), which a reader can compare with the paper's formula line by line; and
properties that the delta rule must have whatever the code looks like.
"""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ringfold.oracle.gdn import (
    Parameters,
    Tokens,
    Updates,
    l2norm,
    live,
    log_decay,
    prepare,
    scan,
    sigmoid,
    softplus,
    step,
    token,
)

Array = NDArray[np.float64]
HAND_TOL = 1e-14  # of values around 1, by sums in another order; seen 9e-16
GATE_TOL = 1e-14  # relative; seen 3e-16


def draw(
    rng: np.random.Generator,
    batch: tuple[int, ...] = (),
    tokens: int = 5,
    heads: tuple[int, int] = (2, 4),
    widths: tuple[int, int] = (6, 3),
) -> tuple[Array, Tokens]:
    """A random state [*batch, HV, V, K] and T tokens."""
    (H, HV), (K, V) = heads, widths
    shapes = (tokens, H, K), (tokens, H, K), (tokens, HV, V), (tokens, HV), (tokens, HV)
    state = rng.standard_normal((*batch, HV, V, K))
    return state, Tokens(*(rng.standard_normal((*batch, *shape)) for shape in shapes))


def by_hand(
    state: Array, tokens: Tokens, parameters: Parameters
) -> tuple[list[list[list[float]]], list[list[list[float]]]]:
    """The design's eight lines for a single row, number by number: outputs [T][HV][V], state."""
    T, H, K = tokens.k.shape
    _, HV, V = tokens.v.shape
    scale = 1 / math.sqrt(K) if parameters.scale is None else parameters.scale
    S: list[list[list[float]]] = state.tolist()
    outputs = []
    for t in range(T):
        output = []
        for hv in range(HV):
            h = hv // (HV // H)
            q = [float(x) for x in tokens.q[t, h]]
            k = [float(x) for x in tokens.k[t, h]]
            if parameters.l2norm:
                q = [x / math.sqrt(sum(y * y for y in q) + 1e-6) for x in q]
                k = [x / math.sqrt(sum(y * y for y in k) + 1e-6) for x in k]
            x = float(tokens.a[t, hv]) + float(parameters.dt_bias[hv])
            g = -math.exp(float(parameters.A_log[hv])) * math.log1p(math.exp(x))
            beta = 1 / (1 + math.exp(-float(tokens.b[t, hv])))
            out = []
            for i in range(V):
                row = [math.exp(g) * x for x in S[hv][i]]
                u = beta * (float(tokens.v[t, hv, i]) - sum(map(float.__mul__, row, k)))
                row = [s + u * y for s, y in zip(row, k, strict=True)]
                S[hv][i] = row
                out.append(scale * sum(map(float.__mul__, row, q)))
            output.append(out)
        outputs.append(output)
    return outputs, S


class TestGates:
    """What turns the model's `a` and `b` into a decay and a strength of writing."""

    @pytest.mark.parametrize("x", [-700.0, -40.0, -1.0, 0.0, 1e-9, 1.0, 19.0, 21.0, 1e5])
    def test_softplus_and_sigmoid_keep_their_digits_at_both_ends(self, x: float) -> None:
        """Neither overflows, and a value near zero is right to its own size, not to that of 1."""
        e = math.exp(-abs(x))

        assert float(softplus(np.array(x))) == pytest.approx(max(x, 0) + math.log1p(e), rel=1e-15)
        expected = 1 / (1 + e) if x >= 0 else e / (1 + e)
        assert float(sigmoid(np.array(x))) == pytest.approx(expected, rel=GATE_TOL)

    def test_exact_softplus_is_the_truth_for_the_threshold_variant_too(self) -> None:
        """SGLang returns x itself above 20; in fp32 that cannot be told from the exact value."""
        x = np.nextafter(20.0, 21.0)

        assert 0 < softplus(np.array(x)) - x < 2.1e-9
        assert np.float32(softplus(np.array(x))) == np.float32(x)

    def test_log_decay_is_never_positive_and_reaches_zero(self) -> None:
        """A gate cannot amplify, and a very negative `a` gives exactly no forgetting."""
        a = np.array([-1e4, -5.0, 0.0, 5.0, 1e4])
        g = log_decay(a, np.array(2.0), np.array(0.5))

        assert g[0] == 0
        assert np.all(np.diff(g) < 0)
        assert g[2] == pytest.approx(-math.exp(2.0) * math.log1p(math.exp(0.5)))

    def test_l2norm_puts_its_epsilon_inside_the_root(self) -> None:
        """Tiny vectors shrink towards zero instead of becoming unit vectors."""
        assert l2norm(np.zeros(3)).tolist() == [0, 0, 0]
        assert l2norm(np.array([3e-3, 4e-3]))[1] == pytest.approx(4e-3 / math.sqrt(26e-6))


class TestPrepare:
    """From what the model gives to what the recurrence consumes."""

    def test_value_heads_share_key_heads_in_blocks(self) -> None:
        """Value head hv reads key head hv // (HV // H)."""
        _, tokens = draw(np.random.default_rng(1), heads=(2, 6))
        updates = prepare(tokens, Parameters(np.zeros(6), np.zeros(6), l2norm=False))

        for hv in range(6):
            assert np.array_equal(updates.k[:, hv], tokens.k[:, hv // 3])

    def test_heads_that_do_not_divide_are_refused(self) -> None:
        """The message names both numbers and the rule."""
        _, tokens = draw(np.random.default_rng(1), heads=(2, 3))

        with pytest.raises(ValueError, match=r"3 value heads .* 2 key heads .* multiple of H"):
            prepare(tokens, Parameters(np.zeros(3), np.zeros(3)))

    @pytest.mark.parametrize(("scale", "factor"), [(None, 6**-0.5), (0.25, 0.25)])
    def test_scale_multiplies_q_alone(self, scale: float | None, factor: float) -> None:
        """Without a scale of its own the layer uses K ** -0.5."""
        _, tokens = draw(np.random.default_rng(1), heads=(4, 4))
        updates = prepare(tokens, Parameters(np.zeros(4), np.zeros(4), False, scale))

        np.testing.assert_allclose(updates.q, factor * tokens.q, rtol=1e-15)
        assert np.array_equal(updates.k, tokens.k)


class TestRecurrence:
    """One token, and many."""

    @pytest.mark.parametrize("norm", [True, False])
    @pytest.mark.parametrize("heads", [(1, 1), (2, 2), (2, 6), (1, 3)])
    @pytest.mark.parametrize("widths", [(6, 3), (3, 6), (1, 1)])
    def test_equals_the_definition_by_hand(
        self, heads: tuple[int, int], widths: tuple[int, int], norm: bool
    ) -> None:
        """Any H | HV, K != V, parameters per head, with and without L2 norm."""
        rng = np.random.default_rng([1, *heads, *widths])
        state, tokens = draw(rng, heads=heads, widths=widths)
        A_log, dt_bias = rng.standard_normal((2, heads[1]))
        parameters = Parameters(A_log, dt_bias, norm)
        if not norm:
            tokens = tokens._replace(k=l2norm(tokens.k))  # beta |k|^2 <= 2, or the truth diverges
        outputs, after = scan(state, prepare(tokens, parameters))

        expected = by_hand(state, tokens, parameters)
        np.testing.assert_allclose(outputs, expected[0], rtol=HAND_TOL, atol=HAND_TOL)
        np.testing.assert_allclose(after, expected[1], rtol=HAND_TOL, atol=HAND_TOL)

    def test_a_full_write_is_read_back(self) -> None:
        """With beta = 1 and a unit key, the memory returns v under k: the delta rule."""
        rng = np.random.default_rng(2)
        state, v, k = rng.standard_normal((3, 6)), rng.standard_normal(3), rng.standard_normal(6)
        k /= np.linalg.norm(k)
        output, _ = step(state, k, k, v, np.array(-0.1), np.array(1.0))

        np.testing.assert_allclose(output, v, atol=HAND_TOL)

    def test_a_write_leaves_orthogonal_keys_alone(self) -> None:
        """Only the direction of k is rewritten; all else merely fades."""
        state = np.random.default_rng(3).standard_normal((3, 2))
        _, after = step(
            state, np.zeros(2), np.array([1.0, 0.0]), np.ones(3), np.array(-0.5), np.array(0.7)
        )

        np.testing.assert_allclose(after[:, 1], math.exp(-0.5) * state[:, 1], rtol=1e-15)

    def test_step_leaves_its_argument_alone(self) -> None:
        """The old state can still be rolled back to."""
        state, tokens = draw(np.random.default_rng(4))
        kept = state.copy()
        step(state, *token(prepare(tokens, Parameters(np.zeros(4), np.zeros(4))), 0))

        assert np.array_equal(state, kept)

    def test_scan_is_step_after_step(self) -> None:
        """Bit for bit, in one walk or in two with a commit between."""
        state, tokens = draw(np.random.default_rng(5), tokens=7)
        updates = prepare(tokens, Parameters(np.zeros(4), np.zeros(4)))
        outputs, after = scan(state, updates)
        _, middle = scan(state, Updates(*(x[:3] for x in updates)))
        _, resumed = scan(middle, Updates(*(x[3:] for x in updates)))
        for t in range(7):
            output, state = step(state, *token(updates, t))
            assert np.array_equal(output, outputs[t])

        assert np.array_equal(state, after)
        assert np.array_equal(resumed, after)

    def test_layers_and_rows_are_independent(self) -> None:
        """[layer, row] in one call equals a call for each, A_log coming as [layer, 1, 1, HV]."""
        rng = np.random.default_rng(6)
        state, tokens = draw(rng, batch=(2, 3))
        A_log, dt_bias = rng.standard_normal((2, 2, 1, 1, 4))
        outputs, after = scan(state, prepare(tokens, Parameters(A_log, dt_bias)))

        for layer, row in np.ndindex(2, 3):
            alone = Parameters(A_log[layer, 0, 0], dt_bias[layer, 0, 0])
            one = prepare(Tokens(*(x[layer, row] for x in tokens)), alone)
            expected = scan(state[layer, row], one)
            np.testing.assert_allclose(outputs[layer, row], expected[0], atol=HAND_TOL)
            np.testing.assert_allclose(after[layer, row], expected[1], atol=HAND_TOL)

    def test_batch_axes_broadcast(self) -> None:
        """One state against a batch of tokens, and a batch of states against one row of tokens."""
        state, tokens = draw(np.random.default_rng(7))
        many = np.stack([state, 2 * state])
        updates = prepare(tokens, Parameters(np.zeros((2, 1, 4)), np.zeros(4)))
        assert updates.log_decay.shape == (2, 5, 4)
        outputs, after = scan(many, updates)
        shared, _ = scan(state, updates)

        assert outputs.shape == (2, 5, 4, 3)
        assert after.shape == (2, 4, 3, 6)
        np.testing.assert_allclose(shared[0], outputs[0], atol=HAND_TOL)

    def test_no_tokens_no_change(self) -> None:
        """A window of length zero returns a copy of the state."""
        state, tokens = draw(np.random.default_rng(8), tokens=0)
        outputs, after = scan(state, prepare(tokens, Parameters(np.zeros(4), np.zeros(4))))

        assert outputs.shape == (0, 4, 3)
        assert np.array_equal(after, state)
        assert not np.shares_memory(after, state)


class TestRaggedWindows:
    """Rows of one batch may have windows of different length."""

    @pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e300])
    def test_tokens_past_the_length_do_not_exist(self, garbage: float) -> None:
        """State and outputs are those of the shorter window, whatever stands behind it."""
        rng = np.random.default_rng(9)
        lengths = np.array([[0, 1, 3], [5, 4, 2]])
        state, tokens = draw(rng, batch=(2, 3))
        parameters = Parameters(*rng.standard_normal((2, 2, 1, 1, 4)))
        clean = prepare(tokens, parameters)
        dead = ~live(lengths, 5)
        for x in clean:
            x[dead] = garbage
        outputs, after = scan(state, clean, lengths)

        for layer, row in np.ndindex(2, 3):
            n = lengths[layer, row]
            one = Updates(*(x[layer, row, :n] for x in clean))
            expected = scan(state[layer, row], one)
            assert np.array_equal(outputs[layer, row, :n], expected[0])
            assert not outputs[layer, row, n:].any()
            assert np.array_equal(after[layer, row], expected[1])

    @pytest.mark.parametrize("name", Tokens._fields)
    def test_raw_garbage_passes_through_prepare_without_spreading(self, name: str) -> None:
        """A NaN in a raw input reaches no other token."""
        state, tokens = draw(np.random.default_rng(10), tokens=4)
        parameters = Parameters(np.zeros(4), np.zeros(4))
        expected, after = scan(state, prepare(tokens, parameters), np.array(3))
        spoiled: Any = {name: getattr(tokens, name).copy()}
        spoiled[name][3] = np.nan
        outputs, state = scan(state, prepare(tokens._replace(**spoiled), parameters), np.array(3))

        assert np.array_equal(outputs, expected)
        assert np.array_equal(state, after)

    @pytest.mark.parametrize("length", [-1, 6])
    def test_impossible_lengths_are_refused(self, length: int) -> None:
        """The message names the lengths, the range and the way out."""
        state, tokens = draw(np.random.default_rng(11))
        updates = prepare(tokens, Parameters(np.zeros(4), np.zeros(4)))

        with pytest.raises(ValueError, match=rf"lengths \[{length}\] leave 0 .. 5: .* cut"):
            scan(state, updates, np.array([length]))
