"""SGLang's way without a ring: recurrent verify, a snapshot per drafted token, a scatter to commit.

Every release has it, and it is what ReplaySSM is measured against. Snapshots are scratch of the
running requests, so they are kept by place and not by slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.judging import arrays
from ringfold.fuzz.target import Inputs, Request, Target
from ringfold.fuzz.targets.pooled import Batch
from ringfold.fuzz.targets.sglang import SglangRecurrent, launch_recurrent
from ringfold.fuzz.targets.sglang_places import Places
from ringfold.fuzz.targets.sglang_release import RECURRENT, SCATTER
from ringfold.fuzz.targets.sglang_tracks import Tracks

if TYPE_CHECKING:
    import torch


class SglangSnapshots(Tracks, Places, SglangRecurrent):
    """`snapshots`: verify, scatter and plain decode of one release, judged for themselves."""

    files: tuple[str, ...] = (RECURRENT, SCATTER)

    def snapshot_rows(self, batch: Batch) -> torch.Tensor:
        """Snapshots are scratch of the running requests, so they lie by place."""
        return self.row_places

    def launch_commit(self, slots: torch.Tensor, accepted: torch.Tensor, bound: int) -> None:
        """Scatter one snapshot a request through `fused_mamba_state_scatter_with_mask`."""
        self.scatter(slots, accepted - 1)
        if self.tracking is not None:
            self.scatter(*self.tracking)

    def scatter(self, slots: torch.Tensor, steps: torch.Tensor) -> None:
        """Copy each row's snapshot of step `steps` (-1: none) into the checkpoint of its slot.

        The i-th row of a launch takes the i-th entry of the snapshots, so all places are handed
        over, and those that commit nothing carry step -1, as a request does that rejects all.
        """
        at, step = np.full((2, self.setup.slots), -1)
        rows = map(arrays.to_numpy, (self.row_places, slots, steps))
        for place, slot, kept in zip(*rows, strict=True):
            if place >= 0:
                at[place], step[place] = slot, kept
        with as_if_on_cuda(self.device):
            self.release.module(SCATTER).fused_mamba_state_scatter_with_mask(
                self.memory["checkpoint"],
                self.memory["snapshots"],
                self.tensor(at, "int32"),
                self.tensor(step, "int32"),
            )

    def decode(self, rows: Sequence[Request | None], inputs: Inputs) -> NDArray[Any]:
        """One token a row, straight into the checkpoint, by the same kernel."""
        batch = Batch(self.slots_of(rows), self.tensor(np.arange(len(rows) + 1), "int32"))
        tensors = self.tokens(inputs)
        outputs = [
            arrays.to_numpy(launch_recurrent(self, layer, batch, [x[layer] for x in tensors]))
            for layer in range(self.setup.layers)
        ]
        return np.stack(outputs)

    def twin(self) -> Target | None:
        """It is what others are compared with."""
        return None


@contextmanager
def as_if_on_cuda(device: str) -> Iterator[None]:
    """Where kernels are interpreted, let a wrapper that insists on CUDA tensors have its way."""
    import torch

    if device == "cuda":
        yield
        return
    torch.Tensor.is_cuda = property(lambda tensor: True)  # type: ignore[assignment]
    try:
        yield
    finally:
        del torch.Tensor.is_cuda
