"""Bytes that a step must move, protocol by protocol, and the time that takes at a bandwidth.

Counted is what cannot be avoided if nothing is kept on the chip between a verify and its commit:
a state is read once where it is needed and written once where it changes, records likewise. A
kernel that reads a state twice, or whose programs wait for one another, takes longer.

Of the time beyond the bytes one part decides which ring is best: kernels compute on all rows of a
ring, live or not, so it grows with the length. That part is one measured constant. All else is the
same for every length: launches, a window's products with the state, and folding, since every
accepted record is folded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from ringfold.sim.dialects import DIALECTS
from ringfold.sim.engine.statistics import Statistics, serve
from ringfold.sim.engine.workload import Workload
from ringfold.sim.memory import Pool
from ringfold.sim.precision import DTYPES

RING_ROW_READINGS: Final = 3.4
"""What computing on a row of the ring costs, in readings of its vectors.

Our kernels on one H200, 64 rows, H=16, HV=32, K=V=128, T=4, bfloat16: 64 ring rows took 31 us more
beyond their bytes than 16 (docs/simulate.md), where reading a row in all 64 takes 0.18 us."""


class Sizes(msgspec.Struct, frozen=True):
    """Bytes of one layer of one row."""

    window: int  # tokens
    state: int
    vectors: int  # a token's delta (or value) and key
    state_vectors: int  # the same in the dtype of the state
    gate: int  # one float32 a value head
    parts: int  # that a compact record's vectors are kept in
    through: int  # a window's inputs and outputs


class Traffic(msgspec.Struct, frozen=True):
    """Mean bytes of one row, one layer and one step, verify and commit."""

    state_read: float
    state_written: float
    records_read: float
    records_written: float
    inputs_and_outputs: float

    @property
    def bytes(self) -> float:
        """All of them."""
        return float(sum(msgspec.structs.astuple(self)))


def sizes(pool: Pool) -> Sizes:
    """Bytes of one layer of one row of `pool`."""
    g, T = pool.geometry, pool.window
    state, record = DTYPES[pool.state_dtype].itemsize, DTYPES[pool.conv_dtype].itemsize
    values, keys = g.value_heads * g.value_dim, g.heads * g.key_dim
    return Sizes(
        T,
        values * g.key_dim * state,
        (values + keys) * record,
        (values + keys) * state,
        4 * g.value_heads,
        1 if pool.conv_dtype == "float32" else 2,
        T * (2 * keys + 2 * values + 2 * g.value_heads) * record,
    )


def _snapshots(s: Sizes, seen: Statistics) -> Traffic:
    # The commit copies one snapshot into the checkpoint.
    return Traffic(2 * s.state, (s.window + 1) * s.state, 0, 0, s.through)


def _ring(s: Sizes, seen: Statistics) -> Traffic:
    output, raw = s.vectors + s.gate, s.vectors + 2 * s.gate  # g serves both
    return Traffic(
        s.state,
        seen.fold_share * s.state,
        seen.live * output + seen.folded * raw,
        s.window * (2 * s.vectors + 2 * s.gate),
        s.through,
    )


def _fold_every_commit(s: Sizes, seen: Statistics) -> Traffic:
    raw = s.vectors + 2 * s.gate
    return Traffic(2 * s.state, s.state, seen.accepted * raw, s.window * raw, s.through)


def _compact(s: Sizes, seen: Statistics) -> Traffic:
    output, record = s.vectors + s.gate, s.parts * s.vectors + s.gate
    return Traffic(
        (1 + seen.fold_share) * s.state,  # once for outputs, once more for the fold
        seen.fold_share * s.state,
        seen.live * output + seen.folded * record,  # outputs read the high parts alone
        s.window * record,
        s.through,
    )


def _linear_cache(s: Sizes, seen: Statistics) -> Traffic:
    record = s.vectors + s.gate
    return Traffic(2 * s.state, s.state, seen.accepted * record, s.window * record, s.through)


def _decode_ring(s: Sizes, seen: Statistics) -> Traffic:
    # A step is one token; the one that folds appends no record. Records have the state's dtype.
    record = s.state_vectors + s.gate
    return Traffic(
        s.state,
        seen.fold_share * s.state,
        seen.live * record,
        (1 - seen.fold_share) * record,
        s.through / s.window,
    )


def _open_loop(s: Sizes, seen: Statistics) -> Traffic:
    record = s.vectors + s.gate
    return Traffic(
        s.state,
        seen.fold_share * s.state,
        (seen.live + seen.folded) * record,
        s.window * record,
        s.through,
    )


TRAFFIC: Final[Mapping[str, Callable[[Sizes, Statistics], Traffic]]] = {
    "snapshots": _snapshots,
    "ring": _ring,
    "fold-every-commit": _fold_every_commit,
    "compact": _compact,
    "open-loop": _open_loop,
    "linear-cache": _linear_cache,
    "decode-ring": _decode_ring,
}


class Prediction(msgspec.Struct, frozen=True):
    """One protocol on one workload."""

    dialect: str
    ring: int | None
    """None for a protocol without one."""
    window: int
    statistics: Statistics
    traffic: Traffic
    bytes_per_token: float
    """Of one row and layer, for each token accepted."""
    step_microseconds: float
    """What the bytes of a step of a full batch take, one layer, at the given bandwidth."""
    token_microseconds: float
    """The same for each token that it accepts."""
    work_microseconds: float
    """What computing on the ring's rows adds to a step; 0 without a ring."""


def predict(
    dialect: str,
    pool: Pool,
    load: Workload,
    bandwidth: float,
    readings: float = RING_ROW_READINGS,
) -> Prediction:
    """What a step of `load` takes at `bandwidth` bytes a second.

    The ring and the window are the workload's; `pool` gives heads and dtypes. `readings` is what
    computing on a row of the ring costs, in readings of its vectors.
    """
    pool = msgspec.structs.replace(pool, window=load.window, ring=load.ring)
    chosen = DIALECTS[dialect]
    narrow = pool.state_dtype != "float32" and chosen.narrow_protocol
    seen = serve(load, chosen, narrow or None)
    size = sizes(pool)
    moved = TRAFFIC[dialect](size, seen)
    rows = min(load.running, load.requests)
    step = rows * moved.bytes / bandwidth * 1e6
    return Prediction(
        dialect,
        load.ring if chosen.has_ring else None,
        load.window,
        seen,
        moved,
        moved.bytes / seen.accepted,
        step,
        step / (rows * seen.accepted),
        rows * load.ring * size.vectors * readings / bandwidth * 1e6 if chosen.has_ring else 0.0,
    )


def recommended(times: Mapping[int, float], slack: float = 0.01) -> int:
    """The shortest ring whose time, of `times` by length, is within `slack` of the best.

    Shortest, since memory counts too.
    """
    best = min(times.values())
    return min(ring for ring, time in times.items() if time <= (1 + slack) * best)
