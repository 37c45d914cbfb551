"""From a target's name to a target.

| name | what |
|---|---|
| `sim` | the simulator's ring machine |
| `sim@DIALECT` | its machine of another protocol, such as `compact` |
| `sim:NAME` | the ring machine with a planted bug |
| `triton` | our own kernels |
| `triton:NAME` | the same with a planted bug |
| `triton+NAME=VALUE` | the same with a constant of their source changed |
| `sglang==VERSION` | SGLang's speculative verification as that release runs it |
| `sglang==VERSION+split` | the same where a verify folds: both launched one at a time |
| `sglang==VERSION+no-fusion` | the same compiled without contraction; families alike |
| `sglang-pool==VERSION` | its own pool, backend and commit, in a process of their own |
| `sglang-pool==VERSION+tracks` | the same with an extra buffer: states stored apart |
| `sglang-pool==VERSION+tracks+overlap` | the same: a plain step's result is processed late |
| `sglang-pool==VERSION+tracks+page=N` | the same with pages of N tokens |
| `sglang-pool==VERSION+graph` | the same, each step replayed from captured CUDA graphs |
| `sglang-snapshots==VERSION` | its recurrent verify, snapshots and their scatter |
| `sglang-decode==VERSION` | its plain decoding from a ring |
| `sglang-packed==VERSION` | its plain decoding in place |
| `sglang`, `sglang@DIR` | the SGLang of this environment, a source checkout; families alike |
| `sglang-pool` | the SGLang of the Python that `$RINGFOLD_POOL_PYTHON` names |
| `package.module:Class` | a class of yours, called with the device |
| `NAME+twin` | the recurrent kernel whose bits a target claims, as a target of its own |
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from inspect import get_annotations
from typing import Final, NamedTuple

from ringfold.fuzz.target import Device, Target
from ringfold.fuzz.targets import environments, sglang_sources, wheels
from ringfold.fuzz.targets.sglang_sources import AbsentError, CheckoutError
from ringfold.fuzz.targets.wheels import WheelError

KNOWN_RELEASES: Final = tuple(f"sglang==0.5.{patch}" for patch in range(16, 24))
"""Releases that were tried. Any other is taken too if its files hold a known dialect."""

SPLIT: Final = "+split"
NO_FUSION: Final = "+no-fusion"
FAMILIES: Final = {
    "sglang": "SGLang's kernels",
    "sglang-snapshots": "snapshots: recurrent verify and scatter",
    "sglang-decode": "decode-ring: plain decoding, the state stored every L tokens",
    "sglang-packed": "snapshots: plain decoding, in place",
}

TWIN: Final = "+twin"

POOL: Final = "sglang-pool"
TRACKS: Final = "+tracks"
GRAPH: Final = "+graph"
OVERLAP: Final = "+overlap"
PAGES: Final = {f"+page={n}": n for n in (2, 4, 8, 16, 32, 64, 128, 256)}
"""A track interval of 256 tokens is made of whole pages."""

ABOUT: Final = {
    "ring": "ring verify and exact fold",
    "fold-every-commit": "recurrent verify, raw inputs folded at every commit",
    "compact": "ring verify, deltas in two parts folded in the commit",
}


PARTS: Final = sorted({*get_annotations(Target), *(p for p in vars(Target) if p[0] != "_")})
"""What every target has."""


class UnknownTargetError(ValueError):
    """A name that means no target."""


class MissingTargetError(RuntimeError):
    """A target that this machine lacks; the message says what to type."""


class Listed(NamedTuple):
    """A row of `ringfold targets`."""

    name: str
    about: str
    remedy: str
    """What to type when it is missing; empty when it is there."""


def resolve(name: str, device: Device = "cpu") -> Target:
    """Build the target of this name, not yet opened.

    Raises:
        UnknownTargetError: the name means nothing, or its class can't be imported.
        MissingTargetError: its wheel or its packages are not here.
    """
    if name.endswith(TWIN):
        return _twin(name, device)
    if name == "sim" or name.startswith(("sim:", "sim@")):
        return _simulated(name)
    if name.partition("+")[0] == "triton" or name.startswith("triton:"):
        return _ours(name, device)
    if _parts(_plain(name)[0])[0] in FAMILIES:
        return _sglang(name, device)
    if _parts(name)[0] == POOL:
        return _pool(name, device)
    if ":" in name:
        return _users(name, device)
    raise UnknownTargetError(
        f"target {name!r} is unknown: type `ringfold targets` for those there are, "
        "or name your own as package.module:Class"
    )


def require(device: Device) -> None:
    """Raise MissingTargetError where this machine has no such device."""
    if device == "cpu":
        return
    try:
        import torch
    except ImportError:
        remedy = "pip install 'ringfold[kernels]'"
        raise MissingTargetError(f"--device cuda needs torch: type {remedy}") from None
    if not torch.cuda.is_available():
        raise MissingTargetError("--device cuda: torch sees no CUDA device here; use --device cpu")


def listed() -> list[Listed]:
    """What there is, what is missing, and what to type."""
    from ringfold.fuzz.planted import PLANTED
    from ringfold.fuzz.planted_kernels import KERNEL_BUGS
    from ringfold.sim.protocols import MACHINES

    lacking = _lacking_packages()
    rows = [
        Listed("sim", "the simulator's ring machine, in the kernels' precision", ""),
        Listed("sim:NAME", f"the same with one of {len(PLANTED)} bugs of docs/planted.md", ""),
    ]
    rows += [
        Listed(f"sim@{dialect}", "the simulator's machine of that protocol", "")
        for dialect in MACHINES
        if dialect != "ring"
    ]
    rows.append(Listed("triton", "ring: our own kernels, exact fold inside the verify", lacking))
    planted = f"the same with one of {len(KERNEL_BUGS)} bugs of docs/planted.md"
    rows.append(Listed("triton:NAME", planted, lacking))
    here = [w.release for w in wheels.installed() if w.release.startswith("sglang==")]
    for release in here:
        rows += _releases_targets(release, lacking)
    missing = [release for release in KNOWN_RELEASES if release not in here]
    rows += [Listed(r, FAMILIES["sglang"], f"ringfold targets add {r}") for r in missing]
    if sglang_sources.is_installed():
        rows += _releases_targets("sglang", lacking)
    else:
        about = "the SGLang of this environment, any family of the above"
        rows.append(Listed("sglang", about, sglang_sources.INSTALL))
    rows.append(Listed("sglang@DIR", "a source checkout, any family of the above", lacking))
    return rows


def _releases_targets(release: str, lacking: str) -> list[Listed]:
    from ringfold.fuzz.targets.sglang_release import BUFFERED_DECODE, Release, UnknownReleaseError

    try:
        found = Release(release)
        dialect = found.dialect
    except UnknownReleaseError:
        # What it lacks fills a page, and fetching it again would help nobody.
        about = f"speaks no dialect that is known: `ringfold fuzz {release}` says what it lacks"
        return [Listed(release, about, "")]
    except WheelError as error:
        return [Listed(release, str(error), f"ringfold targets add {release}")]
    rows = [Listed(release, f"{dialect}: {ABOUT[dialect]}", lacking)]
    if dialect == "ring":
        rows.append(
            Listed(release + SPLIT, "the same, verify and flush launched one at a time", lacking)
        )
    rows += [
        Listed(release.replace("sglang", family, 1), about, lacking)
        for family, about in FAMILIES.items()
        if family != "sglang" and (family != "sglang-decode" or found.has(BUFFERED_DECODE))
    ]
    if "==" in release:
        pool = release.replace("sglang", POOL, 1)
        remedy = "" if environments.interpreter() else f"ringfold targets add {pool}"
        rows.append(Listed(pool, "the same in its own pool, backend and commit", remedy))
    return rows


def _twin(name: str, device: Device) -> Target:
    if (twin := resolve(name.removesuffix(TWIN), device).twin()) is None:
        raise UnknownTargetError(f"target {name!r}: {name.removesuffix(TWIN)} has no twin")
    return twin


def _simulated(name: str) -> Target:
    from ringfold.fuzz.planted import PLANTED
    from ringfold.fuzz.targets.simulated import SimulatedTarget

    if name == "sim":
        return SimulatedTarget()
    if name.startswith("sim@"):
        return _simulated_dialect(name)
    bug = name.partition(":")[2]
    if bug not in PLANTED:
        raise UnknownTargetError(
            f"target {name!r}: no bug named {bug!r} is planted; there are {', '.join(PLANTED)}"
        )
    return SimulatedTarget(name, PLANTED[bug].machine)


def _simulated_dialect(name: str) -> Target:
    from ringfold.fuzz.targets.simulated import SimulatedTarget
    from ringfold.sim.protocols import MACHINES

    dialect = name.partition("@")[2]
    if dialect not in MACHINES:
        raise UnknownTargetError(
            f"target {name!r}: no dialect is named {dialect!r}; there are {', '.join(MACHINES)}"
        )
    return SimulatedTarget(name, MACHINES[dialect])


def _ours(name: str, device: Device) -> Target:
    if lacking := _lacking_packages():
        raise MissingTargetError(f"target {name!r} needs torch and triton: type {lacking}")
    from ringfold.fuzz.planted_kernels import KERNEL_BUGS
    from ringfold.fuzz.targets.constants import ConstantError, rewrite_of
    from ringfold.fuzz.targets.ours import TritonRing

    if bug := name.partition(":")[2]:
        if bug not in KERNEL_BUGS:
            raise UnknownTargetError(
                f"target {name!r}: no bug named {bug!r} is planted; there are "
                f"{', '.join(KERNEL_BUGS)}"
            )
        return TritonRing(name, device, KERNEL_BUGS[bug].rewrite())
    try:
        rewrite = rewrite_of(name)
    except ConstantError as error:
        raise UnknownTargetError(f"target {name!r}: {error}") from None
    return TritonRing(name, device, rewrite)


def _sglang(name: str, device: Device) -> Target:
    plain, changes = _plain(name)
    family, which = _parts(plain)
    if NO_FUSION in changes and device == "cpu":
        raise MissingTargetError(
            f"target {name!r} needs --device cuda: the interpreter contracts nothing, so on the "
            f"CPU it is {name.replace(NO_FUSION, '')}"
        )
    if lacking := _lacking_packages():
        raise MissingTargetError(f"target {name!r} needs torch and triton: type {lacking}")
    from ringfold.fuzz.targets.sglang import SglangRing
    from ringfold.fuzz.targets.sglang_compact import SglangCompact
    from ringfold.fuzz.targets.sglang_decode import SglangDecodeRing, SglangPacked
    from ringfold.fuzz.targets.sglang_fold import SglangFold
    from ringfold.fuzz.targets.sglang_release import Release
    from ringfold.fuzz.targets.sglang_snapshots import SglangSnapshots

    try:
        found = Release(f"sglang{which}", device, fusion=NO_FUSION not in changes)
    except CheckoutError as error:
        raise UnknownTargetError(f"target {name!r}: {error}") from None
    except AbsentError as error:
        raise MissingTargetError(f"target {name!r}: {error}") from None
    match family:
        case "sglang-snapshots":
            return SglangSnapshots(found, name)
        case "sglang-decode":
            return SglangDecodeRing(found, name)
        case "sglang-packed":
            return SglangPacked(found, name)
    match found.dialect:
        case "ring":
            return SglangRing(found, name, split=SPLIT in changes)
        case dialect if SPLIT in changes:
            raise UnknownTargetError(
                f"target {name!r}: {found.name} speaks {dialect}, whose verify folds nothing that "
                f"could be split off: leave {SPLIT} out"
            )
        case "fold-every-commit":
            return SglangFold(found, name)
        case _:
            return SglangCompact(found, name)


def _pool(name: str, device: Device) -> Target:
    plain, driven = _plain(name, (TRACKS, GRAPH, OVERLAP, *PAGES))
    pages = [PAGES[flag] for flag in driven & PAGES.keys()]
    tracks, graphs, overlaps = (flag in driven for flag in (TRACKS, GRAPH, OVERLAP))
    which = _parts(plain)[1]
    if tracks and graphs:
        raise UnknownTargetError(f"target {name!r}: a commit that tracks is not captured; name one")
    if overlaps and not tracks:
        raise UnknownTargetError(
            f"target {name!r}: without an extra buffer nothing depends on when a result is "
            f"processed; name {plain}{TRACKS}{OVERLAP}"
        )
    if "+page" in plain or len(pages) > 1 or (pages and not tracks):
        raise UnknownTargetError(
            f"target {name!r}: a page has {', '.join(map(str, PAGES.values()))} tokens where there "
            f"is an extra buffer, and one elsewhere; name one, such as {TRACKS}+page=128"
        )
    if graphs and device == "cpu":
        raise MissingTargetError(f"target {name!r} needs --device cuda: there are no graphs here")
    python = environments.interpreter(device)
    if python is None:
        raise MissingTargetError(f"target {name!r}: {environments.lacking(plain, device)}")
    from ringfold.fuzz.targets.pool.target import pool_of

    try:
        release = f"sglang{which}" if which else environments.installed(python)
        return pool_of(
            release,
            name,
            device,
            tracks=tracks,
            graphs=graphs,
            overlaps=overlaps,
            page=max([1, *pages]),
        )
    except CheckoutError as error:
        raise UnknownTargetError(f"target {name!r}: {error}") from None
    except AbsentError as error:
        raise MissingTargetError(f"target {name!r}: {error}") from None


def _plain(name: str, known: Sequence[str] = (SPLIT, NO_FUSION)) -> tuple[str, set[str]]:
    """The name without those of `known` that are at its end, and which of them were there."""
    changes = set[str]()
    while last := next((c for c in known if name.endswith(c)), ""):
        name = name.removesuffix(last)
        changes.add(last)
    return name, changes


def _parts(name: str) -> tuple[str, str]:
    """Family, and what says which SGLang: ``==VERSION``, ``@DIR`` or nothing."""
    end = min(i for i in (name.find("=="), name.find("@"), len(name)) if i >= 0)
    return name[:end], name[end:]


def _users(name: str, device: Device) -> Target:
    module_name, _, class_name = name.partition(":")
    try:
        kind = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # whatever a module of the user's may raise
        raise UnknownTargetError(
            f"target {name!r} can't be imported ({error!r}): it must be package.module:Class, "
            "with the package on PYTHONPATH"
        ) from error
    return build(kind, name, device)


def build(kind: Callable[[Device], Target], name: str, device: Device) -> Target:
    """A target of a class that somebody else wrote; `name` is for what is said of it.

    Raises:
        UnknownTargetError: the class raises, or what it makes is no target.
        MissingTargetError, WheelError: as the class raises them.
    """
    try:
        target = kind(device)
    except (MissingTargetError, WheelError):
        raise
    except Exception as error:  # likewise
        raise UnknownTargetError(
            f"target {name!r} can't be built ({error!r}): its class is called with the device, "
            f"here {device!r}"
        ) from error
    if lacking := [part for part in PARTS if not hasattr(target, part)]:
        raise UnknownTargetError(
            f"target {name!r} lacks {', '.join(lacking)}: see ringfold.fuzz.target.Target, or "
            "start from ringfold.fuzz.targets.pooled.PooledTarget"
        )
    return target


def _lacking_packages() -> str:
    missing = [p for p in ("torch", "triton") if importlib.util.find_spec(p) is None]
    return "pip install 'ringfold[kernels]'" if missing else ""
