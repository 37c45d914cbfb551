"""A pool on the ring, a twin pool walked by the recurrent kernel, and the float64 recurrence.

`Layer` holds all three and the inputs of a step, so that a test says only what is special to it.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ringfold.oracle.gdn import Parameters, Tokens, prepare, scan

if importlib.util.find_spec("torch"):
    import torch  # but not triton: this module is imported before its mode is chosen

NULL = 0


@dataclasses.dataclass(frozen=True)
class Shape:
    """Geometry and dtypes of one layer."""

    H: int = 1
    HV: int = 2
    K: int = 32
    V: int = 32
    L: int = 8
    T: int = 2
    slots: int = 4
    dtype: Any = None  # torch.float32
    norm: bool = True


@dataclasses.dataclass
class Window:
    """The inputs of one verify, packed, and where its outputs go."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    starts: list[int]
    slots: list[int]
    out: torch.Tensor

    def rows(self) -> list[tuple[int, int, int]]:
        """(slot, first token, end) of every row."""
        return list(zip(self.slots, self.starts[:-1], self.starts[1:], strict=True))


class Layer:
    """One GDN layer three times over: on the ring, as a recurrent twin, and in float64."""

    def __init__(self, shape: Shape, device: str, seed: int = 0) -> None:
        shape = dataclasses.replace(shape, dtype=shape.dtype or torch.float32)
        self.shape, self.device = shape, device
        self.random = torch.Generator().manual_seed(seed)
        H, HV, K, V, L = shape.H, shape.HV, shape.K, shape.V, shape.L
        state = 0.3 * self.draw(shape.slots, HV, V, K)
        self.state, self.twin = state.clone(), state.clone()
        self.truth: Any = state.double().cpu().numpy()
        self.A_log = 0.5 * self.draw(HV) - 2.0  # slow decay, so that a lost token shows
        self.dt_bias = self.draw(HV)
        # Dead memory is NaN: whatever reads it shows.
        self.rings = {
            "d_cache": self.dead(HV, L, V),
            "k_cache": self.dead(H, L, K),
            "g_cache": self.dead(HV, L, dtype=torch.float32),
            "rawv_cache": self.dead(HV, L, V),
            "rawk_cache": self.dead(H, L, K),
            "beta_cache": self.dead(HV, L, dtype=torch.float32),
        }
        cursor: dict[str, Any] = {"dtype": torch.int32, "device": device}
        self.write_pos = torch.zeros(shape.slots, **cursor)
        self.cache_base = torch.arange(shape.slots, **cursor) * 3 % L  # some wrap at once
        self.is_flush = torch.zeros(shape.slots, dtype=torch.int8, device=device)

    def draw(self, *size: int) -> torch.Tensor:
        """Normal numbers, fp32."""
        return torch.randn(*size, generator=self.random).to(self.device)

    def dead(self, *size: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A ring full of NaN."""
        dtype = dtype or self.shape.dtype
        full = (self.shape.slots, *size)
        return torch.full(full, float("nan"), dtype=dtype, device=self.device)

    def ints(self, values: Sequence[int]) -> torch.Tensor:
        """Row descriptors."""
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def window(self, slots: Sequence[int], lengths: Sequence[int]) -> Window:
        """Draw inputs; q, k, v are strided views of one buffer, as a model hands them over."""
        s = self.shape
        starts = [0, *np.cumsum(lengths).tolist()]
        n = starts[-1]
        qk, vv = s.H * s.K, s.HV * s.V
        mixed = self.draw(n, 2 * qk + vv + 3).to(s.dtype)
        return Window(
            q=mixed[:, :qk].view(n, s.H, s.K),
            k=mixed[:, qk : 2 * qk].view(n, s.H, s.K),
            v=mixed[:, 2 * qk : 2 * qk + vv].view(n, s.HV, s.V),
            a=self.draw(n, s.HV).to(s.dtype),
            b=self.draw(n, s.HV).to(s.dtype),
            starts=starts,
            slots=list(slots),
            out=torch.full((n, s.HV, s.V), float("nan"), dtype=s.dtype, device=self.device),
        )

    def verify(self, w: Window, **options: Any) -> torch.Tensor:
        """Run the ring kernel over a window."""
        from ringfold.kernels.ring import gdn_replayssm_spec_decode

        arguments: dict[str, Any] = {
            "q": w.q, "k": w.k, "v": w.v, "a": w.a, "b": w.b,
            "A_log": self.A_log, "dt_bias": self.dt_bias, "checkpoint_state": self.state,
            **self.rings, "out": w.out,
            "query_start_loc": self.ints(w.starts), "ssm_state_indices": self.ints(w.slots),
            "write_pos": self.write_pos, "cache_base": self.cache_base, "is_flush": self.is_flush,
            "max_cache_len": self.shape.L, "max_spec_len": self.shape.T,
            "use_qk_l2norm_in_kernel": self.shape.norm, "null_block_id": NULL,
        }  # fmt: skip
        return gdn_replayssm_spec_decode(**(arguments | options))

    def recurrent(self, w: Window, state: torch.Tensor, **options: Any) -> None:
        """Run the recurrent kernel over a window."""
        from ringfold.kernels.recurrent import gdn_recurrent_verify

        gdn_recurrent_verify(
            w.q, w.k, w.v, w.a, w.b, self.A_log, self.dt_bias, state,
            self.ints(w.starts), self.ints(w.slots),
            use_qk_l2norm_in_kernel=self.shape.norm, null_block_id=NULL, **options,
        )  # fmt: skip

    def commit(self, w: Window, accepted: Sequence[int]) -> None:
        """Commit on all three: the ring's cursors, the twin's state, the truth."""
        from ringfold.kernels.cursors import commit_gdn_replayssm_spec

        counts = self.ints(accepted)
        commit_gdn_replayssm_spec(
            self.write_pos, self.cache_base, self.is_flush, counts, self.ints(w.slots),
            self.shape.L, self.shape.T, null_block_id=NULL,
        )  # fmt: skip
        self.recurrent(w, self.twin, num_accepted=counts, update_state=True)
        for (slot, begin, _), n in zip(w.rows(), accepted, strict=True):
            if slot > NULL:
                self.truth[slot] = self.walk(w, slot, begin, begin + n)[1]

    def walk(self, w: Window, slot: int, begin: int, end: int) -> tuple[Any, Any]:
        """The recurrence in float64 from the slot's true state: outputs and state."""
        parts = (x[begin:end].double().cpu().numpy() for x in (w.q, w.k, w.v, w.a, w.b))
        A_log, dt_bias = (x.double().cpu().numpy() for x in (self.A_log, self.dt_bias))
        parameters = Parameters(A_log, dt_bias, l2norm=self.shape.norm)
        return scan(self.truth[slot], prepare(Tokens(*parts), parameters))

    def output_error(self, w: Window) -> float:
        """The largest error of the outputs, relative to the largest output; padding is zero."""
        worst = 0.0
        for slot, begin, end in w.rows():
            got = w.out[begin:end].double().cpu().numpy()
            if slot <= NULL:
                assert not got.any()
            elif end > begin:
                want, _ = self.walk(w, slot, begin, end)
                worst = max(worst, float(np.abs(got - want).max() / np.abs(want).max()))
                assert np.isfinite(got).all()
        return worst

    def state_error(self, state: torch.Tensor) -> float:
        """The largest error of a pool's states."""
        difference = state.double().cpu().numpy() - self.truth
        return float(np.abs(difference[NULL + 1 :]).max())


@pytest.fixture
def layer(device: str) -> Callable[..., Layer]:
    """Make a `Layer` of the given shape."""

    def make(seed: int = 0, **shape: Any) -> Layer:
        return Layer(Shape(**shape), device, seed)

    return make
