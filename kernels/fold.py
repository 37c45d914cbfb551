"""The exact fold: carry a checkpoint over the records of its ring, in order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ringfold.kernels.checks import (
    Rings,
    check_cursors,
    check_ring_length,
    check_slots,
    check_state,
)
from ringfold.kernels.state import (
    COMPILE_OPTIONS,
    TILE_K,
    Tile,
    advance,
    align_bytes,
    load_row,
    load_rows,
    load_state,
    load_values,
    load_words,
    store_state,
    tile_count,
    unit_rows,
)

RECORDS_AHEAD = 4
"""How many records the fold asks for before it needs them."""

_TILE_K: tl.constexpr = tl.constexpr(TILE_K)
_STAGES: tl.constexpr = tl.constexpr(RECORDS_AHEAD + 1)


@triton.jit
def store_unit_keys(
    units, rawk, base, count,
    K: tl.constexpr, L: tl.constexpr, BLOCK_L: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Write the unit keys of a ring's `count` oldest records to `units [BLOCK_L, K]`, in order."""
    o_c = tl.arange(0, BLOCK_L)
    there = o_c < count
    k = unit_rows(load_rows(rawk + ((base + o_c) & (L - 1)) * K, K, there), K, NORM)
    for c in tl.static_range(tile_count(K)):
        o_k = c * _TILE_K + tl.arange(0, _TILE_K)
        mask = there[:, None] & (o_k < K)[None, :]
        tl.store(units + o_c[:, None] * K + o_k[None, :], k[c], mask=mask)


