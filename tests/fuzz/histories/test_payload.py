"""A token's numbers belong to the token: they survive every edit of the history around it.

Here the same token is drawn in two different settings (another batch, a shorter window, a smaller
geometry, fewer layers) and must have the same bits. Each profile is then held to the property that
it is named after, by the oracle's own gates where it is about gates. That a payload is the same on
every machine is shown by a digest of its bytes, pinned here: the mapping uses exact steps alone.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from ringfold.fuzz.histories.payload import (
    PADDING,
    Payload,
    load_tensors,
    packed,
    padded,
    tokens_of,
)
from ringfold.fuzz.histories.profiles import PROFILES
from ringfold.fuzz.histories.trace import TraceError
from ringfold.fuzz.target import HeadParameters, Inputs
from ringfold.oracle.gdn import Array, Parameters, log_decay, prepare, scan, sigmoid
from ringfold.sim.precision import DTYPES, rounded
from ringfold.sim.setup import ACTIVATIONS, STATES, Dtypes, Geometry, Setup

GOLDEN = "a1c5a48375cf1d5d24c92cb2ce6cd879d035f7a39fb8b04a768d61e5aa256cc8"
"""SHA-256 over `sample()`: a change of this digest changes what every trace ever kept means."""

FP16_MAX = 65504.0
NORMAL = {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-14}


def setup(
    heads: int = 2,
    value_heads: int = 4,
    key_dim: int = 10,
    value_dim: int = 6,
    layers: int = 2,
    l2norm: bool = True,
    dtypes: Dtypes | None = None,
) -> Setup:
    return Setup(
        dialect="ring",
        geometry=Geometry(heads, value_heads, key_dim, value_dim),
        ring=1024,
        window=512,
        slots=8,
        layers=layers,
        l2norm=l2norm,
        dtypes=dtypes or Dtypes(),
    )


def one_window(payload: Payload, request: int, length: int, **key: Any) -> Inputs:
    """One row alone; [layer, token, ...]."""
    return payload.window(np.array([request]), np.array([length]), **key)


def same(x: NDArray[Any], y: NDArray[Any]) -> bool:
    """Equal bit for bit."""
    return x.shape == y.shape and np.ascontiguousarray(x).tobytes() == (
        np.ascontiguousarray(y).tobytes()
    )


def gates(inputs: Inputs, head: HeadParameters) -> tuple[Array, Array]:
    """What the oracle makes of them: exp(g) and beta, [layer, token, HV]."""
    g = log_decay(inputs.a, head.A_log[:, None], head.dt_bias[:, None])
    return np.exp(g), sigmoid(inputs.b)


@pytest.fixture(params=sorted(PROFILES))
def profile(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class TestKeying:
    """What a number depends on, and what it does not."""

    def test_other_rows_do_not_matter(self, profile: str) -> None:
        """A row has the same tokens alone, in company, behind others, and when drawn again."""
        payload = Payload(setup(), 7, profile)
        alone = one_window(payload, 3, 4, tag=9)

        batch = payload.window(np.array([5, PADDING, 3, 0]), np.array([2, 3, 4, 1]), tag=9)

        assert all(same(x[:, 5:9], y) for x, y in zip(batch, alone, strict=True))
        again = one_window(Payload(setup(), 7, profile), 3, 4, tag=9)
        assert all(same(x, y) for x, y in zip(again, alone, strict=True))

    def test_a_shorter_window_is_a_prefix(self, profile: str) -> None:
        """Cutting a window leaves the tokens that remain."""
        payload = Payload(setup(), 7, profile)
        long, short = one_window(payload, 3, 5, tag=9), one_window(payload, 3, 2, tag=9)

        assert all(same(x[:, :2], y) for x, y in zip(long, short, strict=True))

    @pytest.mark.parametrize(
        "smaller",
        [{"key_dim": 4}, {"value_dim": 3}, {"heads": 1, "value_heads": 2}, {"layers": 1}],
        ids=str,
    )
    @pytest.mark.parametrize("l2norm", [True, False])
    def test_a_smaller_geometry_is_a_corner(
        self, profile: str, smaller: dict[str, Any], l2norm: bool
    ) -> None:
        """Fewer heads, elements or layers leave all the others' numbers."""
        wide = Payload(setup(l2norm=l2norm), 7, profile)
        narrow = Payload(setup(l2norm=l2norm, **smaller), 7, profile)

        pairs = [
            *zip(one_window(wide, 3, 4, tag=9), one_window(narrow, 3, 4, tag=9), strict=True),
            *zip(wide.parameters()[:2], narrow.parameters()[:2], strict=True),
            (wide.state(3, 9), narrow.state(3, 9)),
        ]
        for whole, part in pairs:
            assert same(whole[tuple(slice(n) for n in part.shape)], part)

    def test_every_part_of_the_key_counts(self) -> None:
        """Another seed, request, tag, iteration, index, layer, head or tensor is other data."""
        payload = Payload(setup(key_dim=6), 7, "ordinary")
        here = one_window(payload, 3, 2, tag=9, iteration=1)
        others = [
            one_window(Payload(setup(key_dim=6), 8, "ordinary"), 3, 2, tag=9, iteration=1),
            one_window(payload, 4, 2, tag=9, iteration=1),
            one_window(payload, 3, 2, tag=10, iteration=1),
            one_window(payload, 3, 2, tag=9, iteration=2),
        ]

        for other in others:
            assert not any(np.any(x == y) for x, y in zip(here, other, strict=True))
        keys = here.k.reshape(-1, 6)
        vectors = np.concatenate([keys, here.q.reshape(-1, 6), here.v.reshape(-1, 6)])
        assert len(np.unique(vectors)) == vectors.size

    @pytest.mark.parametrize("profile", sorted(PROFILES))
    def test_many_states_are_each_of_them(self, profile: str) -> None:
        """Drawn together, states have the bits that they have one by one."""
        payload = Payload(setup(), 7, profile)
        requests, tags = np.array([3, 0, 9]), np.array([1, 2, 2])

        together = payload.states(requests, tags, 5)

        for row, key in enumerate(zip(requests, tags, strict=True)):
            assert same(together[:, row], payload.state(*key, 5))

    def test_states_are_keyed_too(self) -> None:
        """The state after a prefill differs by request, tag and iteration, in every element."""
        payload = Payload(setup(), 7, "ordinary")
        here, *others = (
            payload.state(*key) for key in [(3, 9, 0), (4, 9, 0), (3, 8, 0), (3, 9, 1)]
        )

        assert not any(np.any(here == other) for other in others)
        rows = here.reshape(-1, here.shape[-1])
        assert len(np.unique(rows, axis=0)) == len(rows)

    def test_padding_rows_have_tokens(self) -> None:
        """They have the largest request number that fits, which no request has."""
        payload = Payload(setup(), 7, "ordinary")

        inputs = one_window(payload, PADDING, 2, tag=9)

        assert all(x.shape[1] == 2 and np.all(x != 0) for x in inputs)

    def test_a_profile_for_one_operation(self) -> None:
        """Overriding the profile gives what a trace of that profile has."""
        ordinary, other = (Payload(setup(), 7, name) for name in ("ordinary", "zeros"))

        overridden = one_window(ordinary, 3, 8, tag=9, profile="zeros")

        expected = one_window(other, 3, 8, tag=9)
        assert all(same(x, y) for x, y in zip(overridden, expected, strict=True))
        assert same(ordinary.state(3, 9, profile="zeros"), other.state(3, 9))

    def test_an_empty_batch_of_tokens(self, profile: str) -> None:
        """Windows of length 0 have no tokens, and that is fine."""
        inputs = one_window(Payload(setup(), 7, profile), 3, 0, tag=9)

        assert inputs.k.shape == (2, 0, 2, 10)


