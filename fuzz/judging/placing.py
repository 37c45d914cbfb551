"""Seating requests in the middle of their protocol, by writing the target's memory directly.

An exhaustive exploration needs every cursor state on the spot, and a shrunk history wants its
prefix replaced by one operation. What a target's own kernels would have stored is computed here by
the recurrence and rounded to the buffers' dtypes, so the derived records (deltas, normalised keys,
gates) agree with the target's own to rounding, not to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.judging import arrays
from ringfold.fuzz.judging.frame import index
from ringfold.fuzz.judging.truth import Window
from ringfold.fuzz.target import Inputs, Request, Target, View
from ringfold.oracle.gdn import Updates, advance, token
from ringfold.sim.cursors import Cursors
from ringfold.sim.dialects import physical


def place(
    target: Target,
    requests: Sequence[Request],
    cursors: Cursors,
    states: NDArray[np.float32],
    inputs: Inputs,
    window: Window,
) -> None:
    """Give seated requests the records and cursors of reachable states, all in one go.

    `cursors` are arrays [row]; `states` [layer, row, HV, V, K] are the checkpoints that the
    requests were admitted with; `inputs` hold the records' tokens [layer, token, ...], packed row
    after row, and `window` what the recurrence makes of them. The target's dialect must own a ring.
    """
    views = target.views()
    ring = views["k"].array.shape[views["k"].buffer.axes.index("ring")]
    rows, positions = np.nonzero(window.live)  # [token]
    seats = [target.seat(request) for request in requests]
    sits = {axis: np.array([seat[axis] for seat in seats]) for axis in ("slot", "request")}
    at = {axis: places[rows] for axis, places in sits.items()}
    at["ring"] = physical(cursors.cache_base[rows], positions, ring)
    updates = Updates(*(x[:, window.live] for x in window.updates))
    group = updates.k.shape[-2] // inputs.k.shape[-2]
    records: dict[str, NDArray[Any]] = {
        "d": deltas(states, window)[:, window.live],
        "k": updates.k[:, :, ::group],
        "g": updates.log_decay,
        "rawv": inputs.v,
        "rawk": inputs.k,
        "beta": updates.beta,
    }
    for name, values in records.items():  # [layer, token, heads(, width)]
        for part, rest in parts(name, values, views):
            # A slice parts the place and ring indices, so their common axis comes first.
            arrays.put(views[part].array, index(views[part].buffer, at), np.moveaxis(rest, 1, 0))
    place_cursors(target, requests, cursors)


def place_cursors(target: Target, requests: Sequence[Request], cursors: Cursors) -> None:
    """Give seated requests these cursors [row] and nothing else."""
    views = target.views()
    for name, values in cursors._asdict().items():
        axis = views[name].buffer.axes[0]
        at = np.array([target.seat(request)[axis] for request in requests])
        arrays.put(views[name].array, (at,), np.asarray(values))


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


def deltas(states: NDArray[np.float32], window: Window) -> NDArray[np.float64]:
    """What each token writes, beta * (v - S k): [layer, row, token, HV, V].

    `states` [layer, row, HV, V, K] are those before it.
    """
    written = np.zeros_like(window.updates.v)
    for some, part in window.blocks(states[:, 0].size):
        now = states[:, some].astype(np.float64)
        for t in range(part.lengths.max(initial=0)):
            _, written[:, some, t] = advance(now, *token(part.updates, t))
    return written
