"""The first release whose verdict on a trace is another than that of the release before it.

There are few releases and a trace takes seconds, so all of them are walked and none is guessed at:
a fault may have come, gone and come back. A release that cannot say anything is told from one that
agrees: its wheel is not here, its kernels are not what the target needs, it refuses the setup, or
it does not own an operation of the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from packaging.version import InvalidVersion, Version

from ringfold.fuzz.histories.trace import Trace
from ringfold.fuzz.judging.mismatch import Mismatch
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.target import Device, RefusedError
from ringfold.fuzz.targets import registry, wheels
from ringfold.fuzz.targets.registry import KNOWN_RELEASES, MissingTargetError
from ringfold.fuzz.targets.wheels import WheelError
from ringfold.sim.setup import SetupError

TO: Final = ".."
PACKAGE: Final = "sglang"


class RangeError(ValueError):
    """A range of releases that is none."""


class Range(NamedTuple):
    """Releases of one target, both ends included."""

    family: str
    """The target's name up to `==`."""
    first: Version
    last: Version

    def releases(self) -> list[Version]:
        """Those that ringfold knows of or that are in the cache, oldest first."""
        names = {*KNOWN_RELEASES, *(wheel.release for wheel in wheels.installed())}
        versions = {
            Version(name.partition("==")[2]) for name in names if name.startswith(f"{PACKAGE}==")
        }
        return sorted(v for v in versions | {self.first, self.last} if self.first <= v <= self.last)


class Walked(msgspec.Struct):
    """What one release says of the trace."""

    target: str
    verdict: str | None
    """`agrees`, or the symptoms that it shows; None if it says nothing."""
    account: str
    changed: bool = False
    """It says something else than the last release before it that said anything."""
    mismatches: list[Mismatch] = []


class Bisected(msgspec.Struct):
    """A trace on a range of releases."""

    trace: str
    releases: list[Walked]
    first: str | None = None
    """The first release whose verdict changed."""
    left: list[str] = []
    """Releases that nobody asked, since somebody wanted an end."""
    inconclusive: str = ""


def range_of(text: str) -> Range:
    """Read `sglang==A..B`, or another family of `ringfold targets` in place of `sglang`.

    Raises:
        RangeError: it is written otherwise, or empty.
    """
    family, equals, versions = text.partition("==")
    first, to, last = versions.partition(TO)
    try:
        found = Range(family, Version(first), Version(last))
    except InvalidVersion:
        equals = ""
    known = (*registry.FAMILIES, registry.POOL)
    if not equals or not to or family not in known:
        families = ", ".join(known)
        raise RangeError(
            f"{text!r} is no range of releases: write sglang==0.5.16{TO}0.5.23; "
            f"for sglang may stand {families}"
        )
    if found.first > found.last:
        raise RangeError(f"{text!r} is empty: write the older release first")
    return found


def bisect(
    trace: Trace,
    between: Range,
    device: Device = "cpu",
    *,
    path: Path = Path(),
    fetch: bool = False,
    on_progress: Callable[[str], None] = lambda target: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Bisected:
    """Walk `trace`, which lies at `path`, on every release of a range.

    With `fetch` a wheel that is not here is fetched. `on_progress` hears of every target. Once
    somebody is `stopped`, what was walked by then is told.
    """
    names = [f"{between.family}=={version}" for version in between.releases()]
    walked = list[Walked]()
    for name in names:
        on_progress(name)
        one = _walk(trace, name, device, path.parent, fetch, stopped)
        if stopped():  # be it that this release failed because of that
            break
        walked.append(one)
    report = Bisected(str(path), walked, left=names[len(walked) :])
    before: str | None = None
    for one in walked:
        if one.verdict is None:
            continue
        one.changed = before is not None and one.verdict != before
        if one.changed and report.first is None:
            report.first = one.target
        before = one.verdict
    if report.left:
        report.inconclusive = _stopped(report)
    elif sum(one.verdict is not None for one in walked) < 2:
        report.inconclusive = "fewer than two releases say anything of this trace"
    return report


def _stopped(report: Bisected) -> str:
    """What is known by then, and where a change may still be."""
    count = len(report.left) + len(report.releases)
    asked = f"stopped by hand: {len(report.left)} of {count} releases were not asked"
    if report.first is not None:
        return f"{asked}, from {report.left[0]} on; {report.first} says something else already"
    said = [one.target for one in report.releases if one.verdict is not None]
    behind = f"behind {said[-1]}" if said else "anywhere"
    return f"{asked}; the verdict may change {behind}, up to {report.left[-1]}"


def _walk(
    trace: Trace,
    name: str,
    device: Device,
    folder: Path,
    fetch: bool,
    stopped: Callable[[], bool],
) -> Walked:
    try:
        if fetch:
            wheels.add(f"{PACKAGE}=={name.partition('==')[2]}")
        verdict = walk(trace, registry.resolve(name, device), folder=folder, out_of_time=stopped)
    except (MissingTargetError, WheelError, RefusedError, SetupError) as error:
        return Walked(name, None, str(error))
    if verdict.skipped:
        lacks = ", ".join(f"{kind} ({n})" for kind, n in verdict.skipped.items())
        return Walked(name, None, f"it does not own what the trace does: {lacks}")
    if not verdict.mismatches:
        return Walked(name, "agrees", f"{verdict.windows} row-windows agree")
    symptoms = dict.fromkeys(f"{m.check}: {m.symptom}" for m in verdict.mismatches)
    account = verdict.mismatches[0].sentence()
    return Walked(name, "; ".join(symptoms), account, mismatches=verdict.mismatches)
