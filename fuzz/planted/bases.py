"""Base and position at a commit: zero and full acceptance, with a fold and without."""

from __future__ import annotations

from typing import Final

from ringfold.fuzz.planted.tables import row_replaced
from ringfold.sim.ring import Ring


class BaseMovesWhenNothingIsAccepted(Ring):
    """A fold whose window is rejected whole moves the base, which the protocol keeps."""

    rules = row_replaced(
        "fold, keep none", cache_base=lambda c, n, L: (c.cache_base + c.write_pos) % L
    )


class BaseStaysAtTheFold(Ring):
    """A fold leaves the base, so that folded records pass for those that were just accepted."""

    rules = row_replaced("fold, keep n", cache_base=lambda c, n, L: c.cache_base)


class BaseMovesByTheAccepted(Ring):
    """A fold moves the base by the tokens accepted and not by the records folded."""

    rules = row_replaced("fold, keep n", cache_base=lambda c, n, L: (c.cache_base + n) % L)


class BaseMovesBehindTheAccepted(Ring):
    """A fold moves the base behind the tokens that were just accepted."""

    rules = row_replaced(
        "fold, keep n", cache_base=lambda c, n, L: (c.cache_base + c.write_pos + n) % L
    )


class BaseMovesAtEveryCommit(Ring):
    """A commit without a fold moves the base too."""

    rules = row_replaced("append", cache_base=lambda c, n, L: (c.cache_base + n) % L)


class PositionOverwritesOnAppend(Ring):
    """A commit without a fold stores the count accepted in place of adding it."""

    rules = row_replaced("append", write_pos=lambda c, n: n)


BUGS: Final = (
    BaseMovesWhenNothingIsAccepted,
    BaseStaysAtTheFold,
    BaseMovesByTheAccepted,
    BaseMovesBehindTheAccepted,
    BaseMovesAtEveryCommit,
    PositionOverwritesOnAppend,
)
