"""Hypothesis as the one who chooses: the same rules, as often, the same walk, other luck.

A `RuleBasedStateMachine` tells a history by `histories.rules`, and when it is told, walks
it. It has one rule of its own, since Hypothesis would follow each of several as often as any other,
and so tell more of padding and of saved requests than of windows. Hypothesis aims at the largest
error over what is allowed (`hypothesis.target`), check by check, and at transitions that nobody has
visited. It only generates: its database and shrinker are off, since a failure is a trace like any
other, which `ringfold shrink` makes small.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

import msgspec
import numpy as np
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings, target
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from ringfold.fuzz.histories.draws import Bools, Draw, Ints
from ringfold.fuzz.histories.generate import full_house, told, windows, within
from ringfold.fuzz.histories.profiles import PROFILES
from ringfold.fuzz.histories.rules import usual, whatever_is_next
from ringfold.fuzz.histories.steering import Unseen
from ringfold.fuzz.histories.story import Plan, Story
from ringfold.fuzz.histories.swarm import temper
from ringfold.fuzz.histories.trace import PayloadSpec, Trace
from ringfold.fuzz.judging.walk import Verdict

EXAMPLES_MAX: Final = 1_000_000
"""Windows or time run out long before."""

PARTS: Final = 1000
"""A coin's share is a whole number of these."""


class Chosen(Draw):
    """Hypothesis makes the choices."""

    def __init__(self, data: st.DataObject) -> None:
        """`data` is what a rule was given."""
        self.data = data

    def integers(self, low: int, highs: Sequence[int] | Ints) -> Ints:
        """As `Draw` says."""
        drawn = [self.data.draw(st.integers(low, int(high))) for high in highs]
        return np.array(drawn, np.int64)

    def chances(self, share: float, count: int) -> Bools:
        """As `Draw` says."""
        if not 0.0 < share < 1.0:
            return np.full(count, share >= 1.0)
        return self.integers(0, [PARTS - 1] * count) < share * PARTS

    def some(self, items: Ints, count: int) -> Ints:
        """As `Draw` says."""
        return np.array(self.data.draw(st.permutations(items.tolist()))[:count], np.int64)


class Ample(Chosen):
    """The same, but the simplest coin shows False, so that the simplest temper has every rule.

    Hypothesis tells the simplest choices far more often than others. With coins that show True,
    tempers left out most rules that are not essential, and requests that had left hardly ever came
    back.
    """

    def chances(self, share: float, count: int) -> Bools:
        """As `Draw` says."""
        return ~super().chances(1.0 - share, count)


class Telling(RuleBasedStateMachine):
    """Tells one history; subclasses have a plan, a budget, and somebody who walks it."""

    plan: ClassVar[Plan]
    windows_max: ClassVar[int | None]
    """Row-windows of one history: the same for all, or else equal choices might not be legal."""
    walk: ClassVar[Callable[[Trace], Verdict]]
    unseen: ClassVar[Unseen]
    """Of all histories so far; what is new in this one is known by that."""
    story: Story | None = None

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Draw a temper and the numbers, and seat the first requests."""
        draw = Chosen(data)
        profile = draw.pick(sorted(PROFILES))
        self.payload = PayloadSpec(seed=draw.integer(0, 2**32 - 1), profile=profile)
        habits = temper(Ample(data), usual(self.plan.operations), seeks=False)
        unseen = Unseen(self.plan.setup)
        self.story = Story(self.plan, draw, habits, unseen, self.windows_max)
        self.story.tell(full_house(self.story))

    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        """What comes next, until there were as many steps as planned, or windows are used up."""
        assert self.story is not None
        self.story.draw = Chosen(data)
        if self.story.steps < self.plan.steps and self.story.room > 0:
            self.story.tell(whatever_is_next(self.story))

    def teardown(self) -> None:
        """The history is told: walk it, unless Hypothesis gave it up."""
        if self.story is None or sys.exc_info()[0] is not None:
            return
        verdict = type(self).walk(told(self.plan, self.payload, self.story.operations))
        for check, ratio in verdict.largest.items():
            target(ratio, label=check)
        before = self.unseen.seen
        self.unseen.left &= self.story.unseen.left
        target(float(self.unseen.seen - before), label="new transitions")
        assert not verdict.mismatches, verdict.mismatches[0].sentence()


def machine(plan: Plan, walk: Callable[[Trace], Verdict], windows_max: int | None) -> type[Telling]:
    """A state machine that tells `plan`; `walk` is called with every history."""
    members = {"plan": plan, "walk": staticmethod(walk), "windows_max": windows_max}
    return type("Telling", (Telling,), {**members, "unseen": Unseen(plan.setup)})


class _EnoughError(Exception):
    """The budget is spent; Hypothesis stops at any exception."""


def examine(
    plan: Plan,
    seed_: int,
    walk: Callable[[Trace], Verdict],
    *,
    windows_max: int | None = None,
    out_of_time: Callable[[], bool] = lambda: False,
) -> None:
    """Have Hypothesis tell histories of `plan` until one fails or the budget is spent.

    Args:
        plan: what is told; its directed history is not.
        seed_: decides all choices.
        walk: hears of every history and walks it; it learns of a failure by itself.
        windows_max: row-windows of all histories; the last one is cut.
        out_of_time: asked before every history.
    """
    left = windows_max

    def limited(trace: Trace) -> Verdict:
        nonlocal left
        if out_of_time() or left == 0:
            raise _EnoughError
        if left is not None:
            trace = msgspec.structs.replace(trace, operations=within(trace.operations, left))
            left -= windows(trace.operations)
        return walk(trace)

    quiet = settings(
        max_examples=EXAMPLES_MAX,
        stateful_step_count=3 * plan.steps,
        phases=(Phase.generate, Phase.target),
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    kind = seed(seed_)(machine(plan, limited, windows_max))
    # It walks a failing history again, which is cut short where the budget ends meanwhile: flaky.
    with contextlib.suppress(_EnoughError, AssertionError, Flaky):
        run_state_machine_as_test(kind, settings=quiet)
