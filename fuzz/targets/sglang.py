"""SGLang's released GDN verification as targets, loaded from the wheel's files without the package.

`sglang==VERSION` is the speculative verification that a server of that release runs, whichever
dialect that is (`Release.dialect`): a class for each, here and in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ringfold.fuzz.target import IEEE, TF32, Target
from ringfold.fuzz.targets.pooled import Batch, PooledTarget
from ringfold.fuzz.targets.sglang_release import RECURRENT, RING, Release
from ringfold.sim.dialects import RING_DIALECT, SNAPSHOTS_DIALECT
from ringfold.sim.setup import NULL_SLOT

if TYPE_CHECKING:
    import torch

SOFTPLUS_BETA, SOFTPLUS_THRESHOLD = 1.0, 20.0
"""What SGLang's backend hands to its recurrent kernel."""


class ReleasedTarget(PooledTarget):
    """Kernels out of one wheel."""

    files: tuple[str, ...]
    """Those that are loaded from the start, so that an identity names them all."""

    def __init__(self, release: Release, name: str) -> None:
        super().__init__(name, release.device)
        self.release = release
        for file in self.files:
            release.module(file)

    def identity(self) -> Mapping[str, str]:
        """Release, SHA-256 of each loaded file, and what runs them."""
        return {"release": self.release.name, **self.release.digests(), **super().identity()}


class SglangRing(ReleasedTarget):
    """`ring`: verify, exact fold, cursor advance and reset behind the public wrappers.

    With `split` the fold and the verify are launched one at a time.
    """

    dialect = RING_DIALECT
    files = (RING,)

    def __init__(self, release: Release, name: str, split: bool = False) -> None:
        super().__init__(release, name)
        # Its default; the interpreter has no tf32 and computes such dots in plain float32.
        self.precision = TF32 if release.device == "cuda" else IEEE
        self.launch_modes = ("flush", "verify") if split else ("both",)

    def launch_verify(
        self, layer: int, batch: Batch, inputs: Sequence[torch.Tensor], out: torch.Tensor
    ) -> None:
        """Fold and verify through `gdn_replayssm_spec_decode`."""
        q, k, v, a, b = inputs
        memory = self.memory
        for mode in self.launch_modes:
            self.release.module(RING).gdn_replayssm_spec_decode(
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
        self.release.module(RING).commit_gdn_replayssm_spec(
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
        self.release.module(RING).reset_gdn_replayssm_spec_cursors(
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
        return SglangRecurrent(self.release, f"{self.release.name} recurrent")


class SglangRecurrent(ReleasedTarget):
    """`snapshots`: the recurrent verify, which stores a snapshot per drafted token.

    Committing is a plain copy of one snapshot, so that a twin's state is what the kernel wrote.
    """

    dialect = SNAPSHOTS_DIALECT
    precision = IEEE
    padding_slots = (-1,)  # its kernel knows no null slot: 0 is a request's
    files = (RECURRENT,)

    def launch_verify(
        self, layer: int, batch: Batch, inputs: Sequence[torch.Tensor], out: torch.Tensor
    ) -> None:
        """Walk the window token by token, keeping every state on the way."""
        outputs = launch_recurrent(
            self,
            layer,
            batch,
            inputs,
            disable_state_update=True,
            intermediate_states_buffer=self.memory["snapshots"][layer],
            intermediate_state_indices=batch.slots,
            cache_steps=self.setup.window,
        )
        out.copy_(outputs)

    def launch_commit(self, slots: torch.Tensor, accepted: torch.Tensor, bound: int) -> None:
        """Copy the snapshot of the last accepted token over the checkpoint."""
        keep = (slots > NULL_SLOT) & (accepted > 0)
        slot, last = slots[keep].long(), accepted[keep].long() - 1
        self.memory["checkpoint"][:, slot] = self.memory["snapshots"][:, slot, last]

    def launch_reset(self, slots: torch.Tensor) -> None:
        """There are no cursors."""


def launch_recurrent(
    target: ReleasedTarget,
    layer: int,
    batch: Batch,
    inputs: Sequence[torch.Tensor],
    **options: object,
) -> torch.Tensor:
    """The release's recurrent kernel on one layer of `target`'s checkpoints: [token, HV, V]."""
    q, k, v, a, b = inputs
    outputs: torch.Tensor = target.release.module(RECURRENT).fused_sigmoid_gating_delta_rule_update(
        A_log=target.A_log[layer],
        a=a,
        dt_bias=target.dt_bias[layer],
        softplus_beta=SOFTPLUS_BETA,
        softplus_threshold=SOFTPLUS_THRESHOLD,
        q=q[None],
        k=k[None],
        v=v[None],
        b=b,
        initial_state_source=target.memory["checkpoint"][layer],
        initial_state_indices=batch.slots,
        use_qk_l2norm_in_kernel=target.setup.l2norm,
        cu_seqlens=batch.starts,
        **options,
    )
    return outputs[0]
