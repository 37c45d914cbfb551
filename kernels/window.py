"""The plan of a window: what its outputs need beside the state.

With `G_t` the log decay from the window's start through token `t`, `S0` the checkpoint and the
history's records `(d_c, k_c, g_c)`, every token `x` of the window, be it read by its query or
asked by its key, sees

    exp(total + G_x) S0 @ x
        + sum_c exp(G_x + after_c) (k_c . x) d_c
        + sum_j exp(G_x - G_j) (k_j . x) d_j

where `after_c` is the decay of the history after record `c`, `total` that of all of it, and `j`
runs over the window's earlier tokens, for a query through the token itself.  The answer to a key
gives `d_t = beta_t (v_t - answer)`, that to a query the output.  So keys and queries are columns
of one table, and a token's `d`, once known, is added to the columns behind it, times a row of
coefficients: forward substitution.  (Yang et al., *Parallelizing Linear Transformers with the
Delta Rule*, 2024, invert the triangle instead.)

All coefficients are the same for every row of V.  This kernel computes them once and leaves them
in device memory; the ring kernel reads them where it needs them, with no exchange between lanes.
The plan of a row and value head is a table `[2 + BLOCK_T + BLOCK_L, 2 BLOCK_T]` in fp32, its
columns the queries, then the keys of the window:

    row 0                      what multiplies S0 @ x
    row 1                      what multiplies v: beta under the keys, 0 under the queries
    rows 2 .. 1 + BLOCK_T      what token j's d adds to the columns behind it
    the BLOCK_L rows behind    what record c's d adds to each column
"""

# A kernel's tuples grow in unrolled loops, and Triton's compiler knows no starred expressions.
# mypy: disable-error-code="assignment,misc"
# ruff: noqa: RUF005

from __future__ import annotations

import triton
import triton.language as tl

from ringfold.kernels.fold import store_unit_keys
from ringfold.kernels.overlap import let_next_start, wait_for_last
from ringfold.kernels.state import gates, hold, inverse_norm


@triton.jit
def look_up(
    window_start, slots, write_pos, cache_base, is_flush, i_n, stride_start, stride_slots,
    NULL: tl.constexpr,
):  # fmt: skip
    """Row `i_n`: slot, first token and length of its window, write position, base, flag."""
    slot = tl.load(slots + i_n * stride_slots).to(tl.int64)
    begin = tl.load(window_start + i_n * stride_start).to(tl.int64)
    end = tl.load(window_start + (i_n + 1) * stride_start).to(tl.int64)
    there = slot > NULL
    count = tl.load(write_pos + slot, mask=there, other=0)
    base = tl.load(cache_base + slot, mask=there, other=0)
    flush = tl.load(is_flush + slot, mask=there, other=0) != 0
    return slot, begin, (end - begin).to(tl.int32), count, base, flush


