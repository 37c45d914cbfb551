"""The `ring` protocol: outputs from a frozen checkpoint and the records of the last tokens.

A verify never forms the state: it reads the checkpoint once under the window's queries and keys,
adds what the ring's records contribute, and solves the window's own triangle. A rejection moves
cursors. Rows whose flag is set first *fold*: their raw records are replayed into the checkpoint,
token by token, by the function that the recurrent path uses.

The form of the output path, for tokens i, j of the window and records c of the history:

    S_i = exp(G_i) S_0 + sum over j <= i of exp(G_i - G_j) d_j k_j^T       G: running sum of g
    d_i = beta_i (v_i - exp(G_i) S_0 k_i) - sum over j < i of A_ij d_j
    A_ij = beta_i exp(G_i - G_j) k_i . k_j                                 so d = (I + A)^-1 r
    S_0 = exp(total) checkpoint + sum over c of exp(total - G_c) d_c k_c^T

Source: Yang et al., *Parallelizing Linear Transformers with the Delta Rule* (the UT transform).
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringfold.oracle.gdn import Tokens
from ringfold.sim import cursors as table
from ringfold.sim import dialects, recurrence
from ringfold.sim.cursors import Cursors, Rule
from ringfold.sim.machine import Batch, Ints, Machine, MachineError, Window, as_hardware_does
from ringfold.sim.recurrence import Array, Writes

Mask = NDArray[np.bool_]


class History(NamedTuple):
    """What the live records add to a row's checkpoint; dead records are zero."""

    d: Array  # [layer, row, HV, L, V], decayed to the window's start
    k: Array  # [layer, row, H, L, K]
    decay: Array  # [layer, row, HV], of the checkpoint


