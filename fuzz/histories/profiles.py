"""Payload profiles: what kind of numbers a history's tokens are, as a table of short functions.

A profile turns random words into tokens by exact steps alone (integers to float32, powers of two,
bit patterns, sums that IEEE rounds the same way everywhere), so that the same seed gives the same
bits on every machine. No exp, log, sine or root appears: those differ in their last bit.

Most profiles are `ordinary` with a part replaced. To add one, write a function and a row of
`PROFILES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ringfold.oracle.gdn import Tokens
from ringfold.sim.setup import Setup

Words: TypeAlias = NDArray[np.uint32]
Floats: TypeAlias = NDArray[np.float32]


class Bits(NamedTuple):
    """Random words of n tokens, each of one layer."""

    q: Words  # [n, H, K]
    k: Words  # [n, H, K]
    v: Words  # [n, HV, V]
    gate: Words  # [n, HV, 4]   the first for a, the second for b
    choice: Words  # [n, 4]   what is decided once a token
    base: Words  # [n, H, K]   equal for all tokens of a layer


class Limits(NamedTuple):
    """How large and how small numbers may be, by the dtypes that have to hold them."""

    mantissa: int
    """Stored mantissa bits of the activations."""
    smallest: float
    """Smallest normal number that the activations have."""
    smallest_state: float
    """The same of the checkpoint; a float64 one gets float32's, in which payload is drawn."""
    qk_exponent: int
    """|q| and |k| stay below 2 to this power, so that their squares do not overflow float32."""
    v_exponent: int
    """|v| and |S| stay below 2 to this power, so that outputs and states do not overflow."""


MANTISSA: Final = {"float32": 23, "bfloat16": 7, "float16": 10}
SMALLEST: Final = {
    "float64": 2.0**-126,
    "float32": 2.0**-126,
    "bfloat16": 2.0**-126,
    "float16": 2.0**-14,
}


def limits(setup: Setup) -> Limits:
    """What the setup's dtypes can hold."""
    dtypes = setup.dtypes
    narrow = "float16" in (dtypes.activation, dtypes.record, dtypes.state)
    large = 9 if narrow else 55
    return Limits(
        mantissa=MANTISSA[dtypes.activation],
        smallest=SMALLEST[dtypes.activation],
        smallest_state=SMALLEST[dtypes.state],
        qk_exponent=large if setup.l2norm else 0,
        v_exponent=9 if narrow else 40,
    )


# ------------------------------------------------------------------ words to numbers


def unit(words: Words) -> Floats:
    """Odd multiples of 2^-23 in (-1, 1): every mantissa bit counts, and none is zero."""
    return ((words.view(np.int32) >> 8) | 1).astype(np.float32) * np.float32(2.0**-23)


