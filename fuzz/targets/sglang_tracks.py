"""Track slots: a commit also stores the state at a prefix cache's boundary, in a slot of its own.

SGLang calls it the extra buffer: each running request owns a second slot beside its own, and where
a window crosses a boundary the commit stores the state of that token there. Here a pool has twice
the slots, the second half for tracking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ringfold.fuzz.target import HeadParameters, Request
from ringfold.fuzz.targets.sglang import ReleasedTarget
from ringfold.sim.setup import Setup

if TYPE_CHECKING:
    import torch


class Tracks(ReleasedTarget):
    """Gives every request a track slot, and slots and steps to what is launched."""

    operations = ReleasedTarget.operations | {"track"}
    tracking: tuple[torch.Tensor, torch.Tensor] | None = None
    """[row] track slot, and [row] step whose state goes there (-1: none); None: no tracking."""

    def open(self, setup: Setup, parameters: HeadParameters) -> None:
        """Allocate, with a track slot for every slot."""
        super().open(setup, parameters)
        layers, slots, *rest = self.memory["checkpoint"].shape
        self.memory["checkpoint"] = self.zeros((layers, 2 * slots, *rest), setup.dtypes.state)

    def seat(self, request: Request) -> Mapping[str, int]:
        """Where it sits, and where its state is tracked."""
        return {**super().seat(request), "track": self.setup.slots + self.seats[request]}

    def track(
        self, rows: Sequence[Request | None], accepted: Sequence[int], bound: int, tokens: int
    ) -> None:
        """Commit, and store the state after `tokens` tokens of rows that keep so many."""
        slots = [-1 if row is None else self.seat(row)["track"] for row in rows]
        keep = [row is not None and n >= tokens for row, n in zip(rows, accepted, strict=True)]
        steps = np.where(keep, tokens - 1, -1)
        self.tracking = self.tensor(np.array(slots), "int32"), self.tensor(steps, "int32")
        try:
            self.commit(rows, accepted, bound)
        finally:
            self.tracking = None
