"""Ring verify: a window's outputs from checkpoint and records, folding where the flag says so.

Every row's state is read once.  On a flushing row it is carried over the history in registers
(`fold_records`, bit for bit the recurrent kernel's walk) and written back; then, as on any row,
it is multiplied with the window's queries and keys, and the plan of the window (`window.py`)
turns the products into outputs and new records.
"""

# A kernel's tuples grow in unrolled loops, and Triton's compiler knows no starred expressions.
# mypy: disable-error-code="assignment,misc"
# ruff: noqa: RUF005

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

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
from ringfold.kernels.lanes import substitute
from ringfold.kernels.overlap import can_overlap, let_next_start, wait_for_last
from ringfold.kernels.state import (
    COMPILE_OPTIONS,
    Tile,
    align_bytes,
    block_k,
    hold,
    load_matrix,
    load_state,
    store_state,
    whole_state,
)
from ringfold.kernels.window import look_up, plan_kernel, read_agenda

LAUNCH_MODES = ("both", "verify", "flush")
DOT_PRECISIONS = ("tf32", "tf32x3", "ieee")

AT_ONCE = 8
"""The first so many rows need no agenda: they ask for their states while the plan is being made."""

APART = 16
"""Up to so many rows, a program of the plan has one value head: on a Hopper there is room then."""

TOGETHER = 32
"""Up to so many rows, those that flush start before all others; see `window.put_on_agenda`."""


@triton.jit
def finish(
    h, head, history, q, k, v, out, plan, d_ring, rawv_ring, o_v, length, count, base,
    stride_q, stride_k, stride_v, stride_o,
    K: tl.constexpr, V: tl.constexpr, L: tl.constexpr, T: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
    FOLDED: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr, COMPILED: tl.constexpr,
    SHARED: tl.constexpr,
):  # fmt: skip
    """From the tile `h` and `history` records before the window: outputs, d and raw v.

    Pointers lead to the window's first token, to ring row 0 and to the plan of this head.
    """
    o_x = tl.arange(0, 2 * BLOCK_T)  # columns: queries, then keys
    is_key = o_x >= BLOCK_T
    t_x = o_x % BLOCK_T
    o_c = tl.arange(0, BLOCK_L)
    o_k = tl.arange(0, BLOCK_K)
    mask_v = o_v < V
    fitting = tl.minimum(tl.minimum(length, T), L - count)
    live_x = t_x < fitting
    mask_live = mask_v[:, None] & live_x[None, :]
    mask_new = mask_live & is_key[None, :]
    row_x = (base + count + t_x) & (L - 1)
    row_c = (base + o_c) & (L - 1)
    is_old = o_c < history

    if not FOLDED:
        p_d = d_ring + row_c[None, :] * V + o_v[:, None]
        d_c = tl.load(p_d, mask=mask_v[:, None] & is_old[None, :], other=0.0)
    p_v = v + t_x[None, :] * stride_v + o_v[:, None]
    v_x = tl.load(p_v, mask=mask_new, other=0.0)
    p_x = tl.where(is_key, k + t_x * stride_k, q + t_x * stride_q)[:, None] + o_k[None, :]
    x = tl.load(p_x, mask=live_x[:, None] & (o_k < K)[None, :], other=0.0)
    if not FOLDED:
        s = load_matrix(head, o_v, o_k, K, V, WHOLE)

    wait_for_last(COMPILED)  # the plan comes last: it may still be in the making
    table = plan + o_x
    if not FOLDED:
        m_c = tl.load(table[None, :] + (2 + BLOCK_T + o_c[:, None]) * (2 * BLOCK_T))
    state_x = tl.load(table)
    value_x = tl.load(table + 2 * BLOCK_T)
    w = ()
    for j in tl.static_range(BLOCK_T):
        w = w + (tl.load(table + (2 + j) * (2 * BLOCK_T)),)

    tl.debug_barrier()  # nothing asked for above is asked for later
    x = hold(x, COMPILED)
    if FOLDED:
        store_state(head, h, o_v, K, V, WHOLE)
        s = whole_state(h, K)
    else:
        d_c, m_c, s = hold(d_c, COMPILED), hold(m_c, COMPILED), hold(s, COMPILED)

    # The columns of y become, one token after the other, outputs (queries) and d (keys).
    y = tl.dot(s, tl.trans(x.to(tl.float32)), input_precision=PRECISION)
    y *= state_x[None, :]
    if not FOLDED:
        y = tl.dot(d_c.to(tl.float32), m_c, y, input_precision=PRECISION)
    y = tl.fma(tl.broadcast_to(value_x[None, :], y.shape), v_x.to(tl.float32), y)
    y = substitute(y, w, o_x, BLOCK_T, SHARED and PRECISION != "ieee")

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
    for t in range(fitting, length):  # longer than promised: loud, not wrong
        nan = tl.full(o_v.shape, float("nan"), tl.float32).to(out.dtype.element_ty)
        tl.store(out + t * stride_o + o_v, nan, mask=mask_v)


