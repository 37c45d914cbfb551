"""The same numbers, laid out so that a wrong address shows.

Tensors are made by a target's own methods after `laid_out`, and must hold what was put into them,
at the distances that the layout promises. What lies between and behind is looked at by its address:
a read behind the end must end the process, which is why a process of its own does that.
"""

from __future__ import annotations

import multiprocessing
import signal
from typing import Any, Final

import numpy as np
import pytest

pytest.importorskip("torch")

from ringfold.fuzz.histories.trace import Admit, Commit, PayloadSpec, Trace, Verify
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.mutation.layouts import FAR_SLOT, FAR_TOKEN, Layout, laid_out
from ringfold.fuzz.targets.registry import resolve
from ringfold.sim.setup import Geometry, Setup

SETUP: Final = Setup(dialect="ring", geometry=Geometry(1, 2, 32, 16), ring=8, window=2, slots=4)
STEP: Final = Trace(
    setup=SETUP,
    payload=PayloadSpec(seed=0, profile="slow-decay"),
    operations=(
        Admit(request=0, tag=0),
        Admit(request=1, tag=1, dead="nan"),
        Verify(tag=2, rows=(0, None, 1), lengths=(2, 1, 1), dead="nan"),
        Commit(tag=2, accepted=(2, None, 0)),
        Verify(tag=3, rows=(1, 0), lengths=(2, 2), dead="nan"),
        Commit(tag=3, accepted=(1, 2)),
    ),
)


def opened(layout: Layout) -> Any:
    """Our kernels, laid out and opened."""
    target = laid_out(resolve("triton"), layout)
    walk(STEP, target)
    return target


@pytest.mark.parametrize("layout", ["packed", "apart", "far"])
def test_a_right_target_is_right_on_every_layout(layout: Layout) -> None:
    """Strides and distances change no result of ours, nor of their twin."""
    assert walk(STEP, laid_out(resolve("triton"), layout)).mismatches == []


def test_slots_have_distances_of_their_own() -> None:
    """No two buffers have the same, though heads and records have the same size; NaN between."""
    memory = opened("apart").memory

    strides = [x.stride(1) for x in memory.values() if x.ndim >= 3]
    assert len(set(strides)) == len(strides) > 5
    checkpoint = memory["checkpoint"]
    gap = checkpoint.as_strided((1,), (1,), checkpoint.storage_offset() + checkpoint[0, 0].numel())
    assert bool(gap.isnan())


def test_lists_side_by_side_have_strides_of_their_own() -> None:
    """So that a kernel cannot take one for the other's."""
    target = opened("apart")
    lists = [target.apart(target.tensor(np.arange(4), "int32")) for _ in range(3)]

    assert len({x.stride(0) for x in lists}) == 3
    assert all(x.tolist() == [0, 1, 2, 3] for x in lists)


def test_far_slots_need_more_than_32_bits() -> None:
    """From the second slot on, and from the eighth token on."""
    target = opened("far")
    inputs = target.tensor(np.zeros((1, 9, 2, 16), np.float32), "float32")

    assert target.memory["checkpoint"].stride(1) > FAR_SLOT
    assert 2 * target.memory["checkpoint"].stride(1) > 2**31
    assert 8 * inputs.stride(1) > 8 * FAR_TOKEN >= 2**31
    assert int(inputs.count_nonzero()) == 0


def _read_beside(layout: Layout, listed: bool, at: int) -> None:
    target = opened(layout)
    values = target.tensor(np.arange(5), "int32")
    values = target.apart(values) if listed else values
    assert values.tolist() == list(range(5))
    first = values.storage_offset()
    values.as_strided((1,), (1,), first + at * values.stride(0)).item()


@pytest.mark.parametrize(
    ("layout", "listed", "at"), [("apart", False, 5), ("apart", True, 5), ("far", False, -1)]
)
def test_nothing_lies_beside(layout: Layout, listed: bool, at: int) -> None:
    """A read behind the end ends the process, and where slots are far apart one in front does."""
    process = multiprocessing.get_context("spawn").Process(
        target=_read_beside, args=(layout, listed, at)
    )
    process.start()
    process.join()

    assert process.exitcode in {-signal.SIGSEGV, -signal.SIGBUS}


def test_other_targets_stay_as_they_are() -> None:
    """The simulator allocates in its own way."""
    simulator = resolve("sim")

    assert laid_out(simulator, "apart") is simulator
