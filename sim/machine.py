"""The reference machine: memory, slots and batches, common to every protocol.

It stores what an implementation stores, buffer by buffer, in arrays that whoever drives it may
read, frame, poison and place through. Each rule that an implementation could get wrong is a small
method of its own, so that a subclass with one method overridden is a planted bug.

`ringfold.sim.snapshots` and `ringfold.sim.ring` are the protocols.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringfold.oracle.gdn import Tokens
from ringfold.sim import recurrence
from ringfold.sim.dialects import CHECKPOINT, Buffer, Dialect
from ringfold.sim.precision import EXACT, Arithmetic
from ringfold.sim.recurrence import Array
from ringfold.sim.setup import NULL_SLOT, Setup

Ints = NDArray[np.int64]
Saved = Mapping[str, Array]
"""What host memory keeps of one request, by the name of the buffer."""


class MachineError(ValueError):
    """An operation that no history may contain."""


as_hardware_does: Final = np.errstate(over="ignore", invalid="ignore")
"""Decorates an operation that overflows and makes NaN silently, as an accelerator does."""


class Batch(NamedTuple):
    """The rows of a batch that are not padding."""

    rows: Ints  # [row] places in the batch
    slots: Ints  # [row]
    lengths: Ints  # [row] tokens in each window


class Window(NamedTuple):
    """Inputs of a batch's windows; what stands behind a row's length is zero."""

    q: Array  # [layer, row, H, T, K]
    k: Array  # [layer, row, H, T, K]
    v: Array  # [layer, row, HV, T, V]
    g: Array  # [layer, row, HV, T]
    beta: Array  # [layer, row, HV, T]


class Machine(ABC):
    """One pool of slots that follows one protocol.

    Args:
        setup: what to simulate; its `dialect` is the machine's.
        A_log: [layer, HV], or [HV] for all layers.
        dt_bias: likewise.
        arithmetic: `EXACT` (float64), `EMULATED` or `EMULATED_TF32`.
    """

    dialect: ClassVar[Dialect]

    def __init__(
        self,
        setup: Setup,
        A_log: ArrayLike,
        dt_bias: ArrayLike,
        arithmetic: Arithmetic = EXACT,
    ) -> None:
        if setup.dialect != self.dialect.name:
            raise MachineError(
                f"{type(self).__name__} follows the dialect {self.dialect.name!r}, but the setup "
                f"names {setup.dialect!r}: build the machine with ringfold.sim.protocols.machine"
            )
        self.setup = setup
        self.arithmetic = arithmetic
        per_head = (setup.layers, setup.geometry.value_heads)
        self.A_log = np.broadcast_to(np.asarray(A_log, arithmetic.compute), per_head)
        self.dt_bias = np.broadcast_to(np.asarray(dt_bias, arithmetic.compute), per_head)
        self.memory: dict[str, Array] = {
            buffer.name: np.zeros(buffer.shape(setup), arithmetic.storage(setup, buffer.role))
            for buffer in self.dialect.kept(setup)
        }

    # ------------------------------------------------------------------ operations

    def admit(self, slots: ArrayLike, states: ArrayLike) -> None:
        """Seat requests after their prefill: states [layer, row, HV, V, K] are committed."""
        at = self.seated(slots)
        self.store_checkpoint(at, np.asarray(states))
        self.reset(at)

    @abstractmethod
    def reset(self, slots: ArrayLike) -> None:
        """Start slots over on the checkpoint that lies in them."""

    @abstractmethod
    def verify(self, slots: ArrayLike, lengths: ArrayLike, tokens: Tokens) -> Array:
        """Outputs of each row's window from its committed state, which stays as it is.

        Args:
            slots: [row]; at or under the null slot is padding: outputs zero, nothing touched.
            lengths: [row], tokens in each window.
            tokens: [layer, row, T, ...]; what stands behind a row's length is never read.

        Returns:
            Outputs [layer, row, T, HV, V], zero behind a row's length, in the dtype of the
            activations (float64 in an exact machine).
        """

    @abstractmethod
    def commit(self, slots: ArrayLike, accepted: ArrayLike, bound: int) -> None:
        """Commit the first `accepted` [row] tokens of each row's window, for all layers.

        `bound` is the longest window that the next verify may bring.
        """

    @abstractmethod
    def decode(self, slots: ArrayLike, tokens: Tokens) -> Array:
        """One token a row, committed at once; tokens [layer, row, 1, ...], outputs as `verify`."""

    def copy(self, source: int, destination: int) -> None:
        """Fork: seat a request on a copy of the checkpoint of `source`."""
        origin = self.seated([source])
        self.require_flushed(origin)
        self.admit([destination], self.memory[CHECKPOINT.name].take(origin, 1))

    def save(self, slot: int) -> Saved:
        """Retract a request: what host memory keeps of it, by buffer."""
        at = self.seated([slot])
        if self.dialect.saves == "state":
            self.flush(at)
        return {
            buffer.name: self.memory[buffer.name][self.rows_of(buffer, at)].copy()
            for buffer in self.saved()
        }

    def restore(self, slot: int, saved: Saved) -> None:
        """Seat a request that was saved, in any slot."""
        at = self.seated([slot])
        self.reset(at)
        for buffer in self.saved():
            self.memory[buffer.name][self.rows_of(buffer, at)] = saved[buffer.name]

    def donate(self, slot: int) -> None:
        """Leave the slot's checkpoint to a prefix cache; its ring is empty from now on."""
        at = self.seated([slot])
        if self.dialect.donates == "state":
            self.flush(at)
        self.reset(at)

    def hit(self, prefix: int, slot: int) -> None:
        """Seat a request on a copy of the checkpoint that the slot `prefix` keeps."""
        self.admit([slot], self.memory[CHECKPOINT.name].take(self.seated([prefix]), 1))

    # ------------------------------------------------------------------ rules

    def is_padding(self, slots: Ints) -> NDArray[np.bool_]:
        """Rows that belong to no request."""
        return slots <= NULL_SLOT

    def places(self, slots: Ints) -> Ints:
        """Index of each request on a `request` axis: here its slot is also its place."""
        return slots

    def key_heads(self) -> Ints:
        """[HV] the key head that each value head reads."""
        g = self.setup.geometry
        return np.arange(g.value_heads) // g.group

    def unit(self, x: Array) -> Array:
        """L2 norm of the recurrent path and of the fold: a division."""
        return x / recurrence.norm(x) if self.setup.l2norm else x

    def scale(self) -> Any:
        """What queries are multiplied by."""
        return self.arithmetic.compute.type(self.setup.geometry.key_dim**-0.5)

    def gates(self, a: Array, b: Array) -> tuple[Array, Array]:
        """Log decay and beta [layer, row, T, HV]."""
        A_log, dt_bias = self.A_log[:, None, None], self.dt_bias[:, None, None]
        return recurrence.gates(a, b, A_log, dt_bias, self.arithmetic.softplus_linear_from)

    @abstractmethod
    def waiting(self, slots: Ints) -> Ints:
        """[row] records that each checkpoint lacks."""

    @abstractmethod
    def flush(self, slots: Ints) -> None:
        """Fold whatever waits, and start over on the checkpoint."""

    def saved(self) -> tuple[Buffer, ...]:
        """What a request takes along to host memory."""
        if self.dialect.saves == "state":
            return (CHECKPOINT,)
        return self.dialect.kept(self.setup)

    def rows_of(self, buffer: Buffer, slots: Ints) -> tuple[slice | Ints, ...]:
        """Index of what belongs to the owners of `slots` in a buffer."""
        axis = next(axis for axis in buffer.axes if axis in ("slot", "request"))
        before = (slice(None),) * buffer.axes.index(axis)
        return (*before, slots if axis == "slot" else self.places(slots))

    @abstractmethod
    def require_flushed(self, slots: Ints) -> None:
        """Raise `MachineError` for a slot whose checkpoint lags behind its committed state."""

    # ------------------------------------------------------------------ rows and memory

    def batch(self, slots: ArrayLike, lengths: ArrayLike) -> Batch:
        """The rows that are not padding; raises `MachineError` for a slot or length too large."""
        every, counts = np.asarray(slots, np.int64), np.asarray(lengths, np.int64)
        self.seated(every[every > NULL_SLOT])
        rows, T = np.flatnonzero(~self.is_padding(every)), self.setup.window
        wrong = rows[(counts[rows] < 0) | (counts[rows] > T)]
        if wrong.size:
            row = wrong[0]
            raise MachineError(
                f"row {row} (slot {every[row]}): {counts[row]} tokens, but a window holds 0..{T}: "
                "shorten it, or build the setup with a longer window"
            )
        return Batch(rows, every[rows], counts[rows])

    def seated(self, slots: ArrayLike) -> Ints:
        """`slots` as an array; raises `MachineError` unless each is a request's and named once."""
        at = np.asarray(slots, np.int64)
        if np.any((at <= NULL_SLOT) | (at >= self.setup.slots)):
            raise MachineError(
                f"slots are {at.tolist()}, but must be in {NULL_SLOT + 1}..{self.setup.slots - 1}: "
                "take them from Slots, or build the setup with more"
            )
        if np.unique(at).size != at.size:
            raise MachineError(f"slots are {at.tolist()}: each may stand in one row of a batch")
        return at

    def require_bound(self, bound: int) -> None:
        """Raise `MachineError` unless the next window may be `bound` tokens long."""
        if not 1 <= bound <= self.setup.window:
            raise MachineError(
                f"bound is {bound}, but must be in 1..{self.setup.window}: "
                "it is the longest window that the next verify may bring"
            )

    def window(self, tokens: Tokens, batch: Batch) -> Window:
        """Inputs of the batch, cut at each row's length and padded to the setup's window.

        The padding makes every dot product of a setup the same shape, so its rounding does not
        depend on the other rows. Raises `MachineError` where tokens are missing.
        """
        T, compute = self.setup.window, self.arithmetic.compute
        given = min(tokens.q.shape[2], T)
        if batch.lengths.max(initial=0) > given:
            raise MachineError(
                f"windows of {batch.lengths.max()} tokens, but only {given} were passed: "
                "pad the tokens to the longest window"
            )
        real = np.arange(T) < batch.lengths[:, None]  # [row, T]

        def load(x: Array) -> Array:  # [layer, row, T, ...]
            padded = np.zeros((x.shape[0], batch.rows.size, T, *x.shape[3:]), compute)
            padded[:, real] = x[:, batch.rows, :given][:, real[:, :given]]
            return padded

        q, k, v, a, b = map(load, tokens)
        g, beta = (np.where(real[:, :, None], x, 0) for x in self.gates(a, b))
        return Window(*(np.ascontiguousarray(x.swapaxes(2, 3)) for x in (q, k, v, g, beta)))

    def shared(self, x: Array) -> Array:
        """Give each value head its key head's: [layer, row, H, ...] to [layer, row, HV, ...]."""
        return x.take(self.key_heads(), 2)

    def load_checkpoint(self, slots: Ints) -> Array:
        """States [layer, row, HV, V, K] in the dtype that the machine computes in."""
        return self.memory[CHECKPOINT.name].take(slots, 1).astype(self.arithmetic.compute)

    def store_checkpoint(self, slots: Ints, states: Array) -> None:
        """Write states [layer, row, HV, V, K], rounding them to the checkpoint's dtype."""
        self.memory[CHECKPOINT.name][:, slots] = states

    def returned(self, outputs: Array, batch: Batch, tokens: Tokens) -> Array:
        """Outputs [layer, row, HV, T, V] of the batch's rows as a verify returns them."""
        layers, rows, T = tokens.v.shape[:3]
        every = np.zeros((layers, rows, *tokens.v.shape[2:]), self.arithmetic.output(self.setup))
        real = np.arange(T) < batch.lengths[:, None]
        every[:, batch.rows] = np.where(
            real[:, :, None, None], outputs[:, :, :, :T].swapaxes(2, 3), 0
        )
        return every
