"""The judge gathers what the checks compare and turns a finding into a mismatch with its place.

What it finds in a faulty target is tested with the walk; here are the parts that a walk on a right
target never shows: how precise it takes a target to be, what it reports once and in which words.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from ringfold.fuzz.histories.payload import Payload
from ringfold.fuzz.judging.checks import Finding
from ringfold.fuzz.judging.judge import Judge, Position, numbers
from ringfold.fuzz.judging.ledger import Ledger
from ringfold.fuzz.judging.mismatch import Mismatch, failed_checks
from ringfold.fuzz.judging.truth import Truth
from ringfold.fuzz.target import IEEE, TF32
from ringfold.fuzz.targets.registry import resolve
from ringfold.sim.setup import Dtypes, Geometry, Setup

SETUP = Setup("ring", Geometry(1, 2, 8, 8), ring=8, window=2, slots=3)


def judge(name: str = "sim", **changes: Any) -> Judge:
    target = resolve(name)
    setup = msgspec.structs.replace(SETUP, dialect=target.dialect.name, **changes)
    parameters = Payload(setup, 1, "ordinary").parameters()
    target.open(setup, parameters)
    made = Judge(
        setup, target, None, Ledger(setup, target.dialect), Truth(setup, parameters, 2.0**-24)
    )
    made.open()
    return made


def test_outputs_are_as_precise_as_the_target_says_and_its_records_are() -> None:
    """Four operands of a dot, and two roundings of a record where there is a ring."""
    half = Dtypes("float16", "float16", "float32")

    assert judge().eps_dot == 4 * TF32.dot + 2 * 2.0**-24
    assert judge(dtypes=half).eps_dot == 4 * TF32.dot + 2 * 2.0**-11
    assert judge("sim@snapshots", dtypes=half).eps_dot == 4 * IEEE.dot
    exact = judge()
    exact.target.precision = IEEE
    exact.open()
    assert exact.eps_dot == 6 * 2.0**-24


def test_states_are_allowed_for_only_where_something_is_lost() -> None:
    """Deltas that are added up, or records narrower than the inputs; a raw replay loses nothing."""
    narrow = Dtypes("float32", "float16", "float32")

    assert judge().truth.losses is None
    assert judge(dtypes=Dtypes("float16", "float32", "float32")).truth.losses is None
    assert judge("sim@open-loop").truth.losses is not None
    lossy = judge(dtypes=narrow).truth.losses
    assert lossy is not None
    assert lossy.record == 2.0**-11


def test_a_symptom_is_reported_once() -> None:
    """At the first operation; another symptom, or another check, is another finding."""
    made = judge()
    for operation in (3, 4):
        made.position = Position(operation, "commit", 0, 1)
        made._mismatch("frame", "d changed")
    made._mismatch("frame", "k changed")
    made._mismatch("cursors", "d changed")

    assert [(m.check, m.symptom, m.operation) for m in made.mismatches] == [
        ("frame", "d changed", 3),
        ("frame", "k changed", 4),
        ("cursors", "d changed", 4),
    ]


def finding(expected: float, got: float, allowed: float = 0.5) -> Finding:
    error = abs(got - expected)
    return Finding("outputs", "is off", (0,), expected, got, error, allowed, 3, 2)


def test_figures_survive_as_text() -> None:
    """Error, limit, ratio, relative error; what is no number is no ratio."""
    assert numbers(finding(4.0, 6.0)) == {
        "expected": "4",
        "got": "6",
        "error": "2",
        "allowed": "0.5",
        "relative": "0.5",
        "ulp": "3",
        "units": 4.0,
        "elements": 2,
    }
    assert numbers(finding(0.0, 1.0))["relative"] == "inf"
    assert numbers(finding(1.0, np.nan))["units"] is None
    assert numbers(finding(1.0, 2.0, allowed=0.0))["units"] is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "frame: d changed at operation 4 (commit, step 2)."),
        ({"iteration": 3}, "frame: d changed at operation 4 (commit, step 2, iteration 3)."),
        (
            {"where": "slot 2, ring 1", "expected": "1", "got": "2", "elements": 5},
            (
                "frame: d changed at operation 4 (commit, step 2), slot 2, ring 1: "
                "expected 1, got 2; 5 elements differ."
            ),
        ),
        (
            {"request": 7, "row": 0, "error": "1", "allowed": "0.5", "relative": "2", "ulp": "9"},
            (
                "frame: d changed at operation 4 (commit, step 2), request 7 (row 0)"
                "; off by 1 where 0.5 is allowed (relative 2, 9 ULP)."
            ),
        ),
    ],
)
def test_a_sentence_leaves_out_what_is_not_known(change: dict[str, Any], text: str) -> None:
    """And nothing else."""
    mismatch = Mismatch(check="frame", operation=4, kind="commit", symptom="d changed", step=2)

    assert msgspec.structs.replace(mismatch, **change).sentence() == text


def test_what_was_seen_may_have_been_edited() -> None:
    """Failed checks by operation, whatever else a trace says that was seen."""
    seen: list[dict[str, Any]] = [
        {"operation": 3, "check": "frame"},
        {"operation": 3, "check": "frame", "symptom": "another"},
        {"operation": 3, "check": "state-local"},
        {"operation": "3", "check": "cursors"},
        {"operation": 5},
        {"check": "outputs"},
        {},
    ]

    assert failed_checks(seen) == {3: ["frame", "state-local"]}
