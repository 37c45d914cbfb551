"""What the lanes of a warp do for each other, where an exchange by Triton costs too much.

Two pieces of PTX, one between the two passes of `state.advance` over a tile, one for the forward
substitution in `ring.finish`.  Both give the bits that `tl.sum` gives in their place.  They rely
on which lane holds what, which the compiler decides: `known_layouts` says where that was read in
compiled code, tests/kernels/test_layouts.py reads it again, and elsewhere `tl.sum` serves.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ringfold.kernels.overlap import HOPPER, generation

READ_IN = ("3.6", "3.7", "3.8", "3.9")
"""Releases of Triton in whose compiled code the layouts below were read."""


def known_layouts(device: torch.device) -> bool:
    """Whether tiles lie in the lanes of `device` as this module expects."""
    return triton.__version__.startswith(READ_IN) and generation(device) == HOPPER


GIVE_AND_TAKE: tl.constexpr = tl.constexpr("""{
.reg .pred p0, p1, p2, odd;
.reg .b32 l, s, a0, a1, a2, a3, b0, b1, b2, b3, w0, w1, w2, w3;
mov.u32 l, %laneid;
and.b32 s, l, 4; setp.ne.b32 p2, s, 0;
and.b32 s, l, 2; setp.ne.b32 p1, s, 0;
and.b32 s, l, 1; setp.ne.b32 p0, s, 0;
and.b32 s, l, 8; setp.ne.b32 odd, s, 0;
selp.b32 a0, $12, $8, p2; selp.b32 a1, $13, $9, p2;
selp.b32 a2, $14, $10, p2; selp.b32 a3, $15, $11, p2;
selp.b32 b0, $8, $12, p2; selp.b32 b1, $9, $13, p2;
selp.b32 b2, $10, $14, p2; selp.b32 b3, $11, $15, p2;
shfl.sync.bfly.b32 b0, b0, 4, 31, -1; shfl.sync.bfly.b32 b1, b1, 4, 31, -1;
shfl.sync.bfly.b32 b2, b2, 4, 31, -1; shfl.sync.bfly.b32 b3, b3, 4, 31, -1;
add.rn.f32 a0, a0, b0; add.rn.f32 a1, a1, b1;
add.rn.f32 a2, a2, b2; add.rn.f32 a3, a3, b3;
selp.b32 b0, a0, a2, p1; selp.b32 b1, a1, a3, p1;
selp.b32 a0, a2, a0, p1; selp.b32 a1, a3, a1, p1;
shfl.sync.bfly.b32 b0, b0, 2, 31, -1; shfl.sync.bfly.b32 b1, b1, 2, 31, -1;
add.rn.f32 a0, a0, b0; add.rn.f32 a1, a1, b1;
selp.b32 b0, a0, a1, p0; selp.b32 a0, a1, a0, p0;
shfl.sync.bfly.b32 b0, b0, 1, 31, -1;
add.rn.f32 a0, a0, b0;
selp.b32 w0, $20, $16, p2; selp.b32 w1, $21, $17, p2;
selp.b32 w2, $22, $18, p2; selp.b32 w3, $23, $19, p2;
selp.b32 w0, w2, w0, p1; selp.b32 w1, w3, w1, p1; selp.b32 w0, w1, w0, p0;
selp.b32 s, 0x3244, 0x1044, odd; prmt.b32 w0, w0, 0, s;
sub.rn.f32 a0, w0, a0; mul.rn.f32 a0, $24, a0;
shfl.sync.idx.b32 $0, a0, 0, 0x181f, -1; shfl.sync.idx.b32 $1, a0, 1, 0x181f, -1;
shfl.sync.idx.b32 $2, a0, 2, 0x181f, -1; shfl.sync.idx.b32 $3, a0, 3, 0x181f, -1;
shfl.sync.idx.b32 $4, a0, 4, 0x181f, -1; shfl.sync.idx.b32 $5, a0, 5, 0x181f, -1;
shfl.sync.idx.b32 $6, a0, 6, 0x181f, -1; shfl.sync.idx.b32 $7, a0, 7, 0x181f, -1;
}""")
"""`beta (v - sum)` of the eight rows that eight lanes share, each lane working out one.

