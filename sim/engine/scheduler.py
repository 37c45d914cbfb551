"""The server's loop: seat who waits, prefill, decode a round, let go who has finished.

The rules are those of a server with continuous batching, a prefix cache that keeps recurrent states
and an attention cache that may run full. A token count decides all of them; nothing is timed.

Prompt that is prefilled on nothing is one `Prefill`, whatever it computes. Prompt on top of a state
(a later chunk, or what follows a prefix hit) is told as windows of which everything is accepted,
and a single token as a plain decode: the same tokens in the same order, so the same state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

import numpy as np

from ringfold.sim.cursors import Cursors, Protocol
from ringfold.sim.dialects import Dialect
from ringfold.sim.engine.events import (
    Commit,
    Decode,
    Donate,
    Event,
    Evict,
    Fork,
    Free,
    Hit,
    Idle,
    Prefill,
    Restore,
    Save,
    Verify,
)
from ringfold.sim.engine.pool import Pool
from ringfold.sim.engine.workload import Ints, Workload

WIDE_GRAPHS: Final = 8
"""Graphs are captured for 1, 2 and 4 rows, and for every multiple of this."""
REMEMBERED: Final = 0.8
"""How much of its past the mean of accepted tokens keeps a round, where drafts adapt."""


def graph_rows(rows: int) -> int:
    """Rows of the smallest captured graph that holds so many."""
    return next((g for g in (1, 2, 4) if rows <= g), -(-rows // WIDE_GRAPHS) * WIDE_GRAPHS)


class Engine:
    """One server on its way through a workload.

    Args:
        load: what arrives, and what there is room for.
        dialect: decides who can be forked, and what is left to host memory and to the cache.
        protocol: how the cursors move, if not as is usual in the dialect.
    """

    def __init__(self, load: Workload, dialect: Dialect, protocol: Protocol | None = None) -> None:
        self.load, self.dialect, self.protocol = load, dialect, protocol or dialect.protocol
        self.prompts, self.leaves = load.prompts(), load.leaves()
        count = load.requests
        self.cursors = Cursors(*(np.zeros(count, np.int64) for _ in Cursors._fields))
        self.ahead = np.zeros(count, np.int64)  # of the prompt, not prefilled yet
        self.context = np.zeros(count, np.int64)  # tokens in the attention cache
        self.rounds = np.zeros(count, np.int64)
        self.left = np.full(count, load.tokens)  # to decode
        self.pool = Pool(load.running + load.cached + 1)
        self.waiting: deque[int] = deque()
        self.saved: set[int] = set()
        self.cached: dict[int, int] = {}  # tokens of each prefix, whether it is still kept or not
        self.prefilling: list[int] = []
        self.batch = np.zeros(0, np.int64)  # decoding, in the order of admission
        self.longest = 1 if self.protocol.plain else load.window
        self.drafts = self.longest
        self.mean = float(self.longest)

    def run(self) -> Iterator[Event]:
        """Serve everything."""
        arrivals = deque(enumerate(self.load.arrivals()))
        step = 0
        while arrivals or self.waiting or self.prefilling or self.batch.size:
            while arrivals and arrivals[0][1] <= step:
                conversation, _ = arrivals.popleft()
                self.waiting.append(conversation * self.load.turns * self.load.samples)
            yield from self.admit()
            yield from self.prefill()
            yield from self.retract()
            if self.batch.size:
                yield from self.decode()
            elif not self.waiting and not self.prefilling and arrivals:
                yield Idle(graph_rows(1))
            step += 1

    # ------------------------------------------------------------------ seats

    @property
    def seated(self) -> int:
        """Requests that run."""
        return self.batch.size + len(self.prefilling)

    def admit(self) -> Iterator[Event]:
        """Seat those who wait, in order, while there is room."""
        while self.waiting and self.seated < self.load.running and self.fits(self.waiting[0]):
            request = self.waiting.popleft()
            if request in self.saved:
                yield from self.restore(request)
            else:
                yield from self.begin(request)

    def fits(self, request: int) -> bool:
        """Whether the attention cache has room for a request, or for nobody else."""
        if self.load.context is None or not self.seated:
            return True
        coming = max(int(self.context[request]), self.asked(request)) + self.load.window
        return self.taken() + coming <= self.load.context

    def taken(self) -> int:
        """Tokens that the attention cache holds, and those of the next round."""
        running = np.append(self.batch, self.prefilling).astype(np.int64)
        tokens = self.context[running] + self.ahead[running] + self.load.window
        return int(tokens.sum())

    def begin(self, request: int) -> Iterator[Event]:
        """Give a request a slot: cleared, or with what its conversation left in the cache."""
        prefix = self.before(request)
        if prefix not in self.pool.prefixes:
            prefix = None
        yield from self.alloc(request, keep=prefix)
        if prefix is not None:
            self.pool.hit(request, prefix)
            self.context[request] = self.cached[prefix]
            self.start(request)
            yield Hit(request, prefix)
        else:
            self.pool.clear(request)
        self.ahead[request] = self.asked(request) - self.context[request]
        self.prefilling.append(request)

    def alloc(self, request: int, keep: int | None = None) -> Iterator[Event]:
        """Take a slot, from the prefix cache if there is no other."""
        evicted = self.pool.alloc(request, keep)
        if evicted is not None:
            yield Evict(evicted)

    def start(self, request: int) -> None:
        """Cursors of a request whose state is a checkpoint."""
        fresh = self.protocol.reset(self.load.ring, self.load.window)
        for values, value in zip(self.cursors, fresh, strict=True):
            values[request] = value

    def restore(self, request: int) -> Iterator[Event]:
        """Bring a retracted request back."""
        self.saved.remove(request)
        yield from self.alloc(request)
        self.pool.clear(request)
        if self.dialect.saves == "state":
            self.start(request)
        self.batch = np.append(self.batch, request)
        yield Restore(request)

    def retract(self) -> Iterator[Event]:
        """While the attention cache can't take a round, retract who has decoded least."""
        limit = self.load.context
        while limit is not None and self.batch.size > 1 and self.taken() > limit:
            at = self.batch.size - 1 - int(self.left[self.batch][::-1].argmax())
            request = int(self.batch[at])
            self.batch = np.delete(self.batch, at)
            self.pool.free(request)
            self.saved.add(request)
            self.waiting.appendleft(request)
            yield Save(request)

    # ------------------------------------------------------------------ conversations

    def asks(self, request: int) -> int:
        """The first request of those that answer the same prompt."""
        return request - request % self.load.samples

    def before(self, request: int) -> int | None:
        """The request whose answer a prompt continues; None at the start of a conversation."""
        first = self.asks(request)
        turn = first // self.load.samples % self.load.turns
        return first - self.load.samples if turn else None

    def asked(self, request: int) -> int:
        """Tokens of its prompt, and of all that was said before."""
        previous = self.before(request)
        history = 0 if previous is None else int(self.context[previous])
        return history + int(self.prompts[self.asks(request)])

    # ------------------------------------------------------------------ prompts

    def prefill(self) -> Iterator[Event]:
        """One chunk of every prompt; who has all of it decodes from now on."""
        if not self.prefilling:
            return
        rows = np.array(self.prefilling)
        counts = np.minimum(self.ahead[rows], self.load.chunk)
        fresh = self.context[rows] == 0
        for request, tokens in zip(rows[fresh].tolist(), counts[fresh].tolist(), strict=True):
            self.pool.state(request)
            self.start(request)
            yield Prefill(request, tokens)
        yield from self.extend(rows[~fresh], counts[~fresh])
        self.context[rows] += counts
        self.ahead[rows] -= counts
        done = self.ahead[rows] == 0
        self.prefilling = rows[~done].tolist()
        self.batch = np.append(self.batch, rows[done])
        for request in rows[done].tolist():
            if request == self.asks(request):
                yield from self.sample(request)

    def extend(self, rows: Ints, counts: Ints) -> Iterator[Event]:
        """Prefill `counts` tokens on top of the states of `rows`."""
        while rows.size:
            lengths = np.minimum(counts, self.longest)
            one = lengths == 1
            if one.any():
                yield self.step(rows[one], prompt=True)
            if not one.all():
                yield Verify(rows[~one], lengths[~one])
                yield self.commit(rows[~one], lengths[~one], prompt=True)
            counts = counts - lengths
            rows, counts = rows[counts > 0], counts[counts > 0]

    def sample(self, source: int) -> Iterator[Event]:
        """Seat the other answers to a prompt: on copies of its state, if that is one checkpoint."""
        for request in range(source + 1, min(source + self.load.samples, self.load.requests)):
            room = self.seated < self.load.running and self.fits(request)
            if room and not self.cursors.write_pos[source]:
                yield from self.alloc(request)
                self.pool.fork(request, source)
                self.context[request] = self.context[source]
                self.start(request)
                self.batch = np.append(self.batch, request)
                yield Fork(request, source)
            else:
                self.waiting.append(request)

    # ------------------------------------------------------------------ rounds

    def decode(self) -> Iterator[Event]:
        """Everyone who decodes takes part in a round."""
        rows, length = self.batch, self.drafts
        for request in rows.tolist():
            self.pool.state(request)
        padding = graph_rows(rows.size) - rows.size
        accepted = np.ones(rows.size, np.int64)
        if length == 1:
            yield self.step(rows, padding)
        else:
            accepted = self.load.accepted(rows, self.rounds[rows], length)
            accepted = np.minimum(accepted, self.left[rows])
            yield Verify(rows, np.full(rows.size, length), padding)
            gone = self.rounds[rows] >= self.leaves[rows]
            self.left[rows[gone]] = accepted[gone] = 0
            for request in rows[gone].tolist():
                yield from self.leave(request, finished=False)
            yield self.commit(rows, np.where(gone, -1, accepted))
        self.adapt(float(accepted.mean()))
        self.rounds[rows] += 1
        self.context[rows] += accepted
        self.left[rows] -= accepted
        self.batch = rows[self.left[rows] > 0]
        for request in rows[self.left[rows] == 0].tolist():
            if request in self.pool.requests:
                yield from self.leave(request, finished=True)

    def commit(self, rows: Ints, accepted: Ints, prompt: bool = False) -> Commit:
        """Move the cursors of rows that are still there.

        Whatever this round's drafts are, the bound is the longest window: a ring that was told of
        less would have no room for more.
        """
        before = Cursors(*(values[rows] for values in self.cursors))
        after = self.protocol.commit(
            before, np.maximum(accepted, 0), self.load.ring, self.load.window
        )
        for values, moved in zip(self.cursors, after, strict=True):
            values[rows] = moved
        return Commit(rows, accepted, before, after, prompt)

    def step(self, rows: Ints, padding: int = 0, prompt: bool = False) -> Decode:
        """One token of each row."""
        moved = self.commit(rows, np.ones(rows.size, np.int64))
        return Decode(rows, padding, moved.before, moved.after, prompt)

    def adapt(self, accepted: float) -> None:
        """Draft one more where nearly all is accepted, one less where under half of it is."""
        if not self.load.adaptive:
            return
        self.mean = REMEMBERED * self.mean + (1 - REMEMBERED) * accepted
        if self.mean > self.drafts - 0.5:
            self.drafts = min(self.drafts + 1, self.longest)
        elif self.mean < (self.drafts + 1) / 2:
            self.drafts -= 1

    def leave(self, request: int, finished: bool) -> Iterator[Event]:
        """Let a request go; the first answer to a prompt stays in the cache, if there is one."""
        first = request == self.asks(request)
        if first and finished and self.load.cached:
            self.pool.donate(request, request)
            lost = self.cursors.write_pos[request] if self.dialect.donates == "checkpoint" else 0
            self.cached[request] = int(self.context[request] - lost)
            yield Donate(request, request)
        else:
            self.pool.free(request)
            yield Free(request)
        following = request + self.load.samples
        turn = request // self.load.samples % self.load.turns
        if first and turn + 1 < self.load.turns and following < self.load.requests:
            self.waiting.append(following)
