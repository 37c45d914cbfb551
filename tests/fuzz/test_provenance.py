"""Every JSON object of a command says where it was made, unless it says so itself.

What is asked of the machine can only be compared with what else is known of it here: the version
of the package, the interpreter that runs this test, and a repository that is made for it.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import ringfold
from ringfold.fuzz.findings.failures import write_json
from ringfold.fuzz.provenance import asked, commit, machine, stamped


class Found(msgspec.Struct):
    """A report."""

    number: int = 3


def git(folder: Path, *arguments: str) -> str:
    """What git prints in a folder."""
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_versions_date_and_machine() -> None:
    """All that decides a number, and what to type for it."""
    known = machine()

    assert known["ringfold"] == ringfold.__version__
    assert known["python"] == platform.python_version()
    assert known["date"].endswith("+00:00")
    assert {"command", "commit", "numpy", "processor", "cores"} <= known.keys()


def test_a_report_says_where_it_was_made(tmp_path: Path) -> None:
    """On disk too; and one that knows better is left alone."""
    write_json(tmp_path / "a.json", Found())

    assert json.loads((tmp_path / "a.json").read_text()) == {"machine": machine(), "number": 3}
    assert stamped({"machine": {"device": "mine"}}) == {"machine": {"device": "mine"}}


def test_a_command_says_how_it_was_called() -> None:
    """With its arguments."""
    asked = ["targets", "--json"]
    command = [sys.executable, "-m", "ringfold", *asked]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert json.loads(done.stdout)["machine"]["command"] == "ringfold targets --json"


def test_the_commit_is_that_of_the_file(tmp_path: Path) -> None:
    """Marked if code was changed; none for a file that is not tracked."""
    code, page = tmp_path / "a.py", tmp_path / "a.md"
    code.write_text("x = 1\n")
    assert commit(code) == ""

    git(tmp_path, "init", "-q")
    page.write_text("A page.\n")
    git(tmp_path, "add", "a.md")
    git(tmp_path, "commit", "-q", "-m", "A page")
    assert commit(code) == ""

    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-q", "-m", "Code")
    page.write_text("Another page.\n")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert commit(code) == head

    code.write_text("x = 2\n")
    assert commit(code) == f"{head}+changes"


@pytest.mark.parametrize("program", ["no-such-program", "false"])
def test_a_program_that_fails_says_nothing(program: str) -> None:
    """Whatever is missing here, a result is still written."""
    assert asked(program) == ""
