"""At which length a request is verified, so that a track interval ends where a trace says.

Interval ends are counted here by division alone, over every length up to three intervals.
"""

from __future__ import annotations

import pytest

from ringfold.fuzz.targets.pool.tracks import INTERVAL, length

WINDOW = 4


@pytest.mark.parametrize("track", [None, 1, 2, 4])
def test_an_interval_ends_at_that_token_of_the_window_and_nowhere_else(track: int | None) -> None:
    """A request never gets shorter, and none grows by more than an interval."""
    for fed in range(3 * INTERVAL):
        at = length(fed, WINDOW, track)
        ends = [n for n in range(1, WINDOW + 1) if (at + n) % INTERVAL == 0]

        assert fed <= at < fed + INTERVAL
        assert ends == ([] if track is None else [track])
