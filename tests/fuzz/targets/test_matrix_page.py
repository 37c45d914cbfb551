"""The matrix on a GPU: what it plans, what its words mean, and that the page says what it found.

No GPU is needed for any of that. Plans are made of the releases that are here, and counted against
what the page promises of them; tables are made of results written by hand; and the page must show
the table that is made of those in the folder.
"""

from __future__ import annotations

import argparse
import collections
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ringfold.fuzz.targets import wheels

DOCS = Path(__file__).parents[3] / "docs"
RESULTS = sorted((DOCS / "results").glob("matrix-h200-*.json"))
OLDEST, NEXT, THIRD = (f"sglang==0.5.{patch}" for patch in (16, 17, 18))


@pytest.fixture(scope="module")
def script(docs_script: Callable[[str], ModuleType]) -> ModuleType:
    return docs_script("results/matrix.py")


def options(**changed: Any) -> argparse.Namespace:
    plain = {"device": "cpu", "each": 50, "in_all": 9000, "server": 7, "configurations": None}
    return argparse.Namespace(**(plain | changed))


def test_ours_have_a_million_of_their_own(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pairwise configuration has its share, the small ones the rest; a server's is there."""
    pytest.importorskip("triton")
    monkeypatch.setattr(script, "VERSIONS", ())
    (ours,) = script.entries("cpu", [])
    every = script.matrix([ours], options())

    kinds = collections.Counter(part.kind for part in every)
    quotas = collections.Counter[str]()
    for part in every:
        quotas[part.kind] += part.plan.quota
        assert part.plan.rows + 2 == part.plan.setup.slots
    assert ours.dialect == "triton"
    assert quotas["pairwise"] == 50 * kinds["pairwise"]
    assert quotas["server"] == 7
    assert 9000 <= sum(quotas.values()) < 9000 + kinds["small"]
    assert {part.plan.setup.ring for part in every if part.kind == "small"} == {8, 32}
    assert all(part.plan.setup.layers == 1 for part in every if part.kind == "small")


def test_releases_of_a_dialect_share_a_million(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are the same are run once; the newest make up what is left of the million."""
    pytest.importorskip("triton")
    monkeypatch.setattr(script, "VERSIONS", ("0.5.16", "0.5.17", "0.5.18"))
    for release in (OLDEST, NEXT, THIRD):
        if wheels.find(release) is None:
            pytest.skip(f"{release} is not here: ringfold targets add {release}")
    entries = script.entries("cpu", [])
    alike = {entry.name: entry.stands_for for entry in entries}
    assert alike[OLDEST] == ()
    assert alike[NEXT] == (THIRD,)
    assert THIRD not in alike

    snapshots = [f"sglang-snapshots=={r.partition('==')[2]}" for r in (OLDEST, THIRD)]
    chosen = [entry for entry in entries if entry.name in snapshots]
    every = script.matrix(chosen, options())
    small = collections.Counter[str]()
    for part in every:
        small[part.plan.target] += part.plan.quota * (part.kind == "small")

    assert small[snapshots[0]] == 0
    assert small[snapshots[1]] > 0
    assert sum(part.plan.quota for part in every) == pytest.approx(9000, abs=10)


def configuration(**changed: Any) -> dict[str, Any]:
    plain = {
        "kind": "pairwise", "setup": "ring H=1", "windows": 2100, "quota": 2000, "histories": 3,
        "mismatches": 0,
        "compared": {"outputs": 10, "exactness": 7}, "failed": {},
        "largest": {"outputs": 0.5, "state-local": 0.25, "exactness": 0.0},
    }  # fmt: skip
    return plain | changed


def result(*configurations: dict[str, Any], **changed: Any) -> dict[str, Any]:
    target = {
        "name": "sglang==1.0", "dialect": "ring", "stands_for": ["sglang==1.1"],
        "claims_bits": True, "findings": [], "configurations": list(configurations),
        "windows": sum(one["windows"] for one in configurations),
    }  # fmt: skip
    machine = {
        "gpu": "NVIDIA H200",
        "torch": "2",
        "triton": "3",
        "date": "2026-11-30T1",
        "commit": "c",
    }
    walked = {"gpus": 1, "seconds": 9.0, "workers": 15, "targets": [target | changed]}
    return {"machine": machine, **walked}


@pytest.mark.parametrize(
    ("told", "cells"),
    [
        (
            result(configuration(), configuration(kind="small", windows=90_000)),
            "| 92,100 | 1, 2,100 | 34 | 0.50 | 0.25 | held in 2, 14 | none |",
        ),
        (
            result(
                configuration(),
                configuration(failed={"exactness": 2}),
                findings=[{"check": "exactness", "symptom": "bits part"}],
            ),
            "| 4,200 | 2, 2,100 | 34 | 0.50 | 0.25 | broken in 1 of 2, 14 | exactness: bits part |",
        ),
        (
            result(configuration(compared={"outputs": 1})),
            "| 2,100 | 1, 2,100 | 1 | 0.50 | 0.25 | not compared | none |",
        ),
        (
            result(configuration(windows=5), claims_bits=False),
            "| 5 | 1, 5 | 17 | 0.50 | 0.25 | none claimed | none |",
        ),
    ],
)
def test_what_its_words_mean(script: ModuleType, told: dict[str, Any], cells: str) -> None:
    """A claim is held where it was compared and nothing failed, and else it is said where."""
    text = script.table([told])

    assert f"| `sglang==1.0`, also `1.1` {cells}" in text
    assert ("* `sglang==1.0`: ring H=1, in 2 of 3 histories" in text) == ("broken" in cells)


def test_the_page_shows_what_was_measured(script: ModuleType) -> None:
    """To the last figure, or that nothing was yet."""
    page = (DOCS / "releases.md").read_text(encoding="utf-8")
    shown = page.partition(script.BEGIN)[2].partition(script.END)[0]

    assert shown
    assert RESULTS
    assert shown == script.table([json.loads(path.read_text("utf-8")) for path in RESULTS])


def test_runs_are_told_together(script: ModuleType) -> None:
    """What two walked of one configuration is added up, and held against the larger quota."""
    bits = {"check": "exactness", "symptom": "bits part"}
    first = result(configuration(windows=100, quota=900), configuration(setup="ring H=2"))
    second = result(
        configuration(windows=500, quota=700, failed={"exactness": 1}, largest={"outputs": 0.75}),
        configuration(kind="small"),
        findings=[bits],
    )
    other = result(configuration(), name="sglang==2.0", stands_for=[])

    text = script.table([first, second, other])

    assert "Row-windows by dialect: ring 6,900.\n" in text
    assert text.count("NVIDIA H200, torch 2") == 3
    cells = "| 4,800 | 2, 600 | 68 | 0.75 | 0.25 | broken in 1 of 3, 28 | exactness: bits part |"
    assert f"| `sglang==1.0`, also `1.1` {cells}" in text
    assert "| `sglang==2.0` | 2,100 |" in text
    assert "Short of their row-windows: 1 of 4 configurations." in text
    assert "* `sglang==1.0`: ring H=1, in 1 of 6 histories" in text


def test_filling_in_changes_nothing_else(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And can be done again."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{script.BEGIN}old\n{script.END}after\n")
    monkeypatch.setattr(script, "PAGE", page)
    told = result(configuration())
    for _ in range(2):
        script.fill([told])

        text = f"before\n{script.BEGIN}{script.table([told])}{script.END}after\n"
        assert page.read_text() == text
