"""A watch on worker processes: one that does not come back from an operation is noticed.

A worker posts which operation it begins, and may leave the history that it walks where its parent
finds it. The parent looks at the posts while it waits; nothing that hangs has to cooperate.
"""

from __future__ import annotations

import os
import time
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from ringfold.fuzz.histories.trace import Trace, load, save, unroll
from ringfold.fuzz.judging.mismatch import Mismatch
from ringfold.fuzz.judging.walk import at_once

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

    def mismatch(self, trace: Trace, seconds: float) -> Mismatch:
        """What is said of the operation of `trace` that it did not come back from."""
        done, steps = 0, 0
        kind, iteration = "open", 0
        for batch, turn in islice(at_once(unroll(trace.operations)), self.operation + 1):
            iteration = turn
            steps += kind in ("commit", "decode", "idle")
            kind = type(batch[0]).__name__.lower()
            done += len(batch)
        return Mismatch(
            check="crash",
            symptom="the target hangs",
            operation=max(0, done - 1),
            kind=kind,
            iteration=iteration,
            step=steps,
            expected=f"an answer within {seconds:g} s",
            got="none",
        )


class Watch:
    """What each worker is at, for the parent to see when one does not come back."""

    def __init__(self, context: Any, workers: int, folder: Path | None = None) -> None:
        """`folder`: where workers leave what they walk, if they are to."""
        self.enlisted = context.Value("i", 0)
        self.posts = [context.Array("d", 5) for _ in range(workers)]
        """Process, configuration, history, operation, and since when: 0 where it walks nothing."""
        self.folder = folder
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

    def tell(self, trace: Trace) -> None:
        """Leave the history that this worker walks next where its parent finds it."""
        if self.folder is not None:
            save(trace, self._told(os.getpid()))

    def tell_none(self) -> None:
        """What this worker does next is no history."""
        if self.folder is not None:
            self._told(os.getpid()).unlink(missing_ok=True)

    def told(self, worker: int) -> Trace | None:
        """The last history that a worker left."""
        path = self._told(worker)
        return load(path) if path.is_file() else None

    def walking(self) -> list[int]:
        """Workers that walk something, or died at it."""
        return [int(post[0]) for post in self.posts if post[4] > 0.0]

    def hanging(self, seconds_max: float) -> Hang | None:
        """A worker that has been at one operation for longer than that."""
        for post in self.posts:
            worker, configuration, number, operation, since = post[:]
            if since and time.monotonic() - since > seconds_max:
                return Hang(int(worker), int(configuration), int(number), max(0, int(operation)))
        return None

    def _told(self, worker: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{worker}.json"


class HangingError(Exception):
    """The parent gave a worker up, and killed it."""

    def __init__(self, hang: Hang) -> None:
        super().__init__("a worker does not come back")
        self.hang = hang
