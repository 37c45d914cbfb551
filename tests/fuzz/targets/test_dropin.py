"""Ring kernels behind the wrappers: does every admission ask a reset what a server asks?

A server resets some rows of a batch: whoever is new, amid requests that go on and padding. A reset
that does more or less than that is made here by changing what our own wrapper is given, and must be
found by the walk of two admissions. Lists of rows are columns of wider tables, and a wrapper that
reads them as if they were packed must be found, too. So must one that takes the tokens of an input
for packed, which are views of wider rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

pytest.importorskip("triton")

from ringfold.fuzz.histories.trace import Admit, Commit, PayloadSpec, Trace, Verify
from ringfold.fuzz.judging.mismatch import Check
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.targets.registry import resolve
from ringfold.sim.setup import Geometry, Setup

TWO: Final = Trace(
    setup=Setup(dialect="ring", geometry=Geometry(1, 2, 16, 16), ring=8, window=2, slots=4),
    payload=PayloadSpec(seed=0, profile="slow-decay"),
    operations=(
        Admit(request=0, tag=0),
        Verify(tag=1, rows=(None, 0), lengths=(1, 2)),
        Commit(tag=1, accepted=(None, 2)),
        Admit(request=1, tag=2),
        Verify(tag=3, rows=(0, 1), lengths=(1, 2)),
        Commit(tag=3, accepted=(1, 2)),
    ),
)


def resets_all(asked: dict[str, Any]) -> dict[str, Any]:
    """Whether they are to be reset or not."""
    return {**asked, "do_reset": asked["do_reset"].new_ones(asked["do_reset"].shape)}


def resets_the_null_slot(asked: dict[str, Any]) -> dict[str, Any]:
    """As if it were a request's."""
    return {**asked, "null_block_id": -1}


def reads_packed_lists(asked: dict[str, Any]) -> dict[str, Any]:
    """The first elements of the table, and not of its column."""
    slots = asked["state_batch_indices"]
    return {**asked, "state_batch_indices": slots.as_strided(slots.shape, (1,))}


@pytest.mark.parametrize(
    ("wrong", "check"),
    [
        (dict, None),
        (resets_all, "frame"),
        (resets_the_null_slot, "frame"),
        (reads_packed_lists, "cursors"),
    ],
)
def test_what_a_reset_may_do(
    wrong: Callable[[dict[str, Any]], dict[str, Any]], check: Check | None, device: str
) -> None:
    """Rows that are new, and nothing else."""
    if device == "cuda":
        pytest.skip("kernels are interpreted here")
    target: Any = resolve("triton")
    reset = target.wrappers.reset
    target.wrappers = target.wrappers._replace(reset=lambda **asked: reset(**wrong(asked)))

    mismatches = walk(TWO, target).mismatches

    assert [m.check for m in mismatches][:1] == ([check] if check else [])


@pytest.mark.parametrize("name", ["q", "k", "v", "a", "b"])
def test_packed_tokens_are_no_promise(name: str, device: str) -> None:
    """A verify that takes the width of a token for the distance to the next one is wrong."""
    if device == "cuda":
        pytest.skip("kernels are interpreted here")
    target: Any = resolve("triton")
    verify = target.wrappers.verify

    def packed(**asked: Any) -> Any:
        x = asked[name]
        strides = x[0].contiguous().stride()
        return verify(**{**asked, name: x.as_strided(x.shape, (x[0].numel(), *strides))})

    target.wrappers = target.wrappers._replace(verify=packed)

    assert walk(TWO, target).mismatches
