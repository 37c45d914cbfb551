"""The gauntlet begins with every situation, and knows a fault from none.

What it consists of is read off its stages. Our kernels must pass the parts that only it has, and
the same kernels with a planted bug must not.
"""

from __future__ import annotations

import itertools
from typing import Final

import pytest

pytest.importorskip("triton")

from ringfold.fuzz.histories.directed import GATED
from ringfold.fuzz.histories.generate import told
from ringfold.fuzz.histories.trace import PayloadSpec
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.mutation.gauntlet import TWIN, Stage, gauntlet, two_folds
from ringfold.fuzz.mutation.layouts import laid_out
from ringfold.fuzz.running.hunt import plans
from ringfold.fuzz.targets.registry import resolve
from ringfold.sim.setup import Geometry

STAGES: Final = (
    "directed, packed",
    "cursors, packed",
    "twin, apart",
    "wide, apart",
    "middle, apart",
    "narrow, apart",
    "split, packed",
    "crowd, apart",
    "dozens, far",
    "directed, far",
    "directed, apart",
    "random, packed",
    "random, apart",
    "random, far",
    "random, packed",
)


def stages(name: str) -> list[Stage]:
    """The first of a target's."""
    return list(itertools.islice(gauntlet(resolve(name), name, "cpu", 0), len(STAGES)))


def test_situations_come_first() -> None:
    """Directed histories on every layout, what they leave out, then random ones without end."""
    assert tuple(map(str, stages("triton"))) == STAGES


@pytest.mark.parametrize("ring", [8, 32])
def test_each_size_folds_twice(ring: int) -> None:
    """And its rows are ragged, with padding between."""
    target = resolve("sim")
    plan = plans(target, "cpu", geometry=Geometry(1, 1, 2, 2), ring=ring, window=ring // 5 + 1)[0]
    trace = told(plan, PayloadSpec(0, GATED), tuple(two_folds(plan.setup)))

    verdict = walk(trace, target)

    assert not verdict.mismatches
    assert verdict.situations["fold"] >= 2
    assert {"padding row", "ragged batch"} <= verdict.situations.keys()


def test_the_twin_is_walked_for_itself() -> None:
    """Its outputs are judged."""
    stage = next(stage for stage in stages("triton") if stage.name == TWIN)
    twin = laid_out(resolve("triton"), stage.layout).twin()
    assert twin is not None

    found = stage.run(twin, lambda: False)

    assert (found.check, found.windows > 0) == ("", True)
