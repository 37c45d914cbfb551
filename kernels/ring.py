"""Ring verify: a window's outputs from checkpoint and records, folding where the flag says so.

Every row's state is read once.  On a flushing row it is carried over the history in registers
(`fold_records`, bit for bit the recurrent kernel's walk) and written back; then, as on any row,
it is multiplied with the window's queries and keys, and the plan of the window (`window.py`)
turns the products into outputs and new records.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from ringfold.kernels.checks import (
    FLOATS,
    Rings,
    check_cursors,
    check_dtype,
    check_inputs,
    check_packed,
    check_ring_length,
    check_rows,
    check_shape,
    check_state,
    require,
)
from ringfold.kernels.fold import fold_records
from ringfold.kernels.state import (
    COMPILE_OPTIONS,
    Tile,
    align_bytes,
    load_state,
    store_state,
    whole_state,
)
from ringfold.kernels.window import plan_kernel

LAUNCH_MODES = ("both", "verify", "flush")
DOT_PRECISIONS = ("tf32", "tf32x3", "ieee")


@triton.jit(do_not_specialize=["stride_state"])
def ring_verify_kernel(
    q, k, v, out, plan, units,
    state, d_ring, g_ring, rawv_ring, beta_ring,
    window_start, slots, write_pos, cache_base, is_flush,
    stride_q, stride_qh, stride_k, stride_kh, stride_v, stride_vh, stride_o,
    stride_state, stride_d, stride_g, stride_rawv, stride_beta,
    stride_start, stride_slots,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    L: tl.constexpr, T: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
    ALIGN: tl.constexpr, UNIT: tl.constexpr, WHOLE: tl.constexpr,
    NULL: tl.constexpr, FOLDING: tl.constexpr, PLAIN: tl.constexpr,
    PRECISION: tl.constexpr, OVERLAP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One program: `BLOCK_V` rows of one head of one request; grid `(V tiles * HV, rows)`."""
    n_v: tl.constexpr = tl.cdiv(V, BLOCK_V)
    i_hv = tl.program_id(0) // n_v
    i_n = tl.program_id(1)
    i_h = i_hv // (HV // H)
    o_v = (tl.program_id(0) % n_v) * BLOCK_V + tl.arange(0, BLOCK_V)
    mask_v = o_v < V
    o_x = tl.arange(0, 2 * BLOCK_T)  # columns: queries, then keys
    is_key = o_x >= BLOCK_T
    t_x = o_x % BLOCK_T
    o_c = tl.arange(0, BLOCK_L)
    o_k = tl.arange(0, BLOCK_K)

    slot = tl.load(slots + i_n * stride_slots).to(tl.int64)
    begin = tl.load(window_start + i_n * stride_start).to(tl.int64)
    length = (tl.load(window_start + (i_n + 1) * stride_start).to(tl.int64) - begin).to(tl.int32)
    out += begin * stride_o + i_hv * V
    if slot <= NULL:
        if PLAIN:
            zero = tl.zeros([BLOCK_V], tl.float32).to(out.dtype.element_ty)
            for t in range(0, length):
                tl.store(out + t * stride_o + o_v, zero, mask=mask_v)
        return
    flush = tl.load(is_flush + slot) != 0
    if (flush and not FOLDING) or (not flush and not PLAIN):
        return

    head = tl.multiple_of(state + slot * stride_state * UNIT + i_hv * V * K, ALIGN)
    h = load_state(head, o_v, K, V, WHOLE)
    count = tl.load(write_pos + slot)
    base = tl.load(cache_base + slot)
    rawv_ring += slot * stride_rawv + i_hv * L * V
    if FOLDING:
        if flush:
            if OVERLAP:
                tl.extra.cuda.gdc_wait()
            h = fold_records(
                h,
                units + (i_n.to(tl.int64) * H + i_h) * BLOCK_L * K,
                rawv_ring,
                g_ring + slot * stride_g + i_hv * L,
                beta_ring + slot * stride_beta + i_hv * L,
                base, count, o_v, K, V, L, STAGES,
            )  # fmt: skip
            store_state(head, h, o_v, K, V, WHOLE)

    # While the state is on its way, ask for the rest.
    d_ring += slot * stride_d + i_hv * L * V
    fitting = tl.minimum(tl.minimum(length, T), L - count)
    live_x = t_x < fitting
    mask_live = mask_v[:, None] & live_x[None, :]
    mask_new = mask_live & is_key[None, :]
    row_x = (base + count + t_x) & (L - 1)
    token_q = q + (begin + t_x) * stride_q + i_h * stride_qh
    token_k = k + (begin + t_x) * stride_k + i_h * stride_kh
    p_x = tl.where(is_key, token_k, token_q)[:, None] + o_k[None, :]
    x = tl.load(p_x, mask=live_x[:, None] & (o_k < K)[None, :], other=0.0)
    token_v = v + (begin + t_x) * stride_v + i_hv * stride_vh
    v_x = tl.load(token_v[None, :] + o_v[:, None], mask=mask_new, other=0.0)
    is_old = o_c < tl.where(flush, 0, count)
    row_c = (base + o_c) & (L - 1)
    p_d = d_ring + row_c[None, :] * V + o_v[:, None]
    d_c = tl.load(p_d, mask=mask_v[:, None] & is_old[None, :], other=0.0)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    ROWS: tl.constexpr = 2 + BLOCK_T + BLOCK_L
    table = plan + ((i_n.to(tl.int64) * HV + i_hv) * ROWS) * (2 * BLOCK_T) + o_x
    m_c = tl.load(table[None, :] + (2 + BLOCK_T + o_c[:, None]) * (2 * BLOCK_T))
    state_x = tl.load(table)
    value_x = tl.load(table + 2 * BLOCK_T)
    w = ()
    for j in tl.static_range(BLOCK_T):
        w = w + (tl.load(table + (2 + j) * (2 * BLOCK_T)),)

    # The columns of y become, one token after the other, outputs (queries) and d (keys).
    y = tl.dot(whole_state(h, K), tl.trans(x.to(tl.float32)), input_precision=PRECISION)
    y = tl.dot(d_c.to(tl.float32), m_c, y * state_x[None, :], input_precision=PRECISION)
    y += value_x[None, :] * v_x.to(tl.float32)
    for j in tl.static_range(BLOCK_T):
        d_j = tl.sum(tl.where((o_x == BLOCK_T + j)[None, :], y, 0.0), 1)
        y += d_j[:, None] * w[j][None, :]

    for t in range(fitting, length):  # longer than promised: loud, not wrong
        nan = tl.full([BLOCK_V], float("nan"), tl.float32).to(out.dtype.element_ty)
        tl.store(out + t * stride_o + o_v, nan, mask=mask_v)
    p_new = row_x[None, :] * V + o_v[:, None]
    tl.store(rawv_ring + p_new, v_x.to(rawv_ring.dtype.element_ty), mask=mask_new)
    if out.dtype.element_ty == d_ring.dtype.element_ty:
        p_y = tl.where(is_key, d_ring + row_x * V, out + t_x * stride_o)
        tl.store(p_y[None, :] + o_v[:, None], y.to(out.dtype.element_ty), mask=mask_live)
    else:
        mask_out = mask_live & (o_x < BLOCK_T)[None, :]
        p_o = out + t_x[None, :] * stride_o + o_v[:, None]
        tl.store(p_o, y.to(out.dtype.element_ty), mask=mask_out)
        tl.store(d_ring + p_new, y.to(d_ring.dtype.element_ty), mask=mask_new)


