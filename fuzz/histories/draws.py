"""Where choices come from: a seeded stream of numbers, or whoever else tells a history.

A rule (`rules.py`) asks a `Draw` for whole numbers, coins and orders, and for nothing else, so
that the same rule serves a seeded generator and Hypothesis, which wants to make the choices itself.
It asks for all rows of a batch at once: batches have thousands.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Item = TypeVar("Item")
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Draw(ABC):
    """Makes choices."""

    @abstractmethod
    def integers(self, low: int, highs: Sequence[int] | Ints) -> Ints:
        """A number of `low` to each of `highs`, both included."""

    @abstractmethod
    def chances(self, share: float, count: int) -> Bools:
        """So many coins that show True with probability `share`; no choice where that is 0 or 1."""

    @abstractmethod
    def some(self, items: Ints, count: int) -> Ints:
        """`count` of the items, in any order."""

    def integer(self, low: int, high: int) -> int:
        """One of `low` to `high`, both included."""
        return int(self.integers(low, [high])[0])

    def chance(self, share: float) -> bool:
        """One coin."""
        return bool(self.chances(share, 1)[0])

    def pick(self, items: Sequence[Item]) -> Item:
        """One of the items."""
        return items[self.integer(0, len(items) - 1)]

    def weighted(self, items: Sequence[Item], weights: Sequence[int]) -> Item:
        """One of the items; twice the weight, twice as often."""
        ends = list(accumulate(weights))
        return items[bisect_left(ends, self.integer(1, ends[-1]))]


class Seeded(Draw):
    """Choices of a counter-based generator: the same key, the same choices."""

    def __init__(self, key: tuple[int, int]) -> None:
        """`key`: two integers below 2^64."""
        self.random = np.random.Generator(np.random.Philox(key=list(key)))

    def integers(self, low: int, highs: Sequence[int] | Ints) -> Ints:
        """As `Draw` says."""
        return self.random.integers(low, np.asarray(highs, np.int64) + 1)

    def chances(self, share: float, count: int) -> Bools:
        """As `Draw` says."""
        if not 0.0 < share < 1.0:
            return np.full(count, share >= 1.0)
        shown: Bools = self.random.random(count) < share
        return shown

    def integer(self, low: int, high: int) -> int:
        """As `Draw` says, and several times as fast as an array of one."""
        return int(self.random.integers(low, high + 1))

    def chance(self, share: float) -> bool:
        """The same."""
        return bool(self.random.random() < share) if 0.0 < share < 1.0 else share >= 1.0

    def some(self, items: Ints, count: int) -> Ints:
        """As `Draw` says."""
        return items[self.random.permutation(len(items))[:count]]