def between(words: Words, low: float, high: float) -> Floats:
    """Multiples of 2^-24 of the span, in [low, high)."""
    fraction = (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    return np.float32(low) + fraction * np.float32(high - low)


def powers(words: Words, exponent: int) -> Floats:
    """2^0 to 2^exponent, equally often; shaped to scale whole tokens [n, heads, width]."""
    drawn = (words.astype(np.uint64) * np.uint64(exponent + 1)) >> np.uint64(32)
    return np.ldexp(np.float32(1), drawn.astype(np.int32))[:, None, None]


def pattern(words: Words) -> NDArray[np.bool_]:
    """Which of q, k, v a token's profile applies to: [3, n, 1, 1], all of them half the time."""
    drawn = words >> np.uint32(28)
    drawn = np.where(drawn < 8, 7, drawn - 8)
    return ((drawn >> np.arange(3, dtype=np.uint32)[:, None]) & 1).astype(bool)[:, :, None, None]


# ------------------------------------------------------------------ tokens


def ordinary(bits: Bits, _limits: Limits) -> Tokens:
    """Everything of order one."""
    return Tokens(
        q=unit(bits.q),
        k=unit(bits.k),
        v=unit(bits.v),
        a=between(bits.gate[..., 0], -2, 2),
        b=between(bits.gate[..., 1], -4, 4),
    )


def slow_decay(bits: Bits, limits: Limits) -> Tokens:
    """Nothing is forgotten for hundreds of tokens, so that a lost one stays visible."""
    return ordinary(bits, limits)._replace(a=between(bits.gate[..., 0], -8, -4))


def strong_gates(bits: Bits, limits: Limits) -> Tokens:
    """exp(g) below 1e-7, down to an underflow to zero."""
    return ordinary(bits, limits)._replace(a=between(bits.gate[..., 0], 1024, 2048))


def softplus_knee(bits: Bits, limits: Limits) -> Tokens:
    """From where softplus is exp(x) up to where it is x in any dtype: each form's own range."""
    return ordinary(bits, limits)._replace(a=between(bits.gate[..., 0], -16, 24))


def unit_gates(bits: Bits, limits: Limits) -> Tokens:
    """In float32 exp(g) and beta are 1: nothing fades, and each key is overwritten whole.

    Half of the b lie where exp(b) overflows float32.
    """
    return ordinary(bits, limits)._replace(
        a=between(bits.gate[..., 0], -192, -160), b=between(bits.gate[..., 1], 48, 128)
    )


def beta_edges(bits: Bits, limits: Limits) -> Tokens:
    """Each beta is within 4e-4 of 0 or of 1."""
    words = bits.gate[..., 1]
    size = between(words << np.uint32(1), 8, 24)
    return ordinary(bits, limits)._replace(b=np.where(words >> np.uint32(31), size, -size))


def near_duplicate_keys(bits: Bits, limits: Limits) -> Tokens:
    """One key a head, off by -1 to 2 units in the last place; one in four is the key itself."""
    dropped = np.uint32(23 - limits.mantissa)
    key = bits.base & np.uint32(0x807FFFFF) | np.uint32(0x3F000000)  # +-[0.5, 1)
    key = (key >> dropped) << dropped
    steps = (bits.k >> np.uint32(30)) - np.uint32(1)  # wraps, as adding it does
    moved = (bits.choice[:, 0] >> np.uint32(30)) != 0
    key = key + (steps * moved[:, None, None].astype(np.uint32) << dropped)
    return ordinary(bits, limits)._replace(k=key.view(np.float32))


def zeros(bits: Bits, limits: Limits) -> Tokens:
    """Tokens with q, k or v all zero, of either sign; half of the tokens have nothing else."""
    tokens = ordinary(bits, limits)
    q, k, v = np.where(pattern(bits.choice[:, 0]), np.float32(0), np.float32(1))
    return tokens._replace(q=tokens.q * q, k=tokens.k * k, v=tokens.v * v)


def subnormal(bits: Bits, limits: Limits) -> Tokens:
    """Tokens with q, k or v below the smallest normal number; half of them all three."""
    tokens = ordinary(bits, limits)
    small = np.float32(limits.smallest)
    q, k, v = np.where(pattern(bits.choice[:, 0]), small, np.float32(1))
    return tokens._replace(q=tokens.q * q, k=tokens.k * k, v=tokens.v * v)


def short_keys(bits: Bits, limits: Limits) -> Tokens:
    """|q| and |k| near 1e-3, the root of what their norms add lest they divide by zero."""
    tokens = ordinary(bits, limits)
    return tokens._replace(q=tokens.q * np.float32(2.0**-12), k=tokens.k * np.float32(2.0**-12))


def large(bits: Bits, limits: Limits) -> Tokens:
    """Every token has its own power of two, up to what the dtypes hold."""
    tokens = ordinary(bits, limits)
    choice = bits.choice
    return tokens._replace(
        q=tokens.q * powers(choice[:, 0], limits.qk_exponent),
        k=tokens.k * powers(choice[:, 1], limits.qk_exponent),
        v=tokens.v * powers(choice[:, 2], limits.v_exponent),
    )


def mixture(bits: Bits, limits: Limits) -> Tokens:
    """Each token of each layer draws its profile from `MIXTURE`."""
    drawn = bits.choice[:, 3] >> np.uint32(27)
    tokens = ordinary(bits, limits)
    for profile, share in MIXTURE.items():
        rows = np.flatnonzero((share[0] <= drawn) & (drawn < share[1]))
        if rows.size:
            part = profile(Bits(*(words[rows] for words in bits)), limits)
            for whole, piece in zip(tokens, part, strict=True):
                whole[rows] = piece
    return tokens


MIXTURE: Final[Mapping[Callable[[Bits, Limits], Tokens], tuple[int, int]]] = {
    # Of 32 tokens; the other 5 are ordinary. What erases a state or drowns it is kept rare.
    slow_decay: (0, 7),
    near_duplicate_keys: (7, 12),
    beta_edges: (12, 16),
    unit_gates: (16, 19),
    zeros: (19, 21),
    subnormal: (21, 22),
    strong_gates: (22, 23),
    large: (23, 24),
    softplus_knee: (24, 26),
    short_keys: (26, 27),
}


# ------------------------------------------------------------------ states after a prefill


def ordinary_state(words: Words, _limits: Limits) -> Floats:
    """Of order one."""
    return unit(words)


def zero_state(words: Words, _limits: Limits) -> Floats:
    """A request that has seen nothing yet."""
    return np.zeros(words.shape, np.float32)


def one_token_state(words: Words, _limits: Limits) -> Floats:
    """What a prompt of a single token leaves behind: its value under its key, of rank one."""
    value, key = unit(words[..., :1]), unit(words[..., :1, :])
    return np.asarray(value * key)


def subnormal_state(words: Words, limits: Limits) -> Floats:
    """Below the smallest normal number of the checkpoint's dtype."""
    return unit(words) * np.float32(limits.smallest_state)


def large_state(words: Words, limits: Limits) -> Floats:
    """As large as its values get."""
    return unit(words) * np.float32(2.0**limits.v_exponent)


class Profile(NamedTuple):
    """One row of the table. `A_log` is drawn between its two bounds, a value for each head."""

    tokens: Callable[[Bits, Limits], Tokens]
    state: Callable[[Words, Limits], Floats] = ordinary_state
    A_log: tuple[float, float] = (-4.0, -2.0)


DT_BIAS: Final = (-1.0, 1.0)

PROFILES: Final[Mapping[str, Profile]] = {
    "ordinary": Profile(ordinary, A_log=(-4.0, 0.0)),
    "slow-decay": Profile(slow_decay),
    "one-token-prompt": Profile(slow_decay, one_token_state),
    "strong-gates": Profile(strong_gates),
    "softplus-knee": Profile(softplus_knee),
    "unit-gates": Profile(unit_gates),
    "beta-edges": Profile(beta_edges),
    "near-duplicate-keys": Profile(near_duplicate_keys),
    "zeros": Profile(zeros, zero_state),
    "subnormal": Profile(subnormal, subnormal_state),
    "short-keys": Profile(short_keys),
    "large": Profile(large, large_state),
    "mixture": Profile(mixture),
}
