"""Targets whose verdict is known beforehand: some that always fail, one that never may."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from ringfold.fuzz.target import Floats, Inputs, Request
from ringfold.fuzz.targets.simulated import SimulatedTarget


class Sound(SimulatedTarget):
    """The plain simulator, as a user's own target would be named."""

    def __init__(self, device: str) -> None:
        assert device == "cpu"
        super().__init__(f"canary:{type(self).__name__}")


class Canary(Sound):
    """Fails at its first verify: every output is off by one."""

    def verify(
        self, rows: Sequence[Request | None], lengths: Sequence[int], inputs: Inputs
    ) -> NDArray[Any]:
        """Right outputs, and one."""
        outputs: NDArray[Any] = super().verify(rows, lengths, inputs) + 1
        return outputs


class Crashing(Sound):
    """Raises at its first commit."""

    def commit(self, rows: Sequence[Request | None], accepted: Sequence[int], bound: int) -> None:
        """Never returns."""
        raise RuntimeError("the canary has died")


class Corrupting(Sound):
    """Admission changes a number of somebody else."""

    def admit(self, request: Request, state: Floats, past: Floats | None = None) -> None:
        """The null slot's."""
        super().admit(request, state, past)
        self.views()["checkpoint"].array[0, 0, 0, 0, 0] += 1
