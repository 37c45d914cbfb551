"""The cursors of the ring: three integers a slot, moved on the device.

The rules are those of the `ring` protocol: with `n` accepted tokens, a flagged row restarts its
history at the window it just wrote, another row's history grows by `n`; and the flag goes up as
soon as two more windows might not fit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ringfold.kernels.checks import (
    FLAGS,
    INTEGERS,
    check_cursors,
    check_dtype,
    check_ring_length,
    check_shape,
    require,
)
from ringfold.kernels.overlap import can_overlap, let_next_start, wait_for_last

ROWS = 128
"""Rows a program."""


@triton.jit
def advance_kernel(
    write_pos, cache_base, is_flush, accepted, slots, rows,
    stride_accepted, stride_slots,
    L: tl.constexpr, T: tl.constexpr, RING: tl.constexpr, NULL: tl.constexpr, ROWS: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Commit: see `commit_gdn_replayssm_spec`."""
    let_next_start(OVERLAP)
    wait_for_last(OVERLAP)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + row * stride_slots, mask=row < rows, other=NULL).to(tl.int64)
    live = slot > NULL
    wp = tl.load(write_pos + slot, mask=live, other=0)
    base = tl.load(cache_base + slot, mask=live, other=0)
    folded = tl.load(is_flush + slot, mask=live, other=0) != 0
    n = tl.load(accepted + row * stride_accepted, mask=live, other=0).to(tl.int32)

    moved = folded & (n > 0)
    tl.store(cache_base + slot, tl.where(moved, (base + wp) & (RING - 1), base), mask=live)
    wp = tl.where(folded, n, wp + n)
    tl.store(write_pos + slot, wp, mask=live)
    tl.store(is_flush + slot, (wp + 2 * T > L).to(is_flush.dtype.element_ty), mask=live)


@triton.jit
def reset_kernel(
    write_pos, cache_base, is_flush, chosen, slots, rows,
    stride_chosen, stride_slots,
    NULL: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Reset: see `reset_gdn_replayssm_spec_cursors`."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + row * stride_slots, mask=row < rows, other=NULL).to(tl.int64)
    wanted = tl.load(chosen + row * stride_chosen, mask=row < rows, other=0).to(tl.int32) != 0
    live = (slot > NULL) & wanted
    zero = tl.zeros([ROWS], tl.int32)
    tl.store(write_pos + slot, zero, mask=live)
    tl.store(cache_base + slot, zero, mask=live)
    tl.store(is_flush + slot, zero.to(is_flush.dtype.element_ty), mask=live)


def commit_gdn_replayssm_spec(
    write_pos: torch.Tensor,
    cache_base: torch.Tensor,
    is_flush: torch.Tensor,
    num_accepted: torch.Tensor,
    state_batch_indices: torch.Tensor,
    max_cache_len: int,
    max_spec_len: int,
    cache_buf_len: int | None = None,
    null_block_id: int = 0,
) -> None:
    """Commit the first `num_accepted` tokens of every row's window; once for all layers.

    Args:
        write_pos: `[slots]` int32, records in the history.
        cache_base: `[slots]` int32, ring row of the oldest record.
        is_flush: `[slots]` int8, whether the next verify folds.
        num_accepted: `[rows]`, the bonus token counted in.
        state_batch_indices: `[rows]`, slots; at or under `null_block_id`: padding.
        max_cache_len: L, the ring's length.
        max_spec_len: T, the longest window that may come next.
        cache_buf_len: the modulus of `cache_base`; None means L.
        null_block_id: see above.

    Raises:
        ValueError: a ring too short for two windows, or a shape or dtype that does not fit.
    """
    check_cursors(write_pos, cache_base, is_flush)
    check_ring_length(max_cache_len, max_spec_len)
    buffer = max_cache_len if cache_buf_len is None else cache_buf_len
    require(
        buffer >= max_cache_len and buffer & (buffer - 1) == 0,
        f"cache_buf_len is {buffer}; it must be a power of two of at least {max_cache_len}: "
        f"leave it out for that",
    )
    rows = state_batch_indices.shape[0]
    check_shape("num_accepted", num_accepted, (rows,))
    check_dtype("num_accepted", num_accepted, INTEGERS)
    check_dtype("state_batch_indices", state_batch_indices, INTEGERS)
    if rows == 0:
        return
    overlap = can_overlap(write_pos.device)
    advance_kernel[(triton.cdiv(rows, ROWS),)](
        write_pos, cache_base, is_flush, num_accepted, state_batch_indices, rows,
        num_accepted.stride(0), state_batch_indices.stride(0),
        L=max_cache_len, T=max_spec_len, RING=buffer, NULL=null_block_id, ROWS=ROWS,
        OVERLAP=overlap, num_warps=4, launch_pdl=overlap,
    )  # fmt: skip


def reset_gdn_replayssm_spec_cursors(
    write_pos: torch.Tensor,
    cache_base: torch.Tensor,
    is_flush: torch.Tensor,
    do_reset: torch.Tensor,
    state_batch_indices: torch.Tensor,
    max_cache_len: int,
    max_spec_len: int,
    null_block_id: int = 0,
) -> None:
    """Empty the ring of the rows that `do_reset [rows]` marks: a request enters its slot.

    Other arguments as for `commit_gdn_replayssm_spec`.

    Raises:
        ValueError: a ring too short for two windows, or a shape or dtype that does not fit.
    """
    check_cursors(write_pos, cache_base, is_flush)
    check_ring_length(max_cache_len, max_spec_len)
    rows = state_batch_indices.shape[0]
    check_shape("do_reset", do_reset, (rows,))
    check_dtype("do_reset", do_reset, (*FLAGS, *INTEGERS))
    check_dtype("state_batch_indices", state_batch_indices, INTEGERS)
    if rows == 0:
        return
    reset_kernel[(triton.cdiv(rows, ROWS),)](
        write_pos, cache_base, is_flush, do_reset, state_batch_indices, rows,
        do_reset.stride(0), state_batch_indices.stride(0),
        NULL=null_block_id, ROWS=ROWS, num_warps=4,
    )  # fmt: skip
