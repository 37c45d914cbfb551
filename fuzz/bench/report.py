"""What a run of `ringfold bench` writes: the schema is told in docs/bench.md."""

from __future__ import annotations

import statistics
from typing import Any

import msgspec
import numpy as np

from ringfold.fuzz import provenance
from ringfold.fuzz.bench.case import Case, Cycle
from ringfold.fuzz.bench.floor import Traffic
from ringfold.fuzz.target import Device

SCHEMA = 1


class Peer(msgspec.Struct):
    """What was measured of one peer in one case."""

    target: str
    output_error: float | None = None
    """Largest of all steps that were checked, in 2-norm of a row's outputs, relative."""
    written_share: float | None = None
    """Rows whose checkpoint changed in a step: counted, not computed."""
    samples_us: list[float] = []
    """Microseconds a step and layer, one a round."""
    peak_bytes: int | None = None
    """Pool and all that a step allocates, at its largest; the shared inputs are not in it."""
    held_bytes: int | None = None
    """Pool alone."""
    flags: list[str] = []
    """Why the figures must not be taken as they stand; empty if they may."""
    floor_ratio: float | None = None
    """Median time over the floor."""

    @property
    def median_us(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.samples_us)

    @property
    def spread_us(self) -> float:
        """Half the distance of the quartiles."""
        low, high = np.quantile(self.samples_us, (0.25, 0.75))
        return float(high - low) / 2


class Measured(msgspec.Struct):
    """One case: what must move, how long that takes at least, and the peers."""

    case: Case
    cycle: Cycle
    traffic: Traffic
    floor_us: float | None
    peers: list[Peer]


class Bandwidth(msgspec.Struct, frozen=True):
    """Bytes a second of a large elementwise copy, read and written counted, and of a large sum."""

    copy: float
    read: float


class Report(msgspec.Struct):
    """One run."""

    ringfold_bench: int
    machine: dict[str, str]
    options: dict[str, Any]
    identities: dict[str, dict[str, str]]
    bandwidth: Bandwidth | None
    measured: list[Measured]
    seconds: dict[str, float]
    inconclusive: list[str] = []
    """Why not everything was measured that was asked for."""


def machine(device: Device, commit: str | None) -> dict[str, str]:
    """Where and with what a run was made; `commit` is what to call the code, if it is not git's."""
    known = {**provenance.machine(), "device": "cpu (interpreter)"}
    if device == "cuda":
        import torch

        known["device"] = torch.cuda.get_device_name()
    return known | ({"commit": commit} if commit else {})
