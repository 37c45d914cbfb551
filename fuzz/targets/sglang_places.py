"""Running requests have places of their own, apart from the slots of their states.

As in SGLang's request pool: place 0 is nobody's, and places are taken in the order in which they
were given back, so that slot and place of a request come to differ.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.target import Floats, HeadParameters, Inputs, Request
from ringfold.fuzz.targets.sglang import ReleasedTarget
from ringfold.sim.setup import NULL_SLOT, Setup

if TYPE_CHECKING:
    import torch


class Places(ReleasedTarget):
    """Gives every request a place, and the place of every row to what is launched."""

    row_places: torch.Tensor
    """[row], int32: of the batch that is being launched; `null_place` for padding."""
    null_place = -1

    def open(self, setup: Setup, parameters: HeadParameters) -> None:
        """Allocate; all places are free."""
        super().open(setup, parameters)
        self.places: dict[Request, int] = {}
        self.vacant = deque(range(NULL_SLOT + 1, setup.slots))

    def admit_all(self, requests: Sequence[Request], states: Floats) -> None:
        """Take places and slots."""
        self.places.update((request, self.vacant.popleft()) for request in requests)
        super().admit_all(requests, states)

    def free(self, request: Request) -> None:
        """Give both back, contents as they are."""
        super().free(request)
        self.vacant.append(self.places.pop(request))

    def seat(self, request: Request) -> Mapping[str, int]:
        """The request's slot, and its place among the running ones."""
        return {"slot": self.seats[request], "request": self.places[request]}

    def verify(
        self, rows: Sequence[Request | None], lengths: Sequence[int], inputs: Inputs
    ) -> NDArray[Any]:
        """Launch every layer."""
        self.name_places(rows)
        return super().verify(rows, lengths, inputs)

    def commit(self, rows: Sequence[Request | None], accepted: Sequence[int], bound: int) -> None:
        """One launch for all layers."""
        self.name_places(rows)
        super().commit(rows, accepted, bound)

    def name_places(self, rows: Sequence[Request | None]) -> None:
        """The next launches are for these rows."""
        places = [self.null_place if row is None else self.places[row] for row in rows]
        self.row_places = self.tensor(np.array(places), "int32")
