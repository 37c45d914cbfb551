"""`ringfold memory` prints what `ringfold.sim.memory` counts, and refuses what it can't count.

The command is run as the shell runs it, in a process of its own. What the numbers mean is tested
beside the module that counts them; here are the published figures as the command prints them, the
ways to name a model, exit codes, and that no plotting library is needed unless a plot is asked for.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PUBLISHED = "--layers 30 --heads 16 --value-heads 32 --k 128 --v 128"
OPTIONS = "--window 4 --running 48 --ring 16"
PNG = b"\x89PNG"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`ringfold memory` with these arguments."""
    return subprocess.run(
        [sys.executable, "-m", "ringfold", "memory", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def answer(*arguments: str) -> dict[str, Any]:
    """The object that it prints."""
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_published_figures() -> None:
    """12331253760 bytes of snapshots; 397312 bytes of six rings a slot and layer."""
    found = answer(*f"{PUBLISHED} {OPTIONS}".split())
    layouts = {(one["dialect"], one["releases"]): one for one in found["layouts"]}
    buffers = {b["name"]: b["bytes"] for b in layouts["snapshots", "0.5.16"]["buffers"]}

    assert buffers["snapshots"] == 12331253760
    assert layouts["ring", "0.5.16"]["rings_bytes_per_slot"] == 397312 * 30


def test_a_preset_a_file_and_options_name_the_same_model(tmp_path: Path) -> None:
    """Three ways to the same bytes."""
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "num_hidden_layers": 40,
                "full_attention_interval": 4,
                "linear_num_key_heads": 16,
                "linear_num_value_heads": 32,
                "linear_key_head_dim": 128,
                "linear_value_head_dim": 128,
                "linear_conv_kernel_dim": 4,
            }
        )
    )
    ways = (["--preset", "qwen3.5-35b-a3b"], ["--config", str(config)], PUBLISHED.split())
    first, *others = (answer(*way)["layouts"] for way in ways)

    assert others == [first, first]


def test_a_table_for_people() -> None:
    """The same figures with separators, and what they buy."""
    done = run(*f"{PUBLISHED} {OPTIONS}".split())

    assert done.returncode == 0
    assert "12,331,253,760" in done.stdout
    assert "left out" in done.stdout


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    """As a PNG file."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "memory.png"
    answer(*PUBLISHED.split(), "--plot", str(path))

    assert path.read_bytes().startswith(PNG)


def test_no_plot_needs_no_plotting_library() -> None:
    """Importing the command does not import Matplotlib."""
    program = "import sys, ringfold.fuzz.cli; sys.exit('matplotlib' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "name one model"),
        ("--preset qwen3.5-35b-a3b --layers 3", "name one model"),
        ("--layers 3 --heads 4", "also needs --value-heads, --k, --v"),
        ("--preset llama", "must be one of qwen3-next-80b-a3b"),
        ("--config /nowhere/config.json", "can't be read"),
        ("--preset qwen3.5-35b-a3b --tp 3", "give every rank whole heads"),
        ("--preset qwen3.5-35b-a3b --plot /nowhere/a.png", "is not a folder"),
    ],
)
def test_what_it_can_not_count_is_a_usage_error(arguments: str, message: str) -> None:
    """Exit code 2 and one sentence."""
    done = run(*arguments.split())

    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
