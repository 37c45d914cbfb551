"""The figures of `docs/bench.md` and of our kernels' pages are those of the files beside them.

What the pages compute is computed as they are tested. What was measured is read from the files of
`docs/results/`, as the commands wrote them, and each row of a table must hold their medians, to
the digits that the page gives. The page is written by hand, so nothing here makes it true.
"""

from __future__ import annotations

import ast
import doctest
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ringfold.fuzz.bench.report import Measured, Report
from ringfold.fuzz.targets import wheels

DOCS = Path(__file__).parents[3] / "docs"
PEERS = ("sglang-snapshots==0.5.23", "sglang==0.5.16", "sglang==0.5.23", "triton")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def result(name: str) -> Any:
    return json.loads((DOCS / "results" / name).read_bytes())


def report(name: str) -> Report:
    return msgspec.json.decode((DOCS / "results" / name).read_bytes(), type=Report)


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the table whose first line begins so."""
    table = text.partition(f"| {heading}")[2].split("\n\n")[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


def medians(one: Measured) -> list[float | None]:
    times = {peer.target: peer.median_us if peer.samples_us else None for peer in one.peers}
    return [one.floor_us, *(times[name] for name in PEERS)]


def shows(cell: str, value: float | None) -> bool:
    """Whether a cell has the value, rounded to as many digits as it gives."""
    if value is None:
        return not cell.strip()
    digits = len(cell.partition(".")[2])
    return abs(float(cell) - value) <= 0.5001 * 10.0**-digits


def test_the_examples_of_the_page_are_true() -> None:
    """Each `>>>` prints what stands beneath it."""
    result = doctest.testfile(str(DOCS / "bench.md"), module_relative=False)

    assert result.attempted >= 4
    assert result.failed == 0


def test_where_our_kernels_stand() -> None:
    """Medians and ratios of the four batches, what they are of, and the errors of outputs."""
    text, measured = page("kernels.md"), report("bench-h200.json")
    table = rows(text, "B | floor")

    assert [row[0] for row in table] == [str(one.case.batch) for one in measured.measured]
    for row, one in zip(table, measured.measured, strict=True):
        times = medians(one)
        floor, ours, compact = times[0], times[4], times[3]
        assert floor
        assert ours
        assert compact
        assert all(map(shows, row[1:6], times))
        assert shows(row[6], ours / floor)
        assert shows(row[7], ours / compact)
    machine = measured.machine
    assert f"commit {machine['commit']}, {machine['date'][:10]} ([bench-h200.json]" in text
    assert measured.bandwidth
    for name in ("kernels.md", "bench.md"):
        speed = re.search(r"the (4\.\d+) TB/s", page(name))
        assert speed
        assert shows(speed[1], measured.bandwidth.copy / 1e12)
    (at_64,) = (one for one in measured.measured if one.case.batch == 64)
    errors = re.search(r"B=64: ours (\S+), 0.5.16 and 0.5.23 (\S+), all.* walk (\S+)\.\n", text)
    assert errors
    walk, first, compact_error, own = (
        next(f"{peer.output_error:.1e}" for peer in at_64.peers if peer.target == name)
        for name in PEERS
    )
    assert errors.groups() == (own, first, walk)
    assert first == compact_error


def test_four_layers_in_turn() -> None:
    """Medians and ratios, as for one."""
    table = rows(page("kernels.md").partition("Four layers in turn")[2], "B | floor")
    measured = report("bench-layers-h200.json")

    assert [row[0] for row in table] == [str(one.case.batch) for one in measured.measured]
    for row, one in zip(table, measured.measured, strict=True):
        times = medians(one)
        floor, ours, compact = times[0], times[4], times[3]
        assert floor
        assert ours
        assert compact
        assert one.case.layers == 4
        assert all(map(shows, row[1:], [*times, ours / floor, ours / compact]))


def test_the_sweeps() -> None:
    """Medians, ratios and shares of rows that fold, of a run that names its commit and day."""
    text, measured = page("bench.md"), report("sweep-h200.json")
    table = rows(text, "case | rows that fold")

    assert len(table) == len(measured.measured)
    for row, one in zip(table, measured.measured, strict=True):
        floor, *times = medians(one)
        named = row[0].replace("acceptance ", "").replace("4 layers", "layers=4").split(", ")
        assert set(named) <= set(str(one.case).split())
        assert row[1] == f"{one.cycle.flushing:.0%}"
        assert all(map(shows, row[2:7], [floor, *times]))
        assert [cell for cell in row[7:] if cell] == (
            [f"{times[3] / times[2]:.2f}"] if times[2] and times[3] else []
        )
    machine = measured.machine
    assert f"commit {machine['commit'][:7]}, {machine['date'][:10]})" in text


VARIANTS = (
    ("ef", "early", "scat", "tri", "best", "chain", "best32", "six"),
    ("lean", "lean2", "pre2", ("pre2-4", "pre2-12"), "lean-g1", ("lean-sp4", "lean-sp0")),
)
"""By the names of kernels-variants-h200.json, in the order of the page's table; of two runs."""


