"""What was seen of a case on its way: errors and flips at points that lie ever farther apart."""

from __future__ import annotations

import msgspec

from ringfold.sim.drift.study import Case


class Point(msgspec.Struct, frozen=True):
    """What was seen from the last point up to `tokens`; arrays are [gate][similarity].

    The worst of all seeds and heads.
    """

    tokens: int
    state: list[list[float]]
    """Error of the state at the point, Frobenius norm over that of the state."""
    state_units: list[list[float]]
    """The same a row, over the limit of `units.state_limit`; under 1 is a right fp32 machine."""
    output: list[list[float]]
    """Error of the outputs since the last point, root mean square over that of the outputs."""
    flips: list[list[int]]
    """Words since the last point that differ from the text's, of all seeds."""


class Bound(msgspec.Struct, frozen=True):
    """The theoretical bound at a point, relative as the errors are, [gate][similarity]."""

    tokens: int
    state: list[list[float]]
    output: list[list[float]]
    """Of outputs whose dot products are float32."""


class Track(msgspec.Struct):
    """All that was seen of one case."""

    case: Case
    points: list[Point]
    first_flip: list[list[list[int | None]]]
    """Token of the first flip, [gate][similarity][seed]; None if there was none."""


def cut(track: Track, tokens: int) -> Track:
    """What was seen until `tokens`, as a shorter study of the same texts would have found it.

    A text's beginning does not depend on its length. No points if there was none at `tokens`.
    """
    points = [point for point in track.points if point.tokens <= tokens]
    if not points or points[-1].tokens != tokens:
        points = []
    first = [
        [[t if t is not None and t < tokens else None for t in seeds] for seeds in gate]
        for gate in track.first_flip
    ]
    return Track(track.case, points, first)


def points_until(tokens: int) -> list[int]:
    """10, 20, 50, 100, 200, ... and `tokens`."""
    grid = [m * 10**e for e in range(1, 7) for m in (1, 2, 5)]
    return [p for p in grid if p < tokens] + [tokens]
