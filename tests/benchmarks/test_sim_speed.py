"""How many row-windows a second the reference machines verify and commit, on one core.

Float64, H=1, HV=2, K=V=32, T=4, batches of 256, L=16, acceptance uniform on 1..4: the figure that
bounds how much history a day of simulation covers. `pytest --benchmark-enable` measures; otherwise
each benchmark runs once, as a test that it runs. Set OPENBLAS_NUM_THREADS=1 for one core. The clock
is the processor's, so that other work on the machine counts for little.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from ringfold.oracle.gdn import Tokens
from ringfold.sim.dialects import VERIFIERS
from ringfold.sim.protocols import machine
from ringfold.sim.setup import Geometry, Setup

BATCH = 256
STEPS = 8
AT_LEAST = 8_000  # seen 9,250 to 11,200 (snapshots), 17,100 to 46,200 (all others)


@pytest.mark.benchmark(timer=time.process_time)
@pytest.mark.parametrize("dialect", VERIFIERS)
def test_row_windows(benchmark: Any, dialect: str) -> None:
    """Verify and commit, a quarter of a ring's rows folding in a step: 8,000 a second at least."""
    setup = Setup(dialect, Geometry(1, 2, 32, 32), ring=16, window=4, slots=BATCH + 1)
    rng = np.random.default_rng(0)
    pool = machine(setup, A_log=np.full(2, -3.0), dt_bias=np.zeros(2))
    slots, lengths = np.arange(1, BATCH + 1), np.full(BATCH, 4)
    pool.admit(slots, rng.normal(size=(1, BATCH, 2, 32, 32)))
    shapes = ((1, 32), (1, 32), (2, 32), (2,), (2,))
    windows = [
        (Tokens(*(rng.normal(size=(1, BATCH, 4, *s)) for s in shapes)), rng.integers(1, 5, BATCH))
        for _ in range(STEPS)
    ]

    def walk() -> None:
        for tokens, accepted in windows:
            pool.verify(slots, lengths, tokens)
            pool.commit(slots, accepted, 4)

    benchmark(walk)
    if benchmark.enabled:
        per_second = STEPS * BATCH / benchmark.stats.stats.median
        benchmark.extra_info["row_windows_per_second"] = round(per_second)
        assert per_second >= AT_LEAST
