"""The reference machine of each dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from numpy.typing import ArrayLike

from ringfold.sim.compact import Compact
from ringfold.sim.decode_ring import DecodeRing
from ringfold.sim.fold_every_commit import FoldEveryCommit
from ringfold.sim.linear_cache import LinearCache
from ringfold.sim.machine import Machine
from ringfold.sim.open_loop import OpenLoop
from ringfold.sim.precision import EXACT, Arithmetic
from ringfold.sim.ring import Ring
from ringfold.sim.setup import Setup
from ringfold.sim.snapshots import Snapshots

MACHINES: Final[Mapping[str, type[Machine]]] = {
    m.dialect.name: m
    for m in (Snapshots, Ring, FoldEveryCommit, Compact, OpenLoop, LinearCache, DecodeRing)
}


def machine(
    setup: Setup, A_log: ArrayLike, dt_bias: ArrayLike, arithmetic: Arithmetic = EXACT
) -> Machine:
    """A machine that follows the dialect of `setup`; arguments as those of `Machine`."""
    return MACHINES[setup.dialect](setup, A_log, dt_bias, arithmetic)
