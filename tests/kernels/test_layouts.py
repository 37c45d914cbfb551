"""In compiled code, every kernel adds the columns of a state up in the same order.

Two kernels that share the source of a step still differ in bits if the compiler lays the state
out otherwise in one of them.  So the layout of that sum is read from the compiled intermediate
code of each kernel and compared, over the geometries, dtypes and coincidences of shapes that
could move it.  Compiling needs no GPU, so this guards the claim wherever the tests run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

# A ring as long as the tile is high is the coincidence to fear: equal shapes share vector widths.
QUICK = [(128, 128, 64)]
MANY = [
    (128, 128, 16),
    (32, 32, 32),
    (64, 16, 16),
    (80, 80, 16),
    (96, 64, 64),
    (18, 20, 8),
    (33, 24, 16),
]
MANY += [(256, 256, 64)]


KERNELS = (
    ("fold", "fp32", "fp32"),
    ("ring", "bf16", "fp32"),
    ("ring", "fp32", "fp32"),
    ("recurrent", "fp32", "fp32"),
    ("recurrent", "bf16", "bf16"),
)
"""Kernel, dtype of activations, dtype of snapshots."""


Compiled = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def compiled() -> Iterator[Compiled]:
    """What `compiled.py` says of each case: one process for all tests, since torch loads slowly."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).with_name("compiled.py"))]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        asked, answers = process.stdin, process.stdout
        assert asked is not None
        assert answers is not None

        def ask(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
            asked.write(json.dumps(cases) + "\n")
            asked.flush()
            line = answers.readline()
            assert line, "it has ended: why is on standard error"
            reports: list[dict[str, Any]] = json.loads(line)
            return reports

        yield ask
        asked.close()


ALTERNATIVE = "+TILE_K=16+RECORDS_AHEAD=2"
"""Other constants than the source's, as a target's name may ask for them."""


@pytest.mark.parametrize(
    ("K", "V", "L", "changes"),
    [(*x, ("",)) for x in QUICK]
    + [pytest.param(*x, (ALTERNATIVE,), marks=pytest.mark.slow) for x in QUICK]
    + [pytest.param(*x, ("", ALTERNATIVE), marks=pytest.mark.slow) for x in MANY],
)
def test_all_kernels_sum_a_row_in_one_layout(
    K: int, V: int, L: int, changes: tuple[str, ...], compiled: Compiled
) -> None:
    """One layout in each kernel, and the same in all; every product that may fuse is told so."""
    cases = [
        {"K": K, "V": V, "L": L, "changes": c, "name": n, "act": a, "snapshot": s}
        for c in changes
        for n, a, s in KERNELS
    ]

    reports = compiled(cases)

    assert all(len(report["layouts"]) == 1 for report in reports)
    assert all(report["fma"] > 0 for report in reports)
    for first in range(0, len(reports), len(KERNELS)):  # of one set of constants
        alike = reports[first : first + len(KERNELS)]
        assert len({layout for report in alike for layout in report["layouts"]}) == 1


EIGHT_LANES_A_ROW = (
    "lane = [[0, 1, 0], [0, 2, 0], [0, 4, 0], [1, 0, 0], [2, 0, 0]]",
    "sizePerThread = [1, 1, 4], threadsPerWarp = [4, 8, 1]",
)
"""As Triton's releases write one and the same layout."""


@pytest.mark.parametrize(
    ("K", "V", "name", "pieces"),
    [
        (128, 128, "ring", 2),
        (128, 128, "fold", 1),
        pytest.param(32, 32, "ring", 2, marks=pytest.mark.slow),
        pytest.param(100, 50, "ring", 2, marks=pytest.mark.slow),
    ],
)
def test_lanes_hold_what_they_exchange(
    K: int, V: int, name: str, pieces: int, compiled: Compiled
) -> None:
    """Eight lanes share a row of the state, a lane's rows lie apart; of outputs, a tensor core's.

    A ring of 16-bit records alone is folded so, and none in wider tiles.
    """
    case = {"name": name, "K": K, "V": V, "L": 16, "act": "bf16", "snapshot": "fp32"}

    shared, single, wide = compiled([case, case | {"act": "fp32"}, case | {"K": 256}])

    assert len(shared["exchanged"]) == pieces
    for layout in shared["exchanged"]:
        if "mma" in layout:
            assert "versionMajor = 2" in layout
            assert "instrShape = [16, 8" in layout
        else:
            assert any(words in layout for words in EIGHT_LANES_A_ROW)
    assert single["exchanged"] == wide["exchanged"] == []


def test_a_pool_of_unknown_alignment_would_move_the_layout(compiled: Compiled) -> None:
    """The check can fail, and what `ALIGN` pins down needs pinning down."""
    case = {"name": "fold", "K": 128, "V": 64, "L": 16, "act": "fp32", "snapshot": "fp32"}

    pinned, loose = compiled([case, case | {"align": 4}])

    assert pinned["layouts"] != loose["layouts"]
