"""`ringfold simulate` serves the workload that its options describe.

The command is run as the shell runs it. What the numbers mean is tested beside the modules that
count them (`tests/sim/test_traffic.py`); here are options, output and exit codes.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

QUICK = "--requests 64 --running 32 --tokens 200"
SWEPT = "--window 4 --window 8 --ring 8 --ring 32 --json"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`ringfold simulate` with these arguments."""
    return subprocess.run(
        [sys.executable, "-m", "ringfold", "simulate", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_one_object_with_every_protocol_and_a_sweep_of_rings() -> None:
    """The sweep leaves out rings that are too short for a window."""
    done = run(*QUICK.split(), *SWEPT.split())
    found = json.loads(done.stdout)
    swept = {
        (s["dialect"], s["window"]): [p["ring"] for p in s["predictions"]] for s in found["sweeps"]
    }

    assert done.returncode == 0
    assert [p["dialect"] for p in found["protocols"]][:2] == ["snapshots", "ring"]
    assert swept["ring", 4] == swept["compact", 4] == [8, 32]
    assert swept["ring", 8] == [32]
    assert {s["recommended_ring"] for s in found["sweeps"]} == {32}


def test_a_table_for_people() -> None:
    """It says what it does not predict."""
    done = run(*QUICK.split())

    assert done.returncode == 0
    assert "recommended" in done.stdout
    assert "end to end is outside what this predicts" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--ring 12", "ring is 12, but must be a power of two"),
        ("--bandwidth 0", "bandwidth is 0.0, but must be above 0"),
        ("--preset llama", "must be one of qwen3-next-80b-a3b"),
        ("--preset qwen3.5-4b --config config.json", "name one model"),
    ],
)
def test_what_it_can_not_serve_is_a_usage_error(arguments: str, message: str) -> None:
    """Exit code 2 and one sentence."""
    done = run(*arguments.split())

    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
