"""States that are stored apart are judged for as long as somebody may begin from them.

The target is the snapshots machine with two slots more a request, in which in turn a commit stores
the state of a token inside its window, and a prompt that of its last whole chunk; one of these is
what a prefix cache takes of it. Right, it agrees with the recurrence however much later the prefix
is left and begun from, with dead memory full of NaN. Each fault must be found where it is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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

SETUP = Setup("snapshots", Geometry(1, 2, 4, 4), ring=8, window=2, slots=20, convolution=4)
CHUNK = 3


class Stored(NamedTuple):
    """A slot, and how many tokens its request had been fed at the state in it, if it holds one."""

    slot: int
    length: int | None


class Apart(SimulatedTarget):
    """Stores states apart, and gives them away; with a fault, if it is told one."""

    operations = SimulatedTarget.operations | {"track", "cut", "store", "prefill", "branch"}
    keeps_tracked = True
    tracked_chunk = CHUNK

    def __init__(self, fault: str = "") -> None:
        super().__init__("sim@snapshots", Snapshots)
        self.fault = fault
        self.apart: dict[Request, list[Stored]] = {}
        """Of each request, the last one last."""
        self.fed: dict[Request, int] = {}
        self.places: dict[Request, dict[str, int]] = {}

    def admit(self, request: Request, *given: Any) -> None:
        """With two slots more."""
        super().admit(request, *given)
        self._own(request)

    def free(self, request: Request) -> None:
        """All of them."""
        for slot, _ in self.apart.pop(request):
            self.slots.give(slot)
        super().free(request)

    def seat(self, request: Request) -> Mapping[str, int]:
        """Its own slot, and that of what was stored last."""
        return self.places[request]

    def track(
        self, rows: Sequence[Request | None], accepted: Sequence[int], bound: int, tokens: int
    ) -> None:
        """Commit, and store what stands in the window behind so many tokens."""
        memory, front = self.machine.memory, self.front
        assert isinstance(front, Convolution)
        for row, n in zip(rows, accepted, strict=True):
            if row is not None and n >= tokens:
                own, other = self.seats[row], self._turn(row, self.fed[row] + tokens)
                after = min(n, tokens + (self.fault == "a token late"))
                place = self.machine.places(np.array([own]))[0]
                memory["checkpoint"][:, other] = memory["snapshots"][:, place, after - 1]
                kept = n if self.fault == "another window" else tokens
                window = np.concatenate([front.memory, front.drafted[..., :kept]], axis=-1)
                front.memory[:, other] = window[:, own, :, -3:]
        self._commit(rows, accepted, bound)

    def commit(self, rows: Sequence[Request | None], accepted: Sequence[int], bound: int) -> None:
        """Nothing is stored apart."""
        self._commit(rows, accepted, bound)
        which = {"every commit stores": -1, "every commit stores in turn": 0}.get(self.fault)
        for row in rows if which is not None else ():
            if row is not None:
                self._store(row, which)

    def prefill(
        self,
        rows: Sequence[Request],
        lengths: Sequence[int],
        inputs: Inputs,
        branch: int | None = None,
    ) -> NDArray[Any]:
        """Row by row, token by token."""
        outputs = np.zeros(inputs.v.shape, inputs.v.dtype)
        end, late = 0, self.fault == "a prompt is a token late"
        for row, length in zip(rows, lengths, strict=True):
            last = length // CHUNK * CHUNK
            if branch and length > branch and self.fault != "no branch":
                last = branch
            for token in range(length):
                one = Inputs(*(x[:, end + token : end + token + 1] for x in inputs))
                outputs[:, end + token] = self.decode([row], one)[:, 0]
                if token + 1 - late == last:
                    self._turn(row, self.fed[row] - late)
                    self.apart[row][0] = self.apart[row][0]._replace(length=None)
                    self._store(row)
            end += length
        return outputs

    def decode(
        self, rows: Sequence[Request | None], inputs: Inputs, stores: Sequence[Request] = ()
    ) -> NDArray[Any]:
        """One more of each."""
        self._feed(rows, [1] * len(rows))
        outputs = super().decode(rows, inputs)
        for row in stores:
            self._turn(row, self.fed[row])
            if self.fault != "a plain step stores nothing":
                self._store(row)
        return outputs

    def donate(self, request: Request, prefix: int, cut: int = 0) -> Mapping[str, int]:
        """One of the slots stays taken: the last that ends before what is cut off."""
        if self.fault == "its newest state":
            self._store(request)
        own, count, (first, last) = self.seats.pop(request), self.fed[request], self.apart[request]
        del self.apart[request]
        key = count - cut
        fits = [one for one in (last, first) if one.length is not None and one.length <= key]
        if self.fault == "a later state":
            fits = [last._replace(length=min(key, last.length or 0))]
        if self.fault == "the other slot" and cut:
            fits = [last._replace(length=one.length) for one in fits]
        kept = fits[0] if fits else None
        if self.fault == "its own slot" and kept is not None:
            own, kept = kept.slot, kept._replace(slot=own)
        self.slots.give(own)
        for slot in {first.slot, last.slot} - {kept.slot if kept else None, own}:
            self.slots.give(slot)
        if kept is None or kept.length is None:
            return {}
        self.prefixes[prefix] = kept.slot
        if self.fault == "given away":
            self.slots.give(kept.slot)
        return {"slot": kept.slot, "behind": count - kept.length}

    def hit(self, request: Request, prefix: int) -> None:
        """On a copy of the latest prefix, at fault."""
        super().hit(request, max(self.prefixes) if self.fault == "another prefix" else prefix)
        self._own(request)

    def _own(self, request: Request) -> None:
        self.apart[request] = [Stored(self.slots.take(), None) for _ in range(2)]
        self.fed[request] = 0
        self.places[request] = {**super().seat(request), "track": self.apart[request][-1].slot}

    def _turn(self, request: Request, length: int) -> int:
        """The slot in which the state after so many tokens is to be stored."""
        first, last = self.apart[request]
        self.apart[request] = [last, Stored(first.slot, length)]
        self.places[request]["track"] = first.slot
        return first.slot

    def _commit(self, rows: Sequence[Request | None], accepted: Sequence[int], bound: int) -> None:
        super().commit(rows, accepted, bound)
        self._feed(rows, accepted)

    def _feed(self, rows: Sequence[Request | None], counts: Sequence[int]) -> None:
        for row, count in zip(rows, counts, strict=True):
            if row is not None:
                self.fed[row] += count

    def _store(self, request: Request, which: int | None = -1) -> None:
        own, other = self.seats[request], self.apart[request][which or 0].slot
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


@pytest.mark.parametrize("fault", ["", "no branch"])
def test_a_prompt_that_branches_is_stored_there(fault: str) -> None:
    """And not at its last whole chunk, unless it ends with the branch."""
    history = trace(
        Admit(request=0, tag=0),
        Admit(request=1, tag=1),
        Prefill(tag=2, rows=(0, 1), lengths=(64, 68), branch=64, dead="nan"),
        *step(3, 0, 1),
        Donate(request=1, prefix=0, dead="nan"),
        Hit(request=2, prefix=0),
        *step(4, 2),
    )
    walked = walking.walk(history, Apart(fault))

    assert walked.skipped == {}
    assert [m.kind for m in walked.mismatches[:1]] == (["prefill"] if fault else [])


@pytest.mark.parametrize("fault", ["", "a plain step stores nothing"])
def test_a_plain_step_stores_whom_it_says(fault: str) -> None:
    """In a batch with others, and who is stored twice goes back to the first."""
    history = trace(
        *(Admit(request=number, tag=number) for number in range(2)),
        Decode(tag=2, rows=(0, 1), stores=(1,), dead="nan"),
        Decode(tag=3, rows=(1, None, 0), stores=(0, 1), dead="nan"),
        Decode(tag=4, rows=(0, 1), dead="nan"),
        Donate(request=0, prefix=0, dead="nan"),
        Donate(request=1, prefix=1, cut=2, dead="nan"),
        Hit(request=2, prefix=0),
        Hit(request=3, prefix=1),
        Decode(tag=5, rows=(2, 3)),
    )
    walked = walking.walk(history, Apart(fault))

    assert walked.skipped == {}
    assert [m.kind for m in walked.mismatches[:1]] == (["decode"] if fault else [])


CUT = trace(
    Admit(request=0, tag=0),
    Admit(request=1, tag=1, dead="nan"),
    *step(2, 0, 1, track=1),
    *step(3, 1, 0, track=2),
    Donate(request=0, prefix=0, cut=1, dead="nan"),
    *step(4, 1),
    Donate(request=1, prefix=1, cut=2, dead="nan"),
    Hit(request=3, prefix=0, dead="nan"),
    Hit(request=4, prefix=1, dead="nan"),
    *step(5, 4, 3, track=2),
    Donate(request=3, prefix=2, cut=1, dead="nan"),
    Hit(request=5, prefix=2),
    *step(6, 4, 5),
)
"""The last state lies in what is cut off, and so the one before is kept; or just in front of it; or
in it, and there is none before."""


def test_a_prefix_ends_before_what_is_cut_off() -> None:
    """Where nothing is kept, whoever would begin from that is padding."""
    walked = walking.walk(CUT, Apart())

    assert walked.mismatches == []
    assert walked.skipped == {"hit": 1}


@pytest.mark.parametrize(
    ("fault", "kind", "symptom"),
    [
        ("a later state", "donate", "a prefix ends where no state was stored that it may be"),
        ("the other slot", "donate", "the tracked state is not the committed one"),
        ("every commit stores in turn", "commit", "checkpoint changed where this operation may"),
    ],
)
def test_what_is_cut_off_is_in_no_prefix(fault: str, kind: str, symptom: str) -> None:
    """Neither under the name of what is left, nor where the older state lies."""
    first = walking.walk(CUT, Apart(fault)).mismatches[0]

    assert first.kind == kind
    assert first.symptom.startswith(symptom)


def test_a_target_that_cuts_nothing_off_leaves_all() -> None:
    """The walk says so."""
    target = SimulatedTarget("sim@snapshots", Snapshots)
    history = trace(Admit(request=0, tag=0), *step(2, 0), Donate(request=0, prefix=0, cut=1))
    walked = walking.walk(history, target)

    assert walked.mismatches == []
    assert walked.skipped == {"cut": 1}


@pytest.mark.parametrize("ending", [Free(request=0), Save(request=0)])
def test_who_leaves_has_nothing_kept(ending: Operation) -> None:
    """The slot is dead then, whoever gets it."""

    class Leaves(Apart):
        def save(self, request: Request) -> None:
            super().save(request)
            for slot, _ in self.apart.pop(request):
                self.slots.give(slot)

    later: list[Operation] = [Admit(request=1, tag=3), Admit(request=2, tag=4)]
    history = trace(Admit(request=0, tag=0), *step(2, 0, track=2), ending, *later)

    assert walking.walk(history, Leaves()).mismatches == []


def test_a_prefix_of_whom_nothing_was_stored_is_refused() -> None:
    """Nobody can say what it must hold."""
    history = trace(Admit(request=0, tag=0), *step(2, 0), Donate(request=0, prefix=0))

    with pytest.raises(RefusedError, match="request 0 leaves a prefix, but its cache keeps"):
        walking.walk(history, Apart())
