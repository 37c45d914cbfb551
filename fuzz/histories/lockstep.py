"""Any history as a server would live through it: a batch at a time, all of its windows equal.

Kernels take windows of any lengths and commits in any order. A server that drafts D tokens verifies
D for each of its running requests, keeps at least one of them (the bonus token, which the model
itself chose), commits that batch with D as its bound before it does anything else, and pads the
batch at most to the number of requests that it can run. D may be another at the next step, as long
as every row has room for it. A target that is such a server (`lockstep`) gets histories that are
rewritten here; other than that, what each request accepts stays as it was.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from ringfold.fuzz.histories.trace import (
    CHUNK,
    Commit,
    Decode,
    Donate,
    Evict,
    Fork,
    Free,
    Hit,
    Idle,
    Operation,
    Place,
    Prefill,
    Repeat,
    Request,
    Restore,
    Save,
    Verify,
)
from ringfold.sim.cursors import Cursors, committed
from ringfold.sim.dialects import DIALECTS, protocol_of
from ringfold.sim.setup import Setup

UNREACHABLE: Final = frozenset(
    {"none accepted, no fold", "none accepted after a fold", "ragged batch"}
)
"""Situations of `ringfold.sim.situations` in which no server ever is."""

BURST: Final = 4
"""Plain steps in turn, at most, of a server that overlaps them."""


def in_lockstep(
    operations: Sequence[Operation],
    setup: Setup,
    *,
    tracks: bool = False,
    overlaps: bool = False,
    chunk: int = CHUNK,
) -> tuple[Operation, ...]:
    """The same history with equal windows, each batch committed at once.

    A batch drafts as many tokens as its longest window had, or as many as there is room for. A
    request that was freed with its window in flight accepts one of it. Plain decoding of requests
    whose checkpoint lacks records is a window of one. Where a fork's source now waits with records,
    the fork is left out, with all that its request would do.

    With `tracks`, a prefix cache keeps what was stored apart last, by a commit that tracks or in a
    chunk of a prompt that is `chunk` tokens long or longer, and nothing else. So whoever leaves a
    prefix, and was never tracked, verifies once more, and some token that it keeps of this window
    is tracked. Whoever leaves one that lacks no more tokens than a window has stops within its last
    one: it verifies once more, and the last token of this window, behind the stop, is tracked.

    If the server `overlaps` plain steps, whose results it processes one step late, a step is told
    as one to four in turn, and each stores some other rows.
    """
    server = _Server(setup, tracks=tracks, overlaps=overlaps, chunk=chunk)
    server.tag = max((getattr(operation, "tag", 0) for operation in _inside(operations)), default=0)
    return tuple(server.serve(operations))


def _inside(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Operations as they are written, those of a repeat once."""
    for operation in operations:
        yield operation
        if isinstance(operation, Repeat):
            yield from _inside(operation.operations)


