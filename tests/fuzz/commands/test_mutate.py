"""`ringfold mutate` as a user types it.

The kernels are ours on their smallest configuration, so that a few mutants of a fixed seed are run
in seconds; what the mutants themselves are is asked by tests/fuzz/mutation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

HERE: Final = Path(__file__).parents[1] / "mutation"


def mutate(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the object on standard output, and what was said beside it."""
    command = [sys.executable, "-m", "ringfold", "mutate", *arguments, "--json"]
    environment = os.environ | {"PYTHONPATH": str(HERE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout), done.stderr


def test_without_a_kernel_there_is_nothing_to_mutate() -> None:
    """The simulator is no Triton kernel: inconclusive."""
    code, report, _ = mutate("sim", "--sample", "1", "--max-time", "1")

    assert code == 3
    assert report["results"] == []
    assert report["inconclusive"] == ["no Triton kernel was loaded whose source could be changed"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sample_is_run_and_written(tmp_path: Path) -> None:
    """Most are killed; the report on disk is the one that is printed, and quotes no kernel."""
    pytest.importorskip("triton")
    count = 8

    code, report, said = mutate(
        *("small:Small", "--sample", str(count), "--seed", "3", "--max-time", "20"),
        *("--run-dir", str(tmp_path)),
    )

    assert code == 0, said
    assert len(report["results"]) == count
    assert report["killed"] + report["timed_out"] >= count // 2
    assert report["score"] == (report["killed"] + report["timed_out"]) / count
    assert {result["file"] for result in report["results"]} <= set(report["identity"])
    assert report["left_out"] == {}
    assert report["mutants"] > 1000 < sum(report["not_reached"].values()) + report["mutants"]
    assert json.loads((tmp_path / "mutation.json").read_text()) == report
    assert "tl." not in (tmp_path / "mutation.json").read_text()
    assert "  ->  " in said
