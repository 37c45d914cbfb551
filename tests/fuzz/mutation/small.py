"""Our kernels on the smallest configuration alone, so that mutants of them are soon walked."""

from __future__ import annotations

from ringfold.fuzz.target import Device
from ringfold.fuzz.targets.ours import TritonRing
from ringfold.sim.setup import Geometry, Setup


class Small(TritonRing):
    """Refuses every other configuration."""

    def __init__(self, device: Device) -> None:
        super().__init__("small", device)

    def refuses(self, setup: Setup) -> str:
        """Why not."""
        small = setup.geometry == Geometry(1, 2, 32, 32) and (setup.ring, setup.window) == (8, 2)
        return "" if small else "too large"
