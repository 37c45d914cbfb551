"""SGLang's released GDN kernels as targets, loaded from the wheel's files without the package.

`sglang==0.5.16` is its ring verify, exact fold, cursor advance and reset, all behind the public
wrappers; with `+split` the verify and flush launches are made one at a time. Its recurrent kernel is
the twin that the bitwise claim of the fold is held against.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ringfold.fuzz.target import IEEE, TF32, Device, Target
from ringfold.fuzz.targets import wheels
from ringfold.fuzz.targets.loading import load_module
from ringfold.fuzz.targets.pooled import Batch, PooledTarget
from ringfold.fuzz.targets.wheels import WheelError
from ringfold.sim.dialects import RING_DIALECT, SNAPSHOTS_DIALECT
from ringfold.sim.setup import NULL_SLOT

if TYPE_CHECKING:
    from types import ModuleType

    import torch

FOLDER = "sglang/kernels/ops/attention/fla/"
RING = FOLDER + "gdn_replayssm_spec_decode.py"
RECURRENT = FOLDER + "fused_sigmoid_gating_recurrent.py"

SOFTPLUS_BETA, SOFTPLUS_THRESHOLD = 1.0, 20.0
"""What SGLang's backend hands to its recurrent kernel."""


class _Released(PooledTarget):
    """What the two share: kernels out of one wheel."""

    files: tuple[str, ...]

    def __init__(self, release: str, device: Device, suffix: str = "") -> None:
        super().__init__(release + suffix, device)
        wheel = wheels.find(release)
        if wheel is None:
            raise WheelError(f"{release} is not here: type `ringfold targets add {release}`")
        self.wheel = wheel
        self.modules: dict[str, ModuleType] = {
            path: load_module(self.wheel, path, f"{release}.{path}") for path in self.files
        }

    def identity(self) -> Mapping[str, str]:
        """Release, SHA-256 of each loaded file, and what runs them."""
        files = {
            path.rsplit("/", 1)[-1]: str(module.__dict__["__ringfold_sha256__"])
            for path, module in self.modules.items()
        }
        return {"release": self.wheel.release, **files, **super().identity()}


class SglangRing(_Released):
    """The ring kernels of SGLang 0.5.16."""

    dialect = RING_DIALECT
    files = (RING,)

    def __init__(self, release: str, device: Device = "cpu", split: bool = False) -> None:
        super().__init__(release, device, "+split" if split else "")
        # Its default; the interpreter has no tf32 and computes such dots in plain float32.
        self.precision = TF32 if device == "cuda" else IEEE
        self.launch_modes = ("flush", "verify") if split else ("both",)

    def launch_verify(
        self, layer: int, batch: Batch, inputs: Sequence[torch.Tensor], out: torch.Tensor
    ) -> None:
        """Fold and verify through `gdn_replayssm_spec_decode`."""
        q, k, v, a, b = inputs
        memory = self.memory
        for mode in self.launch_modes:
            self.modules[RING].gdn_replayssm_spec_decode(
                q=q,
                k=k,
                v=v,
                a=a,
                b=b,
                A_log=self.A_log[layer],
                dt_bias=self.dt_bias[layer],
                checkpoint_state=memory["checkpoint"][layer],
                d_cache=memory["d"][layer],
                k_cache=memory["k"][layer],
                g_cache=memory["g"][layer],
                rawv_cache=memory["rawv"][layer],
                rawk_cache=memory["rawk"][layer],
                beta_cache=memory["beta"][layer],
                out=out,
                query_start_loc=batch.starts,
                ssm_state_indices=batch.slots,
                write_pos=memory["write_pos"],
                cache_base=memory["cache_base"],
                is_flush=memory["is_flush"],
                max_cache_len=self.setup.ring,
                max_spec_len=self.setup.window,
                use_qk_l2norm_in_kernel=self.setup.l2norm,
                null_block_id=NULL_SLOT,
                launch_mode=mode,
            )

    def launch_commit(self, slots: torch.Tensor, accepted: torch.Tensor, bound: int) -> None:
        """Advance the cursors through `commit_gdn_replayssm_spec`."""
        self.modules[RING].commit_gdn_replayssm_spec(
            write_pos=self.memory["write_pos"],
            cache_base=self.memory["cache_base"],
            is_flush=self.memory["is_flush"],
            num_accepted=accepted,
            state_batch_indices=slots,
            max_cache_len=self.setup.ring,
            max_spec_len=bound,
            null_block_id=NULL_SLOT,
        )

    def launch_reset(self, slots: torch.Tensor) -> None:
        """Reset the cursors through `reset_gdn_replayssm_spec_cursors`."""
        self.modules[RING].reset_gdn_replayssm_spec_cursors(
            write_pos=self.memory["write_pos"],
            cache_base=self.memory["cache_base"],
            is_flush=self.memory["is_flush"],
            do_reset=self.tensor(np.ones(slots.shape[0], np.int32), "int32"),
            state_batch_indices=slots,
            max_cache_len=self.setup.ring,
            max_spec_len=self.setup.window,
            null_block_id=NULL_SLOT,
        )

    def twin(self) -> Target | None:
        """The recurrent kernel of the same release."""
        return SglangRecurrent(self.wheel.release, self.device)


class SglangRecurrent(_Released):
    """The recurrent verify of an SGLang release, which stores a snapshot per drafted token.

    Committing is a plain copy of one snapshot, so that this twin's state is what the kernel wrote.
    """

    dialect = SNAPSHOTS_DIALECT
    precision = IEEE
    files = (RECURRENT,)

    def __init__(self, release: str, device: Device = "cpu") -> None:
        super().__init__(release, device, " recurrent")

    def launch_verify(
        self, layer: int, batch: Batch, inputs: Sequence[torch.Tensor], out: torch.Tensor
    ) -> None:
        """Walk the window token by token, keeping every state on the way."""
        q, k, v, a, b = inputs
        outputs = self.modules[RECURRENT].fused_sigmoid_gating_delta_rule_update(
            A_log=self.A_log[layer],
            a=a,
            dt_bias=self.dt_bias[layer],
            softplus_beta=SOFTPLUS_BETA,
            softplus_threshold=SOFTPLUS_THRESHOLD,
            q=q[None],
            k=k[None],
            v=v[None],
            b=b,
            initial_state_source=self.memory["checkpoint"][layer],
            initial_state_indices=batch.slots,
            use_qk_l2norm_in_kernel=self.setup.l2norm,
            cu_seqlens=batch.starts,
            disable_state_update=True,
            intermediate_states_buffer=self.memory["snapshots"][layer],
            intermediate_state_indices=batch.slots,
            cache_steps=self.setup.window,
        )
        out.copy_(outputs[0])

    def launch_commit(self, slots: torch.Tensor, accepted: torch.Tensor, bound: int) -> None:
        """Copy the snapshot of the last accepted token over the checkpoint."""
        keep = (slots > NULL_SLOT) & (accepted > 0)
        slot, last = slots[keep].long(), accepted[keep].long() - 1
        self.memory["checkpoint"][:, slot] = self.memory["snapshots"][:, slot, last]

    def launch_reset(self, slots: torch.Tensor) -> None:
        """There are no cursors."""
