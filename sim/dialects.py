"""Dialects: what an implementation stores, what each operation may write, what it stands for.

Two implementations of the same technique differ in which buffers they keep, in when they fold and
in what they promise. All of that is a row of `DIALECTS`; the walk that judges them has no branch
on a dialect's name.

Each buffer's axes are named, so that poisoning, framing, comparing, representing and placing are
written once for all targets. Axis names: `layer`, `slot` (physical block of the state pool),
`request` (a running request's own place), `step` (token of a window), `head`, `value_head`,
`ring` (physical record), `k`, `v`, `channel` (queries, keys and values side by side), `tap`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringfold.oracle.gdn import Updates, l2norm, scan
from ringfold.sim.cursors import (
    COMPACT,
    COMPACT_NARROW,
    DECODE_RING,
    NO_RING,
    RING,
    Cursors,
    Protocol,
)
from ringfold.sim.setup import Setup

Role = Literal["state", "record", "gate", "position", "flag", "activation"]
Memory = Mapping[str, NDArray[Any]]


class Buffer(NamedTuple):
    """One array that an implementation keeps: its name, its axes and what its numbers are.

    Roles: `state` (dtype of the checkpoint), `record` (dtype of the ring's records), `gate`
    (float32), `position` (int32), `flag` (int8), `activation` (dtype of the activations).
    """

    name: str
    axes: tuple[str, ...]
    role: Role
    low_part: bool = False
    """What a narrower record dtype cut off another buffer; absent where nothing is cut off."""

    def shape(self, setup: Setup) -> tuple[int, ...]:
        """Its shape in `setup`; a running request's place exists for every slot."""
        g = setup.geometry
        size = {
            "layer": setup.layers,
            "slot": setup.slots,
            "request": setup.slots,
            "step": setup.window,
            "head": g.heads,
            "value_head": g.value_heads,
            "ring": setup.ring,
            "k": g.key_dim,
            "v": g.value_dim,
            "channel": setup.channels,
            "tap": max(setup.convolution - 1, 0),
        }
        return tuple(size[axis] for axis in self.axes)


CONVOLUTION = Buffer("convolution", ("layer", "slot", "channel", "tap"), "activation")
"""The last projections of each request, oldest first, where a convolution stands in front."""
CHECKPOINT = Buffer("checkpoint", ("layer", "slot", "value_head", "v", "k"), "state")
SNAPSHOTS = Buffer("snapshots", ("layer", "request", "step", "value_head", "v", "k"), "state")
RING_CURSORS = (
    Buffer("write_pos", ("slot",), "position"),
    Buffer("cache_base", ("slot",), "position"),
    Buffer("is_flush", ("slot",), "flag"),
)
OUTPUT_RINGS = (
    Buffer("d", ("layer", "slot", "value_head", "ring", "v"), "record"),
    Buffer("k", ("layer", "slot", "head", "ring", "k"), "record"),
    Buffer("g", ("layer", "slot", "value_head", "ring"), "gate"),
)
RINGS = (
    *OUTPUT_RINGS,
    Buffer("rawv", ("layer", "slot", "value_head", "ring", "v"), "record"),
    Buffer("rawk", ("layer", "slot", "head", "ring", "k"), "record"),
    Buffer("beta", ("layer", "slot", "value_head", "ring"), "gate"),
)


WINDOW_RECORDS = (
    Buffer("rawv", ("layer", "slot", "value_head", "step", "v"), "record"),
    Buffer("rawk", ("layer", "slot", "head", "step", "k"), "record"),
    Buffer("g", ("layer", "slot", "value_head", "step"), "gate"),
    Buffer("beta", ("layer", "slot", "value_head", "step"), "gate"),
)
WINDOW_DELTAS = (
    Buffer("d", ("layer", "request", "value_head", "step", "v"), "record"),
    Buffer("k", ("layer", "request", "head", "step", "k"), "record"),
    Buffer("g", ("layer", "request", "value_head", "step"), "gate"),
)
# What plain decoding adds to a state has the state's dtype.
STATE_RINGS = tuple(r._replace(role="state") if r.role == "record" else r for r in OUTPUT_RINGS)
COMPACT_RINGS = (
    Buffer("d", ("layer", "request", "value_head", "ring", "v"), "record"),
    Buffer("k", ("layer", "request", "head", "ring", "k"), "record"),
    Buffer("g", ("layer", "request", "value_head", "ring"), "gate"),
    Buffer("d_low", ("layer", "request", "value_head", "ring", "v"), "record", low_part=True),
    Buffer("k_low", ("layer", "request", "head", "ring", "k"), "record", low_part=True),
)
COMPACT_CURSORS = (
    Buffer("write_pos", ("request",), "position"),
    Buffer("cache_base", ("request",), "position"),
    Buffer("is_flush", ("request",), "flag"),
)


def physical(cache_base: Any, position: Any, L: int) -> Any:
    """Physical ring row of the record at logical `position` (0 is the oldest live one)."""
    return (cache_base + position) % L


def represented_by_ring(memory: Memory, cursors: Cursors, setup: Setup) -> NDArray[np.float64]:
    """The state that checkpoint and raw records stand for, [layer, row, HV, V, K] float64.

    `memory` holds the rows' slots already gathered (axis 1 is the row); `cursors` are arrays
    over rows, their `write_pos` the number of records that the checkpoint lacks.
    """
    L, group = setup.ring, setup.geometry.group
    positions = np.arange(int(np.max(cursors.write_pos, initial=0)))
    at = physical(np.asarray(cursors.cache_base)[:, None], positions, L)  # [row, T]
    rows = np.arange(at.shape[0])[:, None]

    def records(name: str) -> NDArray[np.float64]:  # [layer, row, T, heads, ...]
        # A slice parts the two index arrays, so NumPy puts their axes first: [row, T, layer, ...].
        return np.moveaxis(memory[name][:, rows, :, at].astype(np.float64), 2, 0)

    k, v = records("rawk"), records("rawv")
    if setup.l2norm:
        k = l2norm(k)
    k = np.repeat(k, group, axis=-2)
    updates = Updates(np.zeros_like(k), k, v, records("g"), records("beta"))
    state = memory["checkpoint"].astype(np.float64)
    return scan(state, updates, lengths=np.asarray(cursors.write_pos))[1]


def represented_by_deltas(memory: Memory, cursors: Cursors, setup: Setup) -> NDArray[np.float64]:
    """The state that checkpoint and stored deltas stand for, arguments as `represented_by_ring`.

    exp(G[n]) checkpoint + sum over records c of exp(G[n] - G[c]) outer(d[c], k[c]), where G is the
    running sum of g: whatever was wrong with a delta is part of the state. A record that is kept
    in two parts is their sum.
    """
    L, count = setup.ring, np.asarray(cursors.write_pos)
    positions = np.arange(int(np.max(count, initial=0)))
    at = physical(np.asarray(cursors.cache_base)[:, None], positions, L)  # [row, T]
    rows, live = np.arange(at.shape[0])[:, None], positions < count[:, None]

    def records(name: str) -> NDArray[np.float64]:  # [layer, row, heads, T, ...], dead ones zero
        found = np.moveaxis(memory[name][:, rows, :, at].astype(np.float64), 2, 0)
        if (low := memory.get(f"{name}_low")) is not None:
            found += np.moveaxis(low[:, rows, :, at].astype(np.float64), 2, 0)
        found[:, ~live] = 0.0
        return found.swapaxes(2, 3)

    g = records("g")
    total = g.sum(-1, keepdims=True)
    k = records("k").repeat(setup.geometry.group, axis=2)
    d = records("d") * np.exp(total - g.cumsum(-1))[..., None]
    state = memory["checkpoint"].astype(np.float64)
    return np.asarray(np.exp(total)[..., None] * state + d.swapaxes(-1, -2) @ k)


def represented_by_checkpoint(
    memory: Memory, cursors: Cursors, setup: Setup
) -> NDArray[np.float64]:
    """A checkpoint that lags behind nothing is the committed state."""
    return memory["checkpoint"].astype(np.float64)


class Dialect(NamedTuple):
    """One protocol, as data."""

    name: str
    buffers: tuple[Buffer, ...]
    has_ring: bool
    protocol: Protocol
    verify_writes: tuple[str, ...]
    """Buffers whose window rows (ring rows or steps) a verify writes, for the rows of the batch."""
    commit_writes: tuple[str, ...]
    """Buffers that a commit writes, for the rows of the batch; of checkpoints only those of rows
    that fold (without a ring: of rows that keep a token)."""
    raw_records: tuple[tuple[str, str], ...]
    """Pairs (buffer, input) that must be equal bit for bit after a verify."""
    derived_records: tuple[str, ...]
    """Of `k` (normalised keys, with `k_low` if there is one), `g` and `beta`, those that a verify
    writes: each must be the recurrence's within rounding."""
    represents: tuple[str, ...]
    """Buffers that `represented` reads."""
    represented: Callable[[Memory, Cursors, Setup], NDArray[np.float64]]
    bitwise_fold: bool
    """Whether the checkpoint is claimed to equal, bit for bit, that of the recurrent kernel."""
    bitwise_outputs: bool = False
    """Whether the same is claimed of what a verify returns."""
    state_from_deltas: bool = False
    """Whether the fold adds up stored deltas, so that what was lost on them is lost to the state:
    the limits then allow for the precision of the output path and of the records."""
    narrow_protocol: Protocol | None = None
    """The protocol where the checkpoint is narrower than float32, if it is another."""
    verifies: bool = True
    """Whether it verifies drafts; else it decodes plainly, and a step is one token."""
    decodes_in_place: bool = False
    """Whether a plain decode step advances the checkpoint; else it is a window of one."""
    zeroes_padding: bool = True
    """Whether a padding row's outputs are zero; else they mean nothing."""
    saves: Literal["state", "records"] = "state"
    """What a request takes along to host memory and back: its committed state as one checkpoint, so
    that what waits is folded and its ring starts anew, or checkpoint, records and cursors as they
    are."""
    donates: Literal["state", "checkpoint"] = "state"
    """What a prefix cache gets from a request: its committed state, so that what waits is folded,
    or its checkpoint, so that the prefix ends at the last fold. Both at any cursor value."""

    @property
    def folds_at_verify(self) -> bool:
        """Whether a verify moves waiting records into the checkpoint; else a commit stores."""
        return self.protocol.folds_at == "verify"

    def kept(self, setup: Setup) -> tuple[Buffer, ...]:
        """The buffers that exist in `setup`: low parts only where records are rounded."""
        lossless = setup.dtypes.record in ("float32", "float64")
        return tuple(b for b in self.buffers if not (b.low_part and lossless))


SNAPSHOTS_DIALECT = Dialect(
    name="snapshots",
    buffers=(CHECKPOINT, SNAPSHOTS),
    has_ring=False,
    protocol=NO_RING,
    verify_writes=("snapshots",),
    commit_writes=("checkpoint",),
    raw_records=(),
    derived_records=(),
    represents=("checkpoint",),
    represented=represented_by_checkpoint,
    bitwise_fold=False,
    decodes_in_place=True,
    zeroes_padding=False,
)

RING_DIALECT = Dialect(
    name="ring",
    buffers=(CHECKPOINT, *RINGS, *RING_CURSORS),
    has_ring=True,
    protocol=RING,
    verify_writes=tuple(ring.name for ring in RINGS),
    commit_writes=tuple(cursor.name for cursor in RING_CURSORS),
    raw_records=(("rawk", "k"), ("rawv", "v")),
    derived_records=("k", "g", "beta"),
    represents=("checkpoint", "rawv", "rawk", "g", "beta"),
    represented=represented_by_ring,
    bitwise_fold=True,
    saves="records",
    donates="checkpoint",
)

FOLD_EVERY_COMMIT_DIALECT = Dialect(
    name="fold-every-commit",
    buffers=(CHECKPOINT, *WINDOW_RECORDS),
    has_ring=False,
    protocol=NO_RING,
    verify_writes=tuple(record.name for record in WINDOW_RECORDS),
    commit_writes=("checkpoint",),
    raw_records=(("rawk", "k"), ("rawv", "v")),
    derived_records=("g", "beta"),
    represents=("checkpoint",),
    represented=represented_by_checkpoint,
    bitwise_fold=True,
    bitwise_outputs=True,
    zeroes_padding=False,
)

COMPACT_DIALECT = Dialect(
    name="compact",
    buffers=(CHECKPOINT, *COMPACT_RINGS, *COMPACT_CURSORS),
    has_ring=True,
    protocol=COMPACT,
    narrow_protocol=COMPACT_NARROW,
    verify_writes=tuple(ring.name for ring in COMPACT_RINGS),
    commit_writes=("checkpoint", *(cursor.name for cursor in COMPACT_CURSORS)),
    raw_records=(),
    derived_records=("k", "g"),
    represents=("checkpoint", *(ring.name for ring in COMPACT_RINGS)),
    represented=represented_by_deltas,
    bitwise_fold=False,
    state_from_deltas=True,
)

OPEN_LOOP_DIALECT = Dialect(
    name="open-loop",
    buffers=(CHECKPOINT, *OUTPUT_RINGS, *RING_CURSORS),
    has_ring=True,
    protocol=RING,
    verify_writes=tuple(ring.name for ring in OUTPUT_RINGS),
    commit_writes=tuple(cursor.name for cursor in RING_CURSORS),
    raw_records=(),
    derived_records=("k", "g"),
    represents=("checkpoint", "d", "k", "g"),
    represented=represented_by_deltas,
    bitwise_fold=False,
    state_from_deltas=True,
    saves="records",
    donates="checkpoint",
)

LINEAR_CACHE_DIALECT = Dialect(
    name="linear-cache",
    buffers=(CHECKPOINT, *WINDOW_DELTAS),
    has_ring=False,
    protocol=NO_RING,
    verify_writes=tuple(record.name for record in WINDOW_DELTAS),
    commit_writes=("checkpoint",),
    raw_records=(),
    derived_records=("k", "g"),
    represents=("checkpoint",),
    represented=represented_by_checkpoint,
    bitwise_fold=False,
    state_from_deltas=True,
    zeroes_padding=False,
)

DECODE_RING_DIALECT = Dialect(
    name="decode-ring",
    buffers=(CHECKPOINT, *STATE_RINGS, *RING_CURSORS),
    has_ring=True,
    protocol=DECODE_RING,
    verify_writes=tuple(ring.name for ring in STATE_RINGS),
    commit_writes=("checkpoint", *(cursor.name for cursor in RING_CURSORS)),
    raw_records=(),
    derived_records=("g",),  # SGLang rounds a key to the activations' dtype and stores it wider
    represents=("checkpoint", "d", "k", "g"),
    represented=represented_by_deltas,
    bitwise_fold=False,
    state_from_deltas=True,
    verifies=False,
    decodes_in_place=True,
)

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        SNAPSHOTS_DIALECT,
        RING_DIALECT,
        FOLD_EVERY_COMMIT_DIALECT,
        COMPACT_DIALECT,
        OPEN_LOOP_DIALECT,
        LINEAR_CACHE_DIALECT,
        DECODE_RING_DIALECT,
    )
}

VERIFIERS: Mapping[str, Dialect] = {name: d for name, d in DIALECTS.items() if d.verifies}
"""Those that verify drafts."""


def protocol_of(setup: Setup) -> Protocol:
    """How the cursors of the setup's dialect move."""
    dialect = DIALECTS[setup.dialect]
    narrow = setup.dtypes.state in ("bfloat16", "float16")
    return dialect.narrow_protocol if narrow and dialect.narrow_protocol else dialect.protocol
