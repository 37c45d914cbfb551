"""Which memory an operation may touch, which is alive, and what became of the rest.

A `Region` names elements of a buffer by integer arrays over some of its axes, walked together, so
one region covers any number of (slot, ring row) pairs. Everything here works from axis names and
never asks which implementation owns the buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz import arrays
from ringfold.fuzz.target import View

Dead = Literal["leave", "garbage", "nan"]
Region = Mapping[str, NDArray[np.int64]]
"""Indices by axis name; an axis that is not named is taken whole."""

GARBAGE: Final = {"state": 97.0, "record": 97.0, "gate": 0.7}
"""Finite values that no payload holds: a gate of 0.7 would make a state grow."""


class Change(NamedTuple):
    """Elements of a buffer that an operation changed though it may not."""

    buffer: str
    where: dict[str, int]  # of the first, by axis name
    before: float
    after: float
    elements: int


def index(view: View, region: Region) -> arrays.Index:
    """`region` as an index into the view's array."""
    return tuple(region.get(axis, slice(None)) for axis in view.buffer.axes)


class Frame:
    """What every buffer held before an operation."""

    def __init__(self, views: Mapping[str, View]) -> None:
        self.before = {name: arrays.copy(view.array) for name, view in views.items()}

    def changes(
        self, views: Mapping[str, View], allowed: Mapping[str, Iterable[Region]]
    ) -> Iterator[Change]:
        """Bits that changed outside `allowed`, one finding a buffer."""
        for name, view in views.items():
            before = self.before[name]
            mask = arrays.changed(before, view.array)
            for region in allowed.get(name, ()):
                arrays.fill(mask, index(view, region), False)
            if not bool(mask.any()):
                continue
            found = arrays.where(mask)
            first: tuple[Any, ...] = tuple(int(i) for i in found[0])
            yield Change(
                name,
                dict(zip(view.buffer.axes, first, strict=True)),
                float(before[first]),
                float(view.array[first]),
                len(found),
            )


def poison(views: Mapping[str, View], dead: Mapping[str, Iterable[Region]], how: Dead) -> None:
    """Fill dead memory as the trace says. Cursors are never dead: a stale one is history."""
    if how == "leave":
        return
    for name, regions in dead.items():
        view = views[name]
        value = float("nan") if how == "nan" else GARBAGE[view.buffer.role]
        for region in regions:
            arrays.fill(view.array, index(view, region), value)
