"""What a launch needs to be right, checked on the host without waiting for the device.

Only shapes, dtypes, strides and addresses are read.  Every message names the value, the limit
and the way out.
"""

from __future__ import annotations

import dataclasses

import torch

from ringfold.kernels.state import align_bytes

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int32, torch.int64)
FLAGS = (torch.int8, torch.bool, torch.uint8)
ROWS_MAX = 65_535
"""Of a batch: what CUDA allows on the second axis of a grid."""


def require(condition: bool, message: str) -> None:
    """Raise ValueError with `message` unless the condition holds."""
    if not condition:
        raise ValueError(message)


def check_dtype(name: str, x: torch.Tensor, allowed: tuple[torch.dtype, ...]) -> None:
    """Raise ValueError unless `x` has one of the allowed dtypes."""
    names = " or ".join(str(d) for d in allowed)
    require(x.dtype in allowed, f"{name} is {x.dtype}; it must be {names}: convert it")


def check_shape(name: str, x: torch.Tensor, shape: tuple[int | None, ...]) -> None:
    """Raise ValueError unless `x` has this shape; None stands for any size."""
    fits = x.ndim == len(shape) and all(
        want is None or want == have for want, have in zip(shape, x.shape, strict=True)
    )
    want = ", ".join("*" if n is None else str(n) for n in shape)
    require(fits, f"{name} has shape {tuple(x.shape)}; it must be [{want}]")


def check_packed(name: str, x: torch.Tensor, inner: int) -> None:
    """Raise ValueError unless the last `inner` axes of `x` are contiguous."""
    expected = 1
    for size, stride in zip(reversed(x.shape[-inner:]), reversed(x.stride()[-inner:]), strict=True):
        require(
            size == 1 or stride == expected,
            f"{name} with shape {tuple(x.shape)} has strides {x.stride()}; its last {inner} axes "
            f"must be contiguous (leading axes may be strided): make a contiguous copy",
        )
        expected *= size


def check_state(name: str, state: torch.Tensor) -> int:
    """Check a pool `[slots, HV, V, K]`; returns the unit in which its slot stride is handed over.

    The pool and the distance of its slots must be as aligned as a row of K is, since the width of
    the loads, and with it the order of every sum over K, may not depend on the pool at hand.
    """
    require(state.ndim == 4, f"{name} has shape {tuple(state.shape)}; it must be [slots, HV, V, K]")
    check_dtype(name, state, FLOATS)
    check_packed(name, state, 3)
    V, K = state.shape[-2:]
    require(
        1 <= K <= 256 and 1 <= V <= 256,
        f"{name} has K={K}, V={V}; K and V may be 1 to 256: split wider heads",
    )
    bytes_ = align_bytes(state)
    unit = bytes_ // state.element_size()
    require(
        state.stride(0) % unit == 0,
        f"{name} has a slot stride of {state.stride(0)} elements; with K={K} it must be a multiple "
        f"of {unit}: pad the slots",
    )
    require(
        state.data_ptr() % bytes_ == 0,
        f"{name} starts at an address that is not a multiple of {bytes_} bytes: move it",
    )
    return unit


def check_inputs(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
) -> None:
    """Check a batch of tokens `q, k [n, H, K]`, `v [n, HV, V]`, `a, b [n, HV]` and the gate."""
    HV, V, K = state.shape[1:]
    check_dtype("k", k, FLOATS)
    H = k.shape[1] if k.ndim == 3 else 0
    require(
        H > 0 and HV % H == 0,
        f"k has shape {tuple(k.shape)} and checkpoint_state {tuple(state.shape)}; "
        f"k must be [tokens, H, K] with H dividing HV={HV}",
    )
    n = k.shape[0]
    for name, x, shape in (
        ("q", q, (n, H, K)),
        ("k", k, (n, H, K)),
        ("v", v, (n, HV, V)),
        ("a", a, (n, HV)),
        ("b", b, (n, HV)),
    ):
        check_shape(name, x, shape)
        check_dtype(name, x, (k.dtype,) if name in "qv" else FLOATS)
        check_packed(name, x, 1)
    for name, x in (("A_log", A_log), ("dt_bias", dt_bias)):
        check_shape(name, x, (HV,))
        check_dtype(name, x, FLOATS)
        check_packed(name, x, 1)


