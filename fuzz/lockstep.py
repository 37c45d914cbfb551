"""Any history as a server would live through it: a batch at a time, all of its windows equal.

Kernels take windows of any lengths and commits in any order. A server that drafts T tokens verifies
T for each of its running requests, keeps at least one of them (the bonus token, which the model
itself chose), commits that batch before it does anything else, and pads the batch at most to the
number of requests that it can run. A target that is such a server (`lockstep`) gets histories that
are rewritten here; other than that, what each request accepts stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from ringfold.fuzz.trace import (
    Commit,
    Donate,
    Evict,
    Fork,
    Free,
    Hit,
    Idle,
    Operation,
    Place,
    Repeat,
    Request,
    Restore,
    Verify,
)
from ringfold.sim.cursors import Cursors, committed
from ringfold.sim.dialects import DIALECTS, protocol_of
from ringfold.sim.setup import Setup

UNREACHABLE: Final = frozenset(
    {"none accepted, no fold", "none accepted after a fold", "ragged batch"}
)
"""Situations of `ringfold.sim.situations` in which no server ever is."""


def in_lockstep(operations: Sequence[Operation], setup: Setup) -> tuple[Operation, ...]:
    """The same history with full windows, each batch committed at once.

    A request that was freed with its window in flight accepts one of it. Where a fork's source now
    waits with records, the fork is left out, with all that its request would do.
    """
    return tuple(_Server(setup).serve(operations))


class _Server:
    """Rewrites operations one by one, with an eye on who waits with records."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.dialect = setup, DIALECTS[setup.dialect]
        self.protocol = protocol_of(setup)
        self.fresh = self.protocol.reset(setup.ring, setup.window)
        self.cursors: dict[Request, Cursors | None] = {}
        """Of those who are not fresh; None where that is not known, after a repeat."""
        self.absent: set[Request] = set()
        """Who was left out."""
        self.lacking: set[int] = set()
        """Prefixes that nobody has left."""

    def serve(self, operations: Sequence[Operation]) -> Iterator[Operation]:
        commits = {o.tag: o for o in operations if isinstance(o, Commit)}
        for operation in operations:
            match operation:
                case Verify(tag=tag):
                    yield from self._step(operation, commits.get(tag))
                case Commit():
                    pass  # it came right after its verify
                case Idle(rows=rows):
                    yield replace(operation, rows=min(rows, self.setup.slots - 1))
                case Repeat(operations=inside):
                    yield replace(operation, operations=tuple(self.serve(inside)))
                    self.cursors = dict.fromkeys(self.cursors)
                case _ if self._comes_or_goes(operation):
                    yield operation

    def _comes_or_goes(self, operation: Operation) -> bool:
        """Follow a request; returns whether the operation can be done."""
        match operation:
            case Fork(request=request, source=source):
                at = self.cursors.get(source, self.fresh)
                if source in self.absent or at is None or at.write_pos:
                    self.absent.add(request)
            case Place(request=request, records=records, base=base, flush=flush):
                self.cursors[request] = Cursors(records, base, int(flush))
            case Restore(request=request) if self.dialect.saves == "state":
                self.cursors.pop(request, None)
            case Free(request=request):
                self.cursors.pop(request, None)
            case Donate(request=request, prefix=prefix):
                self.cursors.pop(request, None)
                (self.lacking.add if request in self.absent else self.lacking.discard)(prefix)
            case Hit(request=request, prefix=prefix) if prefix in self.lacking:
                self.absent.add(request)
            case Evict(prefix=prefix):
                return prefix not in self.lacking
        return getattr(operation, "request", None) not in self.absent

    def _step(self, verify: Verify, commit: Commit | None) -> Iterator[Operation]:
        accepted = commit.accepted if commit else (1,) * len(verify.rows)
        pairs = [
            (None, None) if row is None or row in self.absent else (row, n or 1)
            for row, n in zip(verify.rows, accepted, strict=True)
        ]
        while len(pairs) >= self.setup.slots and (None, None) in pairs:
            pairs.remove((None, None))
        rows, counts = zip(*pairs, strict=True)
        T = self.setup.window
        yield replace(verify, rows=rows, lengths=(T,) * len(rows))
        commit = commit or Commit(tag=verify.tag, accepted=())
        yield replace(commit, accepted=counts, bound=None)
        for row, n in pairs:
            if row is not None and n is not None:
                at = self.cursors.get(row, self.fresh)
                if at is not None:
                    self.cursors[row] = committed(self.protocol, at, n, self.setup.ring, T)