@triton.jit
def put_on_agenda(
    agenda, window_start, slots, write_pos, cache_base, is_flush, rows, at_once, i_n,
    stride_start, stride_slots, TOGETHER: tl.constexpr, NULL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Enter row `i_n` in `agenda [rows, 8]` with all that the ring kernel asks of it.

    Flushing rows take longest, so none starts late: up to `TOGETHER` rows, they come first; beyond
    that they are spread over the first seven eighths, since many that fold side by side leave the
    memory idle.  Padding comes last.  The first `at_once` rows keep their places.
    """
    slot, begin, length, count, base, flush = look_up(
        window_start, slots, write_pos, cache_base, is_flush, i_n, stride_start, stride_slots, NULL
    )
    there = slot > NULL
    live_n, due_n = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)  # of all rows
    live_i, due_i = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)  # of those before
    for first in range(0, rows, BLOCK):
        o_n = first + tl.arange(0, BLOCK)
        other = tl.load(slots + o_n * stride_slots, mask=o_n < rows, other=NULL).to(tl.int64)
        live = (other > NULL) & (o_n >= at_once)
        due = tl.load(is_flush + other, mask=live, other=0) != 0
        live_n += live.to(tl.int32)
        due_n += due.to(tl.int32)
        live_i += (live & (o_n < i_n)).to(tl.int32)
        due_i += (due & (o_n < i_n)).to(tl.int32)
    n, n_due = tl.sum(live_n, 0), tl.sum(due_n, 0)
    before, due_before = tl.sum(live_i, 0), tl.sum(due_i, 0)
    spread = tl.maximum((n - n // 8) // tl.maximum(n_due, 1), 1)
    apart = tl.where(rows > TOGETHER, spread, 1)  # from one flushing row to the next
    rest = before - due_before  # rows before this one that are not due
    ahead = tl.where(apart > 1, tl.minimum(n_due, rest // tl.maximum(apart - 1, 1) + 1), n_due)
    past = n + i_n - at_once - before
    place = tl.where(there, tl.where(flush, due_before * apart, rest + ahead), past)
    entry = agenda + tl.where(i_n < at_once, i_n, at_once + place) * 8
    tl.store(entry, i_n)
    tl.store(entry + 1, slot.to(tl.int32))
    tl.store(entry + 2, begin.to(tl.int32))
    tl.store(entry + 3, length)
    tl.store(entry + 4, count)
    tl.store(entry + 5, base)
    tl.store(entry + 6, flush.to(tl.int32))


@triton.jit
def read_agenda(agenda, place):
    """The row whose turn `place` is, and of it what `look_up` says."""
    entry = agenda + place * 8
    return (
        tl.load(entry).to(tl.int64),
        tl.load(entry + 1).to(tl.int64),
        tl.load(entry + 2).to(tl.int64),
        tl.load(entry + 3),
        tl.load(entry + 4),
        tl.load(entry + 5),
        tl.load(entry + 6) != 0,
    )


@triton.jit(do_not_specialize=["rows", "at_once"])
def plan_kernel(
    q, k, a, b, A_log, dt_bias, plan, units, agenda,
    k_ring, g_ring, rawk_ring, beta_ring,
    window_start, slots, write_pos, cache_base, is_flush, rows, at_once,
    scale,
    stride_q, stride_qh, stride_k, stride_kh, stride_a, stride_b,
    stride_kring, stride_g, stride_rawk, stride_beta, stride_start, stride_slots,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, L: tl.constexpr, T: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    NORM: tl.constexpr, NULL: tl.constexpr, FOLDING: tl.constexpr, PLAIN: tl.constexpr,
    PRECISION: tl.constexpr, OVERLAP: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Plan one row for `GROUP` value heads that share a key head; grid `(HV // GROUP + 1, rows)`.

    Also writes what of the window's records does not depend on the state (k, raw k, g, beta) and,
    on a flushing row, the unit keys of the history for the fold.  One program more a row enters
    it in the agenda.
    """
    wait_for_last(OVERLAP)
    let_next_start(OVERLAP)
    ROWS: tl.constexpr = 2 + BLOCK_T + BLOCK_L
    first_hv = tl.program_id(0) * GROUP
    i_h = first_hv // (HV // H)
    i_n = tl.program_id(1)
    if first_hv == HV:
        put_on_agenda(
            agenda, window_start, slots, write_pos, cache_base, is_flush, rows, at_once, i_n,
            stride_start, stride_slots, TOGETHER, NULL, 128,
        )  # fmt: skip
        return
    slot, begin, length, count, base, flush = look_up(
        window_start, slots, write_pos, cache_base, is_flush, i_n, stride_start, stride_slots, NULL
    )
    if slot <= NULL or (flush and not FOLDING) or (not flush and not PLAIN):
        return

    o_x = tl.arange(0, 2 * BLOCK_T)  # columns: queries, then keys
    is_key = o_x >= BLOCK_T
    t_x = o_x % BLOCK_T
    live_x = t_x < tl.minimum(tl.minimum(length, T), L - count)
    new_x = live_x & is_key
    row_x = (base + count + t_x) & (L - 1)
    o_c = tl.arange(0, BLOCK_L)  # history, oldest first; just folded away on a flushing row
    is_old = o_c < tl.where(flush, 0, count)
    row_c = (base + o_c) & (L - 1)
    o_k = tl.arange(0, BLOCK_K)
    mask_k = (o_k < K)[None, :]

    k_ring += slot * stride_kring + i_h * L * K
    rawk_ring += slot * stride_rawk + i_h * L * K
    token_q = q + (begin + t_x) * stride_q + i_h * stride_qh
    token_k = k + (begin + t_x) * stride_k + i_h * stride_kh
    a_x, b_x, g_c, rate, bias = (), (), (), (), ()
    for i in tl.static_range(GROUP):
        i_hv = first_hv + i
        p_a = a + (begin + t_x) * stride_a + i_hv
        p_b = b + (begin + t_x) * stride_b + i_hv
        p_g = g_ring + slot * stride_g + i_hv * L + row_c
        a_x = a_x + (tl.load(p_a, mask=live_x, other=0.0).to(tl.float32),)
        b_x = b_x + (tl.load(p_b, mask=live_x, other=0.0).to(tl.float32),)
        g_c = g_c + (tl.load(p_g, mask=is_old, other=0.0),)
        rate = rate + (tl.load(A_log + i_hv).to(tl.float32),)
        bias = bias + (tl.load(dt_bias + i_hv).to(tl.float32),)
    p_x = tl.where(is_key, token_k, token_q)
    x = tl.load(p_x[:, None] + o_k[None, :], mask=live_x[:, None] & mask_k, other=0.0)
    p_old = k_ring + row_c[:, None] * K + o_k[None, :]
    old = tl.load(p_old, mask=is_old[:, None] & mask_k, other=0.0)
    tl.debug_barrier()  # nothing asked for above is asked for later
    x, old = hold(x, OVERLAP), hold(old, OVERLAP)

    wide = x.to(tl.float32)
    r_x = tl.full([2 * BLOCK_T], 1.0, tl.float32)
    if NORM:
        r_x = inverse_norm(tl.sum(wide * wide, 1))
    p_new = row_x[:, None] * K + o_k[None, :]
    mask_new = new_x[:, None] & mask_k & (first_hv % (HV // H) == 0)
    tl.store(rawk_ring + p_new, x.to(rawk_ring.dtype.element_ty), mask=mask_new)
    tl.store(k_ring + p_new, (wide * r_x[:, None]).to(k_ring.dtype.element_ty), mask=mask_new)

    if FOLDING and flush and first_hv % (HV // H) == 0:
        p_units = units + (i_n.to(tl.int64) * H + i_h) * BLOCK_L * K
        store_unit_keys(p_units, rawk_ring, base, count, K, L, BLOCK_L, NORM)
    old_x = tl.dot(old, tl.trans(x).to(old.dtype), input_precision=PRECISION)  # [BLOCK_L, columns]
    x_x = tl.dot(x, tl.trans(x), input_precision=PRECISION)  # [columns, columns]
    # A key waits for the tokens before it, a query for its own token too.
    behind = t_x[:, None] + is_key[None, :].to(tl.int32) <= t_x[None, :]
    behind &= is_key[:, None] & live_x[None, :]

    for i in tl.static_range(GROUP):
        i_hv = first_hv + i
        g_x, beta_x = gates(a_x[i], b_x[i], rate[i], bias[i])
        p_g = g_ring + slot * stride_g + i_hv * L
        tl.store(p_g + row_x, g_x, mask=new_x)
        tl.store(beta_ring + slot * stride_beta + i_hv * L + row_x, beta_x, mask=new_x)

        # Sums over tokens, never differences of sums: those would cancel.
        until = (o_x[None, :] - BLOCK_T <= t_x[:, None]) & new_x[None, :]
        G_x = tl.sum(tl.where(until, g_x[None, :], 0.0), 1)
        after_c = tl.sum(tl.where(o_c[None, :] > o_c[:, None], g_c[i][None, :], 0.0), 1)
        scale_x = tl.where(is_key, -beta_x * r_x, r_x * scale)

        table = plan + ((i_n.to(tl.int64) * HV + i_hv) * ROWS) * (2 * BLOCK_T) + o_x
        tl.store(table, scale_x * tl.exp(G_x + tl.sum(g_c[i], 0)))
        tl.store(table + 2 * BLOCK_T, tl.where(is_key, beta_x, 0.0))
        p_j = table[None, :] + (2 + t_x[:, None]) * (2 * BLOCK_T)
        w = tl.exp(G_x[None, :] - G_x[:, None]) * (r_x[:, None] * scale_x[None, :]) * x_x
        tl.store(p_j, tl.where(behind, w, 0.0), mask=is_key[:, None])
        p_c = table[None, :] + (2 + BLOCK_T + o_c[:, None]) * (2 * BLOCK_T)
        m = tl.exp(G_x[None, :] + after_c[:, None]) * scale_x[None, :] * old_x
        tl.store(p_c, tl.where(is_old[:, None], m, 0.0))
