"""The committed state of every request, by the float64 recurrence alone, and what it may be off by.

Two states are carried for each request. The *global* one is what the recurrence makes of all that
was committed since admission. The *local* one starts over from the target's own checkpoint whenever
that is written, so that its error limit covers just the tokens since and never grows: a single lost
token stands out after any number of right ones. Both advance by the same tokens in one scan.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.convolving import Convolved, advanced, convolved
from ringfold.fuzz.target import HeadParameters, Request
from ringfold.oracle.gdn import Tokens, Updates, live, until
from ringfold.oracle.units import (
    UNIT,
    Trail,
    Units,
    accumulate,
    rebase,
    round_state,
    scan_units,
    sizes,
    zero,
)
from ringfold.sim.setup import Setup

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

GLOBAL: Final = 0
LOCAL: Final = 1

BLOCK_ELEMENTS: Final = 2**16
"""State elements that are walked at a time: they stay in the cache, which for batches of thousands
of rows is up to nine times as fast."""


class Window(NamedTuple):
    """What a verify was given and must return, until its commit.

    `updates` are padded: [layer, row, T, ...]; rows are the batch's real ones.
    """

    requests: list[Request]
    batch_rows: list[int]
    lengths: NDArray[np.int64]
    updates: Updates
    convolved: Convolved | None = None
    """What the updates were made of, where a convolution stands in front."""

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
            self.convolved and self.convolved.rows(kept),
        )

    def blocks(self, elements: int) -> Iterator[tuple[slice, Window]]:
        """A few rows at a time, as many as `elements` state elements a row allow; at least once."""
        rows = max(1, BLOCK_ELEMENTS // elements)
        for start in range(0, max(1, len(self.requests)), rows):
            some = slice(start, start + rows)
            yield (
                some,
                Window(
                    self.requests[some],
                    self.batch_rows[some],
                    self.lengths[some],
                    Updates(*(x[:, some] for x in self.updates)),
                    self.convolved and self.convolved.rows(some),
                ),
            )


class Losses(NamedTuple):
    """What a target may lose on its state when it folds the deltas that it stored.

    A delta beta * (v - S k) is an output of sorts, with all the roundings of the output path, and
    it stays in the state. So a token with delta u errs by

        beta |k|^2 (delta W + n smallest)     the state's image under k, from n records
        + record |u|                          what the records keep of delta and key
        + (|k| + sqrt(K) |u|) smallest        where these underflow

    over and above its units, and every fold by `fold + record` of the mass W that it adds up, and
    by n `smallest`. Later tokens carry this on as they carry any error.
    """

    delta: float
    """Relative, on all that is multiplied on the way to a delta."""
    record: float
    """Relative, on delta and key as the records keep them."""
    smallest: float
    """Absolute: the smallest number of the records' dtype."""
    fold: float
    """Relative, on what is multiplied in a fold."""
    records: int
    """How many records there may be."""

    def tokens(
        self, updates: Updates, start: Units, trail: Trail, lengths: Ints, decays: Array
    ) -> Array:
        """Units [..., HV, V] lost on a walk from `start` along `trail`.

        `decays` [..., T, HV] is what running sums of gates lose on every decay, relatively.
        """
        updates = until(updates, lengths)
        decay = np.exp(updates.log_decay)[..., None]  # [..., T, HV, 1]
        k, beta = sizes(updates.k)[..., None], updates.beta[..., None]
        mass = np.concatenate([start.mass[..., None, :, :], trail.masses], axis=-3)
        written = mass[..., 1:, :, :] - decay * mass[..., :-1, :, :]
        width = np.sqrt(updates.k.shape[-1])
        delta = self.delta + decays[..., None]
        fresh = beta * k * k * (delta * mass[..., 1:, :, :] + self.records * self.smallest)
        fresh += 2 * self.record * written + (k + width * written) * self.smallest
        fresh *= live(lengths, updates.v.shape[-3])[..., None, None]
        carry = np.maximum(1.0, np.abs(1.0 - beta * k * k)) * decay
        return accumulate(np.zeros_like(start.error), carry, fresh / UNIT)[..., -1, :, :]

    def folded(self, units: Units, decays: Array) -> Units:
        """The same after a fold; `decays` [..., HV]."""
        relative = self.fold + self.record + decays[..., None]
        lost = relative * units.mass + self.records * self.smallest
        return units._replace(error=units.error + lost / UNIT)


