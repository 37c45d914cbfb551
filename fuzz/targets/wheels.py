"""A released wheel is a zip of sources: fetched once, never installed, read where it lies.

Released kernels are tested as released. A wheel is fetched by pip under fixed tags (wheels of one
release differ by Python version), its SHA-256 is recorded when it arrives and compared on every
use, and so is that of each file read out of it. What ran is thereby known to the byte.

Where there is no network, a folder may stand in for the wheels: ``$RINGFOLD_WHEELS`` holds
``sglang-0.5.16/<path inside the wheel>``, with just the files that a target reads.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec
from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version

TAGS = ("--python-version=3.11", "--platform=manylinux_2_34_x86_64")
FETCH_SECONDS_MAX = 900

_RECORD = "wheel.json"
_UNREACHABLE = re.compile(r"NewConnectionError|ConnectTimeout|ProxyError|name resolution|Retrying")


class ReleaseError(ValueError):
    """A release is not written ``name==version``."""


class WheelError(RuntimeError):
    """A wheel cannot be fetched, found or trusted."""


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    """What is known of a cached wheel, kept as JSON beside it."""

    wheel: str
    """File name of the wheel."""
    sha256: str
    files: dict[str, str]
    """SHA-256 of each file that was ever read, by its path inside the wheel."""


@dataclass(frozen=True)
class Wheel:
    """The files of one release: a wheel in the cache, or a folder that stands in for one."""

    release: str
    """``name==version``, normalised."""
    path: Path
    sha256: str | None
    """As recorded for the wheel; None for a folder, known only by the files read from it."""

    def read(self, path: str) -> bytes:
        """Content of the file at `path` inside the wheel.

        Raises:
            WheelError: there is no such file, or wheel or file are not what they were at first.
        """
        if self.sha256 is None:
            try:
                return (self.path / path).read_bytes()
            except OSError as error:
                raise WheelError(
                    f"{self.release}: cannot read {path} in {self.path} ({error.strerror}); "
                    "copy that file of the wheel there"
                ) from error
        self.verify()
        with zipfile.ZipFile(self.path) as archive:
            try:
                content = archive.read(path)
            except KeyError as error:
                raise WheelError(f"{self.release}: {self.path.name} has no file {path}") from error
        self._remember(path, hashlib.sha256(content).hexdigest())
        return content

    def has(self, path: str) -> bool:
        """Whether there is a file at `path` inside the wheel."""
        if self.sha256 is None:
            return (self.path / path).is_file()
        self.verify()
        stat = self.path.stat()
        return path in _names(self.path, stat.st_mtime_ns, stat.st_size)

    def verify(self) -> None:
        """Compare the wheel with its record; done once in a process while the file stays as it is.

        Raises:
            WheelError: the wheel is gone, or is not the one that was fetched.
        """
        if self.sha256 is None:
            return
        try:
            stat = self.path.stat()
            found = _sha256(self.path, stat.st_mtime_ns, stat.st_size)
        except OSError as error:
            raise WheelError(
                f"{self.release}: cannot read {self.path} ({error.strerror}); "
                f"type: ringfold targets add {self.release}"
            ) from error
        if found != self.sha256:
            raise WheelError(
                f"{self.release}: {self.path} is corrupt: its SHA-256 is {found}, "
                f"recorded is {self.sha256}; type: ringfold targets add {self.release}"
            )

    def _remember(self, path: str, sha256: str) -> None:
        record = _read_record(self.path.parent)
        if record is None:
            raise WheelError(
                f"{self.release}: its record {self.path.parent / _RECORD} is gone; "
                f"type: ringfold targets add {self.release}"
            )
        known = record.files.get(path)
        if known is None:
            record.files[path] = sha256
            _write_record(self.path.parent, record)
        elif known != sha256:
            raise WheelError(
                f"{self.release}: {path} has SHA-256 {sha256}, but {known} was recorded when it "
                f"was first read; if you trust this wheel, remove {self.path.parent} and "
                f"type: ringfold targets add {self.release}"
            )


def add(release: str) -> Wheel:
    """Fetch `release`, such as ``sglang==0.5.16``, unless it is there already.

    A cached wheel that no longer matches its record is fetched again, and must match it then.

    Raises:
        ReleaseError: `release` is malformed.
        WheelError: pip cannot fetch it, or what it fetched differs from what was recorded.
    """
    name, version = _parse(release)
    try:
        present = find(release)
    except WheelError:
        present = None
    if present is not None:
        return present

    folder = cache() / "wheels" / f"{name}-{version}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as temporary:
        fetched = _fetch(f"{name}=={version}", Path(temporary))
        sha256 = hashlib.sha256(fetched.read_bytes()).hexdigest()
        record = _read_record(folder)
        if record is None:
            record = _Record(wheel=fetched.name, sha256=sha256, files={})
        elif record.sha256 != sha256:
            raise WheelError(
                f"{release}: fetched {fetched.name} with SHA-256 {sha256}, but {record.sha256} was "
                f"recorded the first time; a release does not change, so find out why, "
                f"then remove {folder}"
            )
        folder.mkdir(exist_ok=True)
        fetched.replace(folder / record.wheel)
    _write_record(folder, record)
    return Wheel(f"{name}=={version}", folder / record.wheel, sha256)


def find(release: str) -> Wheel | None:
    """The wheel of `release` if it is here, verified; a stand-in folder comes before the cache.

    Raises:
        ReleaseError: `release` is malformed.
        WheelError: the cached wheel is not the one that was fetched.
    """
    name, version = _parse(release)
    for wheel in installed():
        if wheel.release == f"{name}=={version}":
            wheel.verify()
            return wheel
    return None


def installed() -> list[Wheel]:
    """Every wheel that is here, unverified, stand-in folders first."""
    wheels = []
    stand_ins = os.environ.get("RINGFOLD_WHEELS")
    if stand_ins:
        wheels += [Wheel(release, folder, None) for release, folder in _releases(Path(stand_ins))]
    for release, folder in _releases(cache() / "wheels"):
        record = _read_record(folder)
        if record is not None:
            wheels.append(Wheel(release, folder / record.wheel, record.sha256))
    return wheels


def _parse(release: str) -> tuple[str, str]:
    """Normalised name and version."""
    name, equals, version = release.partition("==")
    try:
        if not equals:
            raise InvalidVersion  # noqa: TRY301 - the same remedy for every malformed part
        return canonicalize_name(name, validate=True), str(Version(version))
    except (InvalidName, InvalidVersion):
        raise ReleaseError(
            f"release {release!r} is not written name==version, such as sglang==0.5.16"
        ) from None


def _releases(parent: Path) -> list[tuple[str, Path]]:
    """Each release with a folder ``name-version`` in `parent`, sorted by name."""
    found = []
    for folder in sorted(parent.glob("*-*/")):
        name, _, version = folder.name.rpartition("-")
        try:
            found.append(("==".join(_parse(f"{name}=={version}")), folder))
        except ReleaseError:
            continue  # something else that lies there
    return found


def cache() -> Path:
    """Where fetched things are kept: $RINGFOLD_CACHE, or ringfold in the user's cache folder."""
    own = os.environ.get("RINGFOLD_CACHE")
    if own:
        return Path(own)
    user = os.environ.get("XDG_CACHE_HOME")
    return (Path(user) if user else Path.home() / ".cache") / "ringfold"


