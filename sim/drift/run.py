"""Walks all cases through a text side by side, and compares what they say at every point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ringfold.oracle import units
from ringfold.sim.drift.study import Case, Study
from ringfold.sim.drift.text import Array, Chunk, Text
from ringfold.sim.drift.track import Bound, Point, Track, points_until
from ringfold.sim.drift.walker import Walker

CHUNK: Final = 1000
"""Tokens of text that are decoded, then walked by every machine, before the next ones."""


def run(
    text: Text,
    walkers: Sequence[Walker],
    at_point: Callable[[list[Bound], list[Track]], object],
    at_step: Callable[[int, Case], None] = lambda tokens, case: None,
) -> tuple[list[Bound], list[Track]]:
    """Walk every case through the text, which must be at its beginning.

    Args:
        text: of a study, which says how long it is.
        walkers: the cases, each opened on this text.
        at_point: called with all that is known whenever a point was reached.
        at_step: called with tokens done and case before each case walks its next chunk.
    """
    study = text.study
    tracks = [Track(walker.case, [], _no_flips(study)) for walker in walkers]
    bounds: list[Bound] = []
    position = 0
    for point in points_until(study.tokens):
        tallies = [Tally(study) for _ in walkers]
        while position < point:
            chunk = text.decode(min(CHUNK, point - position))
            for walker, track, tally in zip(walkers, tracks, tallies, strict=True):
                at_step(position, walker.case)
                flipped = tally.add(chunk, walker.walk(chunk), text)
                _note_first(track, flipped, position, study)
            position += chunk.outputs.shape[2]
        bounds.append(_bound(study, text, point, tallies[0]))
        for walker, track, tally in zip(walkers, tracks, tallies, strict=True):
            track.points.append(_point(study, text, point, walker.represented(), tally))
        at_point(bounds, tracks)
    return bounds, tracks


def _no_flips(study: Study) -> list[list[list[int | None]]]:
    return [[[None] * study.seeds for _ in study.similarities] for _ in study.gates]


def _note_first(track: Track, flipped: NDArray[np.bool_], start: int, study: Study) -> None:
    for gate, row in zip(*np.nonzero(flipped.any(-1)), strict=True):
        similarity, seed = divmod(int(row), study.seeds)
        found = track.first_flip[gate][similarity]
        if found[seed] is None:
            found[seed] = start + int(flipped[gate, row].argmax())


def _bound(study: Study, text: Text, point: int, tally: Tally) -> Bound:
    state = _of_state(units.state_limit(text.units), text)
    return Bound(point, worst(study, state), worst(study, relative(tally.limit, tally.signal)))


def _point(study: Study, text: Text, point: int, state: Array, tally: Tally) -> Point:
    off = units.sizes(state - text.state)  # [gate, row, HV, V]
    return Point(
        point,
        worst(study, _of_state(off, text)),
        worst(study, (off / units.state_limit(text.units)).max((-1, -2))),
        worst(study, relative(tally.square, tally.signal)),
        tally.flips.reshape(study.shape).sum(-1).tolist(),
    )


def _of_state(errors: Array, text: Text) -> Array:
    """Errors of rows [gate, row, HV, V] over the state, the worst head's [gate, row]."""
    heads = relative((errors**2).sum(-1), (units.sizes(text.state) ** 2).sum(-1))
    return np.asarray(heads.max(-1))


class Tally:
    """Sums over the chunks between two points, [gate, row]."""

    def __init__(self, study: Study) -> None:
        batch = (len(study.gates), study.rows)
        self.square, self.signal, self.limit = np.zeros((3, *batch))
        self.flips = np.zeros(batch, np.int64)

    def add(self, chunk: Chunk, outputs: Array, text: Text) -> NDArray[np.bool_]:
        """Count a chunk in; returns which words differ, [gate, row, n]."""
        each = (2, 3, 4)
        self.square += ((outputs - chunk.outputs) ** 2).sum(each)
        self.signal += (chunk.outputs**2).sum(each)
        self.limit += (chunk.output_limit**2).sum(each)
        flipped = text.read(outputs) != chunk.words
        self.flips += flipped.sum(-1)
        return np.asarray(flipped)


def worst(study: Study, values: NDArray[Any]) -> list[list[Any]]:
    """The largest of the seeds: [gate, row] to [gate][similarity], four digits."""
    largest = values.reshape(study.shape).max(-1)
    return [[float(f"{x:.4g}") for x in row] for row in largest]


def relative(square: Array, signal: Array) -> Array:
    """Root of a quotient, zero over zero being zero."""
    return np.asarray(np.sqrt(square / np.maximum(signal, np.finfo(np.float64).tiny)))