Kept = list[Array]
"""Where one request is: its row of each of `Truth.arrays`."""


class Truth:
    """States and error units of all requests, [2 (global, local), layer, place, HV, V(, K)]."""

    def __init__(
        self,
        setup: Setup,
        parameters: HeadParameters,
        state_eps: float,
        marks_checkpoints: bool = False,
    ) -> None:
        g = setup.geometry
        rows = (2, setup.layers, setup.slots, g.value_heads, g.value_dim)
        self.setup = setup
        self.state = np.zeros((*rows, g.key_dim))
        self.error = np.zeros(rows)
        self.mass = np.zeros(rows)
        self.gates = np.zeros((2, setup.layers, setup.slots, g.value_heads))
        """Since the last fold: the running sum of |g|, and the sum of all its values."""
        self.elements = setup.layers * g.value_heads * g.value_dim * g.key_dim
        """Of one request's state."""
        self.exp_A = np.exp(parameters.A_log.astype(np.float64))[:, None, None]  # [layer, 1, 1, HV]
        self.state_eps = state_eps
        self.places: dict[Request, int] = {}
        self.vacant = list(range(setup.slots))[::-1]
        taps = max(setup.convolution - 1, 0)
        self.past = np.zeros((1, setup.layers, setup.slots, setup.channels, taps))
        """The last projections of each request, oldest first."""
        self.product = UNIT
        """What a product of the convolution may lose."""
        weight = parameters.convolution
        self.weight = None if weight is None else weight.astype(np.float64)
        marked = (self.state, self.error, self.mass, self.past)
        self.marks = [np.zeros_like(array) for array in marked] if marks_checkpoints else []
        """All but the gates as they were when the checkpoint was last written, if asked for."""
        self.arrays = (*marked, self.gates, *self.marks)
        self.losses: Losses | None = None
        """Set for a target whose state is made of its own deltas."""

    def admit(self, request: Request, state: Array, past: Array | None = None) -> None:
        """A request whose committed state [layer, HV, V, K] is exactly `state`.

        `past` [layer, channel, W - 1] are the last projections, where there is a convolution.
        """
        place = self.places[request] = self.vacant.pop()
        self.state[:, :, place] = state
        units = zero(self.state[:, :, place])
        self.error[:, :, place], self.mass[:, :, place] = units
        self.gates[:, :, place] = 0.0
        if past is not None:
            self.past[0, :, place] = past
        self.mark(place)

    def free(self, request: Request) -> None:
        """Forget a request."""
        self.vacant.append(self.places.pop(request))

    def take(self, request: Request) -> Kept:
        """A copy of where `request` is."""
        place = self.places[request]
        return [array[:, :, place].copy() for array in self.arrays]

    def take_checkpoint(self, request: Request) -> Kept:
        """A copy of where `request` was when its checkpoint was last written."""
        place = self.places[request]
        marks = [mark[:, :, place].copy() for mark in self.marks]
        return [*marks, np.zeros_like(self.gates[:, :, place]), *marks]

    def seat(self, request: Request, kept: Kept) -> None:
        """A request that goes on from what was taken, from itself or from another one."""
        place = self.places[request] = self.vacant.pop()
        for array, values in zip(self.arrays, kept, strict=True):
            array[:, :, place] = values

    def mark(self, at: Ints | int) -> None:
        """Remember the checkpoints that were just written at these places."""
        for mark, array in zip(self.marks, self.arrays, strict=False):
            mark[:, :, at] = array[:, :, at]

    def convolved(
        self, requests: list[Request], tokens: Tokens, lengths: Ints
    ) -> tuple[Tokens, Convolved | None]:
        """What the recurrence gets of `tokens` [layer, row, T, ...]: them, or what is made of them.

        Nothing is committed.
        """
        if self.weight is None:
            return tokens, None
        past = self.past[0][:, self.at(requests)]
        return convolved(self.setup, self.weight, past, tokens, lengths, self.product)

    def outputs(self, window: Window) -> Trail:
        """What a verify of `window` must return, with the error units of every token."""
        trails = []
        for _, part in window.blocks(self.elements):
            at = self.at(part.requests)
            units = Units(self.error[GLOBAL][:, at], self.mass[GLOBAL][:, at])
            trails.append(self._scan(self.state[GLOBAL][:, at], units, part, part.lengths))
        *arrays, ends = zip(*trails, strict=True)
        outputs, errors, masses, state = (np.concatenate(each, axis=1) for each in arrays)
        ended = Units(*(np.concatenate(each, axis=1) for each in zip(*ends, strict=True)))
        return Trail(outputs, errors, masses, state, ended)

    def _scan(self, state: Array, units: Units, window: Window, counts: Ints) -> Trail:
        trail = scan_units(state, units, window.updates, self.exp_A, counts)
        if window.convolved is None:
            return trail
        return window.convolved.widened(trail, units, window.updates, counts)

    def running_gates(self, window: Window, counts: Ints) -> Array:
        """`gates` after each token of the first `counts` [row]: [2, layer, row, T, HV].

        See `lost_by_decays` for what they are good for.
        """
        sums, totals = self.gates[:, :, self.at(window.requests), None]
        gates = np.abs(until(window.updates, counts).log_decay)
        running = sums + gates.cumsum(-2)
        return np.stack([running, totals + running.cumsum(-2)])

    def commit(self, window: Window, accepted: NDArray[np.int64]) -> None:
        """Advance both states by the first `accepted` [row] tokens of each row."""
        for some, part in window.blocks(2 * self.elements):
            self._commit(part, accepted[some])

    def _commit(self, window: Window, accepted: NDArray[np.int64]) -> None:
        at = self.at(window.requests)
        units = Units(self.error[:, :, at], self.mass[:, :, at])
        trail = self._scan(self.state[:, :, at], units, window, accepted)
        self.state[:, :, at] = trail.state
        self.error[:, :, at], self.mass[:, :, at] = trail.units
        running = self.running_gates(window, accepted)
        if self.losses is not None:
            self.error[:, :, at] += self.losses.tokens(
                window.updates, units, trail, accepted, lost_by_decays(running)
            )
        if window.updates.v.shape[2]:
            self.gates[:, :, at] = running[..., -1, :]
        if window.convolved is not None and self.weight is not None:
            past, x = self.past[0][:, at], window.convolved.projections
            self.past[0][:, at] = advanced(self.weight, past, x, accepted)

    def ahead(self, window: Window, counts: Ints) -> tuple[Array, Array]:
        """What a checkpoint written after `counts` [row] tokens must hold; shapes as `expected`."""
        at = self.at(window.requests)
        units = Units(self.error[:, :, at], self.mass[:, :, at])
        trail = self._scan(self.state[:, :, at], units, window, counts)
        running = self.running_gates(window, counts)
        error, decays = trail.units.error, lost_by_decays(running)
        if self.losses is not None:
            error = error + self.losses.tokens(window.updates, units, trail, counts, decays)
        ended = Units(error, trail.units.mass)
        return trail.state, self._written(ended, trail.state, decays[..., -1, :]).error

    def stored(self, requests: list[Request]) -> None:
        """The checkpoints of `requests` were written: their states were rounded once more."""
        at = self.at(requests)
        state = self.state[:, :, at]
        units = Units(self.error[:, :, at], self.mass[:, :, at])
        decays = lost_by_decays(self.gates[:, :, at])
        self.error[:, :, at], self.mass[:, :, at] = self._written(units, state, decays)
        self.gates[:, :, at] = 0.0

    def _written(self, units: Units, state: Array, decays: Array) -> Units:
        if self.losses is not None:
            units = self.losses.folded(units, decays)
        return rebase(round_state(units, state, self.state_eps), state)

    def restart(self, requests: list[Request], own: Array) -> None:
        """From here on the local state of `requests` is `own`, [layer, row, HV, V, K]."""
        at = self.at(requests)
        self.state[LOCAL][:, at] = own
        self.error[LOCAL][:, at] = 0.0
        self.mark(at)

    def expected(self, requests: list[Request]) -> tuple[Array, Array]:
        """States [2, layer, row, HV, V, K] and error units [2, layer, row, HV, V]."""
        at = self.at(requests)
        return self.state[:, :, at], self.error[:, :, at]

    def at(self, requests: list[Request]) -> NDArray[np.int64]:
        """Places of `requests`."""
        return np.array([self.places[r] for r in requests], np.int64)


def lost_by_decays(running: Array) -> Array:
    """What each decay of a ring may be off by, relative to itself; `running` [2, ...] as `gates`.

    A ring's decays are differences of running sums of its gates. Each addition to such a sum
    rounds it by 2^-24 of its value, and two sums are subtracted. After a strong gate that is far
    more than the rounding of one gate, which is all that a sequential computation loses.
    """
    return np.asarray(2 * UNIT * running[1])
