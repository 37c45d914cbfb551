"""Requests come and go: admitted, freed, forked, saved and restored, donated and hit, placed.

Each operation is done by the target, written down in the ledger and in the truth, and judged: what
it may have written, the cursors it left, and the state that whoever was seated stands for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.histories.payload import Payload
from ringfold.fuzz.histories.trace import (
    Admit,
    Donate,
    Evict,
    Fork,
    Free,
    Hit,
    Operation,
    Place,
    Restore,
    Save,
    Trace,
)
from ringfold.fuzz.judging.differential import Differential, blamed
from ringfold.fuzz.judging.placing import place
from ringfold.fuzz.judging.truth import ERROR, LOCAL, STATE, Kept, Window
from ringfold.fuzz.target import Inputs, RefusedError, Request, Target
from ringfold.sim.cursors import Cursors


class Apart(NamedTuple):
    """A state that was stored apart of a request."""

    kept: Kept
    slot: int
    behind: int
    """Tokens that the request was fed since."""


class Lives(Differential):
    """The half of a walk that seats requests and takes them from their seats."""

    def __init__(self, trace: Trace, target: Target, payload: Payload) -> None:
        super().__init__(trace, target, payload)
        self.unseated: set[Request] = set()
        """Whom a skipped operation would have seated: padding from then on."""
        self.saved: dict[Request, Kept] = {}
        self.prefixes: dict[int, tuple[Kept, bool]] = {}
        """What the prefix cache keeps, and whether records were folded into it on the way."""
        self.apart: dict[Request, list[Apart]] = {}
        """What was stored apart of each request and may be there still, the last one last."""
        self.older: set[int] = set()
        """Prefixes that were such states."""
        self.skipped: Counter[str] = Counter()

    def _move(self, operation: Operation) -> None:
        """One request comes, goes or changes its place."""
        match operation:
            case Free(request=request):
                self._free(request)
            case Fork(request=request, source=source):
                self._fork(request, source)
            case Save(request=request):
                self._save(request)
            case Restore(request=request):
                self._restore(request)
            case Donate():
                self._donate(operation)
            case Hit(request=request, prefix=prefix):
                self._hit(request, prefix)
            case Evict(prefix=prefix):
                self._evict(prefix)

    def _can(self, together: Sequence[Operation]) -> bool:
        """Whether it can be done after what was skipped."""
        operation = together[0]
        match operation:
            case Place() if self.setup.convolution:
                return False  # nobody knows the projections that its records were made of
            case Admit() | Place():
                return self.ledger.vacant >= len(together)
            case Fork(source=source):
                # What was skipped would have brought the source where it can be copied.
                empty = source in self.ledger and not self.ledger.entry(source).cursors.write_pos
                return empty and self.ledger.vacant > 0
            case Save(request=request) | Donate(request=request):
                return request in self.ledger
            case Restore(request=request):
                return request in self.ledger.saved
            case Hit(prefix=prefix):
                return prefix in self.ledger.prefixes and self.ledger.vacant > 0
            case Evict(prefix=prefix):
                return prefix in self.ledger.prefixes
            case _:
                return True

    def _skip(self, kind: str, operation: Operation) -> None:
        """Leave an operation out; whom it would have seated is padding from now on."""
        self.skipped[kind] += 1
        match operation:
            case (
                Admit(request=request)
                | Fork(request=request)
                | Place(request=request)
                | Hit(request=request)
            ):
                self.unseated.add(request)
            case Restore(request=request) if request in self.ledger.saved:
                self.unseated.add(request)
            case Donate(request=request):
                self._free(request)
            case _:
                pass

    def _seat(self, seats: Sequence[Admit | Place]) -> NDArray[np.float32]:
        """Admit requests; returns their states [layer, row, HV, V, K]."""
        requests = [seat.request for seat in seats]
        key = np.array(requests), np.array([seat.tag for seat in seats]), self.iteration
        pasts = None
        with self._timed("payload"):
            states = self.payload.states(*key)
            if self.setup.convolution:
                pasts = self.payload.pasts(*key)

        def admit(target: Any) -> None:
            if hasattr(target, "admit_all"):
                target.admit_all(requests, states)
                return
            for row, request in enumerate(requests):
                past = () if pasts is None else (pasts[:, row],)
                target.admit(request, states[:, row], *past)

        self._call(admit)
        for request in requests:
            self.ledger.admit(request, self._where(request))
        with self._timed("oracle"):
            self.truth.admit_all(requests, states.astype(np.float64), pasts)
        self._judge_frame(self.ledger.admit_may_write(requests))
        self.judge.cursors()
        self.judge.convolution(requests)
        return states

    def _free(self, request: Request) -> None:
        if request in self.unseated:
            self.unseated.remove(request)
            return
        self._call(lambda target: target.free(request))
        self._judge_frame({})
        self.ledger.free(request)
        self.truth.free(request)
        self.apart.pop(request, None)
        self.judge.unproven.discard(request)

    def _fork(self, request: Request, source: Request) -> None:
        self._call(lambda target: target.fork(request, source))
        self._seat_copy(request, self.truth.take(source))
        self.judge.state([request, source])

    def _seat_copy(self, request: Request, kept: Kept) -> None:
        """A request was seated on a copy of another one's checkpoint."""
        self.ledger.admit(request, self._where(request))
        self.truth.seat(request, kept)
        self._judge_frame(self.ledger.admit_may_write([request]))
        self.judge.cursors()
        self.judge.convolution([request])

    def _save(self, request: Request) -> None:
        self._call(lambda target: target.save(request))
        self._judge_frame(self.ledger.save_may_write(request))
        self.ledger.save(request)
        self.saved[request] = self.truth.take(request)
        self.truth.free(request)
        self.apart.pop(request, None)

    def _restore(self, request: Request) -> None:
        self._call(lambda target: target.restore(request))
        folded = self.ledger.restore(request, self._where(request))
        self.truth.seat(request, self.saved.pop(request))
        self._judge_frame(self.ledger.admit_may_write([request]))
        self.judge.cursors()
        self.judge.convolution([request])
        if folded:
            self.judge.exactness([request])
            self._judge_stored([request])
        else:
            self._judge_state([request])

    def _donate(self, operation: Donate) -> None:
        """A prefix is what the request holds, or what was stored apart of it before."""
        request, prefix, cut = operation.request, operation.prefix, operation.cut
        if cut and "cut" not in self.target.operations:
            self.skipped["cut"] += 1
            cut = 0
        tracked = getattr(self.target, "keeps_tracked", False)
        if tracked and request not in self.apart:
            raise RefusedError(
                f"target {self.target.name}: request {request} leaves a prefix, but its cache "
                "keeps tracked states and there is none: track one of its tokens before"
            )
        waiting = self.ledger.entry(request).lag > 0
        whole = self.dialect.donates == "state"
        if not tracked:
            kept = self.truth.take(request) if whole else self.truth.take_checkpoint(request)
            self.prefixes[prefix] = kept, whole and waiting
        given = (cut,) if cut else ()
        seat = self._call(lambda target: target.donate(request, prefix, *given))
        self._judge_frame(self.ledger.donate_may_write(request))
        self.truth.free(request)
        self.judge.unproven.discard(request)
        stored = self.apart.pop(request, [])
        if tracked and not seat:
            self.ledger.free(request)
            return
        self.ledger.donate(request, prefix, seat)
        if not tracked:
            return
        # The last, or if that lies in what was cut off, or was not told of, one before it.
        last = stored[-1]
        older = "overlap" in self.target.operations or last.behind < cut
        may_be = [one for one in stored if one is last or (older and one.behind >= cut)]
        behind = seat.get("behind", last.behind)
        self.older.add(prefix)
        for one in may_be:
            if one.behind == behind:
                self.prefixes[prefix] = one.kept, False
                self._judge_older(request, prefix)
                return
        self.judge.misnamed(request, behind, [one.behind for one in may_be])

    def _hit(self, request: Request, prefix: int) -> None:
        kept, folded = self.prefixes[prefix]
        self._call(lambda target: target.hit(request, prefix))
        self._judge_older(request, prefix)
        self._seat_copy(request, kept)
        self.judge.level([request])  # its bits were compared when they were folded
        if folded:
            self._judge_stored([request])
        else:
            self._judge_state([request])

    def _evict(self, prefix: int) -> None:
        self._call(lambda target: target.evict(prefix))
        self._judge_frame({})
        self.ledger.evict(prefix)
        self.older.discard(prefix)
        del self.prefixes[prefix]

    def _store_apart(self, window: Window, counts: NDArray[np.int64]) -> list[Kept]:
        """Where requests are after `counts` [row] tokens of a window, which are not committed yet.

        What was stored there before is given up.
        """
        if not window.requests:
            return []
        self.ledger.let_go(window.requests)
        with self._timed("oracle"):
            return self.truth.ahead(window, counts)

    def _fed(self, requests: Iterable[Request], counts: Iterable[int]) -> None:
        """So many tokens [row] more; what was stored apart before is as much older."""
        for request, count in zip(requests, counts, strict=True):
            stored = self.apart.get(request, [])
            stored[:] = [one._replace(behind=one.behind + int(count)) for one in stored]

    def _judge_apart(
        self,
        requests: list[Request],
        kept: list[Kept],
        behind: NDArray[np.int64],
        tokens: int | None = None,
    ) -> None:
        """Judge what was stored apart; from then on nobody may write there.

        So many tokens `behind` [row] it the requests are by now. It is the state after so many
        `tokens` of a window; without, it is of a prompt, and takes the place of all others.
        """
        if not requests:
            return
        with self._timed("checks"):
            slots = self.ledger.seats(requests, "track").tolist()
            got = self.judge.tracked(requests, slots, kept)
            self.judge.same_tracked(requests, tokens or 0)
        for row, (request, where) in enumerate(zip(requests, kept, strict=True)):
            # Who looks at it later looks for these bits.
            where[STATE][LOCAL], where[ERROR][LOCAL] = got[:, row], 0.0
            older = self.apart.get(request, []) if tokens is not None else []
            left = [one for one in older if one.slot != slots[row]]
            self.apart[request] = [*left, Apart(where, slots[row], int(behind[row]))]
            self.ledger.hold(request, [one.slot for one in self.apart[request]])

    def _judge_older(self, request: Request, prefix: int) -> None:
        """Judge once more a prefix that was stored apart, where it lies now."""
        if prefix in self.older:
            with self._timed("checks"):
                slot = self.ledger.prefixes[prefix]["slot"]
                self.judge.tracked([request], [slot], [self.prefixes[prefix][0]])

    def _place(self, places: Sequence[Place]) -> None:
        """Seat requests in the middle of their protocol: checkpoint, records, cursors at once."""
        requests = [p.request for p in places]
        states = self._seat(places)
        if not self.dialect.has_ring:
            self.judge.state(requests)
            return
        counts = [p.records for p in places]
        inputs = Inputs(
            *(
                np.concatenate(parts, axis=1)
                for parts in zip(
                    *(self._inputs([p.request], [p.records], p.tag, p.profile) for p in places),
                    strict=True,
                )
            )
        )
        window = self._window(requests, counts, inputs)
        each = [self.ledger.placed(p.records, p.base, p.flush) for p in places]
        cursors = Cursors(*np.array(each, np.int64).T)
        with blamed():
            place(self.target, requests, cursors, states, inputs, window)
        self._look()
        self.ledger.move(requests, cursors)
        with self._timed("oracle"):
            self.truth.commit(window, window.lengths)
        # Their gates were rounded by us and not by the target's kernels.
        self.judge.unproven.update(requests)
        self.judge.cursors()
        self.judge.state(requests)