@triton.jit(do_not_specialize=["stride_state", "at_once"])
def ring_verify_kernel(
    q, k, v, out, plan, units, agenda, at_once,
    window_start, slots, write_pos, cache_base, is_flush, stride_start, stride_slots,
    state, d_ring, g_ring, rawv_ring, beta_ring,
    stride_q, stride_qh, stride_k, stride_kh, stride_v, stride_vh, stride_o,
    stride_state, stride_d, stride_g, stride_rawv, stride_beta,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    L: tl.constexpr, T: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
    ALIGN: tl.constexpr, UNIT: tl.constexpr, WHOLE: tl.constexpr,
    NULL: tl.constexpr, FOLDING: tl.constexpr, PLAIN: tl.constexpr,
    PRECISION: tl.constexpr, OVERLAP: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """One program: `BLOCK_V` rows of one head of one request; grid `(V tiles * HV, rows)`."""
    n_v: tl.constexpr = tl.cdiv(V, BLOCK_V)
    i_hv = tl.program_id(0) // n_v
    i_h = i_hv // (HV // H)
    o_v = (tl.program_id(0) % n_v) * BLOCK_V + tl.arange(0, BLOCK_V)

    let_next_start(OVERLAP)
    place = tl.program_id(1)
    if place < at_once:
        i_n = place.to(tl.int64)
        slot, begin, length, count, base, flush = look_up(
            window_start, slots, write_pos, cache_base, is_flush, i_n,
            stride_start, stride_slots, NULL,
        )  # fmt: skip
    else:
        wait_for_last(OVERLAP)
        i_n, slot, begin, length, count, base, flush = read_agenda(agenda, place)
    out += begin * stride_o + i_hv * V
    if slot <= NULL:
        if PLAIN:
            zero = tl.zeros([BLOCK_V], tl.float32).to(out.dtype.element_ty)
            for t in range(length):
                tl.store(out + t * stride_o + o_v, zero, mask=o_v < V)
        wait_for_last(OVERLAP)  # or a launch with nothing to do would end before its plan
        return
    if (flush and not FOLDING) or (not flush and not PLAIN):
        wait_for_last(OVERLAP)
        return
    head = tl.multiple_of(state + slot * stride_state * UNIT + i_hv * V * K, ALIGN)
    q += begin * stride_q + i_h * stride_qh
    k += begin * stride_k + i_h * stride_kh
    v += begin * stride_v + i_hv * stride_vh
    ROWS: tl.constexpr = 2 + BLOCK_T + BLOCK_L
    plan += (i_n * HV + i_hv) * (ROWS * 2 * BLOCK_T)
    d_ring += slot * stride_d + i_hv * L * V
    rawv_ring += slot * stride_rawv + i_hv * L * V

    # Each branch ends by itself: joined, they would have to wait for the state before they ask
    # for anything else.
    if flush:
        if FOLDING:
            h = load_state(head, o_v, K, V, WHOLE)
            wait_for_last(OVERLAP)
            h = fold_records(
                h,
                units + (i_n * H + i_h) * BLOCK_L * K,
                rawv_ring,
                g_ring + slot * stride_g + i_hv * L,
                beta_ring + slot * stride_beta + i_hv * L,
                base, count, o_v, K, V, L, SHARED,
            )  # fmt: skip
            finish(
                h, head, 0, q, k, v, out, plan, d_ring, rawv_ring, o_v, length, count, base,
                stride_q, stride_k, stride_v, stride_o,
                K, V, L, T, BLOCK_L, BLOCK_T, BLOCK_K, True, WHOLE, PRECISION, OVERLAP, SHARED,
            )  # fmt: skip
    elif PLAIN:
        finish(
            (), head, count, q, k, v, out, plan, d_ring, rawv_ring, o_v, length, count, base,
            stride_q, stride_k, stride_v, stride_o,
            K, V, L, T, BLOCK_L, BLOCK_T, BLOCK_K,
            False, WHOLE and K == BLOCK_K, PRECISION, OVERLAP, SHARED,
        )  # fmt: skip


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
    block_v: int = 64,
    num_warps: int = 1,
    num_stages: int = 2,
    nk: int = 2,
    bs_min: int = 4,
    block_v_flush: int = 64,
    num_warps_flush: int = 1,
    num_stages_flush: int = 2,
    nk_flush: int = 2,
    launch_mode: str = "both",
    dot_precision: str = "tf32",
    *,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Verify every row's window of drafted tokens, folding first where the flag is set.

    Takes the arguments of SGLang 0.5.16's function of this name and does what that does, to the
    same buffers: one import swaps it in.  The folded checkpoint has the bits that
    `gdn_recurrent_verify` leaves.  Nothing waits for the device, so the call can be captured in
    a CUDA graph; cursors are read when it runs.

    Args:
        q: `[tokens, H, K]`, after the convolution; the windows of all rows, packed.
        k: `[tokens, H, K]`.
        v: `[tokens, HV, V]`.
        a: `[tokens, HV]`, input of the gate.
        b: `[tokens, HV]`, logit of beta.
        A_log: `[HV]`.
        dt_bias: `[HV]`.
        checkpoint_state: `[slots, HV, V, K]`, fp32 for exactness; written on flushing rows.
        d_cache: `[slots, HV, L, V]`, what each record wrote.
        k_cache: `[slots, H, L, K]`, its normalised key.
        g_cache: `[slots, HV, L]` fp32, its log decay.
        rawv_cache: `[slots, HV, L, V]`, its v; of the activations' dtype or fp32.
        rawk_cache: `[slots, H, L, K]`, its raw key; likewise.
        beta_cache: `[slots, HV, L]` fp32.
        out: `[tokens, HV, V]`, written and returned.
        query_start_loc: `[rows + 1]`; row `r` owns tokens `query_start_loc[r : r + 2]`.
        ssm_state_indices: `[rows]`, the slot of each row.
        write_pos: `[slots]` int32, records in the history.
        cache_base: `[slots]` int32, ring row of the oldest record.
        is_flush: `[slots]` int8, whether to fold.
        max_cache_len: L, the ring's length, a power of two.
        max_spec_len: T, the longest window; `2 T <= L`.  The outputs of tokens past it are NaN.
        scale: of q; None means `K ** -0.5`.
        use_qk_l2norm_in_kernel: normalise q and k.
        null_block_id: slots at or under it are padding: outputs zero, nothing touched.
        block_v: this and what follows to `nk_flush` tune SGLang's kernels; without effect here.
        num_warps: see `block_v`.
        num_stages: see `block_v`.
        nk: see `block_v`.
        bs_min: see `block_v`.
        block_v_flush: see `block_v`.
        num_warps_flush: see `block_v`.
        num_stages_flush: see `block_v`.
        nk_flush: see `block_v`.
        launch_mode: `"verify"` leaves flushing rows out, `"flush"` all others, `"both"` none.
        dot_precision: of the outputs' dots, `"tf32"`, `"tf32x3"` or `"ieee"`; never of the fold.
        tile: how to cut the work; any tile gives the same bits.

    Raises:
        ValueError: a ring too short for two windows, more tokens than the windows can hold, or a
            shape, dtype, stride or address that the kernels cannot take, or more shared memory
            than the GPU has: on a Hopper, float32 with K=256, L=128 and T above 16.
    """
    unit = check_state("checkpoint_state", checkpoint_state)
    check_inputs(q, k, v, a, b, A_log, dt_bias, checkpoint_state)
    rows = check_rows(query_start_loc, ssm_state_indices)
    check_ring_length(max_cache_len, max_spec_len)
    slots, HV, V, K = checkpoint_state.shape
    check_cursors(write_pos, cache_base, is_flush, slots)
    H, L, T = k.shape[1], max_cache_len, max_spec_len
    rings = Rings(slots, H, HV, K, V, L)
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
    for name, choice, choices in (
        ("launch_mode", launch_mode, LAUNCH_MODES),
        ("dot_precision", dot_precision, DOT_PRECISIONS),
    ):
        require(choice in choices, f"{name} is {choice!r}; it must be one of {choices}")
    if rows == 0:
        return out
    tile = Tile.of(V, K) if tile is None else tile
    overlap = can_overlap(q.device)
    block_t = max(4, triton.next_power_of_2(T))
    block_l = max(16, L)
    common = dict(
        H=H, HV=HV, K=K, L=L, T=T, BLOCK_L=block_l, BLOCK_T=block_t,
        BLOCK_K=block_k(K),
        NULL=null_block_id,
        FOLDING=launch_mode != "verify", PLAIN=launch_mode != "flush",
        PRECISION=dot_precision, OVERLAP=overlap, **COMPILE_OPTIONS,
    )  # fmt: skip
    plan = q.new_empty((rows, HV, 2 + block_t + block_l, 2 * block_t), dtype=torch.float32)
    units = q.new_empty((rows, H, block_l, K), dtype=torch.float32)
    agenda = q.new_empty((rows, 8), dtype=torch.int32)
    at_once = min(rows, AT_ONCE)
    apart = HV // H % 2 == 1 or (overlap and rows <= APART)
    group = 1 if apart else 2  # value heads a program of the plan
    try:
        plan_kernel[(HV // group + 1, rows)](
            q, k, a, b, A_log, dt_bias, plan, units, agenda,
            k_cache, g_cache, rawk_cache, beta_cache,
            query_start_loc, ssm_state_indices, write_pos, cache_base, is_flush, rows, at_once,
            K**-0.5 if scale is None else scale,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), a.stride(0), b.stride(0),
            k_cache.stride(0), g_cache.stride(0), rawk_cache.stride(0), beta_cache.stride(0),
            query_start_loc.stride(0), ssm_state_indices.stride(0),
            GROUP=group, NORM=use_qk_l2norm_in_kernel, TOGETHER=TOGETHER, num_warps=1,
            launch_pdl=overlap, **common,
        )  # fmt: skip
        ring_verify_kernel[(triton.cdiv(V, tile.block_v) * HV, rows)](
            q, k, v, out, plan, units, agenda, at_once,
            query_start_loc, ssm_state_indices, write_pos, cache_base, is_flush,
            query_start_loc.stride(0), ssm_state_indices.stride(0),
            checkpoint_state, d_cache, g_cache, rawv_cache, beta_cache,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            out.stride(0),
            checkpoint_state.stride(0) // unit, d_cache.stride(0), g_cache.stride(0),
            rawv_cache.stride(0), beta_cache.stride(0),
            V=V, BLOCK_V=tile.block_v, ALIGN=align_bytes(checkpoint_state), UNIT=unit,
            WHOLE=tile.covers(V, K), SHARED=tile.shares(V, K, checkpoint_state, rawv_cache),
            num_warps=tile.warps, launch_pdl=overlap, **common,
        )  # fmt: skip
    except OutOfResources as full:
        raise ValueError(
            f"K={K}, max_cache_len={L} and max_spec_len={T} in {q.dtype} are more than a program "
            f"can hold on this GPU: shorten the ring or the drafts, or use 16-bit activations "
            f"({full})"
        ) from full
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
