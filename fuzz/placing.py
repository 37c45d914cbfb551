"""Seating a request in the middle of its protocol, by writing the target's memory directly.

An exhaustive exploration needs every cursor state on the spot, and a shrunk history wants its
prefix replaced by one operation. What a target's own kernels would have stored is computed here by
the recurrence and rounded to the buffers' dtypes, so the derived records (deltas, normalised keys,
gates) agree with the target's own to rounding, not to the bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz import arrays
from ringfold.fuzz.frame import index
from ringfold.fuzz.target import Inputs, Request, Target
from ringfold.oracle.gdn import Updates, advance, token
from ringfold.sim.cursors import Cursors
from ringfold.sim.dialects import physical


def place(
    target: Target,
    request: Request,
    cursors: Cursors,
    state: NDArray[np.float32],
    inputs: Inputs,
    updates: Updates,
) -> None:
    """Give a seated request the records and cursors of a reachable state.

    `state` [layer, HV, V, K] is the checkpoint it was admitted with; `inputs` hold the records'
    tokens [layer, token, ...] and `updates` [layer, 1, token, ...] what the recurrence makes of
    them. A dialect without a ring has no records, so its request is as it was admitted.
    """
    if not target.dialect.has_ring:
        return
    views, seat = target.views(), target.seat(request)
    setup_ring = views["rawk"].array.shape[views["rawk"].buffer.axes.index("ring")]
    positions = np.arange(cursors.write_pos)
    at = {
        "slot": np.full(positions.size, seat["slot"]),
        "ring": physical(cursors.cache_base, positions, setup_ring),
    }
    group = updates.k.shape[-2] // inputs.k.shape[-2]
    records = {
        "d": deltas(state, updates),
        "k": updates.k[:, 0, :, ::group],
        "g": updates.log_decay[:, 0],
        "rawv": inputs.v,
        "rawk": inputs.k,
        "beta": updates.beta[:, 0],
    }
    for name, values in records.items():  # [layer, token, heads(, width)]
        # A slice parts the slot and ring indices, so their common axis comes first.
        arrays.put(views[name].array, index(views[name].buffer, at), np.moveaxis(values, 1, 0))
    for name, value in cursors._asdict().items():
        arrays.fill(views[name].array, (seat["slot"],), int(value))


def deltas(state: NDArray[np.float32], updates: Updates) -> NDArray[np.float64]:
    """What each token writes, beta * (v - S k): [layer, token, HV, V]."""
    now = state[:, None].astype(np.float64)
    tokens = range(updates.v.shape[2])
    written = [advance(now, *token(updates, t))[1][:, 0] for t in tokens]
    return np.stack(written, 1) if written else np.zeros_like(updates.v[:, 0])
