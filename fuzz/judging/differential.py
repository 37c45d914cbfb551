"""What the parts of a walk share: a target and those who know something of it, side by side.

The oracle (`truth`), the protocol (`ledger`), the target, a twin if the target has one, and the
`judge` who compares. A verb is called on the target and on its twin alike.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from ringfold.fuzz.histories.payload import PADDING, Payload, tokens_of
from ringfold.fuzz.histories.trace import Trace
from ringfold.fuzz.judging.checks import eps, tiny
from ringfold.fuzz.judging.frame import Region
from ringfold.fuzz.judging.judge import Judge
from ringfold.fuzz.judging.ledger import Ledger
from ringfold.fuzz.judging.truth import Truth, Window
from ringfold.fuzz.target import Inputs, RefusedError, Request, Target, refusal
from ringfold.oracle.gdn import Parameters, Tokens, prepare

Rows = Sequence[Request | None]


class TargetError(Exception):
    """A verb of the target raised; the cause is what it raised."""


@contextmanager
def blamed() -> Iterator[None]:
    """Whatever is raised inside is the target's doing, unless it refuses a setup by name."""
    try:
        yield
    except RefusedError:
        raise
    except Exception as error:
        raise TargetError from error


class Differential:
    """A target that is to walk `trace`, not opened yet, and its company."""

    def __init__(self, trace: Trace, target: Target, payload: Payload) -> None:
        # A target follows its own protocol, whichever one the trace was written for.
        setup = msgspec.structs.replace(trace.setup, dialect=target.dialect.name)
        self.trace, self.target, self.payload, self.setup = trace, target, payload, setup
        self.dialect = target.dialect
        self.parameters = payload.parameters()
        marks = self.dialect.donates == "checkpoint" and "donate" in target.operations
        rounding = eps(setup.dtypes.state), tiny(setup.dtypes.state) / 2
        self.truth = Truth(setup, self.parameters, rounding[0], marks, rounding[1])
        self.ledger = Ledger(setup, self.dialect)
        self.twin = target.twin() if self._claims_bits() else None
        self.judge = Judge(setup, target, self.twin, self.ledger, self.truth)
        self.seconds: dict[str, float] = defaultdict(float)
        """Where the time went."""
        self.iteration = 0
        self.twins: Any = None
        """What the twin returned from the last verb."""

    def _claims_bits(self) -> bool:
        """Whether the setup's dtypes lie within the dialect's claim of a bitwise fold."""
        dtypes = self.setup.dtypes
        lossless = dtypes.state in ("float32", "float64") and dtypes.record == dtypes.activation
        return self.dialect.bitwise_fold and lossless

    def _open(self) -> None:
        with self._timed("target"), blamed():
            if because := refusal(self.target, self.setup):
                raise RefusedError(f"target {self.target.name}: {because}")
            self.target.open(self.setup, self.parameters)
            if self.twin is not None:
                self.twin.open(self.setup, self.parameters)
            self.judge.open()
        self.mirror = self.judge.mirror

    # Walking.

    def _call(self, verb: Callable[[Any], Any]) -> Any:
        """Do the same on the twin and on the target; returns what the target returned."""
        if self.twin is not None:
            with self._timed("twin"), blamed():
                self.twins = verb(self.twin)
        with self._timed("target"), blamed():
            result = verb(self.target)
        self._look()
        return result

    def _look(self) -> None:
        with self._timed("copy"), blamed():
            self.mirror.look()

    def _where(self, request: Request) -> Mapping[str, int]:
        with blamed():
            return self.target.seat(request)

    def _inputs(
        self, rows: Rows, lengths: Sequence[int], tag: int, profile: str | None = None
    ) -> Inputs:
        with self._timed("payload"):
            requests = [PADDING if row is None else row for row in rows]
            return self.payload.window(
                np.array(requests), np.array(lengths), tag, self.iteration, profile
            )

    def _window(self, rows: Rows, lengths: Sequence[int], inputs: Inputs) -> Window:
        """The real rows of a batch, with what the recurrence makes of their tokens."""
        real = [i for i, row in enumerate(rows) if row is not None]
        A_log, dt_bias = (x[:, None, None, :] for x in self.parameters[:2])
        with self._timed("oracle"):
            tokens = Tokens(*(x[:, real] for x in tokens_of(inputs, np.asarray(lengths))))
            requests = [row for row in rows if row is not None]
            counts = np.array([lengths[i] for i in real], np.int64)
            tokens, behind = self.truth.convolved(requests, tokens, counts)
            updates = prepare(tokens, Parameters(A_log, dt_bias, self.setup.l2norm))
        return Window(requests, real, counts, updates, behind)

    # Judging.

    def _judge_frame(self, allowed: Mapping[str, Iterable[Region]]) -> None:
        with self._timed("checks"):
            self.judge.frame(self.ledger.spared(allowed))

    def _judge_state(self, requests: Sequence[Request], *, restart: bool = False) -> None:
        with self._timed("checks"):
            self.judge.state(requests, restart=restart)

    def _judge_stored(self, requests: list[Request]) -> None:
        """Judge checkpoints that were just written; from here on, judge from what they hold."""
        with self._timed("oracle"):
            self.truth.stored(requests)
        self._judge_state(requests, restart=True)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - start
