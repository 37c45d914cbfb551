"""The memory floor: bytes that a step of the `ring` protocol must move through the GPU's memory.

Each byte once: every row's state is read; where the row flushes it is written; the window's inputs
are read, its outputs and records written, and the records before it read. No protocol that keeps
one checkpoint a row can do with less than the reading of states, which is most of it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ringfold.fuzz.bench.case import Case, Cycle

BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
FP32: Final = 4


class Traffic(msgspec.Struct, frozen=True):
    """Bytes a step and layer, all rows together."""

    states_read: float
    states_written: float
    inputs: float
    outputs: float
    records_read: float
    records_written: float

    @property
    def bytes(self) -> float:
        """All of it."""
        return float(sum(msgspec.structs.astuple(self)))


def traffic(case: Case, cycle: Cycle) -> Traffic:
    """What must move, from shapes and from how often rows flush.

    A record has d, k, g for outputs and raw v, raw k, g, beta for the fold; g is one of both.
    """
    g, T, width = case.geometry, case.window, BYTES[case.dtype]
    H, HV, K, V = g.heads, g.value_heads, g.key_dim, g.value_dim
    state = HV * V * K * FP32
    token = (2 * H * K + HV * V + 2 * HV) * width
    half = (H * K + HV * V) * width  # d and k, or their raw forms
    gate = HV * FP32
    read = (1 - cycle.flushing) * cycle.history * (half + gate)
    read += cycle.flushing * cycle.folded * (half + 2 * gate)
    return Traffic(
        states_read=case.batch * state,
        states_written=case.batch * cycle.flushing * state,
        inputs=case.batch * T * token,
        outputs=case.batch * T * HV * V * width,
        records_read=case.batch * read,
        records_written=case.batch * T * (2 * half + 2 * gate),
    )
