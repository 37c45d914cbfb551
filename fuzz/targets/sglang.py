"""SGLang's released GDN verification as targets, loaded from the wheel's files without the package.

`sglang==VERSION` is the speculative verification that a server of that release runs, whichever
dialect that is (`Release.dialect`): a class for each, here and in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ringfold.fuzz.comparing.variations import BITWISE
from ringfold.fuzz.target import IEEE, TF32, Target
from ringfold.fuzz.targets.dropin import DropInRing, Wrappers
from ringfold.fuzz.targets.pooled import Batch, CopiedSnapshots, PooledTarget
from ringfold.fuzz.targets.sglang_release import RECURRENT, RING, Release

if TYPE_CHECKING:
    import torch

SOFTPLUS_BETA, SOFTPLUS_THRESHOLD = 1.0, 20.0
"""What SGLang's backend hands to its recurrent kernel."""


class ReleasedTarget(PooledTarget):
    """Kernels out of one wheel."""

    files: tuple[str, ...]
    """Those that are loaded from the start, so that an identity names them all."""
    packed_lists = True  # SGLang makes its lists for each batch
    spare_tokens = True
    """See `roomy`; whoever launches batches of one size alone turns it off."""

    def __init__(self, release: Release, name: str) -> None:
        super().__init__(name, release.device)
        self.release = release
        for file in self.files:
            release.module(file)

    def identity(self) -> Mapping[str, str]:
        """Release or commit, SHA-256 of each loaded file, and what runs them."""
        return {**self.release.identity(), **super().identity()}

    def roomy(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [token, ...] with unused tokens behind it, as many for all batches of a setup.

        SGLang's recurrent kernel is compiled anew for each power of two of tokens.
        """
        room = 2 * self.setup.slots * self.setup.window - x.shape[0]
        if self.device == "cpu" or room <= 0 or not self.spare_tokens:
            return x
        padded = x.new_zeros((x.shape[0] + room, *x.shape[1:]))
        padded[: x.shape[0]] = x
        return padded


class SglangRing(ReleasedTarget, DropInRing):
    """`ring`: verify, exact fold, cursor advance and reset behind the public wrappers.

    With `split` the fold and the verify are launched one at a time.
    """

    files = (RING,)
    packed_lists = False  # its kernels are told the strides
    repeats_bits = BITWISE  # seen in the interpreter: docs/metamorphic.md

    def __init__(self, release: Release, name: str, split: bool = False) -> None:
        super().__init__(release, name)
        # Its default; the interpreter has no tf32 and computes such dots in plain float32.
        self.precision = TF32 if release.device == "cuda" else IEEE
        self.launch_modes = ("flush", "verify") if split else ("both",)
        module = release.module(RING)
        self.wrappers = Wrappers(
            module.gdn_replayssm_spec_decode,
            module.commit_gdn_replayssm_spec,
            module.reset_gdn_replayssm_spec_cursors,
        )

    def twin(self) -> Target | None:
        """The recurrent kernel of the same release."""
        return SglangRecurrent(self.release, f"{self.release.name} recurrent")


class SglangRecurrent(ReleasedTarget, CopiedSnapshots):
    """`snapshots`: the recurrent verify, which stores a snapshot per drafted token."""

    padding_slots = (-1,)  # its kernel knows no null slot: 0 is a request's
    contiguous_pool = True  # it derives where a slot lies from the shape of a head
    files: tuple[str, ...] = (RECURRENT,)

    def launch_verify(
        self, layer: int, batch: Batch, inputs: Sequence[torch.Tensor], out: torch.Tensor
    ) -> None:
        """Walk the window token by token, keeping every state on the way."""
        out.copy_(self.walk_window(layer, batch, inputs))

    def walk_window(self, layer: int, batch: Batch, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """The same, outputs where the kernel puts them."""
        return launch_recurrent(
            self,
            layer,
            batch,
            inputs,
            disable_state_update=True,
            intermediate_states_buffer=self.memory["snapshots"][layer],
            intermediate_state_indices=self.snapshot_rows(batch),
            cache_steps=self.setup.window,
        )

    def snapshot_rows(self, batch: Batch) -> torch.Tensor:
        """Where each row of the batch keeps its snapshots: as a twin, by its slot."""
        return batch.slots


def launch_recurrent(
    target: ReleasedTarget,
    layer: int,
    batch: Batch,
    inputs: Sequence[torch.Tensor],
    **options: object,
) -> torch.Tensor:
    """The release's recurrent kernel on one layer of `target`'s checkpoints: [token, HV, V]."""
    q, k, v, a, b = (target.roomy(x) for x in inputs)
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
    return outputs[0, : inputs[0].shape[0]]
