"""Which geometries, rings and dtypes a run covers: pairwise, so that any two values meet once.

Compiling takes seconds a configuration on a GPU, and the interpreter's time grows with the size of
a head, so each device has its own values. What the caller fixes is fixed; the rest is combined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from allpairspy import AllPairs

from ringfold.fuzz.target import Device
from ringfold.sim.dialects import DIALECTS
from ringfold.sim.setup import Dtypes, Geometry, Setup, SetupError

Heads = tuple[int, int]  # H, HV
Dims = tuple[int, int]  # K, V
Ring = tuple[int, int]  # L, T


class Values(NamedTuple):
    """What each parameter may be; the first of each makes the configuration that comes first."""

    heads: Sequence[Heads]
    dims: Sequence[Dims]
    rings: Sequence[Ring]
    dtypes: Sequence[str]
    layers: Sequence[int]


ON_CPU: Final = Values(
    heads=((1, 2), (2, 4), (1, 1), (1, 3)),
    dims=((32, 32), (48, 16), (64, 24), (64, 32)),
    rings=((8, 2), (16, 4), (8, 4)),
    dtypes=("float32", "float16"),
    layers=(1, 2),
)
ON_CUDA: Final = Values(
    heads=((2, 4), (1, 3), (3, 3), (1, 2)),
    dims=((128, 128), (64, 96), (256, 32), (32, 256), (80, 64), (96, 80)),
    rings=((16, 4), (8, 2), (64, 8), (32, 6)),
    dtypes=("bfloat16", "float32", "float16"),
    layers=(1, 2),
)

LARGEST_ON_CPU: Final = ((3, 3), (128, 96), (32, 6))
"""Heads, dimensions and ring of one configuration more, where they would take long to combine: a
kernel may be right up to two key heads, for one tile of a state, and up to 16 records or four
tokens."""
MANY: Final = 12
"""Rows of a batch in one configuration at least: a kernel may be right up to eight."""
MANY_ON_CPU: Final = (2, 2)
"""Heads in that: a kernel may take an even number of value heads for ones that share a key head."""
DECODE_RINGS: Final = ((8, 1), (1, 1), (6, 1), (16, 1))
"""Where nothing is drafted: a step is one token, and a ring may have any length."""

BATCH_ELEMENTS_MAX: Final = 2**23
"""State elements in a batch: float64 copies of them are what the oracle walks."""
BATCH_ROWS_MAX: Final = {"cpu": 3, "cuda": 4096}
"""A row more costs the interpreter as much as a batch more, and a GPU nothing."""


def elements(setup: Setup) -> int:
    """Elements of one request's state, all layers together: what a row-window costs to walk."""
    g = setup.geometry
    return setup.layers * g.value_heads * g.key_dim * g.value_dim


def rows(setup: Setup, device: Device) -> int:
    """How many rows a batch of this setup has at most."""
    return max(2, min(BATCH_ROWS_MAX[device], BATCH_ELEMENTS_MAX // elements(setup)))


def configurations(
    dialect: str,
    device: Device,
    *,
    geometry: Geometry | None = None,
    ring: int | None = None,
    window: int | None = None,
    dtype: str | None = None,
    layers: int | None = None,
    bfloat16: bool = False,
    refuses: Callable[[Setup], str] = lambda setup: "",
) -> list[Setup]:
    """Setups to run, the plainest first.

    `dialect` is the target's, `device` decides the values to combine, and `geometry`, `ring`,
    `window`, `dtype` and `layers` fix what the caller wants fixed. `bfloat16` says whether the
    target computes it on the CPU, as the simulator does, and `refuses` why it can't run a setup,
    which is then left out (empty if it can).

    Raises:
        SetupError: what is fixed can't be combined, such as a ring under two windows, or the target
            refuses all of it.
    """
    values = ON_CPU if device == "cpu" else ON_CUDA
    dtypes = (*values.dtypes, "bfloat16") if bfloat16 and device == "cpu" else values.dtypes
    parameters: list[list[Any]] = [
        [(geometry.heads, geometry.value_heads)] if geometry else list(values.heads),
        [(geometry.key_dim, geometry.value_dim)] if geometry else list(values.dims),
        _rings(values.rings if DIALECTS[dialect].verifies else DECODE_RINGS, ring, window),
        [dtype] if dtype else list(dtypes),
        [layers] if layers else list(values.layers),
    ]
    if DIALECTS[dialect].narrow_protocol is not None:
        parameters.append([False, True])
    combined, crowded = list(AllPairs(parameters)), None
    if device == "cpu" and (geometry is None or ring is window is None):
        heads, dims, plain, *others = combined[0]
        largest, crowded = [heads, dims, plain, *others], [heads, dims, plain, *others]
        if geometry is None:
            largest[:2], crowded[0] = LARGEST_ON_CPU[:2], MANY_ON_CPU
        if ring is window is None:
            longest, _ = LARGEST_ON_CPU[2]
            largest[2] = LARGEST_ON_CPU[2] if DIALECTS[dialect].verifies else (longest, 1)
        if not DIALECTS[dialect].bitwise_fold:
            crowded[3] = parameters[3][-1]  # several heads whose records are rounded, early on
        # By then every ring has had its directed history, and a second layer was met.
        combined[4:4] = [crowded, largest]
    setups, reason = [], ""
    for combination in combined:
        (H, HV), (K, V), (L, T), name, count, *narrow = combination
        setup = Setup(
            dialect=dialect,
            geometry=Geometry(H, HV, K, V),
            ring=L,
            window=T,
            slots=2,
            layers=count,
            dtypes=Dtypes(activation=name, record=name, state=_state(name, device, any(narrow))),
        )
        if because := refuses(setup):
            reason = because
            continue
        batch = MANY if combination is crowded else rows(setup, device)
        # One slot more than a batch has rows: somebody is always left out. Slot 0 is padding.
        setups.append(msgspec.structs.replace(setup, slots=batch + 2))
    if not setups:
        raise SetupError(f"no configuration is left, since the target refuses: {reason}")
    return setups


def _state(activation: str, device: Device, narrow: bool) -> str:
    """The checkpoint's dtype: float32, or one of 16 bits that the device computes."""
    if not narrow:
        return "float32"
    if activation == "float32":
        return "float16" if device == "cpu" else "bfloat16"
    return activation


def _rings(values: Sequence[Ring], ring: int | None, window: int | None) -> list[Ring]:
    """Pairs (L, T) with what is fixed; a value that is free adapts to the one that is not."""
    if ring is not None and window is not None:
        return [(ring, window)]
    if ring is not None:
        return sorted({(ring, max(1, min(T, ring // 2))) for _, T in values}, reverse=True)
    if window is not None:
        shortest = 1 << (2 * window - 1).bit_length()
        return sorted({(max(L, shortest), window) for L, _ in values})
    return list(values)
