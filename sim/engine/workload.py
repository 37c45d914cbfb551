"""A workload: who comes with how much to do, and what a server has room for.

Every choice is a pure function of (seed, what is chosen, request, count), so that a change of the
server, or of another request, leaves a request's prompt and its accepted drafts alone.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from ringfold.sim.philox import philox4x32
from ringfold.sim.setup import RING_MAX, require

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

REQUESTS_MAX: Final = 1_000_000
TOKENS_MAX: Final = 10_000_000
RUNNING_MAX: Final = 65_536

ONE_TOKEN_MORE: Final = 1 / 8
"""Share of prompts that end one token into a chunk."""


class What(IntEnum):
    """What is chosen: one word of a counter."""

    ACCEPTED = 0
    PROMPT = 1
    ONE_TOKEN_MORE = 2
    ARRIVAL = 3
    ABORTS = 4
    ABORTED_AT = 5


class Workload(msgspec.Struct, frozen=True):
    """Requests to serve, `tokens` each, `running` at a time.

    `acceptance` is the chance of each draft after the ones before it were accepted; None means
    that 1 to `window` tokens are accepted with equal chance.

    A conversation has `turns` prompts, each of up to `prompt` new tokens and answered by `samples`
    requests; `requests` counts them all. A step of the server prefills up to `chunk` tokens of
    each. `gap` is the mean number of steps between two conversations; with 0 all wait at the start.
    """

    requests: int = 1000
    tokens: int = 1000
    running: int = 256
    window: int = 4
    ring: int = 16
    acceptance: float | None = None
    seed: int = 0
    prompt: int = 1
    chunk: int = 2048
    samples: int = 1
    turns: int = 1
    gap: float = 0.0
    aborts: float = 0.0
    """Chance that a client leaves before its request has finished, with a window in flight."""
    cached: int = 0
    """States that the pool keeps for a prefix cache beside those of running requests."""
    context: int | None = None
    """Tokens that the attention cache holds; None is enough. Beyond it requests are retracted."""
    adaptive: bool = False
    """Whether the number of drafts follows what was accepted, down to none: plain decoding."""

    def __post_init__(self) -> None:
        for what, low, limit in (
            ("requests", 1, REQUESTS_MAX),
            ("tokens", 1, TOKENS_MAX),
            ("running", 1, RUNNING_MAX),
            ("window", 1, RING_MAX // 2),
            ("prompt", 1, TOKENS_MAX),
            ("chunk", 1, TOKENS_MAX),
            ("samples", 1, RUNNING_MAX),
            ("turns", 1, REQUESTS_MAX),
            ("cached", 0, RUNNING_MAX),
            ("gap", 0, TOKENS_MAX),
            ("seed", 0, 2**32 - 1),
        ):
            value = getattr(self, what)
            limits = f"in {low}..{limit}"
            require(low <= value <= limit, what, value, limits, f"choose {what} <= {limit}")
        require(
            2 * self.window <= self.ring <= RING_MAX and self.ring & (self.ring - 1) == 0,
            "ring",
            self.ring,
            f"a power of two in {2 * self.window}..{RING_MAX}",
            "it holds two windows at least",
        )
        for what in ("acceptance", "aborts"):
            rate = getattr(self, what)
            require(rate is None or 0 <= rate <= 1, what, rate, "in 0..1", "it is a chance")
        if self.context is not None:
            require(self.context >= 1, "context", self.context, "at least 1", "leave it out")

    def chances(self) -> Floats:
        """Chance of 1, 2, ... `window` accepted tokens, the bonus token included."""
        if self.acceptance is None:
            return np.full(self.window, 1 / self.window)
        reached = self.acceptance ** np.arange(self.window)
        return np.asarray(reached - np.append(reached[1:], 0.0))

    # ------------------------------------------------------------------ what is drawn

    def drawn(self, what: What, request: Any, count: Any = 0) -> Floats:
        """Numbers in [0, 1), elementwise over requests and counts."""
        words = (request, count, int(what), 0)
        counter = tuple(np.asarray(word, np.uint32) for word in words)
        first = philox4x32(counter, (self.seed, 0))[..., 0]  # type: ignore[arg-type]
        return np.asarray(first * 2.0**-32)

    def accepted(self, requests: Ints, rounds: Ints, length: int) -> Ints:
        """Tokens that are kept of each request's window of `length`, bonus token included."""
        more = np.cumsum(self.chances())[: length - 1]
        return 1 + np.searchsorted(more, self.drawn(What.ACCEPTED, requests, rounds), "right")

    def prompts(self) -> Ints:
        """[request] new tokens of each prompt."""
        requests = np.arange(self.requests)
        tokens = 1 + (self.drawn(What.PROMPT, requests) * self.prompt).astype(np.int64)
        longer = self.drawn(What.ONE_TOKEN_MORE, requests) < ONE_TOKEN_MORE
        return np.where(longer, (tokens - 1) // self.chunk * self.chunk + 1, tokens)

    def arrivals(self) -> Ints:
        """[conversation] the step in which each begins."""
        conversations = np.arange(-(-self.requests // (self.turns * self.samples)))
        waited = -self.gap * np.log1p(-self.drawn(What.ARRIVAL, conversations))
        return np.cumsum(waited).astype(np.int64)

    def leaves(self) -> Ints:
        """[request] the round in which its client leaves; beyond all rounds for most."""
        requests = np.arange(self.requests)
        at = (self.drawn(What.ABORTED_AT, requests) * self.tokens / self.window).astype(np.int64)
        return np.where(self.drawn(What.ABORTS, requests) < self.aborts, at, TOKENS_MAX)
