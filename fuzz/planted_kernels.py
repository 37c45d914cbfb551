"""Bugs planted in our own Triton kernels, each a span of their source and what takes its place.

A bug is a target named `triton:NAME`: the kernels are loaded once more, with the span replaced, and
nothing else differs. A span must be there exactly once, so that a bug can't vanish unnoticed when
the kernels change. `docs/planted.md` lists them with what finding them takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

PACKAGE: Final = "ringfold/kernels/"


class PlantingError(RuntimeError):
    """A span that a bug replaces is not in the source, or more than once."""


class Planted(NamedTuple):
    """One planted bug."""

    kind: str
    about: str
    file: str
    before: str
    after: str

    def rewrite(self) -> Callable[[str, str], str]:
        """What plants it, as `loading.rewriting` wants it."""

        def planted(name: str, source: str) -> str:
            if name != PACKAGE + self.file:
                return source
            if (times := source.count(self.before)) != 1:
                raise PlantingError(
                    f"{self.file} has {times} times what is to become a bug ({self.before!r}); "
                    "it must be there once: let fuzz/planted_kernels.py follow the kernels"
                )
            return source.replace(self.before, self.after)

        return planted


KERNEL_BUGS: Final[Mapping[str, Planted]] = {
    "window-clamped-at-the-end": Planted(
        "wrap arithmetic",
        "A window that should wrap is written over and over into the ring's last row",
        "ring.py",
        "row_x = (base + count + t_x) & (L - 1)",
        "row_x = tl.minimum(base + count + t_x, L - 1)",
    ),
    "fold-runs-past-the-end": Planted(
        "wrap arithmetic",
        "The fold reads on behind the ring's last row, where the next head's records lie",
        "fold.py",
        "row = (base + t) & (L - 1)",
        "row = base + t",
    ),
    "base-never-wraps": Planted(
        "wrap arithmetic",
        "The base grows without end: right modulo L, until the integer overflows",
        "cursors.py",
        "(base + wp) & (RING - 1), base)",
        "base + wp, base)",
    ),
    "flush-one-window-late": Planted(
        "flush too early or too late",
        "The flush flag looks one window ahead in place of two",
        "cursors.py",
        "(wp + 2 * T > L)",
        "(wp + T > L)",
    ),
    "flush-one-record-early": Planted(
        "flush too early or too late",
        "The flush flag is raised when two windows fit exactly",
        "cursors.py",
        "(wp + 2 * T > L)",
        "(wp + 2 * T >= L)",
    ),
    "flag-of-the-batch-row": Planted(
        "flush ordering",
        "A row's flag is looked up by its place in the batch, and not by its slot",
        "window.py",
        "flush = tl.load(is_flush + slot, mask=there, other=0) != 0",
        "flush = tl.load(is_flush + i_n, mask=there, other=0) != 0",
    ),
    "folds-before-it-is-due": Planted(
        "flush ordering",
        "A verify folds whatever records there are, due or not",
        "ring.py",
        "    if flush:\n        if FOLDING:",
        "    if flush or count > 0:\n        if FOLDING:",
    ),
    "fold-never-stored": Planted(
        "flush ordering",
        "Outputs are made from the folded state, which is then forgotten",
        "ring.py",
        "        store_state(head, h, o_v, K, V, WHOLE)",
        "        pass",
    ),
    "base-moves-when-nothing-is-accepted": Planted(
        "base and position",
        "A fold whose window is rejected whole moves the base, which the protocol keeps",
        "cursors.py",
        "moved = folded & (n > 0)",
        "moved = folded",
    ),
    "base-moves-by-the-accepted": Planted(
        "base and position",
        "A fold moves the base by the tokens accepted and not by the records folded",
        "cursors.py",
        "(base + wp) & (RING - 1), base)",
        "(base + n) & (RING - 1), base)",
    ),
    "base-is-not-on-the-agenda": Planted(
        "base and position",
        "Rows behind the first eight, which are read from an agenda, find their rings at base 0",
        "window.py",
        "tl.store(entry + 5, base)",
        "tl.store(entry + 5, base * 0)",
    ),
    "folded-records-stay-committed": Planted(
        "double fold",
        "A fold leaves its records in the count, so the next one folds them again",
        "cursors.py",
        "wp = tl.where(folded, n, wp + n)",
        "wp = wp + n",
    ),
    "history-outlives-the-fold": Planted(
        "double fold",
        "The plan of a folding verify decays the checkpoint by records that it already holds",
        "window.py",
        "is_old = o_c < tl.where(flush, 0, count)",
        "is_old = o_c < count",
    ),
    "count-of-the-first-row": Planted(
        "off-by-one counts",
        "A commit accepts in every row what the first row of the batch accepts",
        "cursors.py",
        "n = tl.load(accepted + row * stride_accepted,",
        "n = tl.load(accepted + 0 * row,",
    ),
    "fold-one-short": Planted(
        "off-by-one counts",
        "The fold leaves out the newest record",
        "fold.py",
        "for t in tl.range(0, count, num_stages=_STAGES):",
        "for t in tl.range(0, count - 1, num_stages=_STAGES):",
    ),
    "history-one-too-many": Planted(
        "off-by-one counts",
        "The plan of a window reads one record behind the history",
        "window.py",
        "is_old = o_c < tl.where(flush, 0, count)",
        "is_old = o_c <= tl.where(flush, 0, count)",
    ),
    "fold-newest-value-first": Planted(
        "fold order",
        "The fold goes through keys from the oldest, and through all else from the newest",
        "fold.py",
        "row = (base + t) & (L - 1)",
        "row = (base + count - 1 - t) & (L - 1)",
    ),
    "fold-uses-stored-keys": Planted(
        "derived in place of raw",
        "The fold takes the normalised keys that outputs use, and normalises them once more",
        "window.py",
        "store_unit_keys(p_units, rawk_ring,",
        "store_unit_keys(p_units, k_ring,",
    ),
    "epsilon-left-out": Planted(
        "norm and gate forms",
        "The norm has no epsilon, and a key of zeros becomes NaN",
        "state.py",
        "x = square + NORM_EPS",
        "x = square",
    ),
    "scale-by-the-dimension": Planted(
        "norm and gate forms",
        "Queries are scaled by 1 / K and not by its root",
        "ring.py",
        "K**-0.5 if scale is None else scale,",
        "1.0 / K if scale is None else scale,",
    ),
    "unit-keys-through-half": Planted(
        "narrower type",
        "The fold's unit keys pass through float16",
        "fold.py",
        "o_k[None, :], k[c], mask=mask)",
        "o_k[None, :], k[c].to(tl.float16), mask=mask)",
    ),
    "beta-through-half": Planted(
        "narrower type",
        "Beta is rounded to float16 on its way into the ring",
        "window.py",
        "row_x, beta_x, mask=new_x)",
        "row_x, beta_x.to(tl.float16), mask=new_x)",
    ),
    "folded-state-through-half": Planted(
        "narrower type",
        "A folded state is rounded to float16 on its way into the checkpoint",
        "state.py",
        "[o_v.shape[0], 1, _TILE_K]).to(head.dtype.element_ty)",
        "[o_v.shape[0], 1, _TILE_K]).to(tl.float16).to(head.dtype.element_ty)",
    ),
    "key-heads-interleaved": Planted(
        "head and layer indexing",
        "A value head reads key head hv mod H, where its group is meant",
        "window.py",
        "i_h = first_hv // (HV // H)",
        "i_h = first_hv % H",
    ),
    "decay-by-key-head": Planted(
        "head and layer indexing",
        "A value head decays at the rate whose index is that of its key head",
        "window.py",
        "tl.load(A_log + i_hv)",
        "tl.load(A_log + i_h)",
    ),
    "reset-keeps-the-base": Planted(
        "missing reset",
        "A slot's new owner starts on an empty ring, but at the last owner's base",
        "cursors.py",
        "tl.store(cache_base + slot, zero, mask=live)",
        "pass",
    ),
    "reset-keeps-the-position": Planted(
        "missing reset",
        "A slot's new owner inherits the records of the last one",
        "cursors.py",
        "tl.store(write_pos + slot, zero, mask=live)",
        "pass",
    ),
    "padding-served-from-the-null-slot": Planted(
        "masks and padding",
        "The ring kernel serves a padding row like any other, on slot 0",
        "ring.py",
        "    if slot <= NULL:\n        if PLAIN:",
        "    if slot < NULL:\n        if PLAIN:",
    ),
    "padding-outputs-unwritten": Planted(
        "masks and padding",
        "A padding row returns before it stores, so its outputs are what the memory held",
        "ring.py",
        "tl.store(out + t * stride_o + o_v, zero, mask=o_v < V)",
        "pass",
    ),
    "dead-records-times-zero": Planted(
        "masks and padding",
        "Dead deltas are multiplied by zero, which leaves a NaN what it is",
        "ring.py",
        "d_c = tl.load(p_d, mask=mask_v[:, None] & is_old[None, :], other=0.0)",
        "d_c = tl.load(p_d, mask=mask_v[:, None], other=0.0)",
    ),
    "tokens-miss-their-own-write": Planted(
        "masks and padding",
        "A token's output leaves out what the token itself wrote",
        "window.py",
        "behind = t_x[:, None] + is_key[None, :].to(tl.int32) <= t_x[None, :]",
        "behind = t_x[:, None] < t_x[None, :]",
    ),
    "tail-of-the-window-recorded": Planted(
        "window bounds",
        "A window that is shorter than the longest writes records behind its end",
        "window.py",
        "live_x = t_x < tl.minimum(tl.minimum(length, T), L - count)",
        "live_x = t_x < tl.minimum(T, L - count)",
    ),
    "ring-one-record-short": Planted(
        "window bounds",
        "The last record that the ring has room for is not stored",
        "window.py",
        "live_x = t_x < tl.minimum(tl.minimum(length, T), L - count)",
        "live_x = t_x < tl.minimum(tl.minimum(length, T), L - 1 - count)",
    ),
    "offsets-too-narrow": Planted(
        "offsets and strides",
        "Offsets into the checkpoints wrap at 2^12 elements, so high slots read low ones",
        "ring.py",
        "state + slot * stride_state * UNIT + i_hv * V * K, ALIGN)",
        "state + (slot * stride_state * UNIT & 4095) + i_hv * V * K, ALIGN)",
    ),
    "value-rows-as-long-as-keys": Planted(
        "offsets and strides",
        "The fold reads rows of raw values as if they had K elements; they have V",
        "fold.py",
        "p_v = rawv + row * V",
        "p_v = rawv + row * K",
    ),
    "softplus-overflows": Planted(
        "overflow",
        "Softplus has no linear branch, and log(1 + exp(x)) is infinite from x = 89 on",
        "state.py",
        "tl.where(x <= SOFTPLUS_THRESHOLD, tl.log(1.0 + tl.exp(x)), x)",
        "tl.log(1.0 + tl.exp(x))",
    ),
}