def _fetch(release: str, folder: Path) -> Path:
    """Let pip download the wheel into `folder`; nothing is installed."""
    command = [
        *(sys.executable, "-m", "pip", "download", release, "--no-deps", "--only-binary=:all:"),
        *(*TAGS, "--dest", str(folder), "--no-input", "--retries=1", "--timeout=30"),
        *("--disable-pip-version-check", "--progress-bar=off"),
    ]
    try:
        run = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise WheelError(
            f"{release}: pip did not finish within {FETCH_SECONDS_MAX} s; try again"
        ) from error
    wheels = list(folder.glob("*.whl"))
    if run.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    raise WheelError(f"{release}: {_cause(run.stdout + run.stderr, release)}")


def _cause(log: str, release: str) -> str:
    """Why pip failed, in a sentence that names the way out."""
    offered = re.search(r"\(from versions: ([^)]*)\)", log)
    versions = offered.group(1).split(", ") if offered else []
    if versions and versions != ["none"]:
        newest = ", ".join(versions[-5:])
        return f"there is no such version with a wheel for {' '.join(TAGS)}; newest: {newest}"
    if _UNREACHABLE.search(log):
        return (
            "no package index could be reached; fetch it where there is a network, or put the "
            f"files it needs under $RINGFOLD_WHEELS/{release.replace('==', '-')}/"
        )
    if versions:
        return f"the package index has no wheel of that name for {' '.join(TAGS)}"
    lines = [line for line in log.splitlines() if line.strip()]
    return f"pip failed: {lines[-1] if lines else 'it printed nothing'}"


@lru_cache(maxsize=32)
def _sha256(path: Path, mtime_ns: int, size: int) -> str:
    """Digest of the file, whose time and size are part of the cache key."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=32)
def _names(path: Path, mtime_ns: int, size: int) -> frozenset[str]:
    """Paths inside the wheel, whose time and size are part of the cache key."""
    with zipfile.ZipFile(path) as archive:
        return frozenset(archive.namelist())


def _read_record(folder: Path) -> _Record | None:
    """The record in `folder`; None if there is none that can be read, as if never fetched."""
    try:
        return msgspec.json.decode((folder / _RECORD).read_bytes(), type=_Record)
    except (OSError, msgspec.DecodeError):
        return None


def _write_record(folder: Path, record: _Record) -> None:
    """Replace the record in one step, so that another process reads the old one or the new."""
    text = msgspec.json.format(msgspec.json.encode(record), indent=2)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".record-", delete=False) as file:
        file.write(text + b"\n")
    Path(file.name).replace(folder / _RECORD)