def sample() -> bytes:
    """Some of everything, in every profile and dtype."""
    parts = []
    for dtype in ACTIVATIONS:
        for l2norm in (True, False):
            for name in sorted(PROFILES):
                payload = Payload(
                    setup(dtypes=Dtypes(dtype, dtype, dtype), l2norm=l2norm), 11, name
                )
                window = payload.window(np.array([3, PADDING]), np.array([40, 2]), 9, 5)
                parts += [*window, *payload.parameters()[:2], payload.state(3, 9, 5)]
    return b"".join(np.ascontiguousarray(part).astype("<f4").tobytes() for part in parts)


def test_the_same_bytes_on_every_machine() -> None:
    """The digest was taken once and is the same wherever the tests run."""
    assert hashlib.sha256(sample()).hexdigest() == GOLDEN


@pytest.mark.parametrize("dtype", ACTIVATIONS)
def test_tokens_are_values_of_the_activation_dtype(profile: str, dtype: str) -> None:
    """Rounding them to it changes no bit, and all are finite."""
    payload = Payload(setup(dtypes=Dtypes(activation=dtype)), 7, profile)

    for values in one_window(payload, 3, 64, tag=9):
        assert values.dtype == np.float32
        assert np.isfinite(values).all()
        assert same(values.astype(DTYPES[dtype]).astype(np.float32), values)


