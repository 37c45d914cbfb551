"""The table in docs/releases.md is what the script beside its figures prints from them.

Nobody types a figure there: `docs/results/releases.py` fuzzes every release, keeps what came of it
as JSON, and makes the table of that. Here the table is made anew and compared; a few rows made by
hand say what its words mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def script(docs_script: Callable[[str], ModuleType]) -> ModuleType:
    return docs_script("results/releases.py")


def row(**changed: Any) -> dict[str, Any]:
    """A target that agrees."""
    plain = {
        "target": "sglang==1.0",
        "windows": 1234,
        "folds": 0,
        "compared": {"outputs": 10, "frame": 5},
        "largest": {"outputs": 0.5, "state-local": 0.25, "state-global": 0.125},
        "findings": [],
    }
    return plain | changed


def test_the_page_shows_what_was_measured(script: ModuleType) -> None:
    """Row by row, for every release of every family."""
    rows = json.loads((DOCS / "results" / "releases-cpu.json").read_text(encoding="utf-8"))

    assert script.table(rows) in (DOCS / "releases.md").read_text(encoding="utf-8")
    assert {r["target"] for r in rows} == {
        f"{family}=={version}" for family in script.FAMILIES for version in script.VERSIONS
    }
    for one in rows:
        assert one["identity"]["release"].endswith(one["target"].partition("==")[2])


@pytest.mark.parametrize(
    ("changed", "cells"),
    [
        ({}, "| `sglang==1.0` | 1,234 |  | 15 | 0.50 | 0.25 | none made | none |"),
        (
            {"folds": 12, "compared": {"exactness": 7}},
            "| `sglang==1.0` | 1,234 | 12 | 7 | 0.50 | 0.25 | held, 7 | none |",
        ),
        (
            {"compared": {"exactness": 7}, "findings": ["exactness: it differs"]},
            "| `sglang==1.0` | 1,234 |  | 7 | 0.50 | 0.25 | broken, 7 | exactness: it differs |",
        ),
    ],
)
def test_what_its_words_mean(script: ModuleType, changed: dict[str, Any], cells: str) -> None:
    """A claim of bits is held where it was compared and nothing was found."""
    assert script.table([row(**changed)]).splitlines()[2] == cells
