"""Our own Triton kernels as the target `triton`; their recurrent kernel is the twin."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import ringfold
from ringfold.fuzz.comparing.variations import BITWISE
from ringfold.fuzz.target import IEEE, TF32, Device, Target
from ringfold.fuzz.targets.dropin import DropInRing, Wrappers
from ringfold.fuzz.targets.loading import Rewrite, rewritten_copies
from ringfold.fuzz.targets.pooled import Batch, CopiedSnapshots
from ringfold.sim.setup import NULL_SLOT

if TYPE_CHECKING:
    import torch


class Kernels(NamedTuple):
    """The modules with the entrances."""

    dropin: ModuleType
    recurrent: ModuleType


class TritonRing(DropInRing):
    """`ringfold.kernels`, ring verify with the exact fold inside; or a copy that was rewritten."""

    repeats_bits = BITWISE  # seen in the interpreter: docs/metamorphic.md

    def __init__(
        self, name: str = "triton", device: Device = "cpu", rewrite: Rewrite | None = None
    ) -> None:
        super().__init__(name, device)
        package = "ringfold.kernels"
        self.kernels = Kernels(
            *(
                [importlib.import_module(f"{package}.{module}") for module in Kernels._fields]
                if rewrite is None
                else rewritten_copies(package, Kernels._fields, rewrite, name)
            )
        )
        dropin = self.kernels.dropin
        # The interpreter has no tf32 and computes such dots in plain float32.
        self.precision = TF32 if device == "cuda" else IEEE
        self.wrappers = Wrappers(
            dropin.gdn_replayssm_spec_decode,
            dropin.commit_gdn_replayssm_spec,
            dropin.reset_gdn_replayssm_spec_cursors,
        )

    def identity(self) -> Mapping[str, str]:
        """Version, and what runs it."""
        return {"ringfold": ringfold.__version__, **super().identity()}

    def twin(self) -> Target | None:
        """Our recurrent kernel."""
        return TritonRecurrent(f"{self.name} recurrent", self.device, self.kernels)


class TritonRecurrent(CopiedSnapshots):
    """`ringfold.kernels`, the recurrent verify with a snapshot per drafted token."""

    dialect = CopiedSnapshots.dialect._replace(zeroes_padding=True)  # its kernel promises that

    def __init__(self, name: str, device: Device, kernels: Kernels) -> None:
        super().__init__(name, device)
        self.kernels = kernels

    def identity(self) -> Mapping[str, str]:
        """Version, and what runs it."""
        return {"ringfold": ringfold.__version__, **super().identity()}

    def launch_verify(
        self, layer: int, batch: Batch, inputs: Sequence[torch.Tensor], out: torch.Tensor
    ) -> None:
        """Walk each window, keeping every state on the way."""
        q, k, v, a, b = inputs
        self.kernels.recurrent.gdn_recurrent_verify(
            q,
            k,
            v,
            a,
            b,
            self.A_log[layer],
            self.dt_bias[layer],
            self.memory["checkpoint"][layer],
            batch.starts,
            batch.slots,
            out=out,
            snapshots=self.memory["snapshots"][layer],
            snapshot_indices=batch.slots,
            use_qk_l2norm_in_kernel=self.setup.l2norm,
            null_block_id=NULL_SLOT,
        )
