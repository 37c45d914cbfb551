"""SGLang's plain decoding: the packed kernel that a server runs when nothing is drafted.

It advances checkpoints in place, one token a row, from q, k and v packed into one row as the
convolution leaves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz import arrays
from ringfold.fuzz.target import Inputs, Request, Target
from ringfold.fuzz.targets.sglang import SglangRecurrent
from ringfold.fuzz.targets.sglang_release import PLAIN

if TYPE_CHECKING:
    import torch


class SglangDecode(SglangRecurrent):
    """`snapshots`, of which plain decoding needs the checkpoint alone."""

    operations = frozenset({"admit", "free", "decode"})
    files = (PLAIN,)

    def decode(self, rows: Sequence[Request | None], inputs: Inputs) -> NDArray[Any]:
        """One token a row through `fused_recurrent_gated_delta_rule_packed_decode`."""
        activation, geometry = self.setup.dtypes.activation, self.setup.geometry
        slots, count = self.slots_of(rows), len(rows)
        q, k, v, a, b = (self.tensor(x, activation) for x in inputs)
        out = self.zeros((*v.shape[:2], 1, *v.shape[2:]), activation).fill_(float("nan"))
        for layer in range(self.setup.layers):
            mixed = self.joined([x[layer].reshape(count, -1) for x in (q, k, v)])
            self.release.module(PLAIN).fused_recurrent_gated_delta_rule_packed_decode(
                mixed_qkv=mixed,
                a=a[layer],
                b=b[layer],
                A_log=self.A_log[layer],
                dt_bias=self.dt_bias[layer],
                scale=geometry.key_dim**-0.5,
                initial_state=self.memory["checkpoint"][layer],
                out=out[layer],
                ssm_state_indices=slots,
                use_qk_l2norm_in_kernel=self.setup.l2norm,
            )
        return np.asarray(arrays.to_numpy(out)[:, :, 0])

    def joined(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Rows side by side."""
        import torch

        return torch.cat(list(parts), dim=-1)

    def twin(self) -> Target | None:
        """None: nothing of it is claimed to the bit."""
        return None
