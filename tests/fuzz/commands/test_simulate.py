"""`ringfold simulate` serves the workload that its options describe.

The command is run as the shell runs it. What the numbers mean is tested beside the modules that
count them (`tests/sim/test_traffic.py`); here are options, output and exit codes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ringfold.fuzz.findings.replay import Outcome, replay

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


def test_a_trace_that_replays(tmp_path: Path) -> None:
    """The workload that the options describe, as a file that `replay` agrees with."""
    path = tmp_path / "served.json"
    asked = "--requests 8 --running 3 --tokens 6 --turns 2 --cached 2 --dialect compact"
    done = run(*asked.split(), "--geometry", "1,2,8,6", "--trace", str(path), "--json")
    written = json.loads(done.stdout)

    assert done.returncode == 0, done.stderr
    assert written["trace"] == str(path)
    assert written["operations"]["admit"] + written["operations"]["hit"] == 8
    replayed = replay(path, "sim@compact", "cpu")
    assert (replayed.outcome, replayed.windows) == (Outcome.AGREES, written["windows"])


def test_no_table_is_folded() -> None:
    """A row a line, whatever the terminal; swept lengths stand in columns."""
    done = run(*QUICK.split(), "--ring", "8", "--ring", "16", "--ring", "1024")
    lines = done.stdout.splitlines()
    swept = lines[lines.index("us/step by ring length, computing on its rows included:") + 1 :]

    assert swept[0].split() == ["protocol", "T", "L=8", "L=16", "L=1024", "recommended"]
    assert [line.split()[0] for line in swept[1:4]] == ["ring", "compact", "open-loop"]
    assert {len(line.split()) for line in swept[:4]} == {6}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--ring 12", "ring is 12, but must be a power of two"),
        ("--gap -1", "gap is -1.0, but must be in 0"),
        ("--trace /tmp/x.json --dialect tree", "dialect is 'tree', but must be one of snapshots"),
        ("--trace /tmp/x.json --requests 65537", "at most 65536: serve fewer"),
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
