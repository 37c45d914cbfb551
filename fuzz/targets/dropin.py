"""Ring kernels behind the wrappers of SGLang 0.5.16: whoever keeps its signatures is tested alike.

Those are `gdn_replayssm_spec_decode`, `commit_gdn_replayssm_spec` and
`reset_gdn_replayssm_spec_cursors`. SGLang's own come from its wheel, ours from `ringfold.kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfold.fuzz.targets.pooled import Batch, PooledTarget
from ringfold.sim.dialects import RING_DIALECT
from ringfold.sim.setup import NULL_SLOT

if TYPE_CHECKING:
    import torch


class Wrappers(NamedTuple):
    """The three entrances."""

    verify: Callable[..., Any]
    commit: Callable[..., Any]
    reset: Callable[..., Any]


class DropInRing(PooledTarget):
    """Launches a subclass's `wrappers`; with more than one launch mode, one after the other."""

    dialect = RING_DIALECT
    launch_modes: tuple[str, ...] = ("both",)
    wrappers: Wrappers

    def launch_verify(
        self, layer: int, batch: Batch, inputs: Sequence[torch.Tensor], out: torch.Tensor
    ) -> None:
        """Fold the rows that are due and verify all."""
        q, k, v, a, b = inputs
        memory = {name: buffer[layer] for name, buffer in self.rings.items()}
        for mode in self.launch_modes:
            self.wrappers.verify(
                q=q,
                k=k,
                v=v,
                a=a,
                b=b,
                A_log=self.A_log[layer],
                dt_bias=self.dt_bias[layer],
                checkpoint_state=memory["checkpoint"],
                d_cache=memory["d"],
                k_cache=memory["k"],
                g_cache=memory["g"],
                rawv_cache=memory["rawv"],
                rawk_cache=memory["rawk"],
                beta_cache=memory["beta"],
                out=out,
                query_start_loc=batch.starts,
                ssm_state_indices=batch.slots,
                **self.cursors,
                max_cache_len=self.setup.ring,
                max_spec_len=self.setup.window,
                use_qk_l2norm_in_kernel=self.setup.l2norm,
                null_block_id=NULL_SLOT,
                launch_mode=mode,
            )

    def launch_commit(self, slots: torch.Tensor, accepted: torch.Tensor, bound: int) -> None:
        """Advance the cursors."""
        self.wrappers.commit(
            **self.cursors,
            num_accepted=accepted,
            state_batch_indices=slots,
            max_cache_len=self.setup.ring,
            max_spec_len=bound,
            null_block_id=NULL_SLOT,
        )

    def launch_reset(self, slots: torch.Tensor) -> None:
        """Make the cursors those of an empty ring, amid rows that keep theirs."""
        rows, new = self.amid_others(slots)
        self.wrappers.reset(
            **self.cursors,
            do_reset=new,
            state_batch_indices=rows,
            max_cache_len=self.setup.ring,
            max_spec_len=self.setup.window,
            null_block_id=NULL_SLOT,
        )

    @property
    def cursors(self) -> dict[str, torch.Tensor]:
        """The cursors by the names of the wrappers' parameters."""
        return {name: self.memory[name] for name in ("write_pos", "cache_base", "is_flush")}

    @property
    def rings(self) -> dict[str, torch.Tensor]:
        """Everything that has a layer axis."""
        return {b.name: self.memory[b.name] for b in self.dialect.buffers if "layer" in b.axes}
