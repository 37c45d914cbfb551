"""Failures that are known and kept: which trace fails which checks on which versions of a target.

A file of them is a JSON list. It excuses as little as it can: a mismatch that the trace itself
expects, in a check that is listed, on a version within the range, and where it is said, on one kind
of device. An excuse that is not needed any
more is an error (`replay.Outcome.GONE`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from packaging.version import InvalidVersion, Version

from ringfold.fuzz.histories.trace import Symptom, Trace
from ringfold.fuzz.judging.mismatch import Check, Mismatch
from ringfold.fuzz.target import Device

FILE: Final = "known-failures.json"
"""Its name in a folder of traces."""

TO: Final = ".."


class KnownFailuresError(ValueError):
    """A file that holds no list of known failures."""


class KnownFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One failure that somebody has looked into."""

    trace: str
    """File name of the trace that shows it."""
    target: str
    """The target's name up to `==`."""
    versions: str
    """The first and the last that have it, `0.5.20..0.5.23`, or the only one.

    Empty for a target without versions.
    """
    checks: tuple[Check, ...]
    """All that fail."""
    reference: str
    """Where it is described."""
    note: str = ""
    device: Device | None = None
    """Where it shows; left out: on all."""

    def __post_init__(self) -> None:
        """Refuse a range that is none."""
        if not self.checks:
            raise ValueError("checks is empty: name those that fail")
        if self.versions:
            first, last = self._range()
            if first > last:
                raise ValueError(f"versions {self.versions!r} is empty: write first{TO}last")

    def __str__(self) -> str:
        on = f"{self.target} {self.versions}".strip()
        on += f" on {self.device}" if self.device else ""
        return f"{', '.join(self.checks)} on {on} ({self.reference})"

    def concerns(self, trace: Path, target: str, device: Device) -> bool:
        """Whether it says anything of this trace on the target of this name, run there."""
        family, _, version = target.partition("==")
        if (trace.name, family) != (self.trace, self.target):
            return False
        if self.device not in (None, device):
            return False
        if not self.versions or not version:
            return self.versions == version
        first, last = self._range()
        # What stands behind a `+` says how a release is driven, and is no part of its version.
        return first <= Version(version.partition("+")[0]) <= last

    def excuses(self, mismatch: Mismatch, trace: Trace) -> bool:
        """Whether `mismatch` is one that `trace` expects, in a check that is known to fail."""
        seen = Symptom(check=mismatch.check, symptom=mismatch.symptom)
        return (
            mismatch.check in self.checks and trace.expected != "agree" and seen in trace.expected
        )

    def _range(self) -> tuple[Version, Version]:
        first, _, last = self.versions.partition(TO)
        try:
            return Version(first), Version(last or first)
        except InvalidVersion as error:
            raise ValueError(
                f"versions {self.versions!r}: {error}; write first{TO}last, or one version"
            ) from None


def load(path: Path) -> list[KnownFailure]:
    """Read a file of known failures.

    Raises:
        KnownFailuresError: naming the file, the place and what is wrong there.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[KnownFailure])
    except (OSError, msgspec.DecodeError) as error:
        raise KnownFailuresError(f"{path}: not a list of known failures: {error}") from None
