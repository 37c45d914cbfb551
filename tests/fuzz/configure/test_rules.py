"""The rules stand where the table says: each place is looked up in the releases' own wheels.

A row names a file and a function, for a range of releases. Wheels that are in the cache are opened
and read, never executed. That the rules say what the releases do is shown by asking the releases
(`ringfold configuration compare`), whose kept answers are checked here against the table as it is
now: a row that is changed without asking again fails.
"""

from __future__ import annotations

import re
import zipfile
from functools import cache
from pathlib import Path

import msgspec
import pytest

from ringfold.fuzz.configure.compare import Comparison
from ringfold.fuzz.findings.legality import TABLE
from ringfold.fuzz.targets import wheels
from ringfold.sim.configuration.flags import Configuration, neighbours
from ringfold.sim.configuration.rules import RULES, refusals, rules_of
from ringfold.sim.configuration.safety import judge
from ringfold.sim.configuration.serving import RELEASES, ordered, release_of

VERSIONS = [f"0.5.{minor}" for minor in range(16, 24)]
RESULTS = Path(__file__).parents[3] / "docs" / "results"
KEPT = sorted(RESULTS.glob("configuration-*.json"))


@cache
def opened(version: str) -> zipfile.ZipFile | None:
    """A release's wheel, if it is in the cache."""
    wheel = wheels.find(f"sglang=={version}")
    return None if wheel is None else zipfile.ZipFile(wheel.path)


@cache
def source(version: str, file: str) -> str:
    """A file of a release, empty where it has none; skips where its wheel is not in the cache."""
    archive = opened(version)
    if archive is None:
        pytest.skip(f"the wheel of {version} is not in the cache")
    try:
        return archive.read(f"sglang/{file}").decode()
    except KeyError:
        return ""


@pytest.mark.parametrize("version", VERSIONS)
def test_every_rule_stands_where_the_table_says(version: str) -> None:
    """File and function, class or field exist in every release of the range."""
    for rule in rules_of(version):
        file, name = rule.where
        found = re.search(
            rf"(def|class) {name}\b|^    {name}: ", source(version, file), re.MULTILINE
        )

        assert found, f"{rule.name}: {file}:{name} in {version}"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_call_of_a_chain_exists(version: str) -> None:
    """Who says that something is reachable names functions that are there."""
    for row in TABLE:
        if not ordered(row.first) <= ordered(version) <= ordered(row.last):
            continue
        for call in row.chain:
            file, name = call.rsplit(":", 1)

            assert f"def {name}(" in source(version, f"srt/{file}"), f"{row.feature}: {call}"


def test_rules_read_what_a_configuration_has() -> None:
    """`reads` names fields, and ranges are those of releases."""
    for rule in RULES:
        assert set(rule.reads) <= set(Configuration.__struct_fields__), rule.name
        assert {rule.first, rule.last} <= set(VERSIONS), rule.name


def test_release_rows_follow_each_other() -> None:
    """Every release belongs to one row."""
    assert [release_of(version) for version in VERSIONS]
    assert [row.first for row in RELEASES] == sorted((r.first for r in RELEASES), key=ordered)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_kept_answers_are_what_table_and_protocol_say_now(path: Path) -> None:
    """Every row of a kept comparison: the table predicts the release, and hazards are the same."""
    kept = msgspec.json.decode(path.read_bytes(), type=Comparison)

    assert len(kept.rows) >= 40
    for row in kept.rows:
        version, flags = kept.release, row.configuration
        verdict = judge(flags, release_of(version))
        assert [hazard.name for hazard in verdict.hazards] == row.hazards, row.changes
        if row.outcome != "refused either way":
            assert bool(refusals(flags, version)) == (row.refused is not None), row.changes


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_the_public_report_of_trees_comes_out_of_the_run(path: Path) -> None:
    """sgl-project/sglang #37061: accepted, and verified as a chain, shown by the release itself."""
    kept = msgspec.json.decode(path.read_bytes(), type=Comparison)
    entry = kept.shown["a tree is verified as a chain"]

    assert entry["accepted"] >= 1
    assert entry["shown"]["as"]["event"] == "tree"


def test_configurations_are_many_and_each_once() -> None:
    """Two changes at most, and every pair of values of two axes among them."""
    found = list(neighbours(2))

    assert len(found) == len(set(found)) > 700
