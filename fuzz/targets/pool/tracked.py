"""Whose tracked state is its committed one, so that it may leave a prefix.

What a cache with an extra buffer keeps is the state that was tracked last. The walk knows where a
request is, not where it was, and takes a tracked state for dead memory once it was judged. So a
donation must come right behind the commit that tracks all that it keeps, and is refused elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from numpy.typing import NDArray

from ringfold.fuzz.target import RefusedError, Request


class Tracked:
    """What was stored apart of requests that did not go on since, [layer, HV, V, K] each."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.states: dict[Request, NDArray[Any]] = {}

    def note(self, seats: Mapping[Request, Mapping[str, int]], checkpoints: NDArray[Any]) -> None:
        """These were tracked at their last token."""
        for request, seat in seats.items():
            self.states[request] = checkpoints[:, seat["track"]].copy()

    def move(self, rows: Iterable[Request | None]) -> None:
        """These go on: what was stored is not where they are any more."""
        for row in rows:
            if row is not None:
                self.states.pop(row, None)

    def require(self, request: Request, checkpoints: NDArray[Any], seat: Mapping[str, int]) -> None:
        """Refuse a prefix of which nobody can say what it must hold.

        Raises:
            RefusedError: naming the way out.
        """
        stored = self.states.pop(request, None)
        if stored is None:
            raise RefusedError(
                f"target {self.target}: request {request} leaves a prefix, but its cache keeps "
                "tracked states: end the request with a commit that tracks all it accepts"
            )
        if stored.tobytes() != checkpoints[:, seat["track"]].tobytes():
            raise RefusedError(
                f"target {self.target}: the tracked state of request {request} was written over: "
                "leave dead memory alone from the commit that tracks to the donation"
            )
