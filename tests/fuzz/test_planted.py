"""Is the catalogue of planted bugs what it claims to be?

Each bug must differ from a reference machine by little and by something; the page that lists them
must say what the code says. Whether the bugs are *found* is asked by tests/quality, and that what
they override is right without them by tests/sim, which holds the reference machines to the oracle.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Final, get_args

import pytest

from ringfold.fuzz.judging.mismatch import Check
from ringfold.fuzz.planted import KINDS, PLANTED
from ringfold.fuzz.targets.registry import UnknownTargetError, resolve
from ringfold.sim.protocols import MACHINES

PAGE: Final = Path(__file__).parents[2] / "docs" / "planted.md"
RULES_MAX: Final = 2  # a rule, and a second method where it must remember something
LINES_MAX: Final = 20  # seen: 16
ROW: Final = re.compile(
    r"\| `(?P<bug>[a-z0-9-]+)` \| (?P<kind>[^|]+) \| (?P<about>[^|]+) \| (?P<check>[a-z-]+) "
    r"\| (?P<median>\d+) \| (?P<most>\d+) \|"
)


def test_there_are_enough() -> None:
    """At least 45, of every kind at least four."""
    assert len(PLANTED) >= 45
    assert all(len(bugs) >= 4 for bugs in KINDS.values())


def test_names_are_unique() -> None:
    """No bug hides another of its name."""
    assert len(PLANTED) == sum(map(len, KINDS.values()))


@pytest.mark.parametrize("bug", PLANTED)
def test_a_bug_is_small(bug: str) -> None:
    """It overrides one rule of a reference machine, in a few lines, and says what it models."""
    machine = PLANTED[bug].machine
    own = {n for n, value in vars(machine).items() if inspect.isfunction(value) or n == "rules"}
    overridden = {name for name in own if hasattr(machine.__base__, name)}

    assert machine.__base__ in MACHINES.values()
    assert 1 <= len(overridden) <= RULES_MAX
    assert len(inspect.getsource(machine).splitlines()) <= LINES_MAX
    assert PLANTED[bug].about


def test_a_bug_is_a_target() -> None:
    """Named `sim:NAME`, with the dialect of the machine that it spoils."""
    for bug, planted in PLANTED.items():
        assert resolve(f"sim:{bug}").dialect is planted.machine.dialect
    with pytest.raises(UnknownTargetError, match="no bug named 'fold' is planted"):
        resolve("sim:fold")


def test_the_page_lists_what_is_planted() -> None:
    """Name, kind and sentence of every bug, in the code's order; each found in every hunt."""
    rows = [match.groupdict() for match in ROW.finditer(PAGE.read_text(encoding="utf-8"))]

    listed = {row["bug"]: (row["kind"], row["about"]) for row in rows}
    assert list(listed) == list(PLANTED)
    assert listed == {bug: (p.kind, p.about) for bug, p in PLANTED.items()}
    assert all(0 <= int(row["median"]) <= int(row["most"]) for row in rows)
    assert {row["check"] for row in rows} <= set(get_args(Check))


def test_every_check_catches_a_bug() -> None:
    """A check that no planted bug fails might be one that cannot fail.

    Three are left to others: the global state, whose error a local check of the same tokens sees
    first; a target that raises, which is a canary of tests/quality; and the convolution, which
    stands in front of a machine and is no part of it (its faults: test_convolving.py).
    """
    rows = ROW.finditer(PAGE.read_text(encoding="utf-8"))

    elsewhere = {"state-global", "crash", "convolution"}
    assert {row["check"] for row in rows} >= set(get_args(Check)) - elsewhere
