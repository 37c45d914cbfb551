"""A target: one implementation under test, seen through a few verbs.

The trace names *requests*; where each one sits is the target's own business. An operation that a
target does not own is skipped for it, never imitated: otherwise we would be testing our own code.
`fuzz.targets.pooled.PooledTarget` is the base that most adapters start from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ringfold.sim.dialects import Buffer, Dialect
from ringfold.sim.setup import Setup

Device = Literal["cpu", "cuda"]
Request = int
Floats = NDArray[np.float32]


class Inputs(NamedTuple):
    """Tokens of one verify, packed row after row: float32 values that the activation dtype holds.

    Rows are in batch order and padding rows have tokens too, so `tokens` is the sum of all lengths.
    In a setup with a convolution q, k and v are projections: what goes into the convolution. Its
    channels are those of q, k and v side by side, head after head.
    """

    q: Floats  # [layer, token, H, K]
    k: Floats  # [layer, token, H, K]
    v: Floats  # [layer, token, HV, V]
    a: Floats  # [layer, token, HV]
    b: Floats  # [layer, token, HV]


class HeadParameters(NamedTuple):
    """What a model's layer knows of its heads, float32."""

    A_log: Floats  # [layer, HV]
    dt_bias: Floats  # [layer, HV]
    convolution: Floats | None = None
    """Weights [layer, channel, W] of the setup's convolution, if it has one: values that the
    activation dtype holds, the last of which meets the token itself. There is no bias."""


class Precision(NamedTuple):
    """How exact a target's dot products are: relative rounding of one of their operands."""

    dot: float
    """On the output path."""
    fold: float = 2.0**-24
    """In a fold that adds stored deltas up; a fold that replays raw inputs has none."""
    convolution: float = 2.0**-24
    """Of a product of a tap and a projection: kernels that multiply 16-bit operands round it."""
    prefill: float = 2.0**-24
    """In the chunks of a prompt, where whole products of tokens may be stored in 16 bits."""

    # 2^-24: ieee float32. 2^-10: tf32, whose operands Triton 3.6 truncates to 10 bits.
    # Rounding of the records a ring keeps comes on top, from the setup's record dtype.


IEEE = Precision(dot=2.0**-24)
TF32 = Precision(dot=2.0**-10)


class View(NamedTuple):
    """A live buffer of a target: what it is, and the array (NumPy or torch) that holds it."""

    buffer: Buffer
    array: Any


class RefusedError(ValueError):
    """A setup that a target can't run; the message says why."""


def refusal(target: Target, setup: Setup) -> str:
    """Why `target` can't be opened with `setup`; empty if it can.

    A target says so through a method `refuses` with this signature, less the target. It need not
    have one: then it takes every setup.
    """
    if (width := setup.convolution) and not getattr(target, "convolves", False):
        return f"owns no convolution, and the setup has one of width {width}: set it to 0"
    refuses = getattr(target, "refuses", None)
    return "" if refuses is None else str(refuses(setup))


