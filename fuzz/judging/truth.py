"""The committed state of every request, by the float64 recurrence alone, and what it may be off by.

Two states are carried for each request. The *global* one is what the recurrence makes of all that
was committed since admission. The *local* one starts over from the target's own checkpoint whenever
that is written, so that its error limit covers just the tokens since and never grows: a single lost
token stands out after any number of right ones. Both advance by the same tokens in one scan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.judging.convolving import Convolved, advanced, convolved
from ringfold.fuzz.target import HeadParameters, Request
from ringfold.oracle.gdn import Tokens, Updates
from ringfold.oracle.units import (
    TINY,
    UNIT,
    Trail,
    Units,
    Walked,
    accumulate,
    rebase,
    round_state,
    scan_units,
    sizes,
)
from ringfold.sim.setup import Setup

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

GLOBAL: Final = 0
LOCAL: Final = 1

FACTORS: Final = 4
"""What may underflow between a delta and its part in an output: the decay to the window's start and
the one within it, their product with beta or the score, and that with the other."""

BLOCK_ELEMENTS: Final = 2**17
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
        return self.part(np.flatnonzero(keep), self.updates.v.shape[2])

    def part(self, rows: Ints, tokens: int) -> Window:
        """The first so many tokens of these rows."""
        return Window(
            [self.requests[i] for i in rows],
            [self.batch_rows[i] for i in rows],
            np.minimum(self.lengths[rows], tokens),
            Updates(*(x[:, rows, :tokens] for x in self.updates)),
            self.convolved and Convolved(*(x[:, rows, :tokens] for x in self.convolved)),
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
        + what decays lose by underflow       see `lost_by_underflow`

    over and above its units, and every fold by `fold + record` of the mass W that it adds up, by
    n `smallest`, and by the underflow of its own decays. Later tokens carry this on as they carry
    any error.
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

    def or_worse(self, other: Losses) -> Losses:
        """The larger of each."""
        return Losses(
            max(self.delta, other.delta),
            max(self.record, other.record),
            max(self.smallest, other.smallest),
            max(self.fold, other.fold),
            max(self.records, other.records),
        )

    def tokens(self, trail: Trail, decays: Array, underflow: Array) -> Array:
        """Units [..., HV, V] lost along `trail`.

        `decays` [..., T, HV] is what running sums of gates lose on every decay, relatively, and
        `underflow` [..., T, HV, V] what each delta loses absolutely, times |k|.
        """
        (updates, _, k, carry, written), masses = trail.tokens, trail.masses
        width = np.sqrt(updates.k.shape[-1])
        delta = self.delta + decays[..., None]
        fresh = updates.beta[..., None] * k * k * (delta * masses + self.records * self.smallest)
        fresh += 2 * self.record * written + (k + width * written) * self.smallest + underflow
        lost = trail.tokens.counted(fresh) / UNIT
        return accumulate(np.zeros_like(trail.units.error), carry, lost)[..., -1, :, :]

    def folded(self, units: Units, decays: Array, underflow: Array) -> Units:
        """The same after a fold; `decays` [..., HV], `underflow` [..., HV, V]."""
        relative = self.fold + self.record + decays[..., None]
        lost = relative * units.mass + self.records * self.smallest + underflow
        return units._replace(error=units.error + lost / UNIT)


class Undecayed(NamedTuple):
    """What a ring adds up since the last fold, before any decay; each [layer, row, T, HV, V]."""

    held: Array
    """|S| at the last fold and all max(1, |k|) |u| that were written since."""
    fresh: Array
    """What underflow costs each token's delta, times |k|."""
    lost: Array
    """What the deltas so far have lost by it, as the state carries it."""


Kept = list[Array]
"""Where one request is: its row of each of `Truth.arrays`."""
STATE, ERROR, PAST = 0, 1, 3
"""Of `Kept`: [2, layer, HV, V, K], [2, layer, HV, V], and windows [1, layer, channel, W - 1]."""