Operands: results, sums, words of v, beta.  A lane keeps half of its rows and gives the others
away, three times; its partners are those of the sum that `tl.sum` makes, in its order (4, 2, 1),
so the bits are those, too.  Then every lane fetches all eight results.  15 shuffles in place of
24, and since the last sum needs every row's, no compiler can make a chain of it, row by row.
A lane's rows lie a multiple of four apart, so bit 3 of the lane says which half of its words of v
is meant.
"""


@triton.jit
def shared_rest(sums, words, beta):
    """`beta (v - sum over lanes)` in every lane, `[block_v, 8]`, from each lane's `sums`.

    `words [block_v]` hold two bf16 values of v each, `beta` is a scalar.
    """
    return tl.inline_asm_elementwise(
        GIVE_AND_TAKE,
        "=r,=r,=r,=r,=r,=r,=r,=r" + ",r" * 24,
        [
            sums,
            tl.broadcast_to(words[:, None], sums.shape),
            tl.broadcast_to(tl.zeros([1, 1], tl.float32) + beta, sums.shape),
        ],
        dtype=tl.float32,
        is_pure=False,
        pack=8,
    )


_FETCH = """
shfl.sync.idx.b32 d0, {0}, {4}, 0x1c1f, -1; shfl.sync.idx.b32 d1, {1}, {4}, 0x1c1f, -1;
shfl.sync.idx.b32 d2, {2}, {4}, 0x1c1f, -1; shfl.sync.idx.b32 d3, {3}, {4}, 0x1c1f, -1;
"""


def _substitution() -> str:
    """See `SUBSTITUTE`."""
    lines = ["{ .reg .f32 d0, d1, d2, d3;"]
    lines += [f"mov.f32 ${i}, ${8 + i};" for i in range(8)]
    for j in range(4):
        lane, half = (4 + j) // 2, j % 2
        lines.append(_FETCH.format(*(f"${2 * r + half}" for r in range(4)), lane))
        for i in range(8):
            lines.append(f"fma.rn.f32 ${i}, d{i // 2}, ${16 + 8 * j + i}, ${i};")
    return "\n".join([*lines, "}"])


SUBSTITUTE: tl.constexpr = tl.constexpr(_substitution())
"""Forward substitution over four keys: each one's column, fetched from the lane that holds it.

Operands: results, y, four rows of coefficients.  y `[block_v, 8]` lies as a tensor core leaves it:
four lanes share a row, two neighbouring columns each, and a lane has four rows.
"""


@triton.jit
def substitute(y, w, o_x, BLOCK_T: tl.constexpr, SHARED: tl.constexpr):
    """Add `w[j]` times column `BLOCK_T + j` to `y [block_v, 2 BLOCK_T]`, one `j` after the other.

    `w` is a tuple of `BLOCK_T` rows `[2 BLOCK_T]`, `o_x` are the columns' numbers.
    """
    if SHARED and BLOCK_T == 4:
        y = tl.inline_asm_elementwise(
            SUBSTITUTE,
            "=&f,=&f,=&f,=&f,=&f,=&f,=&f,=&f" + ",f" * 40,
            [
                y,
                tl.broadcast_to(w[0][None, :], y.shape),
                tl.broadcast_to(w[1][None, :], y.shape),
                tl.broadcast_to(w[2][None, :], y.shape),
                tl.broadcast_to(w[3][None, :], y.shape),
            ],
            dtype=tl.float32,
            is_pure=False,
            pack=8,
        )
    else:
        for j in tl.static_range(BLOCK_T):
            d_j = tl.sum(tl.where((o_x == BLOCK_T + j)[None, :], y, 0.0), 1)
            w_j = tl.broadcast_to(w[j][None, :], y.shape)
            y = tl.fma(tl.broadcast_to(d_j[:, None], y.shape), w_j, y)
    return y
