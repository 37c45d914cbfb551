"""Does a failure surface, and does nothing else?

Three canaries always fail, each by another check, and one target never may: it is the plain
simulator under a user's name. They are run as a user's targets are, by the command line with its
worker processes and exit codes, and in this process. Were the tester to lose failures on the way,
or to make some up, these would tell.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from ringfold.fuzz.running.hunt import hunt
from ringfold.fuzz.targets.registry import resolve

HERE: Final = Path(__file__).parent
WINDOWS_MAX: Final = 100
SEEDS: Final = 20
WINDOWS_A_SEED: Final = 150  # each starts with the directed history of 104 windows

CANARIES: Final = {"Canary": "outputs", "Crashing": "crash", "Corrupting": "frame"}
DYING: Final = CANARIES.items()


def fuzz(target: str, windows: int, seed: int, folder: Path) -> tuple[int, dict[str, Any]]:
    """Exit code and report of `ringfold fuzz`."""
    command = [sys.executable, "-m", "ringfold", "fuzz", target, "--json", "--workers", "1"]
    command += ["--max-windows", str(windows), "--seed", str(seed), "--run-dir", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(HERE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    report: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, report


@pytest.mark.parametrize(("canary", "check"), DYING)
def test_a_canary_dies_at_once(
    canary: str, check: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The very first history fails, by the right check."""
    monkeypatch.syspath_prepend(HERE)

    found = hunt(resolve(f"canary:{canary}"), seed, windows_max=WINDOWS_MAX)

    assert found.histories == 1
    assert found.mismatches[0].check == check


@pytest.mark.parametrize(("canary", "check"), DYING)
def test_the_command_line_reports_a_dead_canary(
    canary: str, check: str, seed: int, tmp_path: Path
) -> None:
    """Exit code 1, every history counted, and a trace on disk for each kind of finding."""
    code, report = fuzz(f"canary:{canary}", WINDOWS_MAX, seed, tmp_path)

    assert code == 1
    assert report["mismatches"] == report["histories"] > 0
    assert {finding["check"] for finding in report["findings"]} == {check}
    assert all(Path(finding["trace"]).is_file() for finding in report["findings"])


def test_the_command_line_acquits_the_sound_target(seed: int, tmp_path: Path) -> None:
    """Exit code 0, with every check having compared something and all situations reached."""
    code, report = fuzz("canary:Sound", 1500, seed, tmp_path)

    assert (code, report["findings"], report["missed"]) == (0, [], [])
    assert set(report["compared"]) == {
        "outputs",
        "state-local",
        "state-global",
        "cursors",
        "records",
        "frame",
        "exactness",
    }
    assert max(report["largest"].values()) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("nth", range(SEEDS))
def test_the_sound_target_never_fails(nth: int, seed: int) -> None:
    """From one seed of twenty; `make soak` walks a million row-windows."""
    acquitted = hunt(resolve("sim"), (seed + nth) % 2**32, windows_max=WINDOWS_A_SEED)

    assert acquitted.mismatches == []
    assert acquitted.windows >= WINDOWS_A_SEED