@pytest.mark.parametrize("dtype", STATES)
def test_states_are_values_of_the_state_dtype(profile: str, dtype: str) -> None:
    """Rounding the state after a prefill to the checkpoint's dtype changes no bit."""
    state = Payload(setup(dtypes=Dtypes(state=dtype)), 7, profile).state(3, 9)

    assert state.dtype == np.float32
    assert np.isfinite(state).all()
    assert same(state.astype(DTYPES[dtype]).astype(np.float32), state)


class TestProfiles:
    """Each has the property that it is named after; 64 tokens, two layers."""

    @pytest.fixture(params=ACTIVATIONS)
    def dtype(self, request: pytest.FixtureRequest) -> str:
        """Of the activations."""
        name: str = request.param
        return name

    def drawn(self, profile: str, dtype: str) -> tuple[Inputs, HeadParameters]:
        """A window of 64 tokens and the parameters of its heads."""
        payload = Payload(setup(dtypes=Dtypes(activation=dtype)), 7, profile)
        return one_window(payload, 3, 64, tag=9), payload.parameters()

    def test_ordinary(self, dtype: str) -> None:
        """All within one, on both sides of zero; gates neither shut nor open."""
        inputs, head = self.drawn("ordinary", dtype)

        for values in inputs[:3]:
            assert np.abs(values).max() <= 1
            assert abs(values.mean()) < 0.05
            assert 0.5 < values.std() < 0.65  # 0.577 for a uniform one
        decay, beta = gates(inputs, head)
        assert 0.01 < decay.min() < decay.max() < 1
        assert 0.01 < beta.min() < 0.1
        assert 0.9 < beta.max() < 0.99

    def test_every_mantissa_bit_of_float32_is_used(self) -> None:
        """Odd multiples of 2^-23, so that storing one in float16 rounds it."""
        inputs, _ = self.drawn("ordinary", "float32")

        for values in inputs[:3]:
            assert np.all(np.mod(values.astype(np.float64) * 2**23, 2) == 1)
            wide = values[np.abs(values) > 2.0**-11]  # below, float16 has as fine a spacing
            assert wide.size > 0.99 * values.size
            assert np.all(rounded(wide, "float16") != wide)

    def test_strong_gates(self, dtype: str) -> None:
        """A token leaves less than 1e-7 of what was there, often exactly nothing in float32."""
        decay, _ = gates(*self.drawn("strong-gates", dtype))

        assert decay.max() < 1e-7

    def test_softplus_knee(self, dtype: str) -> None:
        """Tokens lie where softplus is exp(x), where it bends, where it nears x, and where it is x.

        Kernels switch to x at 20 in float32.
        """
        inputs, head = self.drawn("softplus-knee", dtype)

        x = inputs.a + head.dt_bias[:, None]
        for low, high in ((-17, -4), (-4, 4), (4, 20), (20, 25)):
            assert np.mean((low <= x) & (x < high)) > 0.05

    def test_unit_gates(self, dtype: str) -> None:
        """exp(g) and beta are exactly 1, softplus is 0 in float32, and all that in float64 too.

        Half of the b overflow a float32 exponential.
        """
        inputs, head = self.drawn("unit-gates", dtype)
        with np.errstate(over="ignore"):
            assert 0.3 < np.mean(np.isinf(np.exp(inputs.b))) < 0.7

        decay, beta = gates(inputs, head)
        assert np.all(decay == 1.0)
        assert np.all(beta == 1.0)
        with np.errstate(under="ignore"):
            assert np.all(np.exp((inputs.a + head.dt_bias[:, None]).astype(np.float32)) == 0)

    def test_slow_decay(self, dtype: str) -> None:
        """A token leaves over 99 % of what was there, but not all of it."""
        inputs, head = self.drawn("slow-decay", dtype)

        decay, _ = gates(inputs, head)
        assert 0.99 < decay.min() < decay.max() < 1
        assert -4 <= head.A_log.min() < head.A_log.max() <= -2

    def test_beta_edges(self, dtype: str) -> None:
        """All near 0 or 1, both often, and 1 itself among them in float32."""
        _, beta = gates(*self.drawn("beta-edges", dtype))

        low = beta < 4e-4
        assert 0.4 < low.mean() < 0.6
        assert np.all(low | (beta > 1 - 4e-4))
        assert np.any(beta.astype(np.float32) == 1)

    def test_near_duplicate_keys(self, dtype: str) -> None:
        """Within 3 units in the last place of each other; some equal, most not."""
        inputs, _ = self.drawn("near-duplicate-keys", dtype)
        keys = inputs.k.reshape(2, 64, -1)

        last_place = 2.0 ** {"float32": -24, "bfloat16": -8, "float16": -11}[dtype]
        spread = keys.max(axis=1) - keys.min(axis=1)
        assert np.all(spread > 0)
        assert spread.max() <= 3 * last_place
        for layer in keys:
            distinct = len(np.unique(layer, axis=0))
            assert 40 <= distinct < 64
        assert len(np.unique(np.sign(keys[0, 0]))) == 2

    def test_zeros(self, dtype: str) -> None:
        """Whole vectors are zero, of either sign, in q, k and v alone and together."""
        inputs, _ = self.drawn("zeros", dtype)
        is_zero = np.array([np.all(x == 0, axis=(2, 3)) for x in inputs[:3]])  # [3, layer, token]
        has_zero = np.array([np.any(x == 0, axis=(2, 3)) for x in inputs[:3]])

        assert np.array_equal(is_zero, has_zero)
        assert len(np.unique(is_zero.reshape(3, -1), axis=1).T) == 8
        assert 0.4 < np.all(is_zero, axis=0).mean() < 0.7
        zeros = inputs.k[inputs.k == 0]
        assert 0.4 < np.signbit(zeros).mean() < 0.6
        assert not Payload(setup(), 7, "zeros").state(3, 9).any()

    def test_large(self, dtype: str) -> None:
        """Up to 2^40 in v and 2^55 in q and k, or 2^9 where something is float16."""
        inputs, _ = self.drawn("large", dtype)
        qk, v = (9, 9) if dtype == "float16" else (55, 40)

        for values, most in zip(inputs[:3], (qk, qk, v), strict=True):
            assert 2.0 ** (most - 2) < np.abs(values).max() <= 2.0**most
            assert np.abs(values).min() < 1
        with np.errstate(over="raise"):
            squares = np.sum(inputs.k * inputs.k, axis=-1, dtype=np.float32)
        assert np.isfinite(squares * np.float32(256 / 10)).all()  # also at K = 256

    @pytest.mark.parametrize("narrow", ["record", "state"])
    def test_large_respects_the_narrowest_dtype(self, narrow: str) -> None:
        """float32 activations over a float16 ring or checkpoint stay in float16's range."""
        dtypes = Dtypes(**{narrow: "float16"})

        inputs = one_window(Payload(setup(dtypes=dtypes), 7, "large"), 3, 64, tag=9)

        assert max(np.abs(x).max() for x in inputs) <= 2.0**9

    def test_subnormal(self, dtype: str) -> None:
        """Whole vectors below the smallest normal number, not flushed; half of them all three."""
        inputs, _ = self.drawn("subnormal", dtype)
        small = []
        for values in inputs[:3]:
            tiny = np.abs(values) <= NORMAL[dtype]
            small.append(tiny.all(axis=(2, 3)))
            assert np.all(tiny.any(axis=(2, 3)) == small[-1])
            assert np.mean(values[small[-1]] != 0) > 0.9

        assert 0.4 < np.all(small, axis=0).mean() < 0.7
        state = Payload(setup(dtypes=Dtypes(state=dtype)), 7, "subnormal").state(3, 9)
        assert np.abs(state).max() <= NORMAL[dtype]
        assert np.mean(state != 0) > 0.9

    def test_mixture(self, dtype: str) -> None:
        """Ordinary tokens and those of every other profile, changing from token to token."""
        payload = Payload(setup(layers=1, dtypes=Dtypes(activation=dtype)), 7, "mixture")
        mixed = one_window(payload, 3, 512, tag=9)
        share = {}
        for name in PROFILES.keys() - {"mixture"}:
            pure = one_window(payload, 3, 512, tag=9, profile=name)
            equal = [
                np.all(x == y, axis=tuple(range(2, x.ndim)))[0]
                for x, y in zip(mixed, pure, strict=True)
            ]
            share[name] = np.all(equal, axis=0)  # [token]

        assert np.all(np.any(list(share.values()), axis=0))
        assert all(mine.any() for mine in share.values())
        assert share["ordinary"].mean() < 0.5
        changes = np.mean(share["ordinary"][1:] != share["ordinary"][:-1])
        assert changes > 0.1