@triton.jit
def fold_records(
    h, units, rawv, g, beta, base, count, o_v,
    K: tl.constexpr, V: tl.constexpr, L: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Carry the tile `h` over the `count` oldest records of a ring, in order.

    `units` are the records' unit keys as `store_unit_keys` leaves them; the other pointers lead
    to ring row 0 of this head.  The oldest record lies at row `base`.  The loop is pipelined:
    records are copied to shared memory `RECORDS_AHEAD` early.
    """
    for t in tl.range(0, count, num_stages=_STAGES):
        row = (base + t) & (L - 1)
        k_t = load_row(units + t * K, K)
        p_v = rawv + row * V
        v_t = load_words(p_v, o_v, V) if SHARED else load_values(p_v, o_v, V)
        h = advance(h, k_t, v_t, tl.load(g + row), tl.load(beta + row), K, SHARED)
    return h


@triton.jit
def unit_keys_kernel(
    units, rawk_ring, slots, write_pos, cache_base, is_flush,
    stride_rawk, stride_slots,
    H: tl.constexpr, K: tl.constexpr, L: tl.constexpr, BLOCK_L: tl.constexpr,
    NORM: tl.constexpr, NULL: tl.constexpr,
):  # fmt: skip
    """The unit keys of one row and key head; grid `(H, rows)`."""
    i_h = tl.program_id(0)
    i_n = tl.program_id(1)
    slot = tl.load(slots + i_n * stride_slots).to(tl.int64)
    if slot <= NULL:
        return
    if tl.load(is_flush + slot) == 0:
        return
    store_unit_keys(
        units + (i_n.to(tl.int64) * H + i_h) * BLOCK_L * K,
        rawk_ring + slot * stride_rawk + i_h * L * K,
        tl.load(cache_base + slot),
        tl.load(write_pos + slot),
        K, L, BLOCK_L, NORM,
    )  # fmt: skip


@triton.jit(do_not_specialize=["stride_state"])
def fold_kernel(
    state, units, rawv_ring, g_ring, beta_ring,
    slots, write_pos, cache_base, is_flush,
    stride_state, stride_rawv, stride_g, stride_beta, stride_slots,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, L: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_V: tl.constexpr, ALIGN: tl.constexpr, UNIT: tl.constexpr,
    NULL: tl.constexpr, WHOLE: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """One program: `BLOCK_V` rows of one head of one row's slot; grid `(V tiles * HV, rows)`."""
    n_v: tl.constexpr = tl.cdiv(V, BLOCK_V)
    i_hv = tl.program_id(0) // n_v
    o_v = (tl.program_id(0) % n_v) * BLOCK_V + tl.arange(0, BLOCK_V)
    i_n = tl.program_id(1)
    slot = tl.load(slots + i_n * stride_slots).to(tl.int64)
    if slot <= NULL:
        return
    if tl.load(is_flush + slot) == 0:
        return

    head = tl.multiple_of(state + slot * stride_state * UNIT + i_hv * V * K, ALIGN)
    h = load_state(head, o_v, K, V, WHOLE)
    h = fold_records(
        h,
        units + (i_n.to(tl.int64) * H + i_hv // (HV // H)) * BLOCK_L * K,
        rawv_ring + slot * stride_rawv + i_hv * L * V,
        g_ring + slot * stride_g + i_hv * L,
        beta_ring + slot * stride_beta + i_hv * L,
        tl.load(cache_base + slot),
        tl.load(write_pos + slot),
        o_v,
        K, V, L, SHARED,
    )  # fmt: skip
    store_state(head, h, o_v, K, V, WHOLE)


def gdn_exact_fold(
    checkpoint_state: torch.Tensor,
    rawv_cache: torch.Tensor,
    rawk_cache: torch.Tensor,
    g_cache: torch.Tensor,
    beta_cache: torch.Tensor,
    ssm_state_indices: torch.Tensor,
    write_pos: torch.Tensor,
    cache_base: torch.Tensor,
    is_flush: torch.Tensor,
    max_cache_len: int,
    *,
    use_qk_l2norm_in_kernel: bool = True,
    null_block_id: int = 0,
    tile: Tile | None = None,
) -> None:
    """Fold the records of every flagged row into its checkpoint; the cursors stay as they are.

    `gdn_replayssm_spec_decode` does this on its way, from registers.  Alone it serves whoever
    wants the committed state itself: pass a flag of ones.

    Args:
        checkpoint_state: `[slots, HV, V, K]`, written.
        rawv_cache: `[slots, HV, L, V]`.
        rawk_cache: `[slots, H, L, K]`, not normalised.
        g_cache: `[slots, HV, L]` fp32.
        beta_cache: `[slots, HV, L]` fp32.
        ssm_state_indices: `[rows]`, slots; at or under `null_block_id`: padding.
        write_pos: `[slots]` int32, the number of records.
        cache_base: `[slots]` int32, the ring row of the oldest.
        is_flush: `[slots]` int8, which slots are folded.
        max_cache_len: L.
        use_qk_l2norm_in_kernel: normalise k.
        null_block_id: see above.
        tile: how to cut the work; any tile gives the same bits.

    Raises:
        ValueError: a shape, dtype, stride or address that the kernel cannot take.
    """
    unit = check_state("checkpoint_state", checkpoint_state)
    slots, HV, V, K = checkpoint_state.shape
    H, L = rawk_cache.shape[1], max_cache_len
    check_ring_length(L, 1)
    Rings(slots, H, HV, K, V, L).check_raw(rawv_cache, rawk_cache, g_cache, beta_cache)
    check_cursors(write_pos, cache_base, is_flush, slots)
    rows = check_slots(ssm_state_indices)
    if rows == 0:
        return
    tile = Tile.of(V, K) if tile is None else tile
    block_l = max(16, L)
    units = rawk_cache.new_empty((rows, H, block_l, K), dtype=torch.float32)
    unit_keys_kernel[(H, rows)](
        units, rawk_cache, ssm_state_indices, write_pos, cache_base, is_flush,
        rawk_cache.stride(0), ssm_state_indices.stride(0),
        H=H, K=K, L=L, BLOCK_L=block_l, NORM=use_qk_l2norm_in_kernel, NULL=null_block_id,
        num_warps=1, **COMPILE_OPTIONS,
    )  # fmt: skip
    fold_kernel[(triton.cdiv(V, tile.block_v) * HV, rows)](
        checkpoint_state, units, rawv_cache, g_cache, beta_cache,
        ssm_state_indices, write_pos, cache_base, is_flush,
        checkpoint_state.stride(0) // unit, rawv_cache.stride(0),
        g_cache.stride(0), beta_cache.stride(0), ssm_state_indices.stride(0),
        H=H, HV=HV, K=K, V=V, L=L, BLOCK_L=block_l, BLOCK_V=tile.block_v,
        ALIGN=align_bytes(checkpoint_state), UNIT=unit,
        NULL=null_block_id, WHOLE=tile.covers(V, K),
        SHARED=tile.shares(V, K, checkpoint_state, rawv_cache),
        num_warps=tile.warps, **COMPILE_OPTIONS,
    )  # fmt: skip