@functools.cache
def can_overlap(device: torch.device) -> bool:
    """Whether a kernel may start while the one before it still runs (from Hopper on)."""
    compiled = isinstance(ring_verify_kernel, triton.JITFunction)
    return compiled and torch.cuda.get_device_capability(device) >= (9, 0)


def gdn_replayssm_spec_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    checkpoint_state: torch.Tensor,
    d_cache: torch.Tensor,
    k_cache: torch.Tensor,
    g_cache: torch.Tensor,
    rawv_cache: torch.Tensor,
    rawk_cache: torch.Tensor,
    beta_cache: torch.Tensor,
    out: torch.Tensor,
    query_start_loc: torch.Tensor,
    ssm_state_indices: torch.Tensor,
    write_pos: torch.Tensor,
    cache_base: torch.Tensor,
    is_flush: torch.Tensor,
    max_cache_len: int,
    max_spec_len: int,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = True,
    null_block_id: int = 0,
    block_v: int | None = None,
    num_warps: int | None = None,
    num_stages: int = 2,
    nk: int = 2,
    bs_min: int = 4,
    block_v_flush: int | None = None,
    num_warps_flush: int | None = None,
    num_stages_flush: int = 2,
    nk_flush: int = 2,
    launch_mode: str = "both",
    dot_precision: str = "tf32",
    *,
    tile: Tile | None = None,
    maxnreg: int | None = None,
    plan_warps: int = 1,
    plan_reg: int | None = None,
    stages: int = 3,
    pdl: bool | None = None,
) -> torch.Tensor:
    unit = check_state("checkpoint_state", checkpoint_state)
    check_inputs(q, k, v, a, b, A_log, dt_bias, checkpoint_state)
    rows = check_rows(query_start_loc, ssm_state_indices)
    check_ring_length(max_cache_len, max_spec_len)
    check_cursors(write_pos, cache_base, is_flush)
    HV, V, K = checkpoint_state.shape[1:]
    H, L, T = k.shape[1], max_cache_len, max_spec_len
    rings = Rings(H, HV, K, V, L)
    rings.check_raw(rawv_cache, rawk_cache, g_cache, beta_cache)
    rings.check_derived(d_cache, k_cache)
    for name, ring in (("rawv_cache", rawv_cache), ("rawk_cache", rawk_cache)):
        check_dtype(name, ring, (k.dtype, torch.float32))
    check_shape("out", out, tuple(v.shape))
    check_dtype("out", out, FLOATS)
    check_packed("out", out, 2)
    require(
        k.shape[0] <= rows * T,
        f"{k.shape[0]} tokens in {rows} rows; with max_spec_len={T} there can be {rows * T}: "
        f"pass the longest window as max_spec_len",
    )
    require(launch_mode in LAUNCH_MODES, f"launch_mode is {launch_mode!r}; it must be one of {LAUNCH_MODES}")
    require(dot_precision in DOT_PRECISIONS, f"dot_precision is {dot_precision!r}; it must be one of {DOT_PRECISIONS}")
    if rows == 0:
        return out
    tile = Tile.of(V) if tile is None else tile
    overlap = can_overlap(q.device) if pdl is None else pdl
    block_t = max(4, triton.next_power_of_2(T))
    block_l = max(16, L)
    common = dict(
        H=H, HV=HV, K=K, L=L, T=T, BLOCK_L=block_l, BLOCK_T=block_t,
        BLOCK_K=max(32, triton.next_power_of_2(K)),
        NULL=null_block_id,
        FOLDING=launch_mode != "verify", PLAIN=launch_mode != "flush",
        PRECISION=dot_precision, OVERLAP=overlap, **COMPILE_OPTIONS,
    )  # fmt: skip
    plan = q.new_empty((rows, HV, 2 + block_t + block_l, 2 * block_t), dtype=torch.float32)
    units = q.new_empty((rows, H, block_l, K), dtype=torch.float32)
    group = 2 if HV // H % 2 == 0 else 1
    plan_kernel[(HV // group, rows)](
        q, k, a, b, A_log, dt_bias, plan, units,
        k_cache, g_cache, rawk_cache, beta_cache,
        query_start_loc, ssm_state_indices, write_pos, cache_base, is_flush,
        K**-0.5 if scale is None else scale,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), a.stride(0), b.stride(0),
        k_cache.stride(0), g_cache.stride(0), rawk_cache.stride(0), beta_cache.stride(0),
        query_start_loc.stride(0), ssm_state_indices.stride(0),
        GROUP=group, NORM=use_qk_l2norm_in_kernel, num_warps=plan_warps, maxnreg=plan_reg, **common,
    )  # fmt: skip
    ring_verify_kernel[(triton.cdiv(V, tile.block_v) * HV, rows)](
        q, k, v, out, plan, units,
        checkpoint_state, d_cache, g_cache, rawv_cache, beta_cache,
        query_start_loc, ssm_state_indices, write_pos, cache_base, is_flush,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        out.stride(0),
        checkpoint_state.stride(0) // unit, d_cache.stride(0), g_cache.stride(0),
        rawv_cache.stride(0), beta_cache.stride(0),
        query_start_loc.stride(0), ssm_state_indices.stride(0),
        V=V, BLOCK_V=tile.block_v, ALIGN=align_bytes(checkpoint_state), UNIT=unit,
        WHOLE=tile.covers(V, K), num_warps=tile.warps, STAGES=stages, launch_pdl=overlap, maxnreg=maxnreg, **common,
    )  # fmt: skip
    return out


