"""Results of plain steps, which an overlapped scheduler processes late.

It prepares and launches a step while the one before runs, and processes that one's result then: by
the time the request knows of one token it is as long as with the next. Where something else comes
in between, such as a prefill, the result is processed before the next step is prepared. Who
finishes does so with a result, so that one more step of it may be on its way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ringfold.fuzz.targets.pool import tracks
from ringfold.fuzz.targets.pool.requests import speak


class Step(NamedTuple):
    """A plain step that was launched."""

    batch: Any
    """The scheduler's."""
    rows: list[int | None]
    """Requests; None: it has finished meanwhile."""
    before: list[int]
    """How long each was."""

    def process(self) -> None:
        """What the scheduler makes of its result."""
        there = [i for i, row in enumerate(self.rows) if row is not None]
        for i in there:
            speak(self.batch.reqs[i], int(self.batch.reqs[i].rid), self.before[i], 1)
        tracks.note_decoded(self.batch, there)

    def ended(self, row: int) -> bool:
        """Whether an interval of a request ended with it."""
        return row in self.rows and bool(self.batch.mamba_track_mask_cpu[self.rows.index(row)])

    def follow(self, row: int, *, ends: bool) -> int:
        """How long a request is behind it, if the next one `ends` an interval, or does not.

        Of a step that ends none nothing depends on that but the results, so it is told now.
        """
        i = self.rows.index(row)
        length = tracks.followed(self.before[i] + 1, ended=self.ended(row), ends=ends)
        self.before[i] = length - 1
        tracks.lengthen(self.batch, i, length)
        return length


class Results:
    """Steps whose results were not processed: two at most, and not both where none overlap."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def settle(self, ahead: int = 0) -> None:
        """Process all, but of the last `ahead` steps."""
        while len(self.steps) > ahead:
            self.steps.pop(0).process()

    def finish(self, row: int) -> int:
        """Process what a request finishes with; returns how many more steps of it were launched."""
        before = [step for step in self.steps[:-1] if row in step.rows]
        self.settle(1)
        if not self.steps or row not in (last := self.steps[0]).rows:
            return 0
        if not before:
            self.settle()
            return 0
        last.rows[last.rows.index(row)] = None
        return 1
