"""Where, when, by which command and with what a result was made: a part of every JSON object.

A figure without it can't be compared with the next one, nor made again.
"""

from __future__ import annotations

import datetime as dt
import os
import platform
import shlex
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import msgspec

from ringfold import __version__

PACKAGES: Final = ("numpy", "torch", "triton")
"""Whose versions decide numbers. Asked of their metadata: nothing is imported for it."""
ASKED_SECONDS_MAX: Final = 10


def stamped(value: Any) -> dict[str, Any]:
    """A report (a mapping or a `Struct`) as builtins, with `machine` in front.

    A report that has a `machine` of its own keeps that. What has no letters in JSON, such as a byte
    of a file's name, is spelled out.
    """
    whole = {"machine": machine(), **msgspec.to_builtins(value, str_keys=True)}
    spelled: dict[str, Any] = _spelled(whole)
    return spelled


def _spelled(value: Any) -> Any:
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_spelled(key): _spelled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(item) for item in value]
    return value


@cache
def machine() -> dict[str, str]:
    """What there is to know. Asked once a process, so that the date is that of the first result."""
    known = {
        "command": command(),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "ringfold": __version__,
        "commit": commit(Path(__file__)) or "unknown",
        "python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            known[package] = version(package)
        except PackageNotFoundError:
            continue
    known |= {"processor": processor(), "cores": str(os.cpu_count())}
    query = ("--query-gpu=name,driver_version", "--format=csv,noheader")
    if gpu := asked("nvidia-smi", *query).partition("\n")[0]:
        known["gpu"], _, known["driver"] = (part.strip() for part in gpu.rpartition(","))
    return known


def command() -> str:
    """What was typed, whichever way ringfold was started; or a script's own name."""
    program = Path(sys.argv[0])
    ours = program.name == "ringfold" or program.parts[-2:] == ("ringfold", "__main__.py")
    return shlex.join([*(["ringfold"] if ours else ["python", program.name]), *sys.argv[1:]])


def commit(file: Path) -> str:
    """The commit of the checkout that `file` is tracked in, `+changes` if Python code differs.

    Empty outside of one, and where git is missing.
    """
    git = ("git", "-C", str(file.resolve().parent))
    if not asked(*git, "ls-files", "--", file.name):
        return ""  # a folder inside somebody else's repository
    head = asked(*git, "rev-parse", "HEAD")
    changed = asked(*git, "status", "--porcelain", "--untracked-files=no", "--", ":/*.py")
    return f"{head}+changes" if head and changed else head


def processor() -> str:
    """As the operating system names it."""
    described = Path("/proc/cpuinfo")
    if described.exists():
        for line in described.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def asked(*command: str) -> str:
    """What a program prints; empty if it fails, or is not there."""
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=ASKED_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout.strip() if run.returncode == 0 else ""