@pytest.mark.parametrize("l2norm", [True, False])
@pytest.mark.parametrize("key_dim", [4, 256])
def test_nothing_blows_up(profile: str, l2norm: bool, key_dim: int) -> None:
    """Over 1,000 tokens the true states and outputs of the narrowest setup stay within float16.

    Without the L2 norm that needs beta |k|^2 < 2, which holds with room to spare.
    """
    dtypes = Dtypes("float16", "float16", "float16")
    tested = setup(heads=1, value_heads=2, key_dim=key_dim, layers=1, l2norm=l2norm, dtypes=dtypes)
    payload = Payload(tested, 7, profile)
    A_log, dt_bias, _ = payload.parameters()
    state = payload.state(3, 0)[:, None].astype(np.float64)  # [layer, row, HV, V, K]
    length = np.array([500])
    for tag in (1, 2):
        tokens = tokens_of(one_window(payload, 3, 500, tag=tag), length)
        if not l2norm:
            assert np.sum(np.square(tokens.k, dtype=np.float64), axis=-1).max() <= 1
        updates = prepare(tokens, Parameters(A_log[0], dt_bias[0], l2norm=l2norm))
        outputs, state = scan(state, updates, lengths=length)

        # Seen: 344 in states, 541 in outputs, both in `large`.
        assert np.abs(state).max() < FP16_MAX / 8
        assert np.abs(outputs).max() < FP16_MAX / 8


