"""One isolated environment in which every release of SGLang can be imported, built once.

A release's kernels can be loaded file by file; its pool, backend and caches import the whole
package, and with it packages that are no business of ringfold's environment. They are installed
into an environment of their own beside the cached wheels, at the versions of `REQUIREMENTS`, and
serve processes that are started with `Environment.python` and `variables`. A release itself is not
installed: its wheel is unpacked, and each process has one of them on its path.

What lies in the cache under its final name is whole: everything is built under a name of its own
and moved into place at the end.

That environment has a torch for the CPU. Whoever has a Python with SGLang's packages, such as where
SGLang is installed on a machine with a GPU, names it in ``$RINGFOLD_POOL_PYTHON``: it is used in
place of the one built here, and nothing is written to it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ringfold.fuzz.target import Device
from ringfold.fuzz.targets import wheels
from ringfold.fuzz.targets.sglang_sources import AbsentError, files_of

REQUIREMENTS: Final = Path(__file__).parent / "pool" / "requirements.txt"
PYTHON: Final = "3.11"
"""The Python whose wheels are fetched (`wheels.TAGS`): parts of a release are compiled for it."""
INSTALL_SECONDS_MAX: Final = 3600
REMEDY: Final = "ringfold targets add sglang-pool==0.5.16"
OWN: Final = "RINGFOLD_POOL_PYTHON"
"""The environment variable that names a Python of the user's."""

_RECORD = "environment.json"
IMPORTS: Final = "import torch, triton, transformers; print(torch.__version__)"


class BuildError(RuntimeError):
    """The environment cannot be built."""


class Part(msgspec.Struct, frozen=True):
    """A folder of an environment."""

    name: str
    bytes: int


class Record(msgspec.Struct, frozen=True):
    """What was built, kept as JSON inside the environment; without it there is none."""

    requirements: str
    """SHA-256 of the file with the pinned versions."""
    bytes: int
    largest: tuple[Part, ...]
    """The largest folders among the installed packages."""


@dataclass(frozen=True)
class Environment:
    """A built environment."""

    path: Path
    record: Record

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.path / "bin" / "python"


def find() -> Environment | None:
    """The environment for the present `REQUIREMENTS`, if it was built."""
    path = _place()
    try:
        record = msgspec.json.decode((path / _RECORD).read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):
        return None
    return Environment(path, record)


def add() -> Environment:
    """Build the environment unless it is there: 2 GB, minutes.

    Raises:
        BuildError: no Python of the right version, or pip fails, or what it installed
            does not import.
    """
    if (present := find()) is not None:
        return present
    place = _place()
    with _beside(place) as path:
        _run([_python(), "-m", "venv", "--without-pip", str(path)], "making the environment")
        inside = str(path / "bin" / "python")
        install = ("install", "--no-deps", "--requirement", str(REQUIREMENTS))
        quiet = ("--no-input", "--disable-pip-version-check", "--progress-bar=off", "--quiet")
        _run([sys.executable, "-m", "pip", "--python", inside, *install, *quiet], "installing")
        _run(
            [inside, "-c", IMPORTS],
            "importing torch, which must be a build for the CPU (tell pip where one is found, "
            "such as by PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL)",
        )
        packages = path / "lib" / f"python{PYTHON}" / "site-packages"
        parts = sorted(_sizes(packages), key=lambda part: -part.bytes)
        record = Record(_digest(), size(path), tuple(parts[:5]))
        (path / _RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2))
    built = find()
    if built is None:
        raise BuildError(f"{place} holds no whole environment: remove it, and try again")
    return built


def interpreter(device: Device = "cpu") -> Path | None:
    """The Python that imports releases for this device: the user's, or that of what was built."""
    if own := os.environ.get(OWN):
        return Path(own) if Path(own).is_file() else None
    built = find() if device == "cpu" else None
    return built.python if built else None


