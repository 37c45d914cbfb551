"""Hypothesis follows the same rules: legal histories, findings that replay, luck that repeats.

Legality is judged by `trace.validate`, findings by walking the trace again without Hypothesis, and
whether it finds anything at all by planted bugs, whose verdict is known.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pytest

from ringfold.fuzz.histories.generate import windows
from ringfold.fuzz.histories.rules import RULES
from ringfold.fuzz.histories.swarm import ESSENTIAL, LEFT_OUT, Temper, temper
from ringfold.fuzz.histories.trace import Trace, validate
from ringfold.fuzz.judging.walk import Verdict, walk
from ringfold.fuzz.running import machine
from ringfold.fuzz.running.hunt import hunt_with_hypothesis, plans
from ringfold.fuzz.running.machine import examine
from ringfold.fuzz.targets.registry import resolve

WINDOWS_MAX: Final = 1000  # seen: 14 to 230

SAMPLE: Final = (
    "fold-newest-first",
    "flag-never-falls",
    "history-one-too-many",
    "values-saturate",
    "fork-copies-the-first-layer",
)


def told(target: str, seed: int, windows_max: int) -> list[Trace]:
    """What Hypothesis tells of the first configuration, each history walked."""
    one, traces = resolve(target), list[Trace]()

    def walked(trace: Trace) -> Verdict:
        traces.append(trace)
        return walk(trace, one)

    # Without repeats, one of which may take all windows.
    plan = plans(one)[0]._replace(horizon=0)
    examine(plan, seed, walked, windows_max=windows_max)
    return traces


def test_histories_are_legal_and_go_by_the_same_rules() -> None:
    """Of kinds that the rules know, up to as many windows as were asked for."""
    kinds = set()
    for seed in range(3):
        traces = told("sim", seed, 200)
        for trace in traces:
            validate(trace)
            kinds |= {type(operation).__name__.lower() for operation in trace.operations}
        assert sum(windows(trace.operations) for trace in traces) == 200
    assert {"admit", "verify", "commit", "decode", "free"} <= kinds <= set(RULES)


def test_most_of_what_is_told_are_windows() -> None:
    """Rules are followed as often as the generator follows them, and not each like any other.

    Seen: 0.79 to 0.86 of all operations but admissions, with which each history begins; the
    generator's have 0.74. When Hypothesis picked among rules it was 0.42, and as many plain steps.
    """
    kinds = Counter(
        type(operation).__name__ for trace in told("sim", 1, 400) for operation in trace.operations
    )

    assert kinds["Verify"] > 4 * kinds["Decode"]
    assert kinds["Verify"] + kinds["Commit"] > (kinds.total() - kinds["Admit"]) / 2


def test_tempers_leave_out_no_more_rules_than_the_generator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hypothesis prefers the simplest choices, and the simplest temper leaves none out.

    Seen: 0.08 of the rules that are not essential, where the generator leaves out `LEFT_OUT`. When
    the simplest temper left out all of them it was 0.71, and requests that leave and come back were
    told a tenth as often.
    """
    tempers = list[Temper]()

    def drawn(*arguments: Any, **options: Any) -> Temper:
        tempers.append(temper(*arguments, **options))
        return tempers[-1]

    monkeypatch.setattr(machine, "temper", drawn)
    told("sim", 1, 400)

    optional = [w for one in tempers for rule, w in one.weights.items() if rule not in ESSENTIAL]
    assert len(tempers) > 10
    assert optional.count(0) < LEFT_OUT * len(optional)


def test_the_same_seed_makes_the_same_choices() -> None:
    """And another one others, once the plainest history is told, with which each begins."""
    first, again, other = (told("sim", seed, 150) for seed in (1, 1, 2))

    assert first == again
    assert first != other


@pytest.mark.parametrize("bug", SAMPLE)
def test_a_planted_bug_is_found(bug: str) -> None:
    """By a history that fails again without Hypothesis."""
    target = resolve(f"sim:{bug}")

    found = hunt_with_hypothesis(target, 0, windows_max=WINDOWS_MAX)

    assert found.failure is not None
    validate(found.failure)
    assert walk(found.failure, target).mismatches == found.mismatches


def test_a_sound_machine_is_acquitted() -> None:
    """To the last window."""
    acquitted = hunt_with_hypothesis(resolve("sim@compact"), 3, windows_max=100)

    assert acquitted.mismatches == []
    assert acquitted.windows == 100
