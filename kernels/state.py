"""The recurrence on a register-resident tile of state: written once, used by every kernel here.

A program holds `block_v` rows of one value head's state `S [V, K]` as a tuple of fp32 register
tiles `[block_v, 8, 4]`, tile `c` covering columns `32 c .. 32 c + 31`.  `advance` carries the tile
over one token.  The recurrent kernel and the fold both call it, and nothing in it depends on who
calls: that is where bitwise equality comes from (docs/exactness.md tells the rest, and
tests/kernels/test_layouts.py checks it in compiled code).
"""

# A kernel's tuples grow in unrolled loops, and Triton's compiler knows no starred expressions.
# mypy: disable-error-code="assignment,misc"
# ruff: noqa: RUF005

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
import triton
import triton.language as tl

from ringfold.kernels.lanes import known_layouts, shared_rest

TILE_K = 32
"""Columns of state in one register tile: eight lanes with four neighbouring columns each."""

ROWS_PER_WARP = 32
"""Rows of state that a warp holds if they are no wider than 128: 128 registers a thread."""

_TILE_K: tl.constexpr = tl.constexpr(TILE_K)
_LANES: tl.constexpr = tl.constexpr(TILE_K // 4)
_COLUMNS: tl.constexpr = tl.constexpr(4)
_HALVINGS: tl.constexpr = tl.constexpr(TILE_K.bit_length() - 1)

COMPILE_OPTIONS: dict[str, Any] = {"enable_fp_fusion": False}
"""Handed to every launch.  The compiler may not contract a multiply and an add; where one
rounding is wanted the source says `tl.fma`.  So the arithmetic is what the text says."""

SOFTPLUS_THRESHOLD: tl.constexpr = tl.constexpr(20.0)
NORM_EPS: tl.constexpr = tl.constexpr(1e-6)


@dataclasses.dataclass(frozen=True, slots=True)
class Tile:
    """How a head's state `[V, K]` is cut into programs.

    Any choice gives the same bits: rows of the state never mix, and the lanes that share a row
    are the same for every `block_v` and `warps`.
    """

    block_v: int
    warps: int

    @classmethod
    def of(cls, V: int, K: int) -> Tile:
        """The tile for heads `[V, K]`: as many registers a thread for any K, up to 64 rows."""
        block_v = min(64, max(16, triton.next_power_of_2(V)))
        rows_per_warp = ROWS_PER_WARP if K <= 128 else ROWS_PER_WARP // 2
        return cls(block_v, max(1, block_v // rows_per_warp))

    def shares(self, V: int, K: int, state: torch.Tensor, rawv: torch.Tensor) -> bool:
        """Whether eight lanes share each row and have eight rows each, as `lanes.py` needs it."""
        return (
            TILE_K == 32
            and self.block_v == 32 * self.warps
            and self.warps < 4  # four have tensor cores of another kind
            and K % 4 == 0
            and V % 2 == 0
            and state.dtype == torch.float32
            and rawv.dtype == torch.bfloat16
            and known_layouts(rawv.device)
        )

    def covers(self, V: int, K: int) -> bool:
        """Whether `[V, K]` is whole tiles, so that no access needs a mask."""
        return V % self.block_v == 0 and K % TILE_K == 0


def align_bytes(state: torch.Tensor) -> int:
    """The alignment in bytes that every row of `state [..., V, K]` has for certain.

    It decides the width of the vector loads, hence which lanes hold which columns, hence the
    order of the sum over K.  So it may depend on K and on the dtype, and on nothing else:
    not on how this pool happens to lie in memory.
    """
    return math.gcd(16, state.shape[-1] * state.element_size())


@triton.constexpr_function
def tile_count(K: int) -> int:
    """How many tiles hold K columns."""
    return -(-K // TILE_K)


@triton.constexpr_function
def block_k(K: int) -> int:
    """Columns of a whole row, as a dot wants them."""
    return int(max(32, triton.next_power_of_2(K)))


@triton.jit
def state_pointers(head, o_v, c: tl.constexpr, K: tl.constexpr):
    """Pointers `[block_v, 1, 32]` to tile `c` of the head at `head`.

    The rank is unlike that of any other access in these kernels.  Triton's coalescing pass gives
    accesses of one shape a common vector width, and a 16-bit snapshot of this shape would widen
    ours from four to eight columns a lane and so change the order of the sum over K.
    """
    o_k = c * _TILE_K + tl.arange(0, _TILE_K)
    return head + o_v[:, None, None] * K + o_k[None, None, :]


@triton.jit
def state_mask(o_v, c: tl.constexpr, K: tl.constexpr, V: tl.constexpr):
    """Which entries `[block_v, 1, 32]` of tile `c` exist."""
    o_k = c * _TILE_K + tl.arange(0, _TILE_K)
    return (o_v < V)[:, None, None] & (o_k < K)[None, None, :]


@triton.jit
def load_state(head, o_v, K: tl.constexpr, V: tl.constexpr, WHOLE: tl.constexpr):
    """The tile of state at `head` as a tuple of fp32 `[block_v, 8, 4]`; zero outside `[V, K]`."""
    h = ()
    for c in tl.static_range(tile_count(K)):
        if WHOLE:
            x = tl.load(state_pointers(head, o_v, c, K))
        else:
            x = tl.load(state_pointers(head, o_v, c, K), mask=state_mask(o_v, c, K, V), other=0.0)
        h = h + (tl.reshape(x, [o_v.shape[0], _LANES, _COLUMNS]).to(tl.float32),)
    return h


@triton.jit
def hold(x, COMPILED: tl.constexpr):
    """`x` itself, but not before this place in the program.

    The compiler copies what a dot needs to shared memory right behind the load that brings it,
    and waits there; the loads behind it are then asked for late.  It moves nothing across this.
    """
    if COMPILED:
        if x.dtype.primitive_bitwidth == 16:
            x = tl.inline_asm_elementwise(
                "mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2
            )
        else:
            x = tl.inline_asm_elementwise(
                "mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=1
            )
    return x


@triton.jit
def store_state(head, h, o_v, K: tl.constexpr, V: tl.constexpr, WHOLE: tl.constexpr):
    """Write the tile back, rounded to the dtype of the pool."""
    for c in tl.static_range(tile_count(K)):
        x = tl.reshape(h[c], [o_v.shape[0], 1, _TILE_K]).to(head.dtype.element_ty)
        if WHOLE:
            tl.store(state_pointers(head, o_v, c, K), x)
        else:
            tl.store(state_pointers(head, o_v, c, K), x, mask=state_mask(o_v, c, K, V))


@triton.jit
def load_matrix(head, o_v, o_k, K: tl.constexpr, V: tl.constexpr, WHOLE: tl.constexpr):
    """Rows `o_v`, columns `o_k` of the state at `head`, one fp32 tensor; zero outside `[V, K]`."""
    pointers = head + o_v[:, None] * K + o_k[None, :]
    if WHOLE:
        x = tl.load(pointers)
    else:
        x = tl.load(pointers, mask=(o_v < V)[:, None] & (o_k < K)[None, :], other=0.0)
    return x.to(tl.float32)


@triton.jit
def whole_state(h, K: tl.constexpr):
    """The tile as one tensor `[block_v, block_k(K)]`, zero past K."""
    N: tl.constexpr = block_k(K) // _TILE_K
    flat = ()
    for c in tl.static_range(tile_count(K)):
        flat = flat + (tl.reshape(h[c], [h[c].shape[0], _TILE_K]),)
    h = flat
    for _ in tl.static_range(tile_count(K), N):
        h = h + (tl.zeros_like(h[0]),)
    if N >= 16:  # K=256 in narrower tiles than the source's
        h = _pairs(h, 16)
    if N >= 8:
        h = _pairs(h, 8)
    if N >= 4:
        h = _pairs(h, 4)
    if N >= 2:
        h = _pairs(h, 2)
    return h[0]


@triton.jit
def _pairs(h, N: tl.constexpr):
    """`([h0 | h1], [h2 | h3], ...)` of `N` tiles; a relabelling, no lane gives anything away."""
    joined = ()
    for c in tl.static_range(0, N, 2):
        pair = tl.permute(tl.join(h[c], h[c + 1]), [0, 2, 1])
        joined = joined + (tl.reshape(pair, [pair.shape[0], 2 * pair.shape[2]]),)
    return joined


@triton.jit
def store_snapshot(head, h, o_v, K: tl.constexpr, V: tl.constexpr):
    """Write the tile to a snapshot buffer, through pointers of another rank than the state's."""
    for c in tl.static_range(tile_count(K)):
        o_k = c * _TILE_K + tl.arange(0, _TILE_K)
        there = (o_v < V)[:, None] & (o_k < K)[None, :]
        x = tl.reshape(h[c], [o_v.shape[0], _TILE_K]).to(head.dtype.element_ty)
        tl.store(head + o_v[:, None] * K + o_k[None, :], x, mask=there)


@triton.jit
def load_rows(pointers, K: tl.constexpr, there):
    """Rows over K at `pointers [rows]` as a tuple of `[rows, 32]` in their dtype.

    Zero past K and in rows that are not `there`.
    """
    x = ()
    for c in tl.static_range(tile_count(K)):
        o_k = c * _TILE_K + tl.arange(0, _TILE_K)
        mask = there[:, None] & (o_k < K)[None, :]
        x = x + (tl.load(pointers[:, None] + o_k[None, :], mask=mask, other=0.0),)
    return x


@triton.jit
def load_row(pointer, K: tl.constexpr):
    """One row over K as a tuple of `[1, 32]` in its dtype; zero past K."""
    x = ()
    for c in tl.static_range(tile_count(K)):
        o_k = c * _TILE_K + tl.arange(0, _TILE_K)
        x = x + (tl.load(pointer + o_k, mask=o_k < K, other=0.0)[None, :],)
    return x


@triton.jit
def load_words(pointer, o_v, V: tl.constexpr):
    """The words in which the 16-bit elements `o_v` of a vector over V lie; zero past V."""
    words = pointer.to(tl.pointer_type(tl.int32))
    return tl.load(words + o_v // 2, mask=o_v < V, other=0)


@triton.jit
def load_values(pointer, o_v, V: tl.constexpr):
    """The elements `o_v` of a vector over V as fp32.

    Two 16-bit values are fetched as one word, because only words can be copied asynchronously.
    """
    if pointer.dtype.element_ty.primitive_bitwidth == 16 and V % 2 == 0:
        word = load_words(pointer, o_v, V)
        half = (word >> (o_v % 2 * 16)).to(tl.int16)
        return half.to(pointer.dtype.element_ty, bitcast=True).to(tl.float32)
    return tl.load(pointer + o_v, mask=o_v < V, other=0.0).to(tl.float32)


@triton.jit
def gates(a, b, A_log, dt_bias):
    """`g = -exp(A_log) softplus(a + dt_bias)` and `beta = sigmoid(b)`, all fp32, elementwise."""
    x = a + dt_bias
    softplus = tl.where(x <= SOFTPLUS_THRESHOLD, tl.log(1.0 + tl.exp(x)), x)
    return -tl.exp(A_log) * softplus, 1.0 / (1.0 + tl.exp(-b))


@triton.jit
def inverse_norm(square):
    """`1 / sqrt(square + 1e-6)`: the hardware's estimate and one Newton step."""
    x = square + NORM_EPS
    y = tl.rsqrt(x)
    return tl.fma(0.5 * y, tl.fma(-x * y, y, 1.0), y)


@triton.jit
def unit_rows(x, K: tl.constexpr, NORM: tl.constexpr):
    """Rows over K, tuple of `[rows, 32]`, as fp32 and divided by their norms.

    The squares are added in an order that is spelled out, pair by pair, so that no layout has a
    say in it: this runs on tiles of different shapes in different kernels.
    """
    y = ()
    for c in tl.static_range(tile_count(K)):
        y = y + (x[c].to(tl.float32),)
    if NORM:
        square = y[0] * y[0]
        for c in tl.static_range(1, tile_count(K)):
            square = tl.fma(y[c], y[c], square)
        for _ in tl.static_range(_HALVINGS):
            even, odd = tl.split(tl.reshape(square, [square.shape[0], square.shape[1] // 2, 2]))
            square = even + odd
        r = inverse_norm(square)
        unit = ()
        for c in tl.static_range(tile_count(K)):
            unit = unit + (y[c] * r,)
        y = unit
    return y


@triton.jit
def as_tiles(x, K: tl.constexpr):
    """A row over K, tuple of `[1, 32]`, in the shape of the state's tiles: `[1, 8, 4]`."""
    y = ()
    for c in tl.static_range(tile_count(K)):
        y = y + (tl.reshape(x[c], [1, _LANES, _COLUMNS]),)
    return y


@triton.jit
def lane_dots(h, x, K: tl.constexpr):
    """What each lane has of `h @ x`, `x` a tuple of `[1, 8, 4]`: `[block_v, 8]`."""
    dots = h[0] * x[0]
    for c in tl.static_range(1, tile_count(K)):
        dots = tl.fma(h[c], tl.broadcast_to(x[c], h[c].shape), dots)
    return tl.sum(dots, axis=2)


@triton.jit
def dot_rows(h, x, K: tl.constexpr):
    """`h @ x` with `x` a tuple of `[1, 32]`: `[block_v]`.

    Each lane adds up its own columns by FMA, tile after tile, then its four neighbours; then the
    eight lanes of a row are added up, in the order of the layout, which is pinned.
    """
    return tl.sum(lane_dots(h, as_tiles(x, K), K), axis=1)


@triton.jit
def advance(h, k, v, g, beta, K: tl.constexpr, SHARED: tl.constexpr = False):
    """Carry the state `h` over one token: the recurrence, one rounding after the other.

    `k` is the unit key as a tuple of `[1, 32]`, `v [block_v]`, `g` and `beta` scalars, all fp32;
    if `SHARED`, v comes as words, and lanes share what there is to do between the two passes over
    the state (same bits).
    """
    decay = tl.exp(g)
    faded = ()
    for c in tl.static_range(tile_count(K)):
        faded = faded + (h[c] * decay,)
    k = as_tiles(k, K)
    sums = lane_dots(faded, k, K)
    if SHARED:
        u = shared_rest(sums, v, beta)
    else:
        rest = beta * (v - tl.sum(sums, axis=1))
        u = tl.broadcast_to(rest[:, None], sums.shape)
    new = ()
    for c in tl.static_range(tile_count(K)):
        u_c = tl.broadcast_to(u[:, :, None], h[c].shape)
        new = new + (tl.fma(u_c, tl.broadcast_to(k[c], h[c].shape), faded[c]),)
    return new
