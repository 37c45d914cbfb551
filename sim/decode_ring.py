"""The `decode-ring` protocol: plain decoding that writes the state every L tokens.

A step is one token, and it is kept. Its output needs the state, which checkpoint and records make,

    S = exp(G[n]) checkpoint + sum over records c of exp(G[n] - G[c]) outer(d[c], k[c])

and which is not stored: the step appends its own (d, k, g) to the ring. The step that finds L - 1
records, or is asked to by `is_flush`, stores the state that it arrives at, and the ring is empty.
Whoever is about to read a checkpoint asks: SGLang does where its prefix cache takes a snapshot.
With L = 1 there is never a record, and what is left is plain decoding, bit for bit.

The ring starts at row 0 each time, so `cache_base` stays 0 and L may be any number.

Source: SGLang's buffered decoding (`fused_recurrent_linear_replayssm.py`), every release from
0.5.16 to 0.5.23.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ringfold.oracle.gdn import Tokens
from ringfold.sim import dialects, recurrence
from ringfold.sim.cursors import Cursors
from ringfold.sim.machine import Ints, MachineError, as_hardware_does
from ringfold.sim.precision import rounded
from ringfold.sim.recurrence import Array
from ringfold.sim.ring import Mask, Ring, transposed


class DecodeRing(Ring):
    """The reference machine of the dialect `decode-ring`."""

    dialect = dialects.DECODE_RING_DIALECT

    @as_hardware_does
    def decode(self, slots: ArrayLike, tokens: Tokens) -> Array:
        """One token a row: appended to the ring, or folded with all that waits there."""
        batch = self.batch(slots, np.ones(len(np.atleast_1d(slots)), np.int64))
        before, window = self.cursors(batch.slots), self.window(tokens, batch)
        q, k = self.unit(window.q)[..., 0, :] * self.scale(), self.unit(window.k)[..., 0, :]
        v, g, beta = (x.take(0, 3) for x in (window.v, window.g, window.beta))
        state = self.recalled(batch.slots, before)
        state, d = recurrence.advance_with_delta(state, self.shared(k), v, g, beta)
        outputs = np.zeros_like(window.v)
        outputs[:, :, :, 0] = recurrence.read(state, self.shared(q))

        due = self.folds(before)
        self.store_checkpoint(batch.slots[due], state[:, due])
        at = before.write_pos[~due]
        for name, values in {"d": d, "k": k, "g": g}.items():  # [layer, row, heads, ...]
            memory, heads = self.memory[name], np.arange(values.shape[2])
            memory[:, batch.slots[~due, None], heads, at[:, None]] = values[:, ~due]
        self.write_cursors(batch.slots, self.moved(before, batch.lengths, self.setup.window))
        return self.returned(outputs, batch, tokens)

    def reset(self, slots: ArrayLike) -> None:
        """Empty the rings."""
        self.write_cursors(self.seated(slots), self.dialect.protocol.reset(self.setup.ring, 1))

    def verify(self, slots: ArrayLike, lengths: ArrayLike, tokens: Tokens) -> Array:
        """Raises `MachineError`: nothing is drafted."""
        raise MachineError("decode-ring verifies no drafts: decode, or take another dialect")

    def commit(self, slots: ArrayLike, accepted: ArrayLike, bound: int) -> None:
        """Raises `MachineError`: a decode step commits."""
        raise MachineError("decode-ring commits in its decode step: there is no other commit")

    # ------------------------------------------------------------------ rules

    def folds(self, cursors: Cursors) -> Mask:
        """[row] whether this step stores the state: the ring is full with it, or somebody asks."""
        one = np.ones(np.shape(cursors.write_pos), np.int64)
        return np.asarray(self.dialect.protocol.folded(cursors, one, self.setup.ring, 1) > 0)

    def moved(self, before: Cursors, counts: Ints, bound: int) -> Cursors:
        """Cursors after a step: by the table."""
        return self.dialect.protocol.commit(before, counts, self.setup.ring, bound)

    def recalled(self, slots: Ints, cursors: Cursors) -> Array:
        """The state that checkpoint and records make, [layer, row, HV, V, K]."""
        state, waits = self.load_checkpoint(slots), cursors.write_pos > 0
        if waits.any():
            live = self.positions() < cursors.write_pos[waits, None]
            at = np.broadcast_to(self.positions(), live.shape)
            d, k, g = (self.records(name, slots[waits], at, live) for name in ("d", "k", "g"))
            d = transposed(d * self.history_decay(g)[..., None])
            faded = np.exp(g.sum(-1))[..., None, None] * state[:, waits]
            state[:, waits] = faded + self.operand(d) @ self.shared(self.operand(k))
        return state

    def operand(self, values: Array) -> Array:
        """What the product of deltas and keys takes of either: the activations' dtype of it.

        So the released kernel keeps tensor cores busy; how exactly records are kept is lost here.
        """
        if self.arithmetic.emulates:
            values = rounded(values, self.setup.dtypes.activation)
        return self.arithmetic.operand(values)

    def fold(self, slots: Ints, cursors: Cursors) -> None:
        """Store what checkpoint and records make, no token added."""
        self.store_checkpoint(slots, self.recalled(slots, cursors))
