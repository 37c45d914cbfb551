"""Which SGLang is meant: a fetched release, the one that is installed, or a source checkout.

| name | files |
|---|---|
| `sglang==VERSION` | of the cached wheel |
| `sglang` | of the package in this environment, which is found and not imported |
| `sglang@DIR` | of a checkout: DIR is its root, or its `python` folder |
"""

from __future__ import annotations

import importlib.util
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Final

from ringfold.fuzz.targets import wheels
from ringfold.fuzz.targets.wheels import Wheel, WheelError

PACKAGE: Final = "sglang"
INSTALL: Final = "pip install 'ringfold[sglang]'"
GIT_SECONDS_MAX: Final = 30


class AbsentError(WheelError):
    """It is not on this machine."""


class CheckoutError(ValueError):
    """A folder that is no checkout of SGLang."""


def files_of(name: str) -> Wheel:
    """The files of the SGLang of that name.

    Raises:
        AbsentError: it is not on this machine; says what to type.
        WheelError: its wheel is not what it was.
        CheckoutError: the folder is none, or holds no `sglang` package.
        ReleaseError: `name` is none of those above.
    """
    if name == PACKAGE:
        return Wheel(name, _installed_under(), None)
    if name.startswith(f"{PACKAGE}@"):
        return Wheel(name, _checkout_under(name.partition("@")[2]), None)
    wheel = wheels.find(name)
    if wheel is None:
        raise AbsentError(f"{name} is not on this machine: type `ringfold targets add {name}`")
    return wheel


def provenance(wheel: Wheel) -> dict[str, str]:
    """What is known of them besides the hashes of what was loaded: version or commit."""
    if wheel.release == PACKAGE:
        return {"version": metadata.version(PACKAGE)}
    if "@" in wheel.release:
        return {"commit": commit} if (commit := _commit_of(wheel.path)) else {}
    return {}


def is_installed() -> bool:
    """Whether this environment has SGLang."""
    return importlib.util.find_spec(PACKAGE) is not None


def _installed_under() -> Path:
    # A top-level package is found without being executed, editable installs included.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise AbsentError(f"{PACKAGE} is not installed in this environment: type {INSTALL}")
    return Path(spec.submodule_search_locations[0]).parent


def _checkout_under(directory: str) -> Path:
    if not directory:
        raise CheckoutError(f"{PACKAGE}@ names no folder: write {PACKAGE}@DIR")
    root = Path(directory).expanduser()
    if not root.is_dir():
        raise CheckoutError(f"{PACKAGE}@{directory}: there is no such folder")
    for folder in (root / "python", root):
        if (folder / PACKAGE).is_dir():
            return folder
    raise CheckoutError(
        f"{PACKAGE}@{directory}: neither the folder nor its python/ holds a package {PACKAGE}: "
        "name the root of a checkout of sgl-project/sglang"
    )


def _commit_of(folder: Path) -> str:
    """The commit that is checked out, `+changes` if files differ; empty outside of a checkout."""
    folder = folder.resolve()
    top, head = _git(folder, "rev-parse", "--show-toplevel"), _git(folder, "rev-parse", "HEAD")
    if not head or Path(top) not in (folder, folder.parent):
        return ""  # a folder inside somebody else's repository
    changed = _git(folder, "status", "--porcelain", "--", PACKAGE)
    return f"{head}+changes" if changed else head


def _git(folder: Path, *arguments: str) -> str:
    """What git prints; empty if it fails, or is not there."""
    try:
        run = subprocess.run(
            ["git", "-C", str(folder), *arguments],  # noqa: S607 - whichever git the user has
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout.strip() if run.returncode == 0 else ""
