"""A watch on worker processes: one that does not come back from an operation is noticed.

A worker posts which operation it begins. The parent looks at the posts while it waits; nothing that
hangs has to cooperate.
"""

from __future__ import annotations

import os
import time
from typing import Any, Final, NamedTuple

HANG_SECONDS: Final = 120.0
"""No operation takes so long: the largest kernel compiles in under a minute."""


class Hang(NamedTuple):
    """A worker that does not come back."""

    worker: int
    """Its process."""
    configuration: int
    number: int
    """Of the history."""
    operation: int
    """That it is at, counted with repeats unrolled."""


class Watch:
    """What each worker is at, for the parent to see when one does not come back."""

    def __init__(self, context: Any, workers: int) -> None:
        self.enlisted = context.Value("i", 0)
        self.posts = [context.Array("d", 5) for _ in range(workers)]
        """Process, configuration, history, operation, and since when: 0 where it walks nothing."""
        self.mine = 0

    def enlist(self) -> None:
        """This process is a worker from now on."""
        with self.enlisted.get_lock():
            self.mine = self.enlisted.value
            self.enlisted.value += 1

    def begin(self, configuration: int, number: int) -> None:
        """The next operation of this history begins, or its opening if it is another history."""
        post = self.posts[self.mine]
        same = (post[1], post[2]) == (configuration, number) and post[4] > 0.0
        at = post[3] + 1 if same else -1
        post[:] = [os.getpid(), configuration, number, at, time.monotonic()]

    def done(self) -> None:
        """Nothing is being walked."""
        self.posts[self.mine][4] = 0.0

    def hanging(self, seconds_max: float) -> Hang | None:
        """A worker that has been at one operation for longer than that."""
        for post in self.posts:
            worker, configuration, number, operation, since = post[:]
            if since and time.monotonic() - since > seconds_max:
                return Hang(int(worker), int(configuration), int(number), max(0, int(operation)))
        return None


class HangingError(Exception):
    """The parent gave a worker up, and killed it."""
