"""Recurrent verify: walk each row's window from its state, token by token.

The plain way to verify a window, and the twin against which the ring's fold is judged: both
carry the state with `ringfold.kernels.state.advance`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ringfold.kernels.checks import (
    FLOATS,
    INTEGERS,
    check_dtype,
    check_inputs,
    check_packed,
    check_rows,
    check_shape,
    check_state,
)
from ringfold.kernels.state import (
    COMPILE_OPTIONS,
    Tile,
    advance,
    align_bytes,
    dot_rows,
    gates,
    load_row,
    load_state,
    store_snapshot,
    store_state,
    unit_rows,
)


@triton.jit(do_not_specialize=["stride_state"])
def recurrent_kernel(
    q, k, v, a, b, A_log, dt_bias, out,
    state, snapshots, snapshot_rows,
    window_start, slots, walked,
    scale,
    stride_q, stride_qh, stride_k, stride_kh, stride_v, stride_vh, stride_a, stride_b, stride_o,
    stride_state, stride_snap_row, stride_snap_token,
    stride_start, stride_slots, stride_walked, stride_rows,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_V: tl.constexpr, ALIGN: tl.constexpr, UNIT: tl.constexpr, NORM: tl.constexpr,
    NULL: tl.constexpr, OUTPUT: tl.constexpr, SNAPSHOTS: tl.constexpr, UPDATE: tl.constexpr,
    WALKED: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """One program: `BLOCK_V` rows of one head of one request; grid `(V tiles * HV, rows)`."""
    n_v: tl.constexpr = tl.cdiv(V, BLOCK_V)
    i_hv = tl.program_id(0) // n_v
    i_n = tl.program_id(1)
    i_h = i_hv // (HV // H)
    o_v = (tl.program_id(0) % n_v) * BLOCK_V + tl.arange(0, BLOCK_V)
    mask_v = o_v < V

    begin = tl.load(window_start + i_n * stride_start).to(tl.int64)
    length = (tl.load(window_start + (i_n + 1) * stride_start).to(tl.int64) - begin).to(tl.int32)
    slot = tl.load(slots + i_n * stride_slots).to(tl.int64)
    if WALKED:
        length = tl.minimum(length, tl.load(walked + i_n * stride_walked).to(tl.int32))
    if slot <= NULL:
        if OUTPUT:
            for t in range(length):
                p = out + (begin + t) * stride_o + i_hv * V + o_v
                tl.store(p, tl.zeros([BLOCK_V], tl.float32).to(out.dtype.element_ty), mask=mask_v)
        return

    # Strides come in units of UNIT elements, so that the row's alignment is known to be ALIGN
    # bytes and no more, whatever pool this is.
    head = tl.multiple_of(state + slot * stride_state * UNIT + i_hv * V * K, ALIGN)
    h = load_state(head, o_v, K, V, WHOLE)
    decay_rate = tl.load(A_log + i_hv).to(tl.float32)
    bias = tl.load(dt_bias + i_hv).to(tl.float32)
    for t in range(length):
        token = begin + t
        k_t = unit_rows(load_row(k + token * stride_k + i_h * stride_kh, K), K, NORM)
        v_t = tl.load(v + token * stride_v + i_hv * stride_vh + o_v, mask=mask_v, other=0.0)
        g, beta = gates(
            tl.load(a + token * stride_a + i_hv).to(tl.float32),
            tl.load(b + token * stride_b + i_hv).to(tl.float32),
            decay_rate,
            bias,
        )
        h = advance(h, k_t, v_t.to(tl.float32), g, beta, K)
        if OUTPUT:
            q_t = unit_rows(load_row(q + token * stride_q + i_h * stride_qh, K), K, NORM)
            o = dot_rows(h, q_t, K) * scale
            p = out + token * stride_o + i_hv * V + o_v
            tl.store(p, o.to(out.dtype.element_ty), mask=mask_v)
        if SNAPSHOTS:
            row = tl.load(snapshot_rows + i_n * stride_rows).to(tl.int64)
            if row >= 0:
                place = row * stride_snap_row + (token - begin) * stride_snap_token
                store_snapshot(snapshots + place + i_hv * V * K, h, o_v, K, V)
    if UPDATE:
        store_state(head, h, o_v, K, V, WHOLE)


def gdn_recurrent_verify(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    checkpoint_state: torch.Tensor,
    query_start_loc: torch.Tensor,
    ssm_state_indices: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    snapshots: torch.Tensor | None = None,
    snapshot_indices: torch.Tensor | None = None,
    num_accepted: torch.Tensor | None = None,
    update_state: bool = False,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = True,
    null_block_id: int = 0,
    tile: Tile | None = None,
) -> None:
    """Walk every row's window from its committed state, one token after the other.

    Args:
        q: `[tokens, H, K]`, after the convolution; the windows of all rows, packed.
        k: `[tokens, H, K]`.
        v: `[tokens, HV, V]`.
        a: `[tokens, HV]`, input of the gate.
        b: `[tokens, HV]`, logit of beta.
        A_log: `[HV]`.
        dt_bias: `[HV]`.
        checkpoint_state: `[slots, HV, V, K]`; written only with `update_state`.
        query_start_loc: `[rows + 1]`; row `r` owns tokens `query_start_loc[r : r + 2]`.
        ssm_state_indices: `[rows]`, the slot of each row; at or under `null_block_id`: padding.
        out: `[tokens, HV, V]`, or None for no output.
        snapshots: `[snapshot rows, T, HV, V, K]` or None: the state after each token.
        snapshot_indices: `[rows]`, where in `snapshots`; negative for nowhere.
        num_accepted: `[rows]` or None: walk only so many tokens of each window.
        update_state: write the state that was reached back to the slot.
        scale: of q; None means `K ** -0.5`.
        use_qk_l2norm_in_kernel: normalise q and k.
        null_block_id: slots at or under it are padding: outputs zero, nothing touched.
        tile: how to cut the work; any tile gives the same bits.

    Raises:
        ValueError: a shape, dtype, stride or address that the kernel cannot take.
    """
    unit = check_state("checkpoint_state", checkpoint_state)
    check_inputs(q, k, v, a, b, A_log, dt_bias, checkpoint_state)
    rows = check_rows(query_start_loc, ssm_state_indices)
    HV, V, K = checkpoint_state.shape[1:]
    if out is not None:
        check_shape("out", out, tuple(v.shape))
        check_dtype("out", out, FLOATS)
        check_packed("out", out, 2)
    if snapshots is not None:
        check_shape("snapshots", snapshots, (None, None, HV, V, K))
        check_dtype("snapshots", snapshots, FLOATS)
        check_packed("snapshots", snapshots, 3)
        if snapshot_indices is None:
            raise ValueError("snapshots need snapshot_indices [rows]: pass where each row's go")
        check_shape("snapshot_indices", snapshot_indices, (rows,))
        check_dtype("snapshot_indices", snapshot_indices, INTEGERS)
    if num_accepted is not None:
        check_shape("num_accepted", num_accepted, (rows,))
        check_dtype("num_accepted", num_accepted, INTEGERS)
    if rows == 0:
        return
    tile = Tile.of(V, K) if tile is None else tile
    recurrent_kernel[(triton.cdiv(V, tile.block_v) * HV, rows)](
        q, k, v, a, b, A_log, dt_bias, out,
        checkpoint_state, snapshots, snapshot_indices,
        query_start_loc, ssm_state_indices, num_accepted,
        K**-0.5 if scale is None else scale,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        a.stride(0), b.stride(0), 0 if out is None else out.stride(0),
        checkpoint_state.stride(0) // unit,
        0 if snapshots is None else snapshots.stride(0),
        0 if snapshots is None else snapshots.stride(1),
        query_start_loc.stride(0), ssm_state_indices.stride(0),
        0 if num_accepted is None else num_accepted.stride(0),
        0 if snapshot_indices is None else snapshot_indices.stride(0),
        H=k.shape[1], HV=HV, K=K, V=V, BLOCK_V=tile.block_v,
        ALIGN=align_bytes(checkpoint_state), UNIT=unit,
        NORM=use_qk_l2norm_in_kernel, NULL=null_block_id,
        OUTPUT=out is not None, SNAPSHOTS=snapshots is not None, UPDATE=update_state,
        WALKED=num_accepted is not None, WHOLE=tile.covers(V, K),
        num_warps=tile.warps, **COMPILE_OPTIONS,
    )  # fmt: skip
