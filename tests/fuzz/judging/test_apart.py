"""States that are stored apart are judged for as long as somebody may begin from them.

The target is the snapshots machine with a second slot a request, in which a commit stores the state
of a token inside its window, and a prompt that of its last whole chunk; that slot is what a prefix
cache takes of it. Right, it agrees with the recurrence however much later the prefix is left and
begun from, with dead memory full of NaN. Each fault must be found where it is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ringfold.fuzz.histories.trace import (
    Admit,
    Commit,
    Decode,
    Donate,
    Evict,
    Free,
    Hit,
    Idle,
    Operation,
    PayloadSpec,
    Prefill,
    Save,
    Trace,
    Verify,
    validate,
)
from ringfold.fuzz.judging import walk as walking
from ringfold.fuzz.target import Inputs, RefusedError, Request
from ringfold.fuzz.targets.simulated import SimulatedTarget
from ringfold.sim.convolution import Convolution
from ringfold.sim.setup import Geometry, Setup
from ringfold.sim.snapshots import Snapshots

SETUP = Setup("snapshots", Geometry(1, 2, 4, 4), ring=8, window=2, slots=14, convolution=4)
CHUNK = 3


class Apart(SimulatedTarget):
    """Stores states apart, and gives them away; with a fault, if it is told one."""

    operations = SimulatedTarget.operations | {"track", "prefill"}
    keeps_tracked = True
    tracked_chunk = CHUNK

    def __init__(self, fault: str = "") -> None:
        super().__init__("sim@snapshots", Snapshots)
        self.fault = fault
        self.apart: dict[Request, int] = {}

    def admit(self, request: Request, *given: Any) -> None:
        """With a second slot."""
        super().admit(request, *given)
        self.apart[request] = self.slots.take()

    def free(self, request: Request) -> None:
        """Both of them."""
        self.slots.give(self.apart.pop(request))
        super().free(request)

    def seat(self, request: Request) -> Mapping[str, int]:
        """Both of them."""
        return {**super().seat(request), "track": self.apart[request]}

    def track(
        self, rows: Sequence[Request | None], accepted: Sequence[int], bound: int, tokens: int
    ) -> None:
        """Commit, and store what stands in the window behind so many tokens."""
        memory, front = self.machine.memory, self.front
        assert isinstance(front, Convolution)
        for row, n in zip(rows, accepted, strict=True):
            if row is not None and n >= tokens:
                own, other = self.seats[row], self.apart[row]
                after = min(n, tokens + (self.fault == "a token late"))
                place = self.machine.places(np.array([own]))[0]
                memory["checkpoint"][:, other] = memory["snapshots"][:, place, after - 1]
                kept = n if self.fault == "another window" else tokens
                window = np.concatenate([front.memory, front.drafted[..., :kept]], axis=-1)
                front.memory[:, other] = window[:, own, :, -3:]
        super().commit(rows, accepted, bound)

    def commit(self, rows: Sequence[Request | None], accepted: Sequence[int], bound: int) -> None:
        """Nothing is stored apart."""
        super().commit(rows, accepted, bound)
        for row in rows if self.fault == "every commit stores" else ():
            if row is not None:
                self._store(row)

    def prefill(
        self, rows: Sequence[Request], lengths: Sequence[int], inputs: Inputs
    ) -> NDArray[Any]:
        """Row by row, token by token."""
        outputs = np.zeros(inputs.v.shape, inputs.v.dtype)
        end, late = 0, self.fault == "a prompt is a token late"
        for row, length in zip(rows, lengths, strict=True):
            for token in range(length):
                one = Inputs(*(x[:, end + token : end + token + 1] for x in inputs))
                outputs[:, end + token] = self.decode([row], one)[:, 0]
                if token + 1 - late == length // CHUNK * CHUNK:
                    self._store(row)
            end += length
        return outputs

    def donate(self, request: Request, prefix: int) -> Mapping[str, int]:
        """The second slot stays taken."""
        if self.fault == "its newest state":
            self._store(request)
        own, other = self.seats.pop(request), self.apart.pop(request)
        if self.fault == "its own slot":
            own, other = other, own
        self.prefixes[prefix] = other
        self.slots.give(own)
        if self.fault == "given away":
            self.slots.give(other)
        return {"slot": other}

    def hit(self, request: Request, prefix: int) -> None:
        """On a copy of the latest prefix, at fault."""
        super().hit(request, max(self.prefixes) if self.fault == "another prefix" else prefix)
        self.apart[request] = self.slots.take()

    def _store(self, request: Request) -> None:
        own, other = self.seats[request], self.apart[request]
        self.front.copy(own, other)
        self.machine.copy(own, other)


def step(tag: int, *rows: int, track: int | None = None) -> list[Operation]:
    """A window of two, of which all is kept."""
    twos = (2,) * len(rows)
    commit = Commit(tag=tag, accepted=twos, track=track, dead="nan")
    return [Verify(tag=tag, rows=rows, lengths=twos), commit]


def trace(*operations: Operation) -> Trace:
    made = Trace(
        setup=SETUP,
        payload=PayloadSpec(seed=1, profile="slow-decay"),
        operations=operations,
    )
    validate(made)
    return made


HISTORY = trace(
    Admit(request=0, tag=0),
    Admit(request=1, tag=1, dead="nan"),
    *step(2, 0, 1, track=1),
    Prefill(tag=3, rows=(1,), lengths=(4,), dead="nan"),
    *step(4, 1, 0),
    Idle(rows=2),
    Decode(tag=5, rows=(0, 1)),
    Donate(request=0, prefix=0, dead="nan"),
    Admit(request=2, tag=6, dead="nan"),
    *step(7, 2, 1),
    Donate(request=1, prefix=1, dead="nan"),
    Hit(request=3, prefix=0, dead="nan"),
    Hit(request=4, prefix=1, dead="nan"),
    *step(8, 4, 2, 3),
    Evict(prefix=0, dead="nan"),
    Hit(request=5, prefix=1),
    *step(9, 5),
)


def test_older_states_agree_however_late_they_are_looked_at() -> None:
    """Of a window's first token, and of a prompt's chunk that takes its place."""
    walked = walking.walk(HISTORY, Apart())

    assert walked.mismatches == []
    assert walked.skipped == {}


@pytest.mark.parametrize(
    ("fault", "kind", "check"),
    [
        ("a token late", "commit", "state-local"),
        ("another window", "commit", "convolution"),
        ("a prompt is a token late", "prefill", "state-local"),
        ("every commit stores", "commit", "frame"),
        ("its newest state", "donate", "frame"),
        ("its own slot", "donate", "state-local"),
        ("given away", "admit", "frame"),
        ("another prefix", "hit", "convolution"),
    ],
)
def test_faults_are_found_where_they_are_made(fault: str, kind: str, check: str) -> None:
    """In the slot that was written, moved or given away, and not first in an output."""
    first = walking.walk(HISTORY, Apart(fault)).mismatches[0]

    assert (first.kind, first.check) == (kind, check)


@pytest.mark.parametrize("ending", [Free(request=0), Save(request=0)])
def test_who_leaves_has_nothing_kept(ending: Operation) -> None:
    """The slot is dead then, whoever gets it."""

    class Leaves(Apart):
        def save(self, request: Request) -> None:
            super().save(request)
            self.slots.give(self.apart.pop(request))

    later: list[Operation] = [Admit(request=1, tag=3), Admit(request=2, tag=4)]
    history = trace(Admit(request=0, tag=0), *step(2, 0, track=2), ending, *later)

    assert walking.walk(history, Leaves()).mismatches == []


def test_a_prefix_of_whom_nothing_was_stored_is_refused() -> None:
    """Nobody can say what it must hold."""
    history = trace(Admit(request=0, tag=0), *step(2, 0), Donate(request=0, prefix=0))

    with pytest.raises(RefusedError, match="request 0 leaves a prefix, but its cache keeps"):
        walking.walk(history, Apart())
