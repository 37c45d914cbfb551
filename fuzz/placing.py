"""Seating a request in the middle of its protocol, by writing the target's memory directly.

An exhaustive exploration needs every cursor state on the spot, and a shrunk history wants its
prefix replaced by one operation. What a target's own kernels would have stored is computed here by
the recurrence and rounded to the buffers' dtypes, so the derived records (deltas, normalised keys,
gates) agree with the target's own to rounding, not to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz import arrays
from ringfold.fuzz.frame import index
from ringfold.fuzz.target import Inputs, Request, Target, View
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
    ring = views["k"].array.shape[views["k"].buffer.axes.index("ring")]
    positions = np.arange(cursors.write_pos)
    at = {axis: np.full(positions.size, seat[axis]) for axis in ("slot", "request")}
    at["ring"] = physical(cursors.cache_base, positions, ring)
    group = updates.k.shape[-2] // inputs.k.shape[-2]
    records: dict[str, NDArray[Any]] = {
        "d": deltas(state, updates),
        "k": updates.k[:, 0, :, ::group],
        "g": updates.log_decay[:, 0],
        "rawv": inputs.v,
        "rawk": inputs.k,
        "beta": updates.beta[:, 0],
    }
    for name, values in records.items():  # [layer, token, heads(, width)]
        for part, rest in parts(name, values, views):
            # A slice parts the place and ring indices, so their common axis comes first.
            arrays.put(views[part].array, index(views[part].buffer, at), np.moveaxis(rest, 1, 0))
    for name, value in cursors._asdict().items():
        arrays.fill(views[name].array, (seat[views[name].buffer.axes[0]],), int(value))


def parts(
    name: str, values: NDArray[Any], views: Mapping[str, View]
) -> Iterator[tuple[str, NDArray[Any]]]:
    """What each of the buffers that keep this record has to hold: itself, and its low part."""
    if name not in views:
        return
    yield name, values
    if (low := f"{name}_low") in views:
        kept = arrays.to_numpy(arrays.like(values, views[name].array)).astype(np.float64)
        yield low, values - kept


def deltas(state: NDArray[np.float32], updates: Updates) -> NDArray[np.float64]:
    """What each token writes, beta * (v - S k): [layer, token, HV, V]."""
    now = state[:, None].astype(np.float64)
    tokens = range(updates.v.shape[2])
    written = [advance(now, *token(updates, t))[1][:, 0] for t in tokens]
    return np.stack(written, 1) if written else np.zeros_like(updates.v[:, 0])
