"""At which length a request is verified, so that a track interval ends where a trace says.

Interval ends are counted here by division alone, over every length up to three intervals. In which
order results of overlapped steps are processed is read off stand-ins that write down their turn.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from ringfold.fuzz.targets.pool.results import Results
from ringfold.fuzz.targets.pool.tracks import INTERVAL, followed, length

WINDOW = 4


@pytest.mark.parametrize("track", [None, 1, 2, 4])
def test_an_interval_ends_at_that_token_of_the_window_and_nowhere_else(track: int | None) -> None:
    """A request never gets shorter, and none grows by more than an interval."""
    for fed in range(3 * INTERVAL):
        at = length(fed, WINDOW, track)
        ends = [n for n in range(1, WINDOW + 1) if (at + n) % INTERVAL == 0]

        assert fed <= at < fed + INTERVAL
        assert ends == ([] if track is None else [track])


@pytest.mark.parametrize("ended", [False, True])
def test_behind_a_step_an_interval_ends_with_the_next_or_with_neither(ended: bool) -> None:
    """However long the request was; what ended with the step stays as it was."""
    for behind in range(1, 3 * INTERVAL):
        if ended == (behind % INTERVAL == 0):
            goes_on = followed(behind, ended=ended, ends=False)

            assert behind <= goes_on <= behind + 2
            assert (goes_on % INTERVAL == 0) == ended
            assert (goes_on + 1) % INTERVAL != 0
        if not ended and behind % INTERVAL:
            stored = followed(behind, ended=False, ends=True)

            assert behind <= stored < behind + INTERVAL
            assert (stored + 1) % INTERVAL == 0


class Noted(NamedTuple):
    """A step that only says when its result was processed, and of whom."""

    rows: list[int | None]
    order: list[list[int | None]]

    def process(self) -> None:
        """Write down whose result it is."""
        self.order.append([*self.rows])


@pytest.mark.parametrize(
    ("steps", "ahead", "order", "left"),
    [
        ([[0, 1]], 0, [[0, 1]], []),
        ([[0, 1], [1, 0]], 1, [[0, 1]], [[1, None]]),
        ([[1], [0, 1]], 0, [[1], [0, 1]], []),
        ([[0, 1], [1]], 0, [[0, 1]], [[1]]),
        ([], 0, [], []),
    ],
)
def test_who_finishes_does_so_with_a_result(
    steps: list[list[int | None]],
    ahead: int,
    order: list[list[int | None]],
    left: list[list[int | None]],
) -> None:
    """That of the step before, if another one of its own was launched; the rest waits."""
    results, met = Results(), list[list[int | None]]()
    made: Any = [Noted([*rows], met) for rows in steps]
    results.steps = made

    assert results.finish(0) == ahead
    assert met == order
    assert [step.rows for step in results.steps] == left
