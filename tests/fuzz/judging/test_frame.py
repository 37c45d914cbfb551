"""What changed outside of what may change, and what becomes of dead memory.

A mirror holds a target's memory as it was before and after its last operation, and never shows
anything of it but what a region names. Whatever differs
between the two in a single bit must lie in a region that the operation may write; dead memory is
filled in the target and in the mirror alike, so that filling it is never taken for a change.
Everything is tried on NumPy arrays and on torch tensors.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from ringfold.fuzz.judging import arrays
from ringfold.fuzz.judging.frame import GARBAGE, Mirror, Region, index
from ringfold.fuzz.target import Target, View
from ringfold.sim.dialects import Buffer

RECORDS = Buffer("rawk", ("layer", "slot", "head", "ring", "k"), "record")
POSITION = Buffer("write_pos", ("slot",), "position")


class _Memory:
    """As much of a target as a mirror looks at."""

    def __init__(self, library: str) -> None:
        self.rawk: Any = np.zeros((2, 4, 1, 8, 3), np.float32)
        self.write_pos: Any = np.zeros(4, np.int32)
        if library == "torch":
            torch = pytest.importorskip("torch")
            self.rawk, self.write_pos = map(torch.from_numpy, (self.rawk, self.write_pos))

    def views(self) -> dict[str, View]:
        return {"rawk": View(RECORDS, self.rawk), "write_pos": View(POSITION, self.write_pos)}


@pytest.fixture(params=["numpy", "torch"])
def memory(request: pytest.FixtureRequest) -> _Memory:
    return _Memory(request.param)


def mirror(memory: _Memory) -> Mirror:
    made = Mirror(cast(Target, memory))
    made.look()
    return made


def region(**axes: list[int]) -> Region:
    return {axis: np.array(indices, np.int64) for axis, indices in axes.items()}


def test_nothing_has_changed_at_first(memory: _Memory) -> None:
    """Looking twice finds no change, and what was changed before the first look is none."""
    memory.rawk[...] = 3.0

    assert list(mirror(memory).changes({})) == []


def test_a_change_is_found_with_its_place(memory: _Memory) -> None:
    """One finding a buffer: its first element by axis name, before, after, and how many."""
    held = mirror(memory)
    memory.rawk[1, 2, 0, 5, 1] = 2.5
    memory.rawk[1, 2, 0, 6, 0] = 1.5
    memory.write_pos[3] = 9
    held.look()

    first, second = held.changes({})

    assert first.buffer == "rawk"
    assert first.where == {"layer": 1, "slot": 2, "head": 0, "ring": 5, "k": 1}
    assert (first.before, first.after, first.elements) == (0.0, 2.5, 2)
    assert (second.buffer, second.where, second.after) == ("write_pos", {"slot": 3}, 9.0)


def test_what_is_allowed_is_no_finding(memory: _Memory) -> None:
    """A region covers pairs of indices that are walked together, and not their product."""
    held = mirror(memory)
    memory.rawk[:, 1, :, 4] = 1.0
    memory.rawk[:, 2, :, 5] = 1.0
    held.look()
    pairs = region(slot=[1, 2], ring=[4, 5])

    assert list(held.changes({"rawk": [pairs]})) == []
    assert list(held.changes({"rawk": [region(slot=[1], ring=[4]), region(slot=[2])]})) == []
    (crossed,) = held.changes({"rawk": [region(slot=[1, 2], ring=[5, 4])]})
    assert crossed.elements == 12
    (elsewhere,) = held.changes({"write_pos": [pairs]})
    assert elsewhere.buffer == "rawk"


def test_bits_count_and_not_values(memory: _Memory) -> None:
    """A zero that turns negative has changed; a NaN that stays the same NaN has not."""
    memory.rawk[0, 1] = float("nan")
    held = mirror(memory)
    held.look()
    assert list(held.changes({})) == []

    memory.rawk[0, 0, 0, 0, 0] = -0.0
    held.look()
    (change,) = held.changes({})
    assert change.elements == 1


@pytest.mark.parametrize("how", ["garbage", "nan"])
def test_poison_reaches_the_dead_and_is_no_change(memory: _Memory, how: Any) -> None:
    """Dead elements are filled in the target; the next look finds nothing changed."""
    held = mirror(memory)
    dead = region(slot=[1, 3], ring=[0, 7])

    held.poison({"rawk": [dead]}, how)
    held.look()

    assert list(held.changes({})) == []
    filled = arrays.take(memory.rawk, index(RECORDS, dead))
    assert np.array_equal(
        filled, np.full_like(filled, GARBAGE["record"] if how == "garbage" else np.nan), True
    )
    assert np.count_nonzero(arrays.to_numpy(memory.rawk)) == filled.size == 12
    # Poison is no shelter: a change behind it is found.
    memory.rawk[0, 1, 0, 0, 0] = 1.0
    held.look()
    assert len(list(held.changes({}))) == 1


def test_what_is_taken_is_what_is_there_now(memory: _Memory) -> None:
    """Of several buffers at once, by one region or by several, as the last look found them."""
    memory.rawk[:, 2, :, 3] = 4.0
    memory.write_pos[1] = 9
    held = mirror(memory)
    memory.write_pos[1] = 0
    slots = region(slot=[1, 2])

    taken = held.take_all({"rawk": slots, "write_pos": slots})

    assert taken["write_pos"].tolist() == [9, 0]
    assert taken["rawk"].shape == (2, 2, 1, 8, 3)
    assert np.argwhere(taken["rawk"])[:, 1:4].tolist() == [[1, 0, 3]] * 6
    assert np.array_equal(held.take("rawk", region(slot=[2], ring=[3])), np.full((1, 2, 1, 3), 4))


def test_left_memory_is_left(memory: _Memory) -> None:
    """`leave` touches nothing."""
    held = mirror(memory)

    held.poison({"rawk": [region(slot=[1])]}, "leave")

    assert np.count_nonzero(arrays.to_numpy(memory.rawk)) == 0


def test_an_axis_that_is_not_named_is_taken_whole() -> None:
    """A region says where on some axes; on the others it says everywhere."""
    made = index(RECORDS, region(slot=[2], ring=[3]))

    assert [i if isinstance(i, slice) else list(i) for i in made] == [
        slice(None),
        [2],
        slice(None),
        [3],
        slice(None),
    ]