class Ring(Machine):
    """The reference machine of the dialect `ring`."""

    dialect = dialects.RING_DIALECT
    rules: ClassVar[tuple[Rule, ...]] = table.COMMIT

    # ------------------------------------------------------------------ operations

    def reset(self, slots: ArrayLike) -> None:
        """Empty the rings: cursors as in the table, records left where they are."""
        self.write_cursors(self.seated(slots), table.reset(self.setup.ring, self.setup.window))

    @as_hardware_does
    def verify(self, slots: ArrayLike, lengths: ArrayLike, tokens: Tokens) -> Array:
        """Fold where due, then reconstruct outputs and record the window; see `Machine.verify`."""
        batch = self.batch(slots, lengths)
        cursors = self.cursors(batch.slots)
        self.fold(batch.slots, cursors)
        window = self.window(tokens, batch)
        outputs, d, k = self.reconstruct(
            self.load_checkpoint(batch.slots), self.history(batch.slots, cursors), window
        )
        self.record(batch, cursors, window, d, k)
        return self.returned(outputs, batch, tokens)

    def commit(self, slots: ArrayLike, accepted: ArrayLike, bound: int) -> None:
        """Move the cursors by the table; see `Machine.commit`."""
        batch = self.batch(slots, accepted)
        self.require_bound(bound)
        moved = self.moved(self.cursors(batch.slots), self.accepted(batch.lengths), bound)
        self.write_cursors(batch.slots, moved)

    def decode(self, slots: ArrayLike, tokens: Tokens) -> Array:
        """A window of one with one accepted."""
        one = np.ones(len(np.atleast_1d(slots)), np.int64)
        outputs = self.verify(slots, one, tokens)
        self.commit(slots, one, self.setup.window)
        return outputs

    # ------------------------------------------------------------------ rules of the cursors

    def physical(self, cache_base: Any, position: Any) -> Any:
        """Ring row of the record at logical `position`."""
        return dialects.physical(cache_base, position, self.setup.ring)

    def accepted(self, counts: Ints) -> Ints:
        """Tokens that join the committed history, the bonus token included."""
        return counts

    def moved(self, before: Cursors, counts: Ints, bound: int) -> Cursors:
        """Cursors after a commit of `counts` tokens: by the table, the flag by `flag`."""
        after = table.commit(before, counts, self.setup.ring, bound, self.rules)
        return after._replace(is_flush=self.flag(after.write_pos, bound))

    def flag(self, write_pos: Any, bound: int) -> Any:
        """Whether the next verify folds."""
        return table.due(write_pos, self.setup.ring, bound)

    def folds(self, cursors: Cursors) -> Mask:
        """[row] whether this verify folds."""
        return np.asarray(cursors.is_flush != 0)

    def live(self, cursors: Cursors) -> Mask:
        """[row, L] logical positions of records that the checkpoint lacks, after any fold."""
        unfolded = np.where(self.folds(cursors), 0, cursors.write_pos)
        return np.asarray(self.positions() < unfolded[:, None])

    def window_position(self, cursors: Cursors) -> Ints:
        """[row, T] logical position of each token of the window: behind the history."""
        return np.asarray(cursors.write_pos[:, None] + np.arange(self.setup.window))

    def window_rows(self, cursors: Cursors, position: Ints) -> Ints:
        """[row, T] ring rows that the window's records go to."""
        return np.asarray(self.physical(cursors.cache_base[:, None], position))

    def fits(self, cursors: Cursors, position: Ints) -> Mask:
        """[row, T] what a verify may write: a ring's length from the base, no further."""
        return np.asarray(position < self.setup.ring)

    # ------------------------------------------------------------------ rules of the fold

    def fold(self, slots: Ints, cursors: Cursors) -> None:
        """Replay the records of rows that are due into their checkpoints."""
        due = self.folds(cursors)
        if not due.any():
            return
        slots, cursors = slots[due], Cursors(*(c[due] for c in cursors))
        state, counts = self.load_checkpoint(slots), self.fold_count(cursors)
        writes = self.fold_writes(slots, cursors, counts)
        for _ in recurrence.replay(state, writes, counts):
            pass
        self.store_checkpoint(slots, state)

    def fold_count(self, cursors: Cursors) -> Ints:
        """[row] how many records a fold replays."""
        return np.asarray(cursors.write_pos, np.int64)

    def fold_rows(self, cursors: Cursors) -> Ints:
        """[row, L] ring rows that a fold reads, in the order of replay."""
        return np.asarray(self.physical(cursors.cache_base[:, None], self.positions()))

    def fold_writes(self, slots: Ints, cursors: Cursors, counts: Ints) -> Writes:
        """The records as the recurrence wants them: raw, the key normalised as for a new token."""
        replayed = self.positions() < counts[:, None]
        at = self.fold_rows(cursors)
        rawk, rawv, g, beta = (
            self.records(name, slots, at, replayed) for name in ("rawk", "rawv", "g", "beta")
        )
        return Writes(self.shared(self.unit(rawk)), rawv, g, beta)

    def waiting(self, slots: Ints) -> Ints:
        """The live ones: between a commit and the next verify nothing is folded."""
        return np.asarray(self.cursors(slots).write_pos)

    def flush(self, slots: Ints) -> None:
        """Fold the records that wait, whatever the flag says, and empty the rings."""
        lagging = slots[self.waiting(slots) > 0]  # adding nothing would make -0.0 of a state 0.0
        due = np.ones(lagging.shape, np.int64)
        self.fold(lagging, self.cursors(lagging)._replace(is_flush=due))
        self.reset(slots)

    def require_flushed(self, slots: Ints) -> None:
        """Raise `MachineError` for a record that waits: a checkpoint alone would be copied."""
        if waiting := int(self.memory["write_pos"][slots].max(initial=0)):
            raise MachineError(
                f"slot {slots[0]} holds {waiting} records that its checkpoint lacks: "
                "fork right after an admission, or when a folding window was rejected whole"
            )

    # ------------------------------------------------------------------ rules of the outputs

    def history(self, slots: Ints, cursors: Cursors) -> History:
        """The live records, decayed to the window's start."""
        live = self.live(cursors)
        at = self.history_rows(cursors)
        d, k, g = (self.records(name, slots, at, live) for name in ("d", "k", "g"))
        decay = self.history_decay(g)
        return History(d * decay[..., None], k, np.exp(g.sum(-1)))

    def history_rows(self, cursors: Cursors) -> Ints:
        """[row, L] ring rows of the records that outputs read, oldest first."""
        return np.asarray(self.physical(cursors.cache_base[:, None], self.positions()))

    def history_decay(self, g: Array) -> Array:
        """[layer, row, HV, L] what is left at the window's start of a record's contribution."""
        return np.asarray(np.exp(g.sum(-1, keepdims=True) - g.cumsum(-1)))

    def unit_for_output(self, x: Array) -> Array:
        """L2 norm of the output path: a multiplication by the reciprocal."""
        return x * (1 / recurrence.norm(x)) if self.setup.l2norm else x

    def reconstruct(
        self, checkpoint: Array, history: History, window: Window
    ) -> tuple[Array, Array, Array]:
        """Outputs [layer, row, HV, T, V], deltas d (likewise) and keys k [layer, row, H, T, K]."""
        operand, T = self.arithmetic.operand, self.setup.window
        q, k = self.unit_for_output(window.q) * self.scale(), self.unit_for_output(window.k)
        columns = operand(np.concatenate([q, k], axis=-2))  # [layer, row, H, 2T, K]
        scores = columns @ transposed(operand(history.k))  # [layer, row, H, 2T, L]
        inner = self.shared(columns @ transposed(columns[..., T:, :]))  # [layer, row, HV, 2T, T]
        held = self.shared(columns) @ transposed(operand(checkpoint))  # [layer, row, HV, 2T, V]
        held = history.decay[..., None, None] * held
        held += self.shared(operand(scores)) @ operand(history.d)

        G = self.running_gates(window.g)  # [layer, row, HV, T]
        beta, faded = window.beta[..., None], np.exp(G)[..., None]
        between = self.decay_between(G)
        A = np.where(self.strictly_causal(), beta * between * inner[..., T:, :], 0)
        F = np.where(self.causal(), between * inner[..., :T, :], 0)
        d = inverse(A) @ (beta * (window.v - faded * held[..., T:, :]))
        return faded * held[..., :T, :] + F @ d, d, k

    def running_gates(self, g: Array) -> Array:
        """Log decay from the window's start up to and with each token."""
        return g.cumsum(-1)

    def decay_between(self, G: Array) -> Array:
        """[..., T, T] what is left at token i of what token j wrote; without meaning for j > i."""
        return np.asarray(np.exp(np.where(self.causal(), G[..., :, None] - G[..., None, :], 0)))

    def causal(self) -> Mask:
        """[T, T] whether token i reads what token j wrote."""
        return np.tri(self.setup.window, dtype=np.bool_)

    def strictly_causal(self) -> Mask:
        """[T, T] whether the delta of token i depends on that of token j."""
        return np.tri(self.setup.window, k=-1, dtype=np.bool_)

    # ------------------------------------------------------------------ rules of the records

    def record(self, batch: Batch, cursors: Cursors, window: Window, d: Array, k: Array) -> None:
        """Write the window's records behind the history."""
        position = self.window_position(cursors)
        real = np.arange(self.setup.window) < batch.lengths[:, None]
        row, t = np.nonzero(real & self.fits(cursors, position))
        at = self.window_rows(cursors, position)[row, t]
        for name, values in self.kept(window, d, k).items():
            memory, heads = self.memory[name], np.arange(values.shape[2])
            memory[:, batch.slots[row][:, None], heads, at[:, None]] = values[
                :, row[:, None], heads, t[:, None]
            ]

    def kept(self, window: Window, d: Array, k: Array) -> dict[str, Array]:
        """What a token's record is made of, [layer, row, heads, T, ...] by buffer."""
        outputs = {"d": d, "k": k, "g": window.g}
        return outputs | {"rawv": window.v, "rawk": window.k, "beta": window.beta}

    def records(self, name: str, slots: Ints, at: Ints, live: Mask) -> Array:
        """Records [layer, row, heads, L, ...] at ring rows `at` [row, L]; zero where not `live`."""
        memory = self.memory[name]
        heads = np.arange(memory.shape[2])[:, None]
        found = memory[:, slots[:, None, None], heads, at[:, None, :]]
        chosen = live[:, None, :].reshape(live.shape[0], 1, live.shape[1], *[1] * (found.ndim - 4))
        return np.where(chosen, found, 0).astype(self.arithmetic.compute)

    # ------------------------------------------------------------------ cursors in memory

    def positions(self) -> Ints:
        """[L] every logical position."""
        return np.arange(self.setup.ring)

    def cursors(self, slots: Ints) -> Cursors:
        """Cursors of `slots`, int64 [row]."""
        return Cursors(*(self.memory[name][slots].astype(np.int64) for name in Cursors._fields))

    def write_cursors(self, slots: Ints, cursors: Cursors) -> None:
        """Store cursors (ints or [row])."""
        for name, values in cursors._asdict().items():
            self.memory[name][slots] = values


def transposed(x: Array) -> Array:
    """Swap the last two axes."""
    return x.swapaxes(-1, -2)


def inverse(A: Array) -> Array:
    """(I + A)^-1 of strictly lower triangular matrices [..., T, T], row after row."""
    T = A.shape[-1]
    result: Array = np.zeros_like(A)
    result += np.eye(T, dtype=A.dtype)
    for i in range(1, T):
        result[..., i, :i] = -(A[..., i, None, :i] @ result[..., :i, :i])[..., 0, :]
    return result
