"""`triton+NAME=VALUE` is our own kernels with a constant changed, and is judged as they are.

What is changed is read off the rewritten source; that the change reaches the kernels and leaves
them right is shown by walking histories, exactness included, on copies that differ.
"""

from __future__ import annotations

import difflib
import importlib
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from ringfold.fuzz.histories.generate import history
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.running.hunt import plans
from ringfold.fuzz.targets.constants import ConstantError, constants, rewrite_of
from ringfold.fuzz.targets.ours import TritonRing
from ringfold.fuzz.targets.registry import UnknownTargetError, resolve


def test_one_line_changes() -> None:
    """The constant's own, in the one file that has it."""
    source = Path(importlib.import_module("ringfold.kernels.state").__file__ or "").read_text()
    rewrite = rewrite_of("+TILE_K=16+TOGETHER=2")
    assert rewrite is not None

    changed = [
        line
        for line in difflib.ndiff(source.splitlines(), rewrite("state.py", source).splitlines())
        if line[0] in "+-"
    ]

    assert changed == ["- TILE_K = 32", "+ TILE_K = 16"]
    assert rewrite_of("") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("+TILE=16", "'TILE=16' changes no constant: there are .*TILE_K"),
        ("+TILE_K", "'TILE_K' has no literal behind the ="),
        ("+TILE_K=16 if x else 3", "has no literal behind the ="),
    ],
)
def test_what_is_no_change_is_refused(changes: str, message: str) -> None:
    """With what there is; through the registry, as an unknown target."""
    with pytest.raises(ConstantError, match=message):
        rewrite_of(changes)
    with pytest.raises(UnknownTargetError, match=message):
        resolve(f"triton{changes}")


def test_every_constant_that_the_page_asks_about_is_there() -> None:
    """docs/kernels.md and the script for a GPU name them."""
    asked = {"TOGETHER", "RECORDS_AHEAD", "TILE_K", "ROWS_PER_WARP"}

    assert asked <= set(constants())


@pytest.mark.slow
@pytest.mark.parametrize("changes", ["+TOGETHER=0", "+TOGETHER=2+TILE_K=16+ROWS_PER_WARP=16"])
def test_alternatives_are_right(changes: str) -> None:
    """Two histories with folds: no mismatch in any check, the twin changed alike."""
    target = resolve(f"triton{changes}")
    assert isinstance(target, TritonRing)
    state = importlib.import_module("ringfold.kernels.state")
    copies = target.wrappers.verify.__globals__
    assert copies["TOGETHER"] == int(changes[10])
    assert copies["Tile"].of.__globals__["TILE_K"] == (16 if "TILE_K" in changes else 32)
    assert state.TILE_K == 32

    plan = plans(target)[0]._replace(directed=False, steps=16)
    verdicts = [walk(history(plan, seed=0, number=number), target) for number in range(2)]

    assert [v.mismatches for v in verdicts] == [[], []]
    assert sum(v.compared.get("exactness", 0) for v in verdicts) > 0
