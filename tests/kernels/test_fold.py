"""The stand-alone fold leaves the bits that the fused one leaves, and the twin's.

Both are judged by the twin, which the recurrent kernel walks over the accepted tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_committed_state_can_be_had_at_any_time(layer: Callable[..., Any], dtype: Any) -> None:
    """With a flag of ones, whatever the history's length and wherever it wraps."""
    from ringfold.kernels.fold import gdn_exact_fold

    one = layer(dtype=dtype, slots=4, K=40, V=24)
    for n in (2, 1, 0, 2):
        w = one.window((1, 3), (2, 2))
        one.verify(w)
        one.commit(w, (n, 2 - n))
        state = one.state.clone()
        rings = {name: one.rings[name] for name in ("rawv_cache", "rawk_cache", "g_cache")}

        due = one.is_flush.tolist()
        gdn_exact_fold(
            state, **rings, beta_cache=one.rings["beta_cache"],
            ssm_state_indices=one.ints((3, 0, 1)), write_pos=one.write_pos,
            cache_base=one.cache_base, is_flush=torch.ones_like(one.is_flush),
            max_cache_len=one.shape.L, null_block_id=0,
        )  # fmt: skip

        assert torch.equal(state, one.twin)
        assert one.is_flush.tolist() == due