def test_padding_and_packing_are_inverse() -> None:
    """Rows come back in order, zeros stand behind each length, a row of length 0 is all zeros."""
    lengths = np.array([2, 0, 3])
    flat = np.arange(1.0, 11.0).reshape(2, 5)

    wide = padded(flat, lengths)

    assert wide.tolist() == [
        [[1, 2, 0], [0, 0, 0], [3, 4, 5]],
        [[6, 7, 0], [0, 0, 0], [8, 9, 10]],
    ]
    assert same(packed(wide, lengths), flat)


class TestExplicitTensors:
    """A safetensors file beside the trace replaces what it names, and nothing else."""

    def load(self, folder: Path, tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """What comes back of `tensors` through a file."""
        path = folder / "tensors.safetensors"
        save_file(tensors, path)
        return dict(load_tensors(path, setup()))

    def test_they_replace_what_they_name(self, tmp_path: Path) -> None:
        """Two tokens of one window's k, one state, one parameter."""
        k = np.full((2, 2, 2, 10), 0.25, np.float32)
        state = np.full((2, 4, 6, 10), 3, np.float32)
        A_log = np.full((2, 4), -3, np.float32)
        tensors = self.load(tmp_path, {"k/3/9": k, "state/3/0": state, "A_log": A_log})
        plain, explicit = Payload(setup(), 7, "ordinary"), Payload(setup(), 7, "ordinary", tensors)
        batch = (np.array([5, 3]), np.array([2, 3]), 9)

        before, after = plain.window(*batch), explicit.window(*batch)

        assert same(after.k[:, 2:4], k)
        assert same(after.k[:, [0, 1, 4]], before.k[:, [0, 1, 4]])
        assert all(same(getattr(after, n), getattr(before, n)) for n in "qvab")
        assert same(explicit.state(3, 0), state)
        assert same(explicit.state(3, 1), plain.state(3, 1))
        assert same(explicit.parameters().A_log, A_log)
        assert same(explicit.parameters().dt_bias, plain.parameters().dt_bias)

    @pytest.mark.parametrize(
        ("name", "values", "says"),
        [
            ("w/3/9", np.zeros(3, np.float32), "has no meaning, but must be named like q/3/17"),
            ("k/03/9", np.zeros(3, np.float32), "has no meaning"),
            ("k/70000/9", np.zeros(3, np.float32), "has no meaning"),
            ("A_log", np.zeros((2, 4)), "is F64, but must be F32: convert it to float32"),
            ("A_log", np.zeros((2, 3), np.float32), r"shape \[2, 3\], .* shape \[2, 4\]"),
            ("q/3/9", np.zeros((2, 2000, 2, 10), np.float32), r"\[2, 1..1024, 2, 10\]"),
            ("dt_bias", np.full((2, 4), np.inf, np.float32), "must be finite"),
            ("q/3/9", np.full((2, 1, 2, 10), 2.0**56, np.float32), r"must stay below 2\^56"),
        ],
    )
    def test_a_wrong_tensor_is_refused(
        self, tmp_path: Path, name: str, values: NDArray[Any], says: str
    ) -> None:
        """By name, dtype, shape and value, each with its limit."""
        with pytest.raises(TraceError, match=says):
            self.load(tmp_path, {name: values})

    def test_values_must_fit_the_dtype(self, tmp_path: Path) -> None:
        """float32 values that bfloat16 would round are refused where activations are bfloat16."""
        path = tmp_path / "tensors.safetensors"
        save_file({"a/3/9": np.full((2, 1, 4), 0.1, np.float32)}, path)

        with pytest.raises(TraceError, match=r"does not fit bfloat16.*round it to bfloat16 first"):
            load_tensors(path, setup(dtypes=Dtypes(activation="bfloat16")))

    @pytest.mark.parametrize("content", [b"", b"\x80\x04\x95pickle.", b"\xff" * 64, b"{}"])
    def test_a_broken_file_is_refused(self, tmp_path: Path, content: bytes) -> None:
        """Empty, a pickle, a header of 2^64 bytes, bare JSON."""
        path = tmp_path / "tensors.safetensors"
        path.write_bytes(content)

        with pytest.raises(TraceError, match="is not a safetensors file"):
            load_tensors(path, setup())

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        """The message says where to put it."""
        with pytest.raises(TraceError, match="put it beside the trace"):
            load_tensors(tmp_path / "absent.safetensors", setup())
