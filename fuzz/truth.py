"""The committed state of every request, by the float64 recurrence alone, and what it may be off by.

Two states are carried for each request. The *global* one is what the recurrence makes of all that
was committed since admission. The *local* one starts over from the target's own checkpoint whenever
that is written, so that its error limit covers just the tokens since and never grows: a single lost
token stands out after any number of right ones. Both advance by the same tokens in one scan.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.target import HeadParameters, Request
from ringfold.oracle.gdn import Updates
from ringfold.oracle.units import Trail, Units, rebase, round_state, scan_units, zero
from ringfold.sim.setup import Setup

Array = NDArray[np.float64]

GLOBAL: Final = 0
LOCAL: Final = 1


class Window(NamedTuple):
    """What a verify was given and must return, until its commit.

    `updates` are padded: [layer, row, T, ...]; rows are the batch's real ones.
    """

    requests: list[Request]
    batch_rows: list[int]
    lengths: NDArray[np.int64]
    updates: Updates

    @property
    def live(self) -> NDArray[np.bool_]:
        """Which tokens of the padded window are there, [row, T]."""
        return np.arange(self.updates.v.shape[2]) < self.lengths[:, None]

    def rows(self, keep: NDArray[np.bool_]) -> Window:
        """The same window for some of its rows."""
        kept = np.flatnonzero(keep)
        return Window(
            [self.requests[i] for i in kept],
            [self.batch_rows[i] for i in kept],
            self.lengths[kept],
            Updates(*(x[:, kept] for x in self.updates)),
        )


class Truth:
    """States and error units of all requests, [2 (global, local), layer, place, HV, V(, K)]."""

    def __init__(self, setup: Setup, parameters: HeadParameters, state_eps: float) -> None:
        g = setup.geometry
        rows = (2, setup.layers, setup.slots, g.value_heads, g.value_dim)
        self.state = np.zeros((*rows, g.key_dim))
        self.error = np.zeros(rows)
        self.mass = np.zeros(rows)
        self.exp_A = np.exp(parameters.A_log.astype(np.float64))[:, None, None]  # [layer, 1, 1, HV]
        self.state_eps = state_eps
        self.places: dict[Request, int] = {}
        self.vacant = list(range(setup.slots))[::-1]

    def admit(self, request: Request, state: Array) -> None:
        """A request whose committed state [layer, HV, V, K] is exactly `state`."""
        place = self.places[request] = self.vacant.pop()
        self.state[:, :, place] = state
        units = zero(self.state[:, :, place])
        self.error[:, :, place], self.mass[:, :, place] = units

    def free(self, request: Request) -> None:
        """Forget a request."""
        self.vacant.append(self.places.pop(request))

    def fork(self, request: Request, source: Request) -> None:
        """A request that continues from where `source` is."""
        place, origin = self.vacant.pop(), self.places[source]
        self.places[request] = place
        for array in (self.state, self.error, self.mass):
            array[:, :, place] = array[:, :, origin]

    def outputs(self, window: Window) -> Trail:
        """What a verify of `window` must return, with the error units of every token."""
        at = self.at(window.requests)
        state = self.state[GLOBAL][:, at]
        units = Units(self.error[GLOBAL][:, at], self.mass[GLOBAL][:, at])
        return scan_units(state, units, window.updates, self.exp_A, window.lengths)

    def commit(self, window: Window, accepted: NDArray[np.int64]) -> None:
        """Advance both states by the first `accepted` [row] tokens of each row."""
        at = self.at(window.requests)
        units = Units(self.error[:, :, at], self.mass[:, :, at])
        trail = scan_units(self.state[:, :, at], units, window.updates, self.exp_A, accepted)
        self.state[:, :, at] = trail.state
        self.error[:, :, at], self.mass[:, :, at] = trail.units

    def stored(self, requests: list[Request]) -> None:
        """The checkpoints of `requests` were written: their states were rounded once more."""
        at = self.at(requests)
        state = self.state[:, :, at]
        units = Units(self.error[:, :, at], self.mass[:, :, at])
        units = rebase(round_state(units, state, self.state_eps), state)
        self.error[:, :, at], self.mass[:, :, at] = units

    def restart(self, requests: list[Request], own: Array) -> None:
        """From here on the local state of `requests` is `own`, [layer, row, HV, V, K]."""
        at = self.at(requests)
        self.state[LOCAL][:, at] = own
        self.error[LOCAL][:, at] = 0.0

    def expected(self, requests: list[Request]) -> tuple[Array, Array]:
        """States [2, layer, row, HV, V, K] and error units [2, layer, row, HV, V]."""
        at = self.at(requests)
        return self.state[:, :, at], self.error[:, :, at]

    def at(self, requests: list[Request]) -> NDArray[np.int64]:
        """Places of `requests`."""
        return np.array([self.places[r] for r in requests], np.int64)
