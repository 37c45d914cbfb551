"""The gauntlet begins with every situation, and knows a fault from none.

What it consists of is read off its stages. Our kernels must pass the parts that only it has, and
the same kernels with a planted bug must not.
"""

from __future__ import annotations

import itertools
from typing import Final

import pytest

pytest.importorskip("triton")

from ringfold.fuzz.mutation.gauntlet import TWIN, Stage, gauntlet
from ringfold.fuzz.mutation.layouts import laid_out
from ringfold.fuzz.targets.registry import resolve

STAGES: Final = (
    "directed, packed",
    "cursors, packed",
    "twin, apart",
    "wide, apart",
    "narrow, apart",
    "split, packed",
    "crowd, apart",
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


def test_the_twin_is_walked_for_itself() -> None:
    """Its outputs are judged."""
    stage = next(stage for stage in stages("triton") if stage.name == TWIN)
    twin = laid_out(resolve("triton"), stage.layout).twin()
    assert twin is not None

    found = stage.run(twin, lambda: False)

    assert (found.check, found.windows > 0) == ("", True)
