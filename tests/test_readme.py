"""The README is run as it stands.

Its class for a user's own kernel is written to a file and fuzzed by name in Triton's interpreter;
its timeline is drawn anew by `ringfold explain` and compared; its planted bug is searched for with
the command it gives. What a stranger types is what is tested.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def run(arguments: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`ringfold ARGUMENTS` in `folder`, which is on PYTHONPATH."""
    path = os.pathsep.join([str(folder), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "ringfold", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_the_example_target_agrees_and_is_about_forty_lines(tmp_path: Path) -> None:
    """A user's class, as the README shows it, is found by name, walked and judged."""
    pytest.importorskip("triton")
    found = re.search(r"<!-- test: (\S+) -->\n```python\n(.*?)```", README, re.DOTALL)
    assert found is not None
    name, code = found.groups()
    assert len(code.splitlines()) <= 50
    (tmp_path / name).write_text(code, encoding="utf-8")

    target = f"{Path(name).stem}:MyRing"
    done = run(
        ["fuzz", target, "--max-windows", "40", "--geometry", "1,2,32,32", "--workers", "1"],
        tmp_path,
    )

    assert "no mismatch" in done.stdout, done.stdout + done.stderr
    assert done.returncode in (0, 3)  # so few windows may miss a situation, but nothing disagrees


def test_the_timeline_is_what_explain_prints(tmp_path: Path) -> None:
    """The picture at the top is no drawing: the command draws it from a history."""
    steps = [(2, 2), (2, 2), (2, 1), (2, 2)]
    operations = ['{"op": "admit", "request": 0, "tag": 0}']
    for tag, (length, accepted) in enumerate(steps, start=1):
        operations.append(f'{{"op": "verify", "tag": {tag}, "rows": [0], "lengths": [{length}]}}')
        operations.append(f'{{"op": "commit", "tag": {tag}, "accepted": [{accepted}]}}')
    trace = f"""{{
      "ringfold_trace": 1,
      "setup": {{"dialect": "ring", "ring": 8, "window": 2, "slots": 2,
        "geometry": {{"heads": 1, "value_heads": 1, "key_dim": 32, "value_dim": 32}}}},
      "payload": {{"seed": 0, "profile": "ordinary"}},
      "operations": [{", ".join(operations)}]
    }}"""
    (tmp_path / "trace.json").write_text(trace, encoding="utf-8")

    done = run(["explain", "trace.json"], tmp_path)

    assert done.returncode == 0, done.stderr
    shown = re.search(r"```\n( +operation.*?)```", README, re.DOTALL)
    assert shown is not None

    def rows(text: str) -> list[list[str]]:
        return [line.split() for line in text.splitlines() if re.match(r"\d", line)]

    assert rows(shown[1]) == rows(done.stdout)
    assert len(rows(done.stdout)) == 9


def test_the_planted_bug_is_found_by_the_command_that_is_given(tmp_path: Path) -> None:
    """The command exits with 1, names the check, and its last line replays the failure."""
    found = re.search(r"\$ ringfold (fuzz sim:.*)", README)
    assert found is not None

    done = run(shlex.split(found[1]), tmp_path)

    assert done.returncode == 1, done.stdout + done.stderr
    line = re.search(r"reproduce: ringfold (.*)", done.stdout)
    assert line is not None
    again = run(shlex.split(line[1]), tmp_path)
    assert again.returncode == 1
    assert again.stdout.startswith("FAILED")


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_links_lead_somewhere(link: str) -> None:
    """Every relative link of the README names something that is there."""
    assert (ROOT / link).exists()
