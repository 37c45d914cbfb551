"""A target on a long text gets the figures that its memory deserves.

The simulator's machines are targets too, so the same machine is walked in two ways: by
`ringfold.sim.drift`, whose tests stand beside it, and through the verbs and views of a target.
Every figure must be the same. Then kernels are walked, which share nothing with the simulator.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ringfold.fuzz.drifting import TargetWalker, cases_on, dtypes_of
from ringfold.fuzz.target import RefusedError
from ringfold.fuzz.targets.registry import resolve
from ringfold.sim.dialects import DIALECTS
from ringfold.sim.drift import PRECISIONS, Case, Study, Text, Track, Walker, run
from ringfold.sim.setup import Dtypes, Geometry, SetupError

SMALL = Study(
    geometry=Geometry(1, 2, 8, 8),
    tokens=60,
    gates=(-1.0, -7.0),
    similarities=(0.5,),
    seeds=2,
    vocabulary=64,
)
SHORT = Study(
    geometry=Geometry(1, 2, 16, 16),
    tokens=12,
    gates=(-4.0,),
    similarities=(0.5,),
    seeds=1,
    vocabulary=64,
)


def track(study: Study, opened: Callable[[Text], Walker]) -> Track:
    """What is found of one case."""
    text = Text(study)
    return run(text, [opened(text)], lambda bounds, tracks: None)[1][0]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_machine_walked_as_a_target_gets_the_machines_figures(dialect: str) -> None:
    """Digit for digit: state, units, outputs and flips at every point, and the first flips."""
    case = Case(dialect, "tf32", 16, 0.5)
    as_target = track(SMALL, lambda text: TargetWalker(resolve(f"sim@{dialect}"), case, text))
    as_machine = track(SMALL, lambda text: Walker(case, text))

    assert as_target == as_machine


def test_precisions_of_a_target_are_its_dtypes() -> None:
    """Each once, activations as its records are; other rings and rates in the first narrow one."""
    cases = cases_on(resolve("sim"), list(PRECISIONS), [16, 8], [0.7, 0.0])

    assert [str(case) for case in cases] == [
        "sim fp32 L=16 acceptance=0.7",
        "sim bf16-records L=16 acceptance=0.7",
        "sim fp16-records L=16 acceptance=0.7",
        "sim bf16-state L=16 acceptance=0.7",
        "sim fp16-state L=16 acceptance=0.7",
        "sim bf16-records L=8 acceptance=0.7",
        "sim bf16-records L=16 acceptance=0",
    ]
    assert dtypes_of("fp16-state") == Dtypes("float16", "float16", "float16")
    assert len(cases_on(resolve("sim@decode-ring"), ["fp32"], [16, 8], [0.7, 0.0])) == 2
    with pytest.raises(SetupError, match="precision is 'fp8'"):
        cases_on(resolve("sim"), ["fp8"], [16], [0.7])


@pytest.mark.parametrize("precision", ["fp32", "fp16-records"])
def test_our_kernels_keep_their_state(precision: str) -> None:
    """A ring's state is within the units of float32 whatever its records are, wraps included."""
    pytest.importorskip("triton")
    case = Case("ring", precision, 8, 0.7)
    walked = track(SHORT, lambda text: TargetWalker(resolve("triton"), case, text))

    assert 0 < max(map(max, walked.points[-1].state_units)) < 1


def test_what_a_target_can_not_run_is_refused() -> None:
    """The interpreter has no bfloat16."""
    pytest.importorskip("triton")
    with pytest.raises(RefusedError, match="bfloat16"):
        TargetWalker(resolve("triton"), Case("ring", "kernel"), Text(SHORT))
