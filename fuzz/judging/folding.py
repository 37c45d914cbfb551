"""What a fold of stored deltas may be off by, apart from what the deltas lost before.

Where deltas become state, their errors do, and under records of 16 bits those are large. But the
records say exactly which state they and the checkpoint stand for. Storing that costs a fold its own
roundings and no more, so it is judged by those: a state that went through a narrower type on its
way, or a part of a record that was left out, lies far beyond them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.judging.truth import Losses, lost_by_decays
from ringfold.oracle.units import ROUNDINGS, Units, round_state, sizes
from ringfold.sim.cursors import Cursors
from ringfold.sim.dialects import Memory, physical, represented_by_deltas
from ringfold.sim.setup import Setup

Array = NDArray[np.float64]


def fold_error(
    memory: Memory,
    cursors: Cursors,
    setup: Setup,
    state: Array,
    losses: Losses,
    underflow: float,
    rounding: tuple[float, float],
) -> Array:
    """Error units of a fold of these checkpoints and records, [layer, row, HV, V].

    `memory` and `cursors` are those before it, as `represented_by_deltas` has them, `state` what
    they stand for. `underflow` is what a decay loses of what was never decayed, and `rounding` what
    storing the result does, relatively and absolutely.
    """
    sized = _sizes(memory)
    mass = represented_by_deltas(sized, cursors, setup)[..., 0]
    undecayed = {**sized, "g": np.zeros_like(sized["g"])}
    held = represented_by_deltas(undecayed, cursors, setup)[..., 0]
    units = Units(ROUNDINGS * mass, mass)
    units = losses.folded(units, lost_by_decays(_running(memory, cursors, setup)), underflow * held)
    return np.asarray(round_state(units, state, *rounding).error)


def _sizes(memory: Memory) -> dict[str, NDArray[Any]]:
    """The same memory with keys, and rows of the state, as wide as one: their sizes."""

    def whole(name: str) -> Array:
        high = memory[name].astype(np.float64)
        return high + memory[low] if (low := f"{name}_low") in memory else high

    with np.errstate(invalid="ignore"):  # dead records may be NaN
        return {
            "checkpoint": sizes(memory["checkpoint"].astype(np.float64))[..., None],
            "d": np.abs(whole("d")),
            "k": sizes(whole("k"))[..., None],
            "g": memory["g"],
        }


def _running(memory: Memory, cursors: Cursors, setup: Setup) -> Array:
    """The records' running sum of gates, and the sum of all its values: [2, layer, row, HV]."""
    count = np.asarray(cursors.write_pos)
    positions = np.arange(int(np.max(count, initial=0)))
    at = physical(np.asarray(cursors.cache_base)[:, None], positions, setup.ring)  # [row, T]
    g = memory["g"][:, np.arange(len(count))[:, None], :, at].astype(np.float64)  # rows, T first
    g = np.where((positions < count[:, None])[..., None, None], np.abs(g), 0.0)
    running = g.cumsum(1).transpose(2, 0, 3, 1)  # [layer, row, HV, T]
    return np.stack([running[..., -1], running.sum(-1)])
