"""Planted bugs: faults that the field has met, each a small subclass of a reference machine.

They ask how good the tester is. A bug is a target like any other, named `sim:NAME`. There is a
module for each kind of fault; a bug's name is that of its class, and what it models is the first
line of its docstring. `docs/planted.md` lists them with what finding them takes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from ringfold.fuzz.planted import (
    bases,
    bounds,
    counts,
    derived,
    double,
    flush,
    folds,
    forms,
    heads,
    lifecycle,
    masks,
    offsets,
    overflow,
    owners,
    rounding,
    steps,
    wrap,
)
from ringfold.sim.machine import Machine


class Planted(NamedTuple):
    """One planted bug."""

    about: str
    machine: type[Machine]
    kind: str


KINDS: Final[Mapping[str, tuple[type[Machine], ...]]] = {
    "wrap arithmetic": wrap.BUGS,
    "flush too early or too late": flush.BUGS,
    "window bounds": bounds.BUGS,
    "base and position": bases.BUGS,
    "double fold": double.BUGS,
    "off-by-one counts": counts.BUGS,
    "fold order": folds.BUGS,
    "derived in place of raw": derived.BUGS,
    "norm and gate forms": forms.BUGS,
    "narrower type": rounding.BUGS,
    "head and layer indexing": heads.BUGS,
    "previous owner": owners.BUGS,
    "saved and shared states": lifecycle.BUGS,
    "wrong step": steps.BUGS,
    "masks and padding": masks.BUGS,
    "offsets and strides": offsets.BUGS,
    "overflow": overflow.BUGS,
}


def _name(machine: type[Machine]) -> str:
    """WrapMaskOffByOne as wrap-mask-off-by-one."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", machine.__name__).lower()


def _about(machine: type[Machine]) -> str:
    return (machine.__doc__ or "").partition("\n")[0].rstrip(".")


PLANTED: Final[Mapping[str, Planted]] = {
    _name(machine): Planted(_about(machine), machine, kind)
    for kind, machines in KINDS.items()
    for machine in machines
}
