"""A worker hangs when it is at one operation for longer than it may be, and not before.

The watch is told what its one worker does, here by this process, and asked with limits that time
surely is below or beyond. What becomes of a worker that hangs is tested where workers are: with
campaigns, explorations and replays.
"""

from __future__ import annotations

import multiprocessing
import os

import pytest

from ringfold.fuzz.running.watch import HANG_SECONDS, Hang, Watch


@pytest.fixture
def watch() -> Watch:
    """Of one worker: this process."""
    made = Watch(multiprocessing.get_context("spawn"), workers=1)
    made.enlist()
    return made


def aged(watch: Watch, seconds: float) -> Watch:
    """The same, so much later."""
    watch.posts[0][4] -= seconds
    return watch


def test_who_is_at_one_operation_for_too_long_hangs(watch: Watch) -> None:
    """The third of its history, counted from 0; opening the target counts for none."""
    for _ in range(4):  # it is opened, then three operations begin
        watch.begin(configuration=7, number=5)

    assert watch.hanging(HANG_SECONDS) is None
    assert aged(watch, HANG_SECONDS).hanging(HANG_SECONDS) == Hang(os.getpid(), 7, 5, 2)


def test_every_operation_has_the_whole_time(watch: Watch) -> None:
    """However long the ones before it took together."""
    for _ in range(4):
        watch.begin(configuration=7, number=5)
        aged(watch, HANG_SECONDS - 60)

    assert watch.hanging(HANG_SECONDS) is None


def test_who_walks_nothing_does_not_hang(watch: Watch) -> None:
    """Before its first history, and between two."""
    assert watch.hanging(0.0) is None

    watch.begin(configuration=7, number=5)
    watch.done()

    assert aged(watch, 0.0).hanging(0.0) is None
