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


def compiled(K: int, V: int, L: int) -> list[dict[str, Any]]:
    """What `compiled.py` says of each kernel, for both widths of activations and snapshots."""
    cases = [
        {"name": name, "K": K, "V": V, "L": L, "act": act, "snapshot": snapshot}
        for name, act, snapshot in (
            ("fold", "fp32", "fp32"),
            ("ring", "bf16", "fp32"),
            ("ring", "fp32", "fp32"),
            ("recurrent", "fp32", "fp32"),
            ("recurrent", "bf16", "bf16"),
        )
    ]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("compiled.py")
    command = [sys.executable, str(script), json.dumps(cases)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reports: list[dict[str, Any]] = json.loads(done.stdout)
    return reports


@pytest.mark.parametrize(
    ("K", "V", "L"), QUICK + [pytest.param(*x, marks=pytest.mark.slow) for x in MANY]
)
def test_all_kernels_sum_a_row_in_one_layout(K: int, V: int, L: int) -> None:
    """One layout in each kernel, and the same in all; every product that may fuse is told so."""
    reports = compiled(K, V, L)

    layouts = {layout for report in reports for layout in report["layouts"]}
    assert all(len(report["layouts"]) == 1 for report in reports)
    assert len(layouts) == 1
    assert all(report["fma"] > 0 for report in reports)