class Target(Protocol):
    """One implementation under test. Every verb may raise; what it raises becomes a mismatch."""

    name: str
    device: Device
    dialect: Dialect
    precision: Precision
    """Final once the target is open: it may depend on the setup."""
    operations: frozenset[str]
    """Kinds of trace operation that this target owns, such as `verify` or `fork`."""

    def identity(self) -> Mapping[str, str]:
        """What exactly runs: versions, hashes of loaded files, device, compile options."""

    def open(self, setup: Setup, parameters: HeadParameters) -> None:
        """Allocate everything for `setup`; called once a history, before any other verb.

        Raises `RefusedError` for a setup that it says itself it can't run (see `refusal`).
        """

    def admit(self, request: Request, state: Floats) -> None:
        """Seat a request after its prefill; `state` [layer, HV, V, K] is its committed state."""

    # A target that seats many as fast as one may have
    #
    #     def admit_all(self, requests, states) -> None
    #
    # which does the same as admitting one after the other; `states` [layer, row, HV, V, K].
    #
    # A target that owns a convolution has `convolves = True`, and
    #
    #     def admit(self, request, state, past) -> None
    #
    # where `past` [layer, channel, W - 1] holds the last projections of the prefill, oldest first.
    # It may show its windows as the view "convolution" (`ringfold.sim.dialects.CONVOLUTION`).

    def free(self, request: Request) -> None:
        """Give the request's seat back."""

    def fork(self, request: Request, source: Request) -> None:
        """Seat a request on a copy of `source`, whose checkpoint lags behind nothing."""

    def verify(
        self, rows: Sequence[Request | None], lengths: Sequence[int], inputs: Inputs
    ) -> NDArray[Any]:
        """Outputs [layer, token, HV, V] of each row's window, in the activation dtype.

        `None` is a padding row. Elements that the target did not write must be NaN.
        """

    def commit(self, rows: Sequence[Request | None], accepted: Sequence[int], bound: int) -> None:
        """Commit the first `accepted` tokens of each row's window, once for all layers.

        `bound` is the longest window that the next verify may bring.
        """

    # A target that owns `prefill` also has
    #
    #     def prefill(self, rows, lengths, inputs) -> NDArray[Any]
    #
    # More tokens of the prompts of `rows`, all of which are kept; there is no padding. What waits
    # is folded first, and the ring is empty then. Outputs as `verify`.
    #
    # A target that owns `track` also has
    #
    #     def track(self, rows, accepted, bound, tokens) -> None
    #
    # It commits, and rows that keep at least `tokens` tokens also store the state after so many as
    # a checkpoint of its own, in the slot that their seat names "track" from then on: where such
    # slots take turns, the mapping that `seat` returned goes along.
    #
    # If it owns `store`, too, and decodes in place, `decode` has a third argument, unless that is
    # empty: the rows whose state behind their token is stored in the same way.
    #
    # One that stores the state of a prompt's last whole chunk in the same way says so by
    # `tracked_chunk`, its length. If it owns `branch`, too, `prefill` has a fourth argument, unless
    # that is None: rows that are longer store the state after so many tokens. With `keeps_tracked =
    # True` its prefixes are what was stored so last, and not what a request holds when it leaves.

    def decode(self, rows: Sequence[Request | None], inputs: Inputs) -> NDArray[Any]:
        """Plain decoding: one token a row, committed at once; outputs as `verify`."""

    # A target owns as many of these as its code has; the twin of one that owns them does too.
    #
    #     def save(self, request) -> None
    #
    # The request is retracted to host memory: its seat is free, its committed state is kept. No
    # window of it is in flight, but records may wait: the dialect's `saves` says what becomes of
    # them.
    #
    #     def restore(self, request) -> None
    #
    # It is seated again, wherever there is room. `seat` says where.
    #
    #     def donate(self, request, prefix) -> Mapping[str, int]
    #
    # The request has finished and leaves its state to the prefix cache, under the number `prefix`
    # (the dialect's `donates` says what of it). Returns where that lies now, as `seat` does, such
    # as {"slot": 3}; empty, if outside of what `views` shows.
    #
    # One that owns `overlap` learns late what a plain step has stored, and may have kept a state
    # that was stored before the last: it says so as below.
    #
    # One that owns `cut` is also told how many of the last tokens the prefix's key lacks, if any,
    # and returns which it kept of the states that were stored apart: {"slot": 3, "behind": 2} is
    # the one two tokens before the request's end; empty, if none.
    #
    #     def hit(self, request, prefix) -> None
    #
    # Seat a request, with the cursors of a reset, on a copy of what is kept under `prefix`.
    #
    #     def evict(self, prefix) -> None
    #
    # The prefix cache gives it up.

    def seat(self, request: Request) -> Mapping[str, int]:
        """Where the request sits: index by axis name, such as {"slot": 3}."""

    def views(self) -> Mapping[str, View]:
        """Its live buffers by name, for the walk to read, frame, poison and place."""

    def twin(self) -> Target | None:
        """The target's own recurrent kernel as a target of its own (not opened), if it has one."""


def require_views(target: Target, setup: Setup) -> None:
    """Raise `RefusedError` unless a target that was opened shows what its dialect keeps.

    It may have more slots than it was asked for, such as a row of padding of its own.
    """
    views = target.views()
    for buffer in target.dialect.kept(setup):
        if buffer.name not in views:
            raise RefusedError(
                f"{target.name}: views() lacks {buffer.name!r}, which the dialect "
                f"{target.dialect.name!r} keeps: see ringfold.sim.dialects"
            )
        shape, wanted = tuple(views[buffer.name].array.shape), buffer.shape(setup)
        places = [axis in ("slot", "request") for axis in buffer.axes]
        fits = len(shape) == len(wanted) and all(
            n >= want if place else n == want
            for n, want, place in zip(shape, wanted, places, strict=True)
        )
        if not fits:
            raise RefusedError(
                f"{target.name}: the view of {buffer.name!r} has shape {list(shape)}, but must "
                f"have {list(wanted)} ({', '.join(buffer.axes)})"
            )
