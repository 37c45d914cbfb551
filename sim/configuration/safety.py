"""Is a configuration safe? Asked of the protocol, not of anybody's rules.

A configuration is safe when every path that a server can take keeps the represented state: what
checkpoint, records and cursors stand for is the committed state after every operation. Each hazard
is a path that does not, with the condition under which a server takes it. Where a hazard turns on
cursors, the cursor machine is walked and asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

from ringfold.sim.configuration.flags import Configuration
from ringfold.sim.configuration.serving import Release, Serving, serve
from ringfold.sim.cursors import COMPACT, COMPACT_NARROW, NO_RING, Cursors, Protocol

SIGNIFICAND: Final = {"bfloat16": 8, "float16": 11, "float32": 24}
EXPONENT: Final = {"bfloat16": 8, "float16": 5, "float32": 8}


class Hazard(NamedTuple):
    """A path on which the represented state is lost."""

    name: str
    reason: str
    event: str
    """What has to happen in the server, as *when ...*."""
    crashes: bool
    """Whether the server dies of it, rather than go on with another state."""
    when: Callable[[Serving, Release], bool]
    compiled: bool = False
    """Whether it shows in compiled kernels alone: the interpreter goes on."""


class Verdict(NamedTuple):
    """What the simulator thinks of a configuration."""

    hazards: tuple[Hazard, ...]
    serving: Serving

    @property
    def safe(self) -> bool:
        """Whether no path loses a state or ends the server."""
        return not self.hazards

    def __str__(self) -> str:
        if not self.safe:
            return "unsafe: " + "; ".join(f"{h.name} ({h.reason})" for h in self.hazards)
        way = "windows are replayed" if self.serving.replays else self.serving.fallback
        return f"safe: {way}"


@cache
def overflows(protocol: Protocol, ring: int, counts: tuple[int, ...]) -> tuple[int, int] | None:
    """(waiting records, window) of the first verify whose window finds no room; None if all do.

    Windows are of any length in `counts`, each step's bound is its own length, any number of tokens
    is kept: what a server does whose draft count changes between steps.
    """
    if protocol.plain or protocol is NO_RING or ring < 1:
        return None
    start = protocol.reset(ring, counts[0])
    seen: set[Cursors] = {start}
    queue = deque([start])
    while queue:
        before = queue.popleft()
        waiting = int(before.write_pos)
        for count in counts:
            if waiting + count > ring:
                return waiting, count
            for accepted in range(count + 1):
                after = protocol.commit(before, accepted, ring, count)._replace(cache_base=0)
                if after not in seen:
                    seen.add(after)
                    queue.append(after)
    return None


def lags(serving: Serving) -> bool:
    """Whether a checkpoint may lack committed records between two steps."""
    if serving.protocol.plain:
        return serving.ring > 1
    if not serving.replays or serving.protocol is NO_RING or serving.ring < 1:
        return False
    count = max(serving.counts)
    return any(
        int(after.write_pos) > 0
        for n in range(1, count + 1)
        for first in (serving.protocol.reset(serving.ring, count),)
        for after in (serving.protocol.commit(first, n, serving.ring, count),)
    )


def loses_bits(activation: str, record: str) -> bool:
    """Whether a number of one dtype need not be one of the other."""
    return SIGNIFICAND[activation] > SIGNIFICAND[record] or EXPONENT[activation] > EXPONENT[record]


def wraps(ring: int) -> bool:
    """Whether a row is found by and-ing with L - 1."""
    return ring >= 1 and ring & (ring - 1) == 0


HAZARDS: Final = (
    Hazard(
        "a ring that no fold can be compiled for",
        "the commit adds up over the ring in a `tl.dot`, which takes 16 rows at least",
        "the first window is committed, folded or not",
        crashes=True,
        when=lambda s, r: (
            s.replays
            and s.protocol in (COMPACT, COMPACT_NARROW)
            and wraps(s.ring)
            and s.ring < s.dot_rows
        ),
        compiled=True,
    ),
    Hazard(
        "a tree is verified as a chain",
        "the window's records and its triangle know one parent for each token, the one before it",
        "a draft branches",
        crashes=False,
        when=lambda s, r: s.replays and s.width > 1 and max(s.counts) > 2,  # of two none branches
    ),
    Hazard(
        "a window does not fit behind its history",
        "records that find no room are dropped, or lie over live ones",
        "commits have left more records than a window leaves room for",
        crashes=False,
        when=lambda s, r: s.replays and overflows(s.protocol, s.ring, s.counts) is not None,
    ),
    Hazard(
        "a ring that no mask can wrap",
        "a record's row is found by and-ing with L - 1, which wraps at powers of two only",
        "the first window is verified",
        crashes=True,
        when=lambda s, r: s.replays and (s.protocol is not NO_RING or s.kda) and not wraps(s.ring),
    ),
    Hazard(
        "a plain step starts at a checkpoint that lags",
        "its token is added to a state that lacks the waiting records, which stay claimed",
        "a running request's token rides in a prefill batch",
        crashes=False,
        when=lambda s, r: s.mixes and lags(s),
    ),
    Hazard(
        "waiting records stay behind",
        "the copy to host memory holds the checkpoint; the records wait in the place that is left",
        "a decode server retracts a request",
        crashes=False,
        when=lambda s, r: s.to_host and lags(s),
    ),
    Hazard(
        "a prefix is kept with a state that is behind it",
        "the slot of a finished request lacks the waiting records, its key counts their tokens",
        "a request finishes and another one starts with its tokens",
        crashes=False,
        when=lambda s, r: s.donates and lags(s) and not (s.protocol.plain or r.shortens_donation),
    ),
    Hazard(
        "a prefix is cut and its convolution window is not",
        "the key is shortened to what the checkpoint holds, beside a window that has gone on",
        "a request finishes and another one starts with its tokens",
        crashes=False,
        when=lambda s, r: s.donates and lags(s) and (s.protocol.plain or r.shortens_donation),
    ),
    Hazard(
        "a prefix is kept with a state that nobody stored",
        "the commit moves cursors and leaves the second slot as it was",
        "a window crosses the track interval and another request starts with these tokens",
        crashes=False,
        when=lambda s, r: (
            s.tracks and (s.protocol.plain or (s.replays and not s.kda and not r.tracks))
        ),
    ),
    Hazard(
        "records are narrower than what they record",
        "the fold replays rounded inputs, so the checkpoint is not the recurrence's",
        "records are folded",
        crashes=False,
        when=lambda s, r: (
            s.replays and r.dialect != "compact" and loses_bits(s.activation, s.record)
        ),
    ),
    Hazard(
        "the drafting worker commits snapshots",
        "it calls the scatter of snapshots itself, and a pool that replays has none",
        "the first window is committed",
        crashes=True,
        when=lambda s, r: s.replays and s.block_diffusion and not s.kda,
    ),
    Hazard(
        "two protocols move one ring",
        "plain decoding and verification both claim its rows, each by cursors of its own",
        "a plain step comes between two windows",
        crashes=False,
        when=lambda s, r: s.shares_ring and s.replays and not s.kda,
    ),
)


def judge(flags: Configuration, release: Release) -> Verdict:
    """Whether a server of `release` keeps every committed state under these flags."""
    serving = serve(flags, release)
    found = tuple(hazard for hazard in HAZARDS if hazard.when(serving, release))
    return Verdict(found, serving)
