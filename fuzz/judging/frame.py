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

from ringfold.fuzz.judging import arrays
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
    """A target's memory as it was before and after its last operation, where the target keeps it.

    A device compares the two itself, and sends only what a check reads.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.before: dict[str, Any] = {}
        self.now: dict[str, Any] = {}
        self.look()

    def look(self) -> None:
        """Copy every buffer; what was there becomes what was there before."""
        views = self.target.views()
        self.buffers = {name: view.buffer for name, view in views.items()}
        room, self.before = self.before, self.now
        self.now = {name: arrays.copied(view.array, room.get(name)) for name, view in views.items()}
        arrays.finish([view.array for view in views.values()])

    def take(self, name: str, region: Region) -> NDArray[Any]:
        """Elements of a buffer as they are now."""
        return self.take_all({name: region})[name]

    def take_all(
        self, regions: Mapping[str, Region], *, before: bool = False
    ) -> dict[str, NDArray[Any]]:
        """Elements of several buffers as they are now, or were before the last operation."""
        there = self._there({name: [region] for name, region in regions.items()})
        memory = self.before if before else self.now
        taken = [memory[name][at] for name, (at,) in there.items()]
        return dict(zip(there, arrays.to_numpy_all(taken), strict=True))

    def _there(self, regions: Mapping[str, Iterable[Region]]) -> dict[str, list[arrays.Index]]:
        """Regions by buffer as indices where the buffers lie; what several share is sent once.

        A target may keep a buffer to itself, such as its convolution's windows.
        """
        sent: dict[tuple[int, str], tuple[Any, Any]] = {}

        def send(i: Any, array: Any) -> Any:
            if not isinstance(i, np.ndarray):
                return i
            key = id(i), str(getattr(array, "device", ""))
            if key not in sent:
                sent[key] = i, arrays.native((i,), array)[0]
            return sent[key][1]

        return {
            name: [
                tuple(send(i, self.now[name]) for i in index(self.buffers[name], region))
                for region in some
            ]
            for name, some in regions.items()
            if name in self.buffers
        }

    def changes(self, allowed: Mapping[str, Iterable[Region]]) -> Iterator[Change]:
        """Bits that the last operation changed outside `allowed`, one finding a buffer."""
        masks = {name: arrays.differing(self.before[name], self.now[name]) for name in self.buffers}
        for name, some in self._there(allowed).items():
            for at in some:
                arrays.fill(masks[name], at, False)
        changed = arrays.anywhere(list(masks.values()))
        for (name, mask), differs in zip(masks.items(), changed, strict=True):
            if not differs:
                continue
            found = np.argwhere(arrays.to_numpy(mask))
            first = tuple(int(i) for i in found[0])
            yield Change(
                name,
                dict(zip(self.buffers[name].axes, first, strict=True)),
                float(self.before[name][first]),
                float(self.now[name][first]),
                len(found),
            )

    def poison(self, dead: Mapping[str, Iterable[Region]], how: Dead) -> None:
        """Fill dead memory, there and here. Cursors are never dead: a stale one is history."""
        if how == "leave":
            return
        views = self.target.views()
        for name, some in self._there(dead).items():
            value = float("nan") if how == "nan" else GARBAGE[self.buffers[name].role]
            for at in some:
                arrays.fill(views[name].array, at, value)
                arrays.fill(self.now[name], at, value)
