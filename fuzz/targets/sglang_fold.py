"""SGLang 0.5.17 to 0.5.19: the recurrent verify keeps raw inputs, and the commit replays them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ringfold.fuzz.target import IEEE, Target
from ringfold.fuzz.targets.pooled import Batch
from ringfold.fuzz.targets.sglang import SglangRecurrent, launch_recurrent
from ringfold.fuzz.targets.sglang_release import FOLD, RECURRENT
from ringfold.fuzz.targets.sglang_tracks import Tracks
from ringfold.sim.dialects import FOLD_EVERY_COMMIT_DIALECT

if TYPE_CHECKING:
    import torch


class SglangFold(Tracks):
    """`fold-every-commit`: ring write inside the recurrent kernel, fold of all layers at once."""

    dialect = FOLD_EVERY_COMMIT_DIALECT
    precision = IEEE
    padding_slots = (-1,)  # its recurrent kernel knows no null slot: 0 is a request's
    files = (RECURRENT, FOLD)

    def launch_verify(
        self, layer: int, batch: Batch, inputs: Sequence[torch.Tensor], out: torch.Tensor
    ) -> None:
        """Walk the window and keep what its tokens bring."""
        out.copy_(self.walk_window(layer, batch, inputs))

    def walk_window(self, layer: int, batch: Batch, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """The same, outputs where the kernel puts them."""
        records = {
            f"replayssm_{name}": self.memory[name][layer] for name in ("rawv", "rawk", "g", "beta")
        }
        return launch_recurrent(
            self, layer, batch, inputs, disable_state_update=True, cache_ring=True, **records
        )

    def launch_commit(self, slots: torch.Tensor, accepted: torch.Tensor, bound: int) -> None:
        """Replay what was accepted through `commit_gdn_replayssm_fold_all_layers`."""
        memory, (track_slots, track_steps) = self.memory, self.tracking or (None, None)
        self.release.module(FOLD).commit_gdn_replayssm_fold_all_layers(
            checkpoint_state=memory["checkpoint"],
            rawv_cache=memory["rawv"],
            rawk_cache=memory["rawk"],
            g_cache=memory["g"],
            beta_cache=memory["beta"],
            ssm_state_indices=slots,
            accept_lens=accepted,
            max_cache_len=self.setup.window,
            num_k_heads=self.setup.geometry.heads,
            mamba_track_indices=track_slots,
            mamba_steps_to_track=track_steps,
            use_qk_l2norm_in_kernel=self.setup.l2norm,
            null_block_id=-1,
        )

    def launch_reset(self, slots: torch.Tensor) -> None:
        """There are no cursors."""

    def twin(self) -> Target | None:
        """The same kernel, keeping snapshots in place of raw inputs."""
        return SglangRecurrent(self.release, f"{self.release.name} recurrent")
