"""Whose prefix may be left, where a cache keeps tracked states; no release is needed for that.

Checkpoints are plain arrays, of which a request's second slot is one entry. What is claimed is when
a donation is refused: the walk compares what is kept with where the request is, so both must be the
same state, and memory that counts as dead must not have been filled in between.
"""

from __future__ import annotations

import numpy as np
import pytest

from ringfold.fuzz.target import RefusedError
from ringfold.fuzz.targets.pool.tracked import Tracked

SEATS = {7: {"slot": 1, "request": 1, "track": 2}, 8: {"slot": 3, "request": 2, "track": 4}}


def checkpoints() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Of two layers and five slots."""
    return np.arange(2 * 5 * 4, dtype=np.float32).reshape(2, 5, 1, 2, 2)


def test_who_was_tracked_at_the_last_token_may_leave_a_prefix_once() -> None:
    """A second donation would be that of another request with its number."""
    tracked, memory = Tracked("pool"), checkpoints()
    tracked.note(SEATS, memory)

    tracked.require(7, memory, SEATS[7])

    with pytest.raises(RefusedError, match="target pool: request 7 leaves a prefix"):
        tracked.require(7, memory, SEATS[7])
    tracked.require(8, memory, SEATS[8])


def test_who_goes_on_may_not() -> None:
    """Until it is tracked again; padding rows say nothing."""
    tracked, memory = Tracked("pool"), checkpoints()
    tracked.note(SEATS, memory)
    tracked.move([None, 7])

    with pytest.raises(RefusedError, match="end the request with a commit that tracks all"):
        tracked.require(7, memory, SEATS[7])

    tracked.note({7: SEATS[7]}, memory)
    tracked.require(7, memory, SEATS[7])


@pytest.mark.parametrize("value", [97.0, np.nan, -0.0])
def test_a_state_that_was_written_over_is_refused(value: float) -> None:
    """Bit for bit: nobody says any more what the release stored."""
    tracked, memory = Tracked("pool"), checkpoints()
    memory[:, 2] = 0.0
    tracked.note({7: SEATS[7]}, memory)
    memory[1, 2, 0, 1, 1] = value

    with pytest.raises(RefusedError, match="of request 7 was written over: leave dead memory"):
        tracked.require(7, memory, SEATS[7])


def test_what_becomes_of_other_slots_does_not_matter() -> None:
    """Such as the request's own, which goes to somebody else."""
    tracked, memory = Tracked("pool"), checkpoints()
    tracked.note({7: SEATS[7]}, memory)
    memory[:, [0, 1, 3, 4]] = np.nan

    tracked.require(7, memory, SEATS[7])
