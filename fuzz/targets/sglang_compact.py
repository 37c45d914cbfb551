"""SGLang 0.5.20 and later: deltas and keys in two parts, rings by request, fold in the commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ringfold.fuzz.judging.checks import eps
from ringfold.fuzz.target import (
    IEEE,
    TF32,
    Device,
    Floats,
    HeadParameters,
    Precision,
    RefusedError,
    Request,
)
from ringfold.fuzz.targets.pooled import Batch
from ringfold.fuzz.targets.sglang_places import Places
from ringfold.fuzz.targets.sglang_release import RING
from ringfold.fuzz.targets.sglang_tracks import Tracks
from ringfold.sim.configuration.serving import DOT_ROWS_MIN
from ringfold.sim.dialects import COMPACT_DIALECT
from ringfold.sim.setup import NULL_SLOT, Setup

if TYPE_CHECKING:
    import torch


CURSORS: Final = ("write_pos", "cache_base", "is_flush")
RING_MIN: Final = DOT_ROWS_MIN["h200"]


def short_ring(device: Device, ring: int) -> str:
    """Why the commit can't be compiled for a ring; empty if it can, as always if interpreted."""
    if device == "cpu" or ring >= RING_MIN:
        return ""
    return (
        f"its commit adds up over the ring in a tl.dot, which takes {RING_MIN} rows at least on a "
        f"GPU, not {ring}: choose a ring of {RING_MIN} or more"
    )


class SglangCompact(Tracks, Places):
    """`compact`: one verify launch a layer, then cursors and fold of all layers in the commit."""

    dialect = COMPACT_DIALECT
    files = (RING,)
    null_place = NULL_SLOT

    def refuses(self, setup: Setup) -> str:
        """What the fold is not compiled for; it takes `tl.arange(0, K)`, too."""
        K = setup.geometry.key_dim
        if K & (K - 1):
            return f"its commit kernel wants K a power of two, not {K}"
        return short_ring(self.device, setup.ring)

    def open(self, setup: Setup, parameters: HeadParameters) -> None:
        """Allocate; what the dots lose depends on the dtypes of checkpoint and records."""
        if because := self.refuses(setup):
            raise RefusedError(f"target {self.name}: {because}")
        super().open(setup, parameters)
        self.precision = self._precision(setup)

    def _precision(self, setup: Setup) -> Precision:
        # The interpreter has no tf32. Parts of 16-bit records multiply exactly into float32;
        # float32 records meet in a `tl.dot` of default precision.
        tf32 = TF32 if self.device == "cuda" else IEEE
        fold = tf32.dot if setup.dtypes.record == "float32" else IEEE.dot
        if setup.dtypes.state == "float32":
            return Precision(tf32.dot, fold)
        # Under a narrower checkpoint every operand is rounded to the dtype of the activations.
        return Precision(max(tf32.dot, eps(setup.dtypes.activation)), fold)

    def admit_all(self, requests: Sequence[Request], states: Floats) -> None:
        """Take places and slots; the pool zeroes the cursors of a place that it gives out."""
        super().admit_all(requests, states)
        for cursor in CURSORS:
            for request in requests:
                self.memory[cursor][self.places[request]] = 0

    def launch_verify(
        self, layer: int, batch: Batch, inputs: Sequence[torch.Tensor], out: torch.Tensor
    ) -> None:
        """Verify through `gdn_replayssm_spec_decode`, in the mode that the backend uses."""
        q, k, v, a, b = inputs
        memory = self.memory
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
            rawv_cache=self.low("d", layer),
            rawk_cache=self.low("k", layer),
            beta_cache=None,
            out=out,
            query_start_loc=batch.starts,
            ssm_state_indices=batch.slots,
            replay_indices=self.row_places,
            write_pos=memory["write_pos"],
            cache_base=memory["cache_base"],
            is_flush=memory["is_flush"],
            max_cache_len=self.setup.ring,
            max_spec_len=self.setup.window,
            use_qk_l2norm_in_kernel=self.setup.l2norm,
            null_block_id=NULL_SLOT,
            launch_mode="verify",
        )

    def launch_commit(self, slots: torch.Tensor, accepted: torch.Tensor, bound: int) -> None:
        """`commit_gdn_replayssm_spec`, then `commit_gdn_replayssm_circular`, as the server does."""
        memory, (track_slots, track_steps) = self.memory, self.tracking or (None, None)
        cursors = {name: memory[name] for name in CURSORS}
        self.release.module(RING).commit_gdn_replayssm_spec(
            **cursors,
            num_accepted=accepted,
            replay_indices=self.row_places,
            max_cache_len=self.setup.ring,
            max_spec_len=bound,
            fold_every_commit=self.setup.dtypes.state != "float32",
            null_block_id=NULL_SLOT,
        )
        self.release.module(RING).commit_gdn_replayssm_circular(
            checkpoint_state=memory["checkpoint"],
            d_cache=memory["d"],
            k_cache=memory["k"],
            g_cache=memory["g"],
            d_residual_cache=self.low("d"),
            k_residual_cache=self.low("k"),
            state_batch_indices=slots,
            replay_indices=self.row_places,
            **cursors,
            accept_lens=accepted,
            mamba_track_indices=track_slots,
            mamba_steps_to_track=track_steps,
            null_block_id=NULL_SLOT,
        )

    def launch_reset(self, slots: torch.Tensor) -> None:
        """Cursors belong to a place, not to a slot."""

    def low(self, name: str, layer: int | None = None) -> torch.Tensor | None:
        """The low part of a record, where there is one; of one layer or of all."""
        low = self.memory.get(f"{name}_low")
        return low if low is None or layer is None else low[layer]