class Truth:
    """States and error units of all requests, [2 (global, local), layer, place, HV, V(, K)]."""

    def __init__(
        self,
        setup: Setup,
        parameters: HeadParameters,
        state_eps: float,
        marks_checkpoints: bool = False,
        state_smallest: float = 0.0,
    ) -> None:
        """A stored checkpoint is rounded by `state_eps` relatively, and by `state_smallest`."""
        g = setup.geometry
        rows = (2, setup.layers, setup.slots, g.value_heads, g.value_dim)
        self.setup = setup
        self.state = np.zeros((*rows, g.key_dim))
        self.error = np.zeros(rows)
        self.mass = np.zeros(rows)
        self.gates = np.zeros((2, setup.layers, setup.slots, g.value_heads))
        """Since the last fold: the running sum of |g|, and the sum of all its values."""
        self.undecayed = np.zeros((2, *rows[1:]))
        """Since the last fold: `held` and `lost` of `Undecayed`."""
        self.underflow = (FACTORS + setup.window) * TINY
        """What underflow takes from a contribution, relative to what is decayed."""
        self.elements = setup.layers * g.value_heads * g.value_dim * g.key_dim
        """Of one request's state."""
        self.exp_A = np.exp(parameters.A_log.astype(np.float64))[:, None, None]  # [layer, 1, 1, HV]
        self.state_eps, self.state_smallest = state_eps, state_smallest
        self.places: dict[Request, int] = {}
        self.vacant = list(range(setup.slots))[::-1]
        taps = max(setup.convolution - 1, 0)
        self.past = np.zeros((1, setup.layers, setup.slots, setup.channels, taps))
        """The last projections of each request, oldest first."""
        self.product = UNIT
        """What a product of the convolution may lose."""
        weight = parameters.convolution
        self.weight = None if weight is None else weight.astype(np.float64)
        marked = (self.state, self.error, self.mass, self.past, self.undecayed)
        self.marks = [np.zeros_like(array) for array in marked] if marks_checkpoints else []
        """All but the gates as they were when the checkpoint was last written, if asked for."""
        self.arrays = (*marked, self.gates, *self.marks)
        self.apart = np.zeros(setup.slots, bool)
        """Whether the two states of a place may differ. Until a checkpoint is first written after
        an admission they are one, and the global one alone is carried."""
        self.losses: Losses | None = None
        """Set for a target whose state is made of its own deltas."""

    def admit(self, request: Request, state: Array, past: Array | None = None) -> None:
        """A request whose committed state [layer, HV, V, K] is exactly `state`.

        `past` [layer, channel, W - 1] are the last projections, where there is a convolution.
        """
        self.admit_all([request], state[:, None], None if past is None else past[:, None])

    def admit_all(
        self, requests: Sequence[Request], states: Array, pasts: NDArray[Any] | None = None
    ) -> None:
        """The same for many, [layer, row, ...]."""
        self.places.update((request, self.vacant.pop()) for request in requests)
        at = self.at(requests)
        self.apart[at] = False
        self.state[:, :, at] = states
        mass = sizes(states)
        self.error[:, :, at], self.mass[:, :, at] = 0.0, mass
        self.gates[:, :, at] = 0.0
        self.undecayed[0][:, at], self.undecayed[1][:, at] = mass, 0.0
        if pasts is not None:
            self.past[0, :, at] = pasts.swapaxes(0, 1)
        self.mark(at)

    def free(self, request: Request) -> None:
        """Forget a request."""
        self.vacant.append(self.places.pop(request))

    def take(self, request: Request) -> Kept:
        """A copy of where `request` is."""
        place = self.places[request]
        self.part(self.at([request]))
        return [array[:, :, place].copy() for array in self.arrays]

    def take_checkpoint(self, request: Request) -> Kept:
        """A copy of where `request` was when its checkpoint was last written."""
        place = self.places[request]
        marks = [mark[:, :, place].copy() for mark in self.marks]
        return [*marks, np.zeros_like(self.gates[:, :, place]), *marks]

    def seat(self, request: Request, kept: Kept) -> None:
        """A request that goes on from what was taken, from itself or from another one."""
        place = self.places[request] = self.vacant.pop()
        self.apart[place] = True
        for array, values in zip(self.arrays, kept, strict=True):
            array[:, :, place] = values

    def part(self, at: Ints) -> None:
        """From here on both states are carried for those who are `at` these places."""
        one = at[~self.apart[at]]
        for array in (self.state, self.error, self.mass):
            array[LOCAL][:, one] = array[GLOBAL][:, one]
        self.apart[at] = True

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
        at = self.at(window.requests)
        units = Units(self.error[GLOBAL][:, at], self.mass[GLOBAL][:, at])
        return self._scan(self.state[GLOBAL][:, at], units, window, window.lengths)

    def _scan(self, state: Array, units: Units, window: Window, counts: Ints) -> Trail:
        """Walk `state`, which is overwritten."""
        trail = scan_units(state, units, window.updates, self.exp_A, counts, in_place=True)
        return trail if window.convolved is None else window.convolved.widened(trail)

    def running_gates(self, at: Ints, walked: Walked) -> Array:
        """`gates` after each token of those who are `at` their places: [2, layer, row, T, HV].

        See `lost_by_decays` for what they are good for.
        """
        sums, totals = self.gates[:, :, at, None]
        running = sums - walked.updates.log_decay.cumsum(-2)
        added_up = running if walked.live is None else running * walked.live[..., None]
        return np.stack([running, totals + added_up.cumsum(-2)])

    def summed(self, at: Ints, walked: Walked, written: Array) -> Undecayed:
        """What a ring adds up for those who are `at` their places.

        `written` [layer, row, T, HV, V] is that of the global state.
        """
        held, lost = self.undecayed[:, :, at]
        held = held[..., None, :, :] + written.cumsum(-3)
        k = walked.k
        fresh = self.underflow * k * np.maximum(1.0, k) * held
        return Undecayed(held, fresh, accumulate(lost, walked.carry, fresh)[..., 1:, :, :])

    def lost_by_underflow(self, at: Ints, trail: Trail, q: Array) -> Array:
        """What each output of `trail` may lose because decays underflow: [layer, row, T, HV, V].

        `q` [layer, row, T, HV, 1] are the sizes of the queries.

        A ring takes a decay as one exp, or a product of two, of sums of gates over up to a whole
        ring, where a sequential computation multiplies the state itself by one gate at a time. So
        a decay that is no normal number meets what was never decayed: 2^-146 of a state of 2^34 is
        an ordinary number, and all of it may be lost. With U the undecayed mass, an output loses

            n 2^-126 max(1, |q|) U  +  |q| R

        where n counts what may underflow on the way to the factor of one contribution (`FACTORS`,
        and the sums of up to T products of the window's inverted triangle), and R is what the
        deltas lost, which are such outputs under a key: |k| max(1, |k|) n 2^-126 U each, carried
        on as the state carries it.
        """
        held, _, lost = self.summed(at, trail.tokens, trail.tokens.written)
        return np.asarray(self.underflow * np.maximum(1.0, q) * held + q * lost)

    def commit(self, window: Window, accepted: NDArray[np.int64]) -> None:
        """Advance both states by the first `accepted` [row] tokens of each row."""
        apart = self.apart[self.at(window.requests)]
        for states in (1, 2):
            rows = np.flatnonzero(apart == (states == 2))
            rows = rows[np.argsort(accepted[rows], kind="stable")]
            for some in blocks(rows, states * self.elements):
                if tokens := int(accepted[some].max()):  # as far as the block's longest row
                    self._commit(window.part(some, tokens), accepted[some], states)

    def _commit(self, window: Window, accepted: NDArray[np.int64], states: int) -> None:
        """Advance the first so many states: the global one, or both."""
        at = self.at(window.requests)
        state, error, mass = (x[:states] for x in (self.state, self.error, self.mass))
        units = Units(error[:, :, at], mass[:, :, at])
        trail = self._scan(state[:, :, at], units, window, accepted)
        state[:, :, at] = trail.state
        mass[:, :, at] = trail.units.mass
        running = self.running_gates(at, trail.tokens)
        summed = self.summed(at, trail.tokens, trail.tokens.written[GLOBAL])
        error[:, :, at] = self._lost(trail, running, summed)
        self.gates[:, :, at] = running[..., -1, :]
        self.undecayed[:, :, at] = summed.held[..., -1, :, :], summed.lost[..., -1, :, :]
        if (past := self.past_ahead(window, accepted)) is not None:
            self.past[0][:, at] = past

    def past_ahead(self, window: Window, counts: Ints) -> Array | None:
        """The convolution's windows after `counts` [row] tokens, [layer, row, channel, W - 1]."""
        if window.convolved is None or self.weight is None:
            return None
        past = self.past[0][:, self.at(window.requests)]
        return advanced(self.weight, past, window.convolved.projections, counts)

    def ahead(self, window: Window, counts: Ints) -> list[Kept]:
        """Where requests are after `counts` [row] tokens, if a checkpoint is written there."""
        at = self.at(window.requests)
        self.part(at)
        before = [array[:, :, at].copy() for array in self.arrays]
        self.commit(window, counts)
        self.stored(window.requests)
        kept = [self.take(request) for request in window.requests]
        for array, values in zip(self.arrays, before, strict=True):
            array[:, :, at] = values
        return kept

    def _lost(self, trail: Trail, running: Array, summed: Undecayed) -> Array:
        """Error units at the end of `trail`, those of stored deltas among them."""
        if self.losses is None:
            return trail.units.error
        more = self.losses.tokens(trail, lost_by_decays(running), summed.fresh)
        return np.asarray(trail.units.error + more)

    def stored(self, requests: list[Request]) -> None:
        """The checkpoints of `requests` were written: their states were rounded once more."""
        at = self.at(requests)
        self.part(at)
        state = self.state[:, :, at]
        units = Units(self.error[:, :, at], self.mass[:, :, at])
        decays = lost_by_decays(self.gates[:, :, at])
        held = self.undecayed[0][:, at]
        self.error[:, :, at], self.mass[:, :, at] = self._written(units, state, decays, held)
        self.gates[:, :, at] = 0.0
        self.undecayed[0][:, at], self.undecayed[1][:, at] = self.mass[GLOBAL][:, at], 0.0

    def _written(self, units: Units, state: Array, decays: Array, held: Array) -> Units:
        if self.losses is not None:
            units = self.losses.folded(units, decays, self.underflow * held)
        return rebase(round_state(units, state, self.state_eps, self.state_smallest), state)

    def restart(self, requests: list[Request], own: Array) -> None:
        """From here on the local state of `requests` is `own`, [layer, row, HV, V, K]."""
        at = self.at(requests)
        self.part(at)
        self.state[LOCAL][:, at] = own
        self.error[LOCAL][:, at] = 0.0
        self.mark(at)

    def expected(self, requests: list[Request]) -> tuple[Array, Array]:
        """States [2, layer, row, HV, V, K] and error units [2, layer, row, HV, V].

        The first axis has one entry, for both, where none of them has two states.
        """
        at = self.at(requests)
        if not self.apart[at].any():
            return self.state[:1, :, at], self.error[:1, :, at]
        self.part(at)
        return self.state[:, :, at], self.error[:, :, at]

    def at(self, requests: Sequence[Request]) -> NDArray[np.int64]:
        """Places of `requests`."""
        return np.fromiter(map(self.places.__getitem__, requests), np.int64, len(requests))


def blocks(rows: Ints, elements: int) -> Iterator[Ints]:
    """A few of these rows at a time, as many as `elements` state elements a row allow."""
    count = max(1, BLOCK_ELEMENTS // elements)
    for start in range(0, len(rows), count):
        yield rows[start : start + count]


def lost_by_decays(running: Array) -> Array:
    """What each decay of a ring may be off by, relative to itself; `running` [2, ...] as `gates`.

    A ring's decays are differences of running sums of its gates. Each addition to such a sum
    rounds it by 2^-24 of its value, and two sums are subtracted. After a strong gate that is far
    more than the rounding of one gate, which is all that a sequential computation loses.
    """
    return np.asarray(2 * UNIT * running[1])