def test_the_variants_of_the_kernels() -> None:
    """Measured, for B = 1, 16, 64 and 256; two in one cell are told one after the other."""
    table = rows(page("kernels.md"), "change | registers, programs an SM")
    runs = result("kernels-variants-h200.json")["runs"]
    wanted = [
        [run["variants"][name]["us"] for name in ([names] if isinstance(names, str) else names)]
        for run, variants in zip(runs, VARIANTS, strict=True)
        for names in variants
    ]

    assert len(table) == len(wanted)
    for row, variants in zip(table, wanted, strict=True):
        cells = row[-1].split("; ")
        for cell, us in zip(cells, variants, strict=True):
            shown = cell.split(" / ")
            assert all(map(shows, shown, list(us.values())[-len(shown) :])), row
    for run in runs:
        assert {one["folds_compared"] for one in run["variants"].values()} == {1152}
        assert all(one["bits_of_the_twin"] for one in run["variants"].values())


def test_what_was_walked_beside() -> None:
    """Row-windows, comparisons of bits, the largest errors, and the steps of the protocol."""
    text = page("kernels.md")
    walked = [t for i in range(1, 6) for t in result(f"matrix-h200-{i}.json")["targets"]]
    seeds = result("seeds-h200.json")
    ours = [one for t in walked if t["name"] == "triton" for one in t["configurations"]]
    theirs = [one for t in walked if t["name"] == "sglang==0.5.16" for one in t["configurations"]]
    bits = sum(one["compared"].get("exactness", 0) for one in ours)
    every = sum(one["windows"] for one in ours) + seeds["windows"]

    def windows(kind: str) -> int:
        return sum(one["windows"] for one in ours if one["kind"] == kind)

    def largest(configurations: list[dict[str, Any]]) -> float:
        return max(float(one["largest"].get("outputs", 0)) for one in configurations)

    assert all(one["windows"] >= 2000 for one in ours if one["kind"] == "pairwise")
    assert f"{windows('server'):,} at the geometry of a server" in text
    assert f"and {windows('small'):,} at H=1, HV=2, K=V=32" in text
    assert f"{seeds['windows']:,} more there from twenty seeds" in text
    assert f"commit {seeds['machine']['commit']}): {every:,} row-windows" in text
    assert f"any of {every:,} row-windows" in page("planted.md")
    compared = f"{bits + seeds['compared']['exactness']:,} comparisons of "
    assert f"{compared}bits" in text
    assert f"{compared}folded checkpoints" in page("exactness.md")
    assert f"off by at most {largest(ours):.2f} of what is allowed" in text
    assert f"was by {largest(theirs):.2f} (" in text
    assert f"from the twenty seeds by {seeds['largest']['outputs']:.2f}." in text
    assert seeds["mismatches"] == sum(one["mismatches"] for one in ours) == 0
    explored = result("explore-64-8-h200.json")
    assert f"L=64, T=8 ({explored['covered']:,} transitions)" in text
    for name in ("gpu-checks-h200.json", "explore-64-8-h200.json", "explore-16-4-h200.json"):
        assert result(name)["machine"]["commit"] == report("bench-h200.json").machine["commit"]


def test_constants_that_were_tried() -> None:
    """The first table of what was put aside: medians, by the name of the target."""
    table = rows(page("kernels.md"), "constant | expected")
    names = (
        "triton+RING_REGISTERS=200",
        "triton+RING_REGISTERS=168",
        "triton+PLAN_REGISTERS=128",
        "triton+TILE_K=16+RING_REGISTERS=200",
        "triton+ORDERED=1+PLAN_REGISTERS=128+RING_REGISTERS=128+ROWS_PER_WARP=16",
    )
    measured = report("kernels-alternatives-h200.json").measured

    assert len(table) == len(names)
    for row, name in zip(table, names, strict=True):
        times = [next(p.median_us for p in one.peers if p.target == name) for one in measured]
        assert all(map(shows, row[2].split(" / "), times)), name


RELEASED = "sglang/kernels/ops/attention/fla/gdn_replayssm_spec_decode.py"


def parameters(source: str | bytes, name: str) -> list[tuple[str, str]]:
    """Of a function's parameters that may be passed by position: name, and default if any."""
    (found,) = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    names = [argument.arg for argument in (*found.args.posonlyargs, *found.args.args)]
    defaults = [ast.unparse(default) for default in found.args.defaults]
    assert not found.args.posonlyargs
    return list(zip(names, [""] * (len(names) - len(defaults)) + defaults, strict=True))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("ring", "gdn_replayssm_spec_decode"),
        ("cursors", "commit_gdn_replayssm_spec"),
        ("cursors", "reset_gdn_replayssm_spec_cursors"),
    ],
)
def test_the_arguments_are_the_releases(module: str, name: str) -> None:
    """Names, order and defaults, as the page says; read off both files, and nothing is imported."""
    wheel = wheels.find("sglang==0.5.16")
    if wheel is None or not wheel.has(RELEASED):
        pytest.skip("ringfold targets add sglang==0.5.16")
    ours = (DOCS.parent / "kernels" / f"{module}.py").read_text(encoding="utf-8")

    assert parameters(ours, name) == parameters(wheel.read(RELEASED), name)
    assert f"`{RELEASED}`" in page("kernels.md")


@pytest.mark.parametrize(
    ("cell", "value", "right"),
    [("8.9", 8.947, True), ("235", 234.991, True), ("62.7", 62.648, False), ("", None, True)],
)
def test_how_figures_are_compared(cell: str, value: float | None, right: bool) -> None:
    """By the digits that are given."""
    assert shows(cell, value) is right
