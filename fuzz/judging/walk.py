"""The differential walk: one history, walked by all who know something of it, compared throughout.

The oracle walks the recurrence (`truth`), the protocol its cursors (`ledger`), the target itself,
and a twin, if the target has one, the target's own recurrent kernel. After every operation the
`judge` compares. After a finding that leaves the target's memory meaningful (frame, exactness) the
walk goes on; after any other it stops, since what follows would only repeat it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.histories.payload import Payload, load_tensors
from ringfold.fuzz.histories.trace import (
    CHUNK,
    Admit,
    Commit,
    Decode,
    Idle,
    Operation,
    Place,
    Prefill,
    Trace,
    Verify,
    unroll,
)
from ringfold.fuzz.judging.differential import Rows, TargetError, blamed
from ringfold.fuzz.judging.frame import Dead
from ringfold.fuzz.judging.judge import Position
from ringfold.fuzz.judging.lives import Lives
from ringfold.fuzz.judging.mismatch import CONTINUES, Mismatch
from ringfold.fuzz.judging.truth import Window
from ringfold.fuzz.target import Inputs, Request, Target
from ringfold.sim.cursors import Cursors
from ringfold.sim.situations import SITUATIONS, Step


class Verdict(msgspec.Struct):
    """What a walk found and what it did."""

    mismatches: list[Mismatch] = []
    windows: int = 0
    """Row-windows verified: real rows of verifies and of plain decode steps."""
    steps: int = 0
    operations: int = 0
    situations: dict[str, int] = {}
    skipped: dict[str, int] = {}
    """Operations that the target does not own, by kind."""
    largest: dict[str, float] = {}
    """Largest error that was seen, over what is allowed, by check."""
    compared: dict[str, int] = {}
    """How often each check compared something."""
    seconds: dict[str, float] = {}
    """Where the time went; what is left of the walk's own is `rest`."""
    complete: bool = True
    """False when a deadline cut the walk short."""


def at_once(
    operations: Iterable[tuple[Operation, int]],
) -> Iterator[tuple[Sequence[Operation], int]]:
    """Admissions in a row, and places in a row, as one where dead memory is left alone in between.

    All others come one by one.
    """
    seating: list[Operation] = []
    turn = 0
    for operation, iteration in operations:
        if seating and (type(operation) is not type(seating[0]) or iteration != turn):
            yield seating, turn
            seating = []
        seating.append(operation)
        turn = iteration
        if not isinstance(operation, Admit | Place) or operation.dead != "leave":
            yield seating, turn
            seating = []
    if seating:
        yield seating, turn


