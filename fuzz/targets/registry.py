"""From a target's name to a target.

    sim                  the simulator's ring machine
    sim@DIALECT          its machine of another protocol, such as compact
    sim:NAME             the same with a planted bug
    sglang==VERSION      SGLang's released ring kernels, from the wheel in the cache
    sglang==VERSION+split    the same, verify and flush launched one at a time
    package.module:Class     a class of yours, called with the device
"""

from __future__ import annotations

import importlib
from typing import NamedTuple

from ringfold.fuzz.target import Target
from ringfold.fuzz.targets import wheels

RELEASES = ("sglang==0.5.16",)
"""Releases whose kernels this version can drive."""

SPLIT = "+split"


class UnknownTarget(ValueError):
    """A name that means no target."""


class MissingTarget(RuntimeError):
    """A target that this machine lacks; the message says what to type."""


class Listed(NamedTuple):
    """A row of `ringfold targets`."""

    name: str
    about: str
    remedy: str
    """What to type when it is missing; empty when it is there."""


def resolve(name: str, device: str = "cpu") -> Target:
    """Build the target of this name, not yet opened.

    Raises:
        UnknownTarget: the name means nothing, or its class can't be imported.
        MissingTarget: its wheel or its packages are not here.
    """
    if name == "sim" or name.startswith(("sim:", "sim@")):
        return _simulated(name)
    if name.startswith("sglang=="):
        return _sglang(name, device)
    if ":" in name:
        return _users(name, device)
    raise UnknownTarget(
        f"target {name!r} is unknown: type `ringfold targets` for those there are, "
        "or name your own as package.module:Class"
    )


def listed() -> list[Listed]:
    """What there is, what is missing, and what to type."""
    from ringfold.fuzz.planted import PLANTED

    lacking = _lacking_packages()
    rows = [
        Listed("sim", "the simulator's ring machine, in the kernels' precision", ""),
        Listed("sim:NAME", f"the same with one planted bug: {', '.join(PLANTED)}", ""),
    ]
    for release in RELEASES:
        remedy = lacking or ("" if wheels.find(release) else f"ringfold targets add {release}")
        rows.append(Listed(release, "SGLang's ring kernels and their exact fold", remedy))
        rows.append(
            Listed(release + SPLIT, "the same, verify and flush launched one at a time", remedy)
        )
    return rows


def _simulated(name: str) -> Target:
    from ringfold.fuzz.planted import PLANTED
    from ringfold.fuzz.targets.simulated import SimulatedTarget

    if name == "sim":
        return SimulatedTarget()
    if name.startswith("sim@"):
        return _simulated_dialect(name)
    bug = name.partition(":")[2]
    if bug not in PLANTED:
        raise UnknownTarget(
            f"target {name!r}: no bug named {bug!r} is planted; there are {', '.join(PLANTED)}"
        )
    return SimulatedTarget(name, PLANTED[bug].machine)


def _simulated_dialect(name: str) -> Target:
    from ringfold.fuzz.targets.simulated import SimulatedTarget
    from ringfold.sim.protocols import MACHINES

    dialect = name.partition("@")[2]
    if dialect not in MACHINES:
        raise UnknownTarget(
            f"target {name!r}: no dialect is named {dialect!r}; there are {', '.join(MACHINES)}"
        )
    return SimulatedTarget(name, MACHINES[dialect])


def _sglang(name: str, device: str) -> Target:
    release = name.removesuffix(SPLIT)
    if release not in RELEASES:
        raise UnknownTarget(
            f"target {name!r}: this version drives {', '.join(RELEASES)}; "
            "other releases keep their rings differently"
        )
    if lacking := _lacking_packages():
        raise MissingTarget(f"target {name!r} needs torch and triton: type {lacking}")
    if wheels.find(release) is None:
        raise MissingTarget(
            f"target {name!r} is not on this machine: type `ringfold targets add {release}`"
        )
    from ringfold.fuzz.targets.sglang import SglangRing

    return SglangRing(release, device, split=name.endswith(SPLIT))


def _users(name: str, device: str) -> Target:
    module_name, _, class_name = name.partition(":")
    try:
        kind = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise UnknownTarget(
            f"target {name!r} can't be imported ({error}): it must be package.module:Class, "
            "with the package on PYTHONPATH"
        ) from error
    target: Target = kind(device)
    return target


def _lacking_packages() -> str:
    missing = [p for p in ("torch", "triton") if importlib.util.find_spec(p) is None]
    return "pip install 'ringfold[kernels]'" if missing else ""