def check_rows(window_start: torch.Tensor, slots: torch.Tensor) -> int:
    """Check the row descriptors; returns the number of rows."""
    require(
        window_start.ndim == 1 and window_start.shape[0] >= 1,
        f"query_start_loc has shape {tuple(window_start.shape)}; it must be [rows + 1]",
    )
    rows = window_start.shape[0] - 1
    check_shape("ssm_state_indices", slots, (rows,))
    check_dtype("query_start_loc", window_start, INTEGERS)
    return check_slots(slots)


def check_slots(slots: torch.Tensor) -> int:
    """Check the slot of each row; returns the number of rows."""
    check_shape("ssm_state_indices", slots, (None,))
    check_dtype("ssm_state_indices", slots, INTEGERS)
    rows = slots.shape[0]
    require(
        rows <= ROWS_MAX,
        f"ssm_state_indices has {rows} rows; a launch takes {ROWS_MAX}: split the batch",
    )
    return rows


def check_ring_length(L: int, T: int) -> None:
    """Check that the ring can hold the windows: a power of two, and two windows long."""
    for name, n in (("max_cache_len", L), ("max_spec_len", T)):
        found = f"{n} ({type(n).__name__})"
        require(isinstance(n, int), f"{name} is {found}; it must be an int: take the ring's shape")
    require(T >= 1, f"max_spec_len is {T}; it must be at least 1: pass the longest window")
    require(
        L >= 1 and L & (L - 1) == 0,
        f"max_cache_len is {L}; the ring's length must be a power of two: "
        f"use {1 << max(L, 2 * T - 1).bit_length()}",
    )
    require(
        2 * T <= L,
        f"max_cache_len is {L} and max_spec_len {T}; the ring must hold two windows, "
        f"{2 * T} records: lengthen the ring or shorten the drafts",
    )


def check_cursors(
    write_pos: torch.Tensor, cache_base: torch.Tensor, is_flush: torch.Tensor, slots: int = 0
) -> None:
    """Check the cursors, one entry a slot, of as many slots each and at least so many."""
    cursors = {
        "write_pos": (write_pos, (torch.int32,)),
        "cache_base": (cache_base, (torch.int32,)),
        "is_flush": (is_flush, FLAGS),
    }
    for name, (x, allowed) in cursors.items():
        require(x.ndim == 1, f"{name} has shape {tuple(x.shape)}; it must be [slots]")
        check_dtype(name, x, allowed)
        check_packed(name, x, 1)
        slots = max(slots, x.shape[0])
    for name, (x, _) in cursors.items():
        check_every_slot(name, x, slots)


def check_every_slot(name: str, x: torch.Tensor, slots: int) -> None:
    """Raise ValueError where a slot has no entry in `x`: its row would be read out of bounds."""
    require(
        x.shape[0] >= slots,
        f"{name} has {x.shape[0]} slots where there are {slots}: allocate one for each",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Rings:
    """The shapes that the six rings must have, for at least so many slots."""

    slots: int
    H: int
    HV: int
    K: int
    V: int
    L: int

    def check_raw(
        self,
        rawv_cache: torch.Tensor,
        rawk_cache: torch.Tensor,
        g_cache: torch.Tensor,
        beta_cache: torch.Tensor,
    ) -> None:
        """Check the rings that the fold reads."""
        self._check("rawv_cache", rawv_cache, (self.HV, self.L, self.V), FLOATS)
        if rawv_cache.element_size() == 2 and self.V % 2 == 0:  # read as words
            require(
                rawv_cache.stride(0) % 2 == 0 and rawv_cache.data_ptr() % 4 == 0,
                f"rawv_cache has a slot stride of {rawv_cache.stride(0)} and starts at an address "
                f"that is {rawv_cache.data_ptr() % 4} modulo 4; the stride must be even and the "
                f"address a multiple of 4: pad the slots",
            )
        self._check("rawk_cache", rawk_cache, (self.H, self.L, self.K), FLOATS)
        self._check("g_cache", g_cache, (self.HV, self.L), (torch.float32,))
        self._check("beta_cache", beta_cache, (self.HV, self.L), (torch.float32,))

    def check_derived(self, d_cache: torch.Tensor, k_cache: torch.Tensor) -> None:
        """Check the rings that only outputs are made from."""
        self._check("d_cache", d_cache, (self.HV, self.L, self.V), FLOATS)
        self._check("k_cache", k_cache, (self.H, self.L, self.K), FLOATS)

    def _check(
        self, name: str, ring: torch.Tensor, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]
    ) -> None:
        check_shape(name, ring, (None, *shape))
        check_dtype(name, ring, dtypes)
        check_packed(name, ring, len(shape))
        check_every_slot(name, ring, self.slots)