def lacking(release: str, device: Device = "cpu") -> str:
    """What to do where there is no `interpreter`."""
    if own := os.environ.get(OWN):
        return f"{OWN} names {own}, and there is no such file: set it to a Python, or unset it"
    if device == "cpu":
        add = f"ringfold targets add sglang-pool=={release.partition('==')[2]}"
        return f"there is no environment to import {release} in: type `{add}`"
    return (
        f"no Python is named that can import {release} with a torch for CUDA: set {OWN} to the "
        "interpreter of an environment in which SGLang is installed, such as /opt/sglang/bin/python"
    )


def installed(python: Path) -> str:
    """The name, ``sglang@DIR``, of the SGLang that is installed for that Python.

    Raises:
        AbsentError: it has none, or is no Python.
    """
    # Found and not imported, without this process's path.
    ask = "import importlib.util as u; print(u.find_spec('sglang').submodule_search_locations[0])"
    try:
        run = subprocess.run(
            [python, "-P", "-c", ask],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise AbsentError(
            f"{python} has no SGLang of its own ({type(error).__name__}): install it there, or "
            "name a release, such as sglang-pool==0.5.16"
        ) from None
    return f"sglang@{Path(run.stdout.strip()).parent}"


def unpacked(release: str) -> Path:
    """The folder to put on `sys.path` for a release such as ``sglang==0.5.16``; unpacked once.

    Raises:
        WheelError: its wheel is not here, or is not what it was.
        CheckoutError: it is named as a folder, and that holds no SGLang.
    """
    wheel = files_of(release)
    if wheel.sha256 is None:
        return wheel.path
    place = root() / "releases" / f"{wheel.release.replace('==', '-')}-{wheel.sha256[:12]}"
    if not place.is_dir():
        with _beside(place) as path, zipfile.ZipFile(wheel.path) as archive:
            archive.extractall(path)
    return place


def variables(release: str, *more: Path, device: Device = "cpu") -> dict[str, str]:
    """Environment variables of a process that imports `release`: these and no others.

    `more` are folders for its path, behind the release.
    """
    kept = ["PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH"]
    if device == "cuda":
        kept += ["CUDA_VISIBLE_DEVICES", "CUDA_HOME", "TRITON_CACHE_DIR"]
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "PYTHONPATH": os.pathsep.join(map(str, (unpacked(release), *more))),
        # Importing SGLang takes half a minute without cached bytecode, and a third of it with.
        "PYTHONPYCACHEPREFIX": str(root() / "bytecode"),
        **({"TRITON_INTERPRET": "1"} if device == "cpu" else {}),
        "RINGFOLD_POOL_DEVICE": device,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONNOUSERSITE": "1",
    }


def root() -> Path:
    """The folder of environments and unpacked releases, beside the cached wheels."""
    return wheels.cache() / "environments"


def size(folder: Path) -> int:
    """Bytes of the files in a folder."""
    return sum(
        path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    )


def _place() -> Path:
    return root() / f"sglang-py{PYTHON}-{_digest()[:12]}"


def _digest() -> str:
    return hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()


def _python() -> str:
    """A Python of the right version: this one, or one on the path."""
    if sys.version_info[:2] == tuple(map(int, PYTHON.split("."))):
        return sys.executable
    if found := shutil.which(f"python{PYTHON}"):
        return found
    raise BuildError(
        f"the environment of sglang-pool needs Python {PYTHON}, for which its wheels are made, and "
        f"there is no python{PYTHON} on the path: install one"
    )


@contextmanager
def _beside(place: Path) -> Iterator[Path]:
    """A folder beside `place` that is moved there at the end, and removed where that fails.

    Whoever comes second to the same place leaves what is there.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".building-", dir=place.parent))
    try:
        yield temporary
        try:
            temporary.rename(place)
        except OSError:
            if not place.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _run(command: list[str], doing: str) -> None:
    try:
        run = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{doing}: not done within {INSTALL_SECONDS_MAX} s; try again") from error
    if run.returncode:
        lines = [line for line in (run.stdout + run.stderr).splitlines() if line.strip()]
        raise BuildError(f"{doing} failed: {' / '.join(lines[-3:]) or 'without a word'}")


def _sizes(folder: Path) -> Iterator[Part]:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.name.endswith(".dist-info"):
            yield Part(entry.name, size(entry))