class Walk(Lives):
    """One walk of `trace` on `target`, which is not opened yet.

    `out_of_time` is asked before every operation; `on_windows` hears how many row-windows were
    verified, as they come.
    """

    def __init__(
        self,
        trace: Trace,
        target: Target,
        payload: Payload,
        *,
        out_of_time: Callable[[], bool] = lambda: False,
        on_windows: Callable[[int], None] = lambda count: None,
    ) -> None:
        super().__init__(trace, target, payload)
        self.out_of_time, self.on_windows = out_of_time, on_windows
        self.windows: dict[int, tuple[Rows, Window]] = {}
        self.situations: Counter[str] = Counter()
        self.poured_nan = False
        """Whether dead memory may hold NaN."""
        self.verified = self.steps = 0

    def run(self) -> Verdict:
        """Walk to the end, to the first finding that stops it, or until time is out."""
        done, complete, start = 0, True, time.perf_counter()
        try:
            self._open()
            for together, iteration in at_once(unroll(self.trace.operations)):
                if self.out_of_time():
                    complete = False
                    break
                self.iteration = iteration
                kind = type(together[0]).__name__.lower()
                done += len(together)
                self.judge.position = Position(done - 1, kind, iteration, self.steps)
                self._walk(kind, together)
                if any(m.check not in CONTINUES for m in self.judge.mismatches):
                    break
                self._poison(together[-1].dead)
        except TargetError as raised:
            self.judge.crash(raised.__cause__ or raised)
        self.seconds["rest"] = time.perf_counter() - start - sum(self.seconds.values())
        return Verdict(
            mismatches=self.judge.mismatches,
            windows=self.verified,
            steps=self.steps,
            operations=done,
            situations=dict(sorted(self.situations.items())),
            skipped=dict(sorted(self.skipped.items())),
            largest=dict(sorted(self.judge.largest.items())),
            compared=dict(sorted(self.judge.compared.items())),
            seconds={part: round(spent, 6) for part, spent in sorted(self.seconds.items())},
            complete=complete,
        )

    def _walk(self, kind: str, together: Sequence[Operation]) -> None:
        if kind not in self.target.operations or not self._can(together):
            for operation in together:
                self._skip(kind, operation)
            return
        operation = together[0]
        match operation:
            case Admit():
                admissions = [admit for admit in together if isinstance(admit, Admit)]
                self._seat(admissions)
                self._judge_state([admit.request for admit in admissions])
            case Place():
                self._place([p for p in together if isinstance(p, Place)])
            case Verify():
                self._verify(operation)
            case Commit():
                self._commit(operation)
            case Decode():
                self._decode(operation)
            case Prefill():
                self._prefill(operation)
            case Idle(rows=count):
                self._step([None] * count, [1] * count, tag=0)
            case _:
                self._move(operation)

    def _verify(self, operation: Verify) -> None:
        rows = self._seated(operation.rows)
        inputs = self._inputs(rows, operation.lengths, operation.tag, operation.profile)
        window = self._verify_batch(rows, operation.lengths, inputs)
        self.windows[operation.tag] = (rows, window)

    def _commit(self, operation: Commit) -> None:
        verified, window = self.windows.pop(operation.tag)
        # A row that isn't committed was freed in between, or is padding.
        rows = [
            None if n is None else row for row, n in zip(verified, operation.accepted, strict=True)
        ]
        kept = np.array([rows[i] is not None for i in window.batch_rows], bool)
        accepted = [0 if n is None else n for n in operation.accepted]
        track = operation.track
        if track is not None and "track" not in self.target.operations:
            self.skipped["track"] += 1
            track = None
        bound = operation.bound or self.setup.window
        self._commit_batch(rows, accepted, bound, window.rows(kept), track)

    def _prefill(self, operation: Prefill) -> None:
        """More of some prompts, in place."""
        pairs = zip(operation.rows, operation.lengths, strict=True)
        seated = [(row, n) for row, n in pairs if row not in self.unseated]
        if not seated:
            return
        rows, lengths = map(list, zip(*seated, strict=True))
        inputs = self._inputs(rows, lengths, operation.tag, operation.profile)
        window = self._window(rows, lengths, inputs)
        # Of the last whole chunk, where a target stores that state apart, or at the branch: where a
        # chunk ends, if those are longer than a trace takes them to be.
        chunk, branch = getattr(self.target, "tracked_chunk", None), operation.branch
        owned = "branch" in self.target.operations
        if branch is not None and (not owned or branch % max(CHUNK, chunk or 0)):
            self.skipped["branch"] += 1
            branch = None
        given = () if branch is None else (branch,)
        outputs = self._call(lambda target: target.prefill(rows, lengths, inputs, *given))
        counts = window.lengths // chunk * chunk if chunk else np.zeros_like(window.lengths)
        if branch is not None:
            counts = np.where(window.lengths > branch, branch, counts)
        tracked = window.rows(counts > 0)
        with self.judge.prefilling(max(lengths)):
            self._judge_outputs(outputs, rows, lengths, window)
            kept = self._store_apart(tracked, counts[counts > 0])
            self._advance_in_place(window, tracked.requests)
            self._judge_apart(tracked.requests, kept, (window.lengths - counts)[counts > 0])

    def _decode(self, operation: Decode) -> None:
        """One token a row, committed at once: in place, or as a window of one."""
        rows, ones = self._seated(operation.rows), [1] * len(operation.rows)
        if not self.dialect.decodes_in_place:
            self._step(rows, ones, operation.tag, operation.profile)
            return
        waiting = self.ledger.cursors([row for row in rows if row is not None]).write_pos
        if self.dialect.verifies and waiting.any():
            self._skip("decode", operation)  # its checkpoint is not where the request is
            return
        inputs = self._inputs(rows, ones, operation.tag, operation.profile)
        window = self._window(rows, ones, inputs)
        stores = self._stores(operation)
        given = (stores,) if stores else ()
        outputs = self._call(lambda target: target.decode(rows, inputs, *given))
        self._count(window)
        self._judge_outputs(outputs, rows, ones, window)
        if not (self.dialect.verifies and self.dialect.has_ring):
            self._visit(window, window.lengths, padding=len(rows) - len(window.requests))
        if self.dialect.verifies:
            tracked = window.rows(np.isin(window.requests, stores))
            kept = self._store_apart(tracked, tracked.lengths)
            self._advance_in_place(window, tracked.requests)
            self._judge_apart(tracked.requests, kept, np.zeros_like(tracked.lengths), tokens=1)
            return
        # A step that folds takes its own token along, so only the others record one.
        appends = window.rows(~self.ledger.folds_at_commit(window.requests, window.lengths))
        self.ledger.verify(appends.requests, appends.lengths)
        allowed = self.ledger.verify_may_write(appends.requests)
        with self._timed("checks"):
            self.judge.records(appends, inputs, ones)
        self._advance(window, window.lengths, self.setup.window)
        self._judge_frame({**allowed, **self.ledger.commit_may_write(window.requests)})
        self._judge_committed(window.requests)

    def _stores(self, operation: Decode) -> list[Request]:
        """Whose state is stored apart."""
        if operation.stores and "store" not in self.target.operations:
            self.skipped["store"] += 1
            return []
        return [row for row in operation.stores if row not in self.unseated]

    def _advance_in_place(self, window: Window, tracked: Sequence[Request] = ()) -> None:
        """All tokens were added to the checkpoints, behind what waited."""
        allowed = self.ledger.in_place_may_write(window.requests, tracked)
        self.ledger.advance_in_place(window.requests)
        self._fed(window.requests, window.lengths)
        with self._timed("oracle"):
            self.truth.commit(window, window.lengths)
        self._judge_frame(allowed)
        self.judge.cursors()
        self.judge.convolution(window.requests)
        with self._timed("checks"):
            self.judge.exactness(window.requests)
        self._judge_stored(window.requests)

    def _step(
        self, rows: Rows, lengths: Sequence[int], tag: int, profile: str | None = None
    ) -> None:
        """A verify and a commit of every token."""
        window = self._verify_batch(rows, lengths, self._inputs(rows, lengths, tag, profile))
        self._commit_batch(rows, lengths, self.setup.window, window)

    def _verify_batch(self, rows: Rows, lengths: Sequence[int], inputs: Inputs) -> Window:
        window = self._window(rows, lengths, inputs)
        outputs = self._call(lambda target: target.verify(rows, lengths, inputs))
        self._count(window)
        folds = self.ledger.verify(window.requests, window.lengths)
        folded = [window.requests[i] for i in np.flatnonzero(folds)]
        records = self.ledger.cursors(folded)
        self._judge_outputs(outputs, rows, lengths, window)
        if self.twin is not None and self.dialect.bitwise_outputs:
            owners = np.repeat([row is not None for row in rows], lengths)
            self.judge.same_outputs(outputs, self.twins, owners, window)
        self._judge_frame(self.ledger.verify_may_write(window.requests))
        with self._timed("checks"):
            self.judge.records(window, inputs, lengths)
            levelled = self.judge.exactness(folded)
        if levelled and self.twin is not None:
            self.twin.verify(rows, lengths, inputs)
        self._judge_stored(folded)
        self._judge_folds(folded, records)
        return window

    def _commit_batch(
        self,
        rows: Rows,
        accepted: Sequence[int],
        bound: int,
        window: Window,
        track: int | None = None,
    ) -> None:
        counts = np.array([accepted[i] for i in window.batch_rows], np.int64)
        self._visit(window, counts, padding=len(rows) - len(window.requests))

        def commit(target: Any) -> None:
            if track is not None and "track" in target.operations:
                target.track(rows, accepted, bound, track)
            else:
                target.commit(rows, accepted, bound)

        self._call(commit)
        self.steps += 1
        folded, records = self.ledger.folds(window.requests, counts, bound)
        keeps = counts >= track if track is not None else np.zeros(counts.shape, bool)
        tracked = window.rows(keeps)
        waited = self.ledger.cursors(tracked.requests)
        taken = waited._replace(write_pos=waited.write_pos + (track or 0))
        kept = self._store_apart(tracked, np.full(len(tracked.requests), track or 0))
        self._advance(window, counts, bound)
        self._judge_frame(self.ledger.commit_may_write(window.requests, tracked.requests))
        self._judge_apart(tracked.requests, kept, (counts - (track or 0))[keeps], track)
        self._judge_committed(window.requests)
        self._judge_folds(folded, records)
        self._judge_folds(tracked.requests, taken, "track")

    def _judge_committed(self, requests: Sequence[Request]) -> None:
        """Judge cursors and states after a commit; what it stored, as a checkpoint."""
        with self._timed("checks"):
            self.judge.cursors()
            self.judge.convolution(requests)
        were_stored = self.ledger.column("stored", requests)
        stored = [requests[i] for i in np.flatnonzero(were_stored)]
        self._judge_state([requests[i] for i in np.flatnonzero(~were_stored)])
        with self._timed("checks"):
            self.judge.exactness(stored)
        self._judge_stored(stored)

    def _judge_folds(
        self, requests: Sequence[Request], records: Cursors, where: str = "slot"
    ) -> None:
        with self._timed("checks"):
            self.judge.folds(requests, records, where)

    def _seated(self, rows: Iterable[Request | None]) -> Rows:
        """Rows of a batch; one whose request a skipped operation would have seated is padding."""
        return [None if row in self.unseated else row for row in rows]

    def _advance(self, window: Window, counts: NDArray[np.int64], bound: int) -> None:
        """Commit `counts` [row] tokens of each row, in the ledger and in the truth."""
        self.ledger.commit(window.requests, counts, bound)
        self._fed(window.requests, counts)
        with self._timed("oracle"):
            self.truth.commit(window, counts)

    def _count(self, window: Window) -> None:
        self.verified += len(window.requests)
        self.on_windows(len(window.requests))

    def _visit(self, window: Window, counts: NDArray[np.int64], padding: int) -> None:
        """Count the situations that this step is in: rows, or the batch where that decides."""
        step = Step(
            self.setup.ring,
            self.setup.window,
            self.ledger.cursors(window.requests),
            window.lengths,
            counts,
            self.ledger.column("stale", window.requests),
            padding,
            self.ledger.protocol,
        )
        for situation in SITUATIONS:
            if found := int(np.sum(situation.holds(step))):
                self.situations[situation.name] += found

    def _poison(self, how: Dead) -> None:
        """Fill dead memory; after a frame finding with finite garbage, lest it hide the rest."""
        if self.judge.mismatches and (how == "nan" or self.poured_nan):
            how = "garbage"
        if how == "leave":
            return
        self.poured_nan = how == "nan"
        with self._timed("poison"), blamed():
            self.mirror.poison(self.ledger.dead(), how)

    def _judge_outputs(
        self, outputs: NDArray[Any], rows: Rows, lengths: Sequence[int], window: Window
    ) -> None:
        with self._timed("checks"):
            owners = np.repeat([row is not None for row in rows], lengths)
            with blamed():
                self.judge.require_outputs(outputs, owners.size)
            self.judge.outputs(outputs, owners, window)


def walk(
    trace: Trace,
    target: Target,
    *,
    folder: Path = Path(),
    out_of_time: Callable[[], bool] = lambda: False,
    on_windows: Callable[[int], None] = lambda count: None,
) -> Verdict:
    """Walk `trace` on `target`, which is opened anew; explicit tensors, if any, lie in `folder`."""
    setup, spec = trace.setup, trace.payload
    tensors = load_tensors(folder / spec.tensors, setup) if spec.tensors else None
    payload = Payload(setup, spec.seed, spec.profile, tensors)
    return Walk(trace, target, payload, out_of_time=out_of_time, on_windows=on_windows).run()