def gdn_ring_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    checkpoint_state: torch.Tensor,
    d_cache: torch.Tensor,
    k_cache: torch.Tensor,
    g_cache: torch.Tensor,
    rawv_cache: torch.Tensor,
    rawk_cache: torch.Tensor,
    beta_cache: torch.Tensor,
    out: torch.Tensor,
    ssm_state_indices: torch.Tensor,
    write_pos: torch.Tensor,
    cache_base: torch.Tensor,
    is_flush: torch.Tensor,
    max_cache_len: int,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = True,
    null_block_id: int = 0,
) -> torch.Tensor:
    """Decode one token a row on the ring: a window of one.  `commit` it with ones, for all layers.

    Arguments as for `gdn_replayssm_spec_decode`; `q, k [rows, H, K]`, `v [rows, HV, V]`.

    Raises:
        ValueError: a shape, dtype, stride or address that the kernels cannot take.
    """
    rows = ssm_state_indices.shape[0]
    require(
        k.shape[0] == rows,
        f"{k.shape[0]} tokens in {rows} rows; decoding takes one a row: "
        f"use gdn_replayssm_spec_decode for windows",
    )
    return gdn_replayssm_spec_decode(
        q, k, v, a, b, A_log, dt_bias, checkpoint_state,
        d_cache, k_cache, g_cache, rawv_cache, rawk_cache, beta_cache, out,
        torch.arange(rows + 1, dtype=torch.int32, device=q.device), ssm_state_indices,
        write_pos, cache_base, is_flush, max_cache_len, 1, scale,
        use_qk_l2norm_in_kernel, null_block_id,
    )  # fmt: skip
