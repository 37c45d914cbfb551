"""Which histories a run walks, in which order, and what later ones learn from earlier ones.

The course is the same whatever number of workers walk it. What a history will visit is known when
it is told; what was *found* of it is heard some lots of its configuration later (`ahead`), by when
even the slowest worker has returned it. So the same seed and the same number of windows give the
same traces.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ringfold.fuzz.histories.configurations import elements
from ringfold.fuzz.histories.generate import DIRECTED, history, windows
from ringfold.fuzz.histories.steering import Peaks, Unseen
from ringfold.fuzz.histories.story import Plan
from ringfold.fuzz.histories.trace import Trace
from ringfold.fuzz.target import Device

LOT_WINDOWS: Final = {"cpu": 1, "cuda": 2000}
"""Row-windows of one configuration that a worker walks in one go at most; a GPU compiles for each.
"""
LOT_ELEMENTS: Final = 2**26
"""Elements of states in these windows, lest others wait long for a lot of large heads."""

TURN_WINDOWS: Final = 32
"""Row-windows of a turn in the first round, in which Hypothesis tells a few histories of each
configuration; a turn of the next round has twice as many, since aiming takes time."""

AHEAD: Final = {"cpu": 96, "cuda": 24}
"""How many lots are told before what came of one is heard, over all configurations on the CPU."""
AHEAD_EACH: Final = {"cpu": 6, "cuda": 24}
"""And at least so many of its own configuration: a slow one must not halt the others."""


class Budget(NamedTuple):
    """When to stop: after so many windows, or so many seconds from the first of them."""

    windows_max: int | None
    time_max: float | None
    first: bool = False
    """Or with the first failure that repeats."""


class Lot(NamedTuple):
    """Consecutive histories of one configuration, walked by one worker."""

    plan: Plan
    configuration: int
    first: int
    """Number of the first history."""
    traces: tuple[Trace, ...]
    windows: int = 0
    """Without traces: for how many row-windows Hypothesis tells histories of its own."""
    seed: int = 0
    """Of Hypothesis' choices."""

    @property
    def numbers(self) -> range:
        """Of its histories."""
        return range(self.first, self.first + len(self.traces))


class Course:
    """Tells lots, without end unless there is a budget of windows or every plan has a quota.

    The configuration with the fewest windows is always next, so all have about the same share. One
    that has its quota is left out.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        seed: int,
        windows_max: int | None,
        device: Device,
        *,
        steered: bool = True,
    ) -> None:
        self.plans, self.seed, self.device, self.steered = plans, seed, device, steered
        self.left = windows_max
        self.windows, self.numbers = [0] * len(plans), [0] * len(plans)
        self.unseen: dict[int, Unseen] = {}
        self.peaks = [Peaks() for _ in plans]
        self.ahead = max(-(-AHEAD[device] // max(1, len(plans))), AHEAD_EACH[device])
        self.told, self.learnt = [0] * len(plans), [0] * len(plans)
        self.heard: list[deque[tuple[Lot, Sequence[Mapping[str, float]]]]] = [
            deque() for _ in plans
        ]

    @property
    def waits(self) -> bool:
        """Whether nothing more can be told before an older lot is heard of."""
        at = self._next()
        if at is None:
            return False
        return self.told[at] - self.learnt[at] - len(self.heard[at]) >= self.ahead

    def hear(self, lot: Lot, largest: Sequence[Mapping[str, float]]) -> None:
        """A lot was walked, the oldest of its configuration: errors by history, over the allowed.

        None for a history that failed or was cut short.
        """
        self.heard[lot.configuration].append((lot, largest))

    def lot(self) -> Lot | None:
        """What to walk next; nothing once the windows are used up, or all quotas are reached."""
        if (at := self._next()) is None:
            return None
        self._learn(at)
        plan, first = self.plans[at], self.numbers[at]
        share = min(LOT_WINDOWS[self.device], LOT_ELEMENTS // elements(plan.setup))
        goal, traces = self.windows[at] + max(1, share), list[Trace]()
        while self.windows[at] < goal and self.left != 0 and self._lacks(at) != 0:
            trace = self._history(at)
            count = windows(trace.operations)
            traces.append(trace)
            self.windows[at] += count
            self.numbers[at] += 1
            if self.left is not None:
                self.left -= count
        self.told[at] += 1
        return Lot(plan, at, first, tuple(traces))

    def _next(self) -> int | None:
        """Whose turn it is; nobody's once the windows are used up, or all quotas are reached."""
        short = [at for at in range(len(self.plans)) if self._lacks(at) != 0]
        if self.left == 0 or not short:
            return None
        return min(short, key=self.windows.__getitem__)

    def _lacks(self, at: int) -> int | None:
        """Row-windows between a configuration and its quota; nothing where it has none."""
        quota = self.plans[at].quota
        return max(0, quota - self.windows[at]) if quota else None

    def _room(self, at: int) -> int | None:
        """Row-windows that its next history may have. A directed one is told whole."""
        whole = self.plans[at].directed and self.numbers[at] == DIRECTED
        limits = [self.left, None if whole else self._lacks(at)]
        return min((limit for limit in limits if limit is not None), default=None)

    def _history(self, at: int) -> Trace:
        plan = self.plans[at]
        if self.steered and at not in self.unseen:
            self.unseen[at] = Unseen(plan.setup)
        return history(
            plan,
            self.seed if plan.seed is None else plan.seed,
            self.numbers[at],
            unseen=self.unseen.get(at),
            peaks=self.peaks[at] if self.steered else None,
            windows_max=self._room(at),
        )

    def _learn(self, at: int) -> None:
        while self.heard[at] and self.learnt[at] < self.told[at] + 1 - self.ahead:
            lot, largest = self.heard[at].popleft()
            self.learnt[at] += 1
            for trace, ratios in zip(lot.traces, largest, strict=False):
                self.peaks[at].hear(trace, ratios)


class Turns:
    """The course where Hypothesis tells the histories: configurations take turns, in rounds.

    It aims by what it has seen itself, in this turn: it learns nothing from other turns.
    """

    waits = False

    def __init__(self, plans: Sequence[Plan], seed: int, windows_max: int | None) -> None:
        self.plans, self.seed, self.left = plans, seed, windows_max
        self.told = self.windows = 0

    def hear(self, lot: Lot, largest: Sequence[Mapping[str, float]]) -> None:
        """Nothing is learnt."""

    def lot(self) -> Lot | None:
        """The next configuration's turn; nothing once the windows are used up."""
        if self.left == 0:
            return None
        rounds, at = divmod(self.told, len(self.plans))
        count, first = TURN_WINDOWS << rounds, self.windows
        if self.left is not None:
            count = min(count, self.left)
            self.left -= count
        seed = zlib.crc32(f"{self.seed} {self.told}".encode())
        self.told += 1
        self.windows += count
        return Lot(self.plans[at], at, first, (), count, seed)
