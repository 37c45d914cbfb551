"""Which memory an operation may touch, which is dead, and what became of the rest.

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
from ringfold.fuzz.target import Target
from ringfold.sim.dialects import Buffer

Dead = Literal["leave", "garbage", "nan"]
Region = Mapping[str, NDArray[np.int64]]
"""Indices by axis name; an axis that is not named is taken whole."""

GARBAGE: Final = {"state": 97.0, "record": 97.0, "activation": 97.0, "gate": 0.7}
"""Finite values that no payload holds: a gate of 0.7 would make a state grow."""


class Change(NamedTuple):
    """Elements of a buffer that an operation changed though it may not."""

    buffer: str
    where: dict[str, int]  # of the first, by axis name
    before: float
    after: float
    elements: int


def index(buffer: Buffer, region: Region) -> arrays.Index:
    """`region` as an index into an array of `buffer`."""
    return tuple(region.get(axis, slice(None)) for axis in buffer.axes)


class Mirror:
    """A target's memory on the host, as it was before and after its last operation.

    Everything is judged here: one copy a buffer and operation is all that a device has to send.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.now: dict[str, NDArray[Any]] = {}
        self.look()

    def look(self) -> None:
        """Copy every buffer; what was there becomes what was there before."""
        self.before = self.now
        views = self.target.views()
        self.buffers = {name: view.buffer for name, view in views.items()}
        self.now = {name: arrays.to_numpy(view.array) for name, view in views.items()}

    def take(self, name: str, region: Region) -> NDArray[Any]:
        """Elements of a buffer as they are now."""
        taken: NDArray[Any] = self.now[name][index(self.buffers[name], region)]
        return taken

    def changes(self, allowed: Mapping[str, Iterable[Region]]) -> Iterator[Change]:
        """Bits that the last operation changed outside `allowed`, one finding a buffer."""
        for name, buffer in self.buffers.items():
            before, after = self.before[name], self.now[name]
            mask = arrays.bits(before) != arrays.bits(after)
            for region in allowed.get(name, ()):
                mask[index(buffer, region)] = False
            if not mask.any():
                continue
            found = np.argwhere(mask)
            first = tuple(int(i) for i in found[0])
            yield Change(
                name,
                dict(zip(buffer.axes, first, strict=True)),
                float(before[first]),
                float(after[first]),
                len(found),
            )

    def poison(self, dead: Mapping[str, Iterable[Region]], how: Dead) -> None:
        """Fill dead memory, there and here. Cursors are never dead: a stale one is history."""
        if how == "leave":
            return
        views = self.target.views()
        for name, regions in dead.items():
            if (buffer := self.buffers.get(name)) is None:
                continue  # a target may keep its convolution's windows to itself
            value = float("nan") if how == "nan" else GARBAGE[buffer.role]
            for region in regions:
                arrays.fill(views[name].array, index(buffer, region), value)
                self.now[name][index(buffer, region)] = value
