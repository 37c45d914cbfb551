"""`ringfold bench` as the shell runs it, where there is no GPU: what it refuses, and its dry run.

Times are tested on a stand-in of a card in tests/fuzz/bench; here are options, exit codes and the
one JSON object.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`ringfold bench` with these arguments."""
    return subprocess.run(
        [sys.executable, "-m", "ringfold", "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_an_interpreter_is_not_timed() -> None:
    """The message says what to do."""
    done = run("triton")

    assert done.returncode == 2
    assert "an interpreter's times say nothing: use --device cuda, or --dry-run" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--dry-run --ring 12", "ring is 12, but must be a power of two"),
        ("--dry-run --ring 8 --window 5", "ring is 8, but must be at least two windows"),
        ("--dry-run --acceptance most", "acceptance is 'most', but must be uniform or"),
        ("--dry-run --sweep heads", "no sweep is named 'heads'"),
        ("--dry-run --dtype int8", "'int8' is not one of"),
        ("--dry-run --geometry 1,2", "not four integers"),
        ("--dry-run triton+SIZE=3", "'SIZE=3' changes no constant: there are"),
        ("--dry-run triton+TILE_K=", "has no literal behind the ="),
        ("--dry-run --plot x.png triton", "--plot"),
        ("--dry-run --steps 1025", "1024"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: str, message: str) -> None:
    """In one sentence, before anything runs."""
    done = run(*arguments.split())

    assert done.returncode == 2
    assert message in done.stderr


def test_a_dry_run(tmp_path: Path) -> None:
    """The same steps, judged but not timed; one object, which is also in the file."""
    pytest.importorskip("triton")
    path = tmp_path / "bench.json"
    done = run("triton", "--dry-run", "--steps", "8", "--json", "--save", str(path))
    printed = json.loads(done.stdout)

    assert done.returncode == 0, done.stderr
    assert printed == json.loads(path.read_text())
    (one,) = printed["measured"]
    (peer,) = one["peers"]
    assert peer["samples_us"] == []
    assert peer["output_error"] < 1e-3
    assert peer["written_share"] > 0
    assert printed["bandwidth"] is None
    assert set(printed["machine"]) >= {"date", "commit", "torch", "triton", "device"}