class _Server:
    """Rewrites operations one by one, with an eye on who waits with records."""

    def __init__(self, setup: Setup, *, tracks: bool, overlaps: bool, chunk: int) -> None:
        self.setup, self.dialect = setup, DIALECTS[setup.dialect]
        self.tracks, self.overlaps, self.chunk = tracks, overlaps, chunk
        self.tag = 0
        """The last that stands for a window."""
        self.protocol = protocol_of(setup)
        self.fresh = self.protocol.reset(setup.ring, setup.window)
        self.cursors: dict[Request, Cursors] = {}
        """Of those who are not fresh."""
        self.told: dict[Request, Cursors] = {}
        """The same if plain decoding leaves a record, as in `validate` and a kernel target."""
        self.bounds: dict[Request, int] = {}
        """The draft count of the last step of those who are not fresh."""
        self.drafts: int | None = None
        """Inside of a repeat, whose steps must all find room at every turn: how many."""
        self.absent: set[Request] = set()
        """Who was left out."""
        self.lacking: set[int] = set()
        """Prefixes that nobody has left."""
        self.stored: set[Request] = set()
        """Requests of which a state was stored apart since they were seated."""
        self.verified: set[Request] = set()
        """Requests that have verified since they were prefilled last."""
        self.sessions: set[Request] = set()
        """Requests that were prefilled behind that: a server keeps no prefixes of these."""
        self.prompted: set[Request] = set()
        """Requests of whose prompts the prefix cache has a state."""
        self.holding: set[Request] = set()
        """Those that were when they became of a session, which holds on to that state."""

    def serve(self, operations: Sequence[Operation]) -> Iterator[Operation]:
        commits = {o.tag: o for o in operations if isinstance(o, Commit)}
        for operation in operations:
            match operation:
                case Verify(tag=tag):
                    yield from self._step(operation, commits.get(tag))
                case Commit():
                    pass  # it came right after its verify
                case Prefill(rows=rows):
                    yield from self._prefill(operation)
                case Decode():
                    yield from self._decode(operation)
                    if self.overlaps and self.drafts is None:
                        yield from self._more(operation)
                case Idle(rows=rows):
                    yield replace(operation, rows=min(rows, self.setup.slots - 1))
                case Repeat():
                    yield self._repeat(operation)
                case Donate(request=request) if self.tracks and request not in self.absent:
                    yield from self._leaves(operation)
                case _ if self._comes_or_goes(operation):
                    yield operation

    def _leaves(self, donate: Donate) -> Iterator[Operation]:
        """Somebody leaves a prefix, of what was stored apart."""
        request, cut = donate.request, donate.cut
        if request in self.holding:
            self._forget(request)
            self.lacking.add(donate.prefix)
            yield Free(request=request, dead=donate.dead)
            return
        if request not in self.stored:
            yield from self._tracked(request)
        if request in self.sessions:
            cut = 0
        if 0 < cut <= self.setup.window:
            cut = yield from self._stopped(request, cut)
        self._comes_or_goes(donate)
        yield replace(donate, cut=cut)

    def _comes_or_goes(self, operation: Operation) -> bool:
        """Follow a request; returns whether the operation can be done."""
        match operation:
            case Fork(request=request, source=source):
                at = self.told.get(source, self.fresh)
                if source in self.absent or at.write_pos:
                    self.absent.add(request)
            case Place(request=request, records=records, base=base, flush=flush):
                self.cursors[request] = self.told[request] = Cursors(records, base, int(flush))
            case Save(request=request):
                self._unknown(request)
            case Restore(request=request) if self.dialect.saves == "state":
                self._forget(request)
            case Free(request=request):
                self._forget(request)
            case Donate(request=request, prefix=prefix):
                self._forget(request)
                (self.lacking.add if request in self.absent else self.lacking.discard)(prefix)
            case Hit(request=request, prefix=prefix) if prefix in self.lacking:
                self.absent.add(request)
            case Evict(prefix=prefix):
                return prefix not in self.lacking
        return getattr(operation, "request", None) not in self.absent

    def _repeat(self, repeat: Repeat) -> Repeat:
        """All of its turns, with as many drafts in each step as there is always room for."""
        outer = self.drafts
        self.drafts = min([outer or self.setup.window, *self.bounds.values()])
        inside = tuple(self.serve(repeat.operations))
        met, turn = {self._known(): 1}, 1
        while turn < repeat.times:
            tuple(self.serve(repeat.operations))
            turn += 1
            if (period := turn - met.setdefault(self._known(), turn)) > 0:
                turn = repeat.times - (repeat.times - turn) % period  # it goes on like that
                met.clear()
        self.drafts = outer
        return replace(repeat, operations=inside)

    def _known(self) -> tuple[frozenset[tuple[Request, Cursors]], ...]:
        return frozenset(self.cursors.items()), frozenset(self.told.items())

    def _forget(self, request: Request) -> None:
        self.cursors.pop(request, None)
        self.told.pop(request, None)
        self.bounds.pop(request, None)
        self._unknown(request)

    def _unknown(self, request: Request) -> None:
        for known in (self.stored, self.verified, self.sessions, self.prompted, self.holding):
            known.discard(request)

    def _step(self, verify: Verify, commit: Commit | None) -> Iterator[Operation]:
        accepted = commit.accepted if commit else (1,) * len(verify.rows)
        rows, counts = self._batch(verify.rows, accepted)
        real = [row for row in rows if row is not None]
        wanted = [n for row, n in zip(verify.rows, verify.lengths, strict=True) if row in real]
        T = self.setup.window
        D = self._drafts(real, max(wanted, default=T))
        yield replace(verify, rows=rows, lengths=(D,) * len(rows))
        commit = commit or Commit(tag=verify.tag, accepted=())
        counts = tuple(None if n is None else min(n, D) for n in counts)
        track = commit.track and min(commit.track, D)
        yield replace(commit, accepted=counts, bound=None if D == T else D, track=track)
        for row, n in zip(rows, counts, strict=True):
            if row is not None and n is not None:
                self.bounds[row] = D
                self.verified.add(row)
                if track is not None and n >= track:
                    self.stored.add(row)
                for view in (self.cursors, self.told):
                    view[row] = self._after(view.get(row, self.fresh), n, D)

    def _tracked(self, request: Request) -> Iterator[Operation]:
        """One more window, of which some token is stored for the prefix cache."""
        self.tag += 1
        T = self.setup.window
        verify = Verify(tag=self.tag, rows=(request,), lengths=(T,))
        kept = Commit(tag=self.tag, accepted=(1 + self.tag % T,))
        for operation in self._step(verify, kept):
            if isinstance(operation, Commit):
                (kept_now,) = operation.accepted
                yield replace(operation, track=1 + self.tag // T % (kept_now or 1))
            else:
                yield operation

    def _stopped(self, request: Request, cut: int) -> Generator[Operation, None, int]:
        """One more window, whose last token is stored, but a stop lies before it.

        Returns how many tokens lie behind the stop. The bonus token is fed with the next window, so
        of n that are kept as many as n - 2 may.
        """
        if (D := self._drafts([request], self.setup.window)) < 3:
            return 0
        self.tag += 1
        yield from self._step(
            Verify(tag=self.tag, rows=(request,), lengths=(D,)),
            Commit(tag=self.tag, accepted=(D,), track=D),
        )
        return 1 + cut % (D - 2)

    def _decode(self, decode: Decode) -> Iterator[Operation]:
        """As it is where nothing waits; else a window of one, which a server that drafts does."""
        rows, ones = self._batch(decode.rows, (1,) * len(decode.rows))
        real, T = [row for row in rows if row is not None], self.setup.window
        waits = any(self.cursors.get(row, self.fresh).write_pos for row in real)
        after = {row: self._after(self.told.get(row, self.fresh), 1, T) for row in real}
        if waits or any(c.write_pos + T > self.setup.ring for c in after.values()):
            tag, profile = decode.tag, decode.profile
            verify = Verify(tag=tag, rows=rows, lengths=(1,) * len(rows), profile=profile)
            track = 1 if decode.stores else None
            commit = Commit(tag=tag, accepted=ones, track=track, dead=decode.dead)
            yield from self._step(verify, commit)
        else:
            stores = tuple(row for row in decode.stores if row in rows)
            yield replace(decode, rows=rows, stores=stores)
            self.stored.update(stores)
            self.told |= after

    def _more(self, decode: Decode) -> Iterator[Operation]:
        """The same batch for up to three more steps, in which others end an interval."""
        for _ in range(decode.tag % BURST):
            self.tag += 1
            real = [row for row in decode.rows if row is not None]
            stores = tuple(row for i, row in enumerate(real) if (self.tag + i) % 3 == 0)
            yield from self._decode(Decode(tag=self.tag, rows=decode.rows, stores=stores))

    def _prefill(self, prefill: Prefill) -> Iterator[Operation]:
        """What it folds goes on counting as waiting: a target need not own it."""
        pairs = zip(prefill.rows, prefill.lengths, strict=True)
        if there := [(row, n) for row, n in pairs if row not in self.absent]:
            rows, lengths = zip(*there, strict=True)
            turns = self.verified.intersection(rows)
            self.holding |= turns & self.prompted
            self.sessions |= turns
            self.verified -= turns
            if self.setup.dtypes.activation != "float32":  # no server's prompts are
                long = {row for row, n in there if n >= self.chunk}
                self.stored |= long
                self.prompted |= long - self.sessions
            branch = None if self.sessions.intersection(rows) else prefill.branch
            yield replace(prefill, rows=rows, lengths=lengths, branch=branch)

    def _batch(
        self, rows: Sequence[Request | None], accepted: Sequence[int | None]
    ) -> tuple[tuple[Request | None, ...], tuple[int | None, ...]]:
        """Rows that are there, with the tokens that they keep, and no more padding than there is.

        A row's count is one at least.
        """
        pairs = [
            (None, None) if row is None or row in self.absent else (row, n or 1)
            for row, n in zip(rows, accepted, strict=True)
        ]
        while len(pairs) >= self.setup.slots and (None, None) in pairs:
            pairs.remove((None, None))
        batch, counts = zip(*pairs, strict=True)
        return batch, counts

    def _drafts(self, rows: Sequence[Request], wanted: int) -> int:
        """How many tokens a step drafts: so many, or as many as every row has room for."""
        if self.drafts is not None:
            return self.drafts
        return next(D for D in range(wanted, 0, -1) if all(self._room(row, D) for row in rows))

    def _room(self, row: Request, drafts: int) -> bool:
        """Whether that window fits behind the history, and the same once more, whatever is kept."""
        for view in (self.cursors, self.told):
            at = view.get(row, self.fresh)
            after = [self._after(at, n, drafts) for n in range(1, drafts + 1)]
            if any(c.write_pos + drafts > self.setup.ring for c in (at, *after)):
                return False
        return True

    def _after(self, at: Cursors, accepted: int, drafts: int) -> Cursors:
        return committed(self.protocol, at, accepted, self.setup.ring, drafts)
