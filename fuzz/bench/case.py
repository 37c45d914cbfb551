"""A case: the shapes of one measurement, and how many drafted tokens are accepted.

The standard case is that of docs/kernels.md; a sweep changes one thing about it at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from ringfold.sim.cursors import RING, Cursors
from ringfold.sim.setup import Dtypes, Geometry, Setup, SetupError, require

UNIFORM: Final = "uniform"
AVERAGED_STEPS: Final = 1024
"""Over which `cycle` averages; more steps in a graph than these would not all be counted."""


class Case(msgspec.Struct, frozen=True):
    """What is measured: a batch of full windows over `layers` layers of one geometry."""

    geometry: Geometry = Geometry(16, 32, 128, 128)
    batch: int = 64
    ring: int = 16
    window: int = 4
    acceptance: str = UNIFORM
    layers: int = 1
    dtype: str = "bfloat16"
    """Of activations and records; the checkpoint is float32."""

    def __post_init__(self) -> None:
        require(self.batch >= 1, "batch", self.batch, "at least 1", "a step has a row")
        rate(self.acceptance)

    def setup(self, dialect: str) -> Setup:
        """One slot a row, and the null slot; raises `SetupError` for shapes that don't fit."""
        return Setup(
            dialect=dialect,
            geometry=self.geometry,
            ring=self.ring,
            window=self.window,
            slots=self.batch + 1,
            layers=self.layers,
            dtypes=Dtypes(activation=self.dtype, record=self.dtype),
        )

    def __str__(self) -> str:
        layers = f" layers={self.layers}" if self.layers > 1 else ""
        return (
            f"B={self.batch} {self.geometry} L={self.ring} T={self.window} "
            f"{self.acceptance} {self.dtype}{layers}"
        )


def rate(acceptance: str) -> float | None:
    """How likely a draft is accepted, None for `uniform`; raises `SetupError`."""
    if acceptance == UNIFORM:
        return None
    try:
        probability = float(acceptance)
    except ValueError:
        probability = -1.0
    require(
        0.0 <= probability <= 1.0,
        "acceptance",
        acceptance,
        "uniform or a number in 0..1",
        "name how likely a draft is accepted, such as 0.7",
    )
    return probability


def accepted(acceptance: str, window: int, rows: int, steps: int, seed: int) -> NDArray[np.int64]:
    """Tokens accepted in each step, [step, row], the bonus token counted in.

    `uniform` draws from 1..T; a number is the probability with which each of the T - 1 drafts is
    accepted, given that those before it were.
    """
    random = np.random.default_rng(seed)
    probability = rate(acceptance)
    if probability is None:
        return random.integers(1, window + 1, (steps, rows))
    drafts = random.random((steps, rows, window - 1)) < probability
    return np.asarray(1 + drafts.cumprod(axis=-1).sum(axis=-1), np.int64)


class Cycle(msgspec.Struct, frozen=True):
    """What the `ring` protocol does in a step, on average over rows and steps."""

    flushing: float
    """Share of rows that fold."""
    history: float
    """Records before the window of a row that does not."""
    folded: float
    """Records that a flushing row folds."""


def cycle(counts: NDArray[np.int64], ring: int, window: int) -> Cycle:
    """Run the cursors through `counts` [step, row], over and over, until they have settled."""
    rows = counts.shape[1]
    cursors = Cursors(*np.zeros((3, rows), np.int64))
    seen = []
    for i in range(4 * ring + AVERAGED_STEPS):
        if i >= 4 * ring:
            seen.append((cursors.is_flush.copy(), cursors.write_pos.copy()))
        cursors = RING.commit(cursors, counts[i % len(counts)], ring, window)
    flush, live = (np.stack(x) for x in zip(*seen, strict=True))
    share = float(flush.mean())
    return Cycle(
        flushing=share,
        history=float(live[flush == 0].mean()) if share < 1 else 0.0,
        folded=float(live[flush != 0].mean()) if share > 0 else 0.0,
    )


# ------------------------------------------------------------------ sweeps

STANDARD: Final = Case()
SWEEPS: Final[dict[str, tuple[Case, ...]]] = {
    "batch": tuple(Case(batch=n) for n in (1, 4, 16, 64, 256)),
    "ring": tuple(Case(ring=n) for n in (8, 16, 32, 64)),
    "window": tuple(Case(window=n, ring=32) for n in (1, 2, 4, 8, 16)),
    "acceptance": tuple(Case(acceptance=p) for p in ("0", "0.5", "0.8", "1", UNIFORM)),
    "geometry": tuple(
        Case(geometry=Geometry(*g))
        for g in ((16, 32, 128, 128), (4, 8, 128, 128), (16, 16, 128, 128), (8, 32, 64, 64))
    ),
    "layers": tuple(Case(layers=n, batch=16) for n in (1, 4)),
}
"""Whose name `--sweep` takes: cases that differ from the standard one in one way."""


def cases(
    geometries: Sequence[Geometry],
    batches: Sequence[int],
    rings: Sequence[int],
    windows: Sequence[int],
    acceptances: Sequence[str],
    layers: Sequence[int],
    dtype: str,
) -> list[Case]:
    """Every combination."""
    return [
        Case(*values, dtype)
        for values in product(geometries, batches, rings, windows, acceptances, layers)
    ]


def swept(names: Sequence[str], dtype: str) -> list[Case]:
    """The cases of the named sweeps, each once; raises `SetupError` for an unknown name."""
    found: dict[Case, None] = {}
    for name in names:
        if name not in SWEEPS:
            raise SetupError(f"no sweep is named {name!r}; there are {', '.join(SWEEPS)}")
        found |= dict.fromkeys(msgspec.structs.replace(c, dtype=dtype) for c in SWEEPS[name])
    return list(found)
