"""Is the catalogue of bugs in our kernels what it claims to be?

Each bug replaces one span of a kernel's source. The span must be there exactly once, or the bug
would have vanished, and what takes its place must be Python on as many lines. Whether the bugs are
*found* is asked by tests/quality.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Final, get_args

import pytest

import ringfold.fuzz
from ringfold.fuzz.judging.mismatch import Check
from ringfold.fuzz.planted_kernels import KERNEL_BUGS, PACKAGE, Planted, PlantingError
from ringfold.fuzz.targets.registry import UnknownTargetError, resolve

ROOT: Final = Path(ringfold.fuzz.__path__[0]).resolve().parent
PAGE: Final = ROOT / "docs" / "planted.md"
KINDS_MIN: Final = 12
ROW: Final = re.compile(
    r"\| `(?P<bug>[a-z0-9-]+)` \| (?P<kind>[^|]+) \| (?P<about>[^|]+) \| (?P<check>[a-z-]+) "
    r"\| (?P<windows>\d+) \| (?P<found>[\d.]+) s \| (?P<steps>\d) \| (?P<shrunk>[\d.]+) s \|"
)


def test_there_are_enough() -> None:
    """At least twenty, of many kinds."""
    assert len(KERNEL_BUGS) >= 20
    assert len({bug.kind for bug in KERNEL_BUGS.values()}) >= KINDS_MIN


@pytest.mark.parametrize("bug", KERNEL_BUGS)
def test_a_bug_is_a_small_change_of_the_source(bug: str) -> None:
    """One span, found once; the rest of the file, and its number of lines, stay."""
    planted = KERNEL_BUGS[bug]
    source = (ROOT / "kernels" / planted.file).read_text("utf-8")

    changed = planted.rewrite()(PACKAGE + planted.file, source)

    assert source.count(planted.before) == 1
    assert changed == source.replace(planted.before, planted.after) != source
    assert changed.count("\n") == source.count("\n")
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    assert planted.rewrite()("ringfold/kernels/other.py", source) == source


@pytest.mark.parametrize("text", ["", "x = 1; x = 1"])
def test_a_bug_that_vanished_is_an_error(text: str) -> None:
    """A span that is gone, or there twice, is no bug."""
    planted = Planted("kind", "about", "ring.py", "x = 1", "x = 2")

    with pytest.raises(PlantingError, match=r"ring\.py has [02] times .*it must be there once"):
        planted.rewrite()(PACKAGE + "ring.py", text)


def test_a_bug_is_a_target_and_leaves_the_kernels_alone() -> None:
    """Named `triton:NAME`; `triton` is what it was before."""
    pytest.importorskip("triton")
    resolve("triton")
    before = {name: m for name, m in sys.modules.items() if name.startswith("ringfold.kernels")}

    planted = resolve("triton:fold-one-short")

    after = {name: m for name, m in sys.modules.items() if name.startswith("ringfold.kernels")}
    assert planted.name == "triton:fold-one-short"
    assert before == after
    with pytest.raises(UnknownTargetError, match="no bug named 'fold' is planted"):
        resolve("triton:fold")


def test_the_page_lists_what_is_planted() -> None:
    """Name, kind and sentence of every bug, in the code's order; each found, and shrunk."""
    rows = [match.groupdict() for match in ROW.finditer(PAGE.read_text(encoding="utf-8"))]

    assert [row["bug"] for row in rows] == list(KERNEL_BUGS)
    assert [(row["kind"], row["about"]) for row in rows] == [
        (bug.kind, bug.about) for bug in KERNEL_BUGS.values()
    ]
    assert {row["check"] for row in rows} <= set(get_args(Check))
    assert all(int(row["steps"]) <= 3 for row in rows)
