"""SGLang's plain decoding, what a server runs when nothing is drafted: in place, or from a ring.

Both kernels take one token a row, q, k and v side by side as the convolution leaves them: a view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.judging import arrays
from ringfold.fuzz.judging.checks import eps
from ringfold.fuzz.target import IEEE, TF32, HeadParameters, Inputs, Precision, Request, Target
from ringfold.fuzz.targets.pooled import Batch
from ringfold.fuzz.targets.sglang import ReleasedTarget, SglangRecurrent
from ringfold.fuzz.targets.sglang_release import BUFFERED_DECODE, DECODE, PLAIN, Release
from ringfold.sim.dialects import DECODE_RING_DIALECT
from ringfold.sim.setup import Setup

if TYPE_CHECKING:
    import torch


class PackedInputs(ReleasedTarget):
    """Launches a decode kernel layer by layer, q, k and v together, on an `out` full of NaN."""

    def decode_layers(
        self, inputs: Inputs, slots: torch.Tensor, **more: torch.Tensor
    ) -> NDArray[Any]:
        """Outputs [layer, row, HV, V]; `more` goes to every launch."""
        setup, (q, k, v, a, b) = self.setup, inputs
        activation = setup.dtypes.activation
        qkv = np.concatenate([x.reshape(*x.shape[:2], -1) for x in (q, k, v)], axis=-1)
        # In a server's projections an output gate as wide as v is behind them, and b beside a.
        mixed_qkv, _ = self.side_by_side((qkv, v), activation)
        gate_a, gate_b = self.side_by_side((a, b), activation)
        out = self.zeros((*v.shape[:2], 1, *v.shape[2:]), activation).fill_(float("nan"))
        for layer in range(setup.layers):
            self.launch_decode(
                layer,
                mixed_qkv=mixed_qkv[layer],
                a=gate_a[layer],
                b=gate_b[layer],
                A_log=self.A_log[layer],
                dt_bias=self.dt_bias[layer],
                scale=setup.geometry.key_dim**-0.5,
                initial_state=self.memory["checkpoint"][layer],
                out=out[layer],
                ssm_state_indices=slots,
                use_qk_l2norm_in_kernel=setup.l2norm,
                **more,
            )
        return np.asarray(arrays.to_numpy(out)[:, :, 0])

    def launch_decode(self, layer: int, **arguments: Any) -> None:
        """Decode one layer."""
        raise NotImplementedError


class SglangPacked(PackedInputs, SglangRecurrent):
    """`snapshots`, of which decoding in place needs the checkpoint alone."""

    operations = frozenset({"admit", "free", "decode"})
    files = (PLAIN,)

    def decode(self, rows: Sequence[Request | None], inputs: Inputs) -> NDArray[Any]:
        """One token a row, straight into the checkpoint."""
        return self.decode_layers(inputs, self.slots_of(rows))

    def launch_decode(self, layer: int, **arguments: Any) -> None:
        """`fused_recurrent_gated_delta_rule_packed_decode`."""
        self.release.module(PLAIN).fused_recurrent_gated_delta_rule_packed_decode(**arguments)

    def twin(self) -> Target | None:
        """None: nothing of it is claimed to the bit."""
        return None


class SglangDecodeRing(PackedInputs):
    """`decode-ring`: the state is stored every L tokens, and where the prefix cache asks for it.

    The kernel leaves the cursor to its caller. What the backend does when it prepares a forward is
    done here in its words: snapshot `write_pos` by row, launch, advance by one or start over.
    `is_flush` of a slot stands for the backend's `force_flush` of the row.
    """

    dialect = DECODE_RING_DIALECT
    operations = frozenset({"admit", "free", "decode", "place"})
    padding_slots = (-1,)  # its kernel knows no null slot: 0 is a request's
    contiguous_pool = True  # it derives where a slot's records lie from their shape
    files = (DECODE,)

    def __init__(self, release: Release, name: str) -> None:
        release.require(BUFFERED_DECODE)
        super().__init__(release, name)

    def refuses(self, setup: Setup) -> str:
        """It walks a head in two tiles that `tl.dot` must take."""
        K = setup.geometry.key_dim
        return "" if K > 16 else f"its kernel wants more than 16 columns a key head, not {K}"

    def open(self, setup: Setup, parameters: HeadParameters) -> None:
        """Allocate; operands of the dots are rounded to the dtype of the activations."""
        super().open(setup, parameters)
        tf32 = TF32 if self.device == "cuda" else IEEE
        dot = max(tf32.dot, eps(setup.dtypes.activation))
        self.precision = Precision(dot, dot)

    def decode(self, rows: Sequence[Request | None], inputs: Inputs) -> NDArray[Any]:
        """One token a row, appended to its ring or folded with it."""
        import torch

        slots, L = self.slots_of(rows), self.setup.ring
        write_pos, is_flush = self.memory["write_pos"], self.memory["is_flush"]
        safe = slots.clamp(min=0).long()
        before, asked = write_pos[safe].clone(), is_flush[safe].to(torch.int32)
        outputs = self.decode_layers(inputs, slots, write_pos=before, force_flush=asked)
        over = (before == L - 1) | (asked != 0)
        after = torch.where(over, torch.zeros_like(before), (before + 1) % L)
        real = slots >= 0
        write_pos[safe[real]] = after[real]
        is_flush[safe[real]] = 0
        return outputs

    def launch_decode(self, layer: int, **arguments: Any) -> None:
        """`fused_recurrent_linear_replayssm_decode`, as the backend calls it for GDN."""
        rings = {f"{name}_cache": self.memory[name][layer] for name in ("d", "k", "g")}
        self.release.module(DECODE).fused_recurrent_linear_replayssm_decode(**arguments, **rings)

    def launch_reset(self, slots: torch.Tensor) -> None:
        """The pool zeroes the cursor of a slot that it gives out."""
        for name in ("write_pos", "cache_base", "is_flush"):
            self.memory[name][slots.long()] = 0

    def launch_verify(
        self, layer: int, batch: Batch, inputs: Sequence[torch.Tensor], out: torch.Tensor
    ) -> None:
        """Not owned."""
        raise NotImplementedError(f"{self.name} verifies no drafts")

    def launch_commit(self, slots: torch.Tensor, accepted: torch.Tensor, bound: int) -> None:
        """Not owned."""
        raise NotImplementedError(f"{self.name} commits in its decode step")
