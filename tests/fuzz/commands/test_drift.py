"""`ringfold drift` runs the study that its options describe, and keeps what it finds.

The command is run as the shell runs it. What numbers mean is tested beside `ringfold.sim.drift`;
here are the options, the file that is written as results come, the plot, and the exit codes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ringfold.fuzz.commands.drift import Report, summary

DOCS = Path(__file__).parents[3] / "docs"
SHORT = (
    "--tokens 30 --gate -4 --similarity 0.5 --seeds 1 --k 8 --v 8 --precision bf16-records "
    "--ring 16 --acceptance 0.7"
)
QUICK = f"{SHORT} --dialect ring --dialect open-loop"
TARGETS = (
    "triton sim@compact --tokens 10 --gate -4 --similarity 0.5 --seeds 1 --k 16 --v 16 --ring 8 "
    "--acceptance 0.7 --precision fp32 --precision kernel"
)
PNG = b"\x89PNG"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`ringfold drift` with these arguments."""
    return subprocess.run(
        [sys.executable, "-m", "ringfold", "drift", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_one_object_that_is_also_in_the_file(tmp_path: Path) -> None:
    """Study, machine, bounds and a track a case; the file holds the same but for the time."""
    path = tmp_path / "results" / "drift.json"
    done = run(*QUICK.split(), "--json", "--save", str(path))
    printed, kept = json.loads(done.stdout), json.loads(path.read_text())

    assert done.returncode == 0
    assert [track["case"]["dialect"] for track in printed["tracks"]] == ["ring", "open-loop"]
    assert [point["tokens"] for point in printed["bounds"]] == [10, 20, 30]
    assert printed["study"]["geometry"]["key_dim"] == 8
    assert printed == kept
    assert list(tmp_path.rglob("*")) == [path.parent, path]


def test_what_was_saved_is_not_walked_again(tmp_path: Path) -> None:
    """Cases of an earlier run are taken over as they are, in the order asked for, with its stamp.

    So that they are seen to be taken over, the file says of one that it flipped a word.
    """
    path, short = tmp_path / "drift.json", SHORT.split()
    assert run(*short, "--dialect", "ring", "--save", str(path)).returncode == 0
    kept = json.loads(path.read_text())
    kept["tracks"][0]["first_flip"][0][0] = [7]
    path.write_text(json.dumps(kept))
    both = ["--dialect", "open-loop", "--dialect", "ring", "--reuse", str(path), "--json"]
    found = json.loads(run(*short, *both).stdout)
    dialects = [(t["case"]["dialect"], t["first_flip"]) for t in found["tracks"]]

    assert dialects == [("open-loop", [[[None]]]), ("ring", [[[7]]])]
    assert found["reused"] == [kept["machine"]]
    refused = run(*short, "--seed", "1", "--dialect", "ring", "--reuse", str(path))
    assert refused.returncode == 2
    assert "of other texts: its seed is 0, and here it is 1" in " ".join(refused.stderr.split())


def test_targets_are_walked_beside_machines() -> None:
    """Named ones alone unless dialects are named too; what one refuses is told, and why."""
    found = json.loads(run(*TARGETS.split(), "--json").stdout)
    walked = [(t["case"]["target"], t["case"]["precision"]) for t in found["tracks"]]
    first, *others = found["refused"]

    assert walked == [("triton", "fp32"), ("sim@compact", "fp32"), ("sim@compact", "kernel")]
    assert (first, others) == ("triton kernel L=8 acceptance=0.7", [])
    assert "bfloat16" in found["refused"][first]
    assert found["identities"].keys() == {"triton", "sim@compact"}


def test_a_table_for_people() -> None:
    """A row a case."""
    done = run(*QUICK.split())

    assert done.returncode == 0
    assert "open-loop bf16-records" in done.stdout
    assert "30 tokens, H=1 HV=2 K=8 V=8, T=4" in done.stdout


def test_the_page_has_what_the_command_prints() -> None:
    """Outputs of the first table, which are the worst from 1,000 tokens on."""
    kept = (DOCS / "results" / "drift-100k.json").read_bytes()
    tracks = msgspec.json.decode(kept, type=Report).tracks
    page = (DOCS / "drift.md").read_text(encoding="utf-8")
    rows = dict(
        re.findall(
            r"^\| (`[^|]+) \|(?: [\d.e-]+ \|){2} ([\d.e-]+) \| [\d,]+ of", page, re.MULTILINE
        )
    )

    printed = {
        f"`{t.case.dialect}` {t.case.precision}": f"{summary(t).output:.1e}".replace("e-0", "e-")
        for t in tracks
    }

    assert rows
    assert rows.items() <= printed.items()


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    """As a PNG file."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "drift.png"

    assert run(*QUICK.split(), "--plot", str(path)).returncode == 0
    assert path.read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--dialect rings", "dialect is 'rings', but must be one of snapshots"),
        ("--precision fp8", "precision is 'fp8', but must be one of fp32"),
        ("--ring 12", "a power of two"),
        ("--tokens 0", "tokens is 0"),
        ("nobody", "target 'nobody' is unknown"),
        ("--reuse none.json", "none.json is not what --save writes"),
        ("--plot /nowhere/a.png", "is not a folder"),
        ("--plot a.xyz", "a.xyz is none of .png, .svg, .pdf"),
    ],
)
def test_what_it_can_not_study_is_a_usage_error(arguments: str, message: str) -> None:
    """Exit code 2 and one sentence."""
    done = run(*arguments.split())

    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
