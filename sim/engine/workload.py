"""A workload seen by the cursors: how often rows fold, and how many records wait.

Requests wait in a queue, each with so many tokens to decode; as many as may run have a row. Each
step brings every row a full window and accepts some of it, at random. No state is computed: a
protocol's cursors decide when it folds, and they depend on nothing but how much was accepted.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from ringfold.sim.cursors import Cursors, Protocol
from ringfold.sim.setup import RING_MAX, require

REQUESTS_MAX: Final = 1_000_000
STEPS_MAX: Final = 10_000_000


class Workload(msgspec.Struct, frozen=True):
    """Requests to serve, `tokens` each, `running` at a time.

    `acceptance` is the chance of each draft after the ones before it were accepted; None means
    that 1 to `window` tokens are accepted with equal chance.
    """

    requests: int = 1000
    tokens: int = 1000
    running: int = 256
    window: int = 4
    ring: int = 16
    acceptance: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for what, limit in (
            ("requests", REQUESTS_MAX),
            ("tokens", STEPS_MAX),
            ("running", 65_536),
            ("window", RING_MAX // 2),
        ):
            value = getattr(self, what)
            require(1 <= value <= limit, what, value, f"in 1..{limit}", f"choose {what} <= {limit}")
        require(
            2 * self.window <= self.ring <= RING_MAX and self.ring & (self.ring - 1) == 0,
            "ring",
            self.ring,
            f"a power of two in {2 * self.window}..{RING_MAX}",
            "it holds two windows at least",
        )
        rate = self.acceptance
        require(rate is None or 0 <= rate <= 1, "acceptance", rate, "in 0..1", "it is a chance")

    def chances(self) -> NDArray[np.float64]:
        """Chance of 1, 2, ... `window` accepted tokens, the bonus token included."""
        if self.acceptance is None:
            return np.full(self.window, 1 / self.window)
        reached = self.acceptance ** np.arange(self.window)
        return np.asarray(reached - np.append(reached[1:], 0.0))


class Statistics(msgspec.Struct, frozen=True):
    """Means over all row-windows of a workload."""

    steps: int
    windows: int
    """Row-windows that were verified."""
    accepted: float
    """Tokens a window."""
    fold_share: float
    """Of the windows, those that fold a record into the checkpoint."""
    folded: float
    """Records folded a window."""
    live: float
    """Records that a window's outputs read."""
    waiting: float
    """Records that wait in the ring after a commit."""
    waiting_max: int


def serve(protocol: Protocol, load: Workload) -> Statistics:
    """Serve all requests of `load` by one protocol.

    The seed decides what is accepted, alike for every protocol.
    """
    rng = np.random.default_rng(load.seed)
    L, T = load.ring, load.window
    rows = min(load.running, load.requests)
    left = np.full(rows, load.tokens, np.int64)
    queued = load.requests - rows
    fresh = protocol.reset(L, T)
    cursors = Cursors(*(np.full(rows, c, np.int64) for c in fresh))
    steps = windows = accepted_sum = folds = folded_sum = live_sum = waiting_sum = most = 0
    while left.size:
        accepted = rng.choice(T, left.size, p=load.chances()) + 1
        accepted = np.minimum(accepted, left)
        folded = np.asarray(protocol.folded(cursors, accepted, L, T))
        at_verify = protocol.folds_at == "verify"
        live = np.where(folded > 0, 0, cursors.write_pos) if at_verify else cursors.write_pos
        cursors = protocol.commit(cursors, accepted, L, T)
        left = left - accepted

        steps += 1
        windows += left.size
        accepted_sum += int(accepted.sum())
        folds += int((folded > 0).sum())
        folded_sum += int(folded.sum())
        live_sum += int(live.sum())
        waiting_sum += int(cursors.write_pos.sum())
        most = max(most, int(cursors.write_pos.max()))

        done = np.flatnonzero(left == 0)
        if done.size:
            seated, queued = done[:queued], queued - min(queued, done.size)
            left[seated] = load.tokens
            for values, start in zip(cursors, fresh, strict=True):
                values[seated] = start
            stays = left > 0
            left, cursors = left[stays], Cursors(*(c[stays] for c in cursors))
    return Statistics(
        steps,
        windows,
        accepted_sum / windows,
        folds / windows,
        folded_sum / windows,
        live_sum / windows,
        waiting_sum / windows,
        most,
    )
