"""One ring, two owners: SGLang's flags, and which path moves the cursors under which of them.

Buffered decoding and the verification of drafts keep (d, k, g) in the same buffers and count in
the same `write_pos` (0.5.16; from 0.5.20 on the verification has cursors of its own, by request).
They count differently: one adds a token a step and starts over at L, the other adds what was
accepted and moves a base. So whoever owns the ring is the only one to move it. The other path is
then not a ring at all: plain decoding steps the checkpoint in place, and a verify keeps snapshots.

A token that is decoded in place while the ring of the same request holds records is lost on the
ring's own account of the state; that is why nothing decodes plainly while drafts are verified.

Source: SGLang 0.5.16, `hybrid_linear_attn_backend.py` (which gates on the flag of the decode ring)
and `server_args.py` (which refuses both flags together).
"""

from __future__ import annotations

from typing import NamedTuple

from ringfold.sim.cursors import DECODE_RING, RING, Cursors


class Flags(NamedTuple):
    """What the server was started with."""

    decode_ring: bool
    """`--enable-linear-replayssm`"""
    spec_ring: bool
    """`--enable-gdn-replayssm-spec`, from 0.5.17 on `--enable-linear-replayssm-spec`"""

    @property
    def refusal(self) -> str:
        """Why no server starts with these; empty if one does."""
        if self.decode_ring and self.spec_ring:
            return "both rings share their buffers and a cursor: enable one of them"
        return ""


def after_decode(cursors: Cursors, flags: Flags, L: int) -> Cursors:
    """Cursors after one token of plain decoding."""
    return DECODE_RING.commit(cursors, 1, L, 1) if flags.decode_ring else cursors


def after_verify(cursors: Cursors, flags: Flags, accepted: int, L: int, T: int) -> Cursors:
    """Cursors after a verify and the commit of `accepted` of its tokens."""
    return RING.commit(cursors, accepted, L, T) if flags.spec_ring else cursors
