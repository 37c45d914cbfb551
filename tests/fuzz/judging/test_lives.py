"""Requests are saved and restored, donated to a prefix cache and seated on what that keeps.

Whatever the cursors are when it happens, the state that a restored request stands for must be the
one that the float64 recurrence committed, and that of a hit the one that was donated. Right
machines of every dialect agree at every number of waiting records, in another slot and after dead
memory was poisoned; the planted bugs of this kind and single nudges are found where they happen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np
import pytest

from ringfold.fuzz.findings.shrink import shrink
from ringfold.fuzz.histories.trace import (
    Admit,
    Commit,
    Decode,
    Donate,
    Evict,
    Fork,
    Free,
    Hit,
    Operation,
    PayloadSpec,
    Place,
    Restore,
    Save,
    Trace,
    Verify,
    validate,
)
from ringfold.fuzz.judging.walk import Verdict, walk
from ringfold.fuzz.planted import KINDS
from ringfold.fuzz.target import Request
from ringfold.fuzz.targets.registry import resolve
from ringfold.fuzz.targets.simulated import SimulatedTarget
from ringfold.sim.dialects import DIALECTS
from ringfold.sim.machine import Machine
from ringfold.sim.protocols import MACHINES
from ringfold.sim.ring import Ring
from ringfold.sim.setup import Dtypes, Geometry, Setup

SETUP: Final = Setup("ring", Geometry(1, 2, 16, 8), ring=8, window=2, slots=5, layers=2)
LIVES: Final = frozenset({"save", "restore", "donate", "hit", "evict"})
BEFORE: Final = (0, 2, 5, 8)
BUGS: Final = KINDS["saved and shared states"]


def steps(dialect: str, request: Request, tag: int, count: int, kept: int) -> Iterator[Operation]:
    """Windows of two with `kept` accepted, or as many tokens decoded plainly."""
    for t in range(tag, tag + count):
        if DIALECTS[dialect].verifies:
            yield Verify(tag=t, rows=(request,), lengths=(2,))
            yield Commit(tag=t, accepted=(kept,))
        else:
            yield Decode(tag=t, rows=(request,))


def history(dialect: str, before: int, kept: int = 1, **changes: Any) -> Trace:
    """Two requests and two prefixes in each other's slots; `before` steps in front of it all."""

    def run(request: Request, tag: int, count: int, kept: int = kept) -> Iterator[Operation]:
        return steps(dialect, request, tag, count, kept)

    operations = (
        Admit(request=9, tag=9),
        *run(9, 90, 1, 2),
        Admit(request=0, tag=1),
        *run(0, 10, before),
        Save(request=0),
        Admit(request=1, tag=2),
        *run(1, 30, 3, 2),
        Free(request=9),  # what it leaves is where request 0 is restored
        Restore(request=0),
        *run(0, 40, 3),
        Donate(request=0, prefix=7),
        Free(request=1),
        Hit(request=2, prefix=7),
        Hit(request=0, prefix=7),
        *run(2, 50, 2),
        *run(0, 60, 4, 2),
        Hit(request=3, prefix=7),
        Free(request=3),
        Donate(request=2, prefix=8),
        Evict(prefix=7),
        Hit(request=5, prefix=8),
        Evict(prefix=8),
        *run(5, 70, 2, 2),
        Save(request=5),
        Save(request=0),
        Restore(request=5),
        Restore(request=0),
        *run(5, 80, 1),
        *run(0, 85, 1),
    )
    dead = changes.pop("dead", "leave")
    made = Trace(
        setup=msgspec.structs.replace(SETUP, dialect=dialect, **changes),
        payload=PayloadSpec(3, "slow-decay"),
        operations=tuple(msgspec.structs.replace(o, dead=dead) for o in operations),
    )
    validate(made)
    return made


def walked(made: Trace, machine: type[Machine]) -> Verdict:
    return walk(made, SimulatedTarget(machine=machine))


class TestARightTarget:
    """Agrees, and is asked."""

    @pytest.mark.parametrize("dead", ["leave", "nan"])
    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_agrees_at_every_number_of_waiting_records(self, dialect: str, dead: str) -> None:
        """None, some, a ring that is due, and some that lie across its end."""
        for before in BEFORE:
            verdict = walked(history(dialect, before, dead=dead), MACHINES[dialect])

            assert verdict.mismatches == []
            assert verdict.skipped == {}
            assert verdict.compared["state-local"] > 10

    @pytest.mark.parametrize("dtypes", [Dtypes("float16", "float16"), Dtypes(*["bfloat16"] * 3)])
    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_agrees_in_narrow_dtypes(self, dialect: str, dtypes: Dtypes) -> None:
        """What a fold on the way rounds is allowed for, once."""
        made = history(dialect, 2, kept=2, dtypes=dtypes, dead="garbage")

        assert walked(made, MACHINES[dialect]).mismatches == []

    def test_nothing_is_folded_where_nothing_waits(self) -> None:
        """A checkpoint keeps its bits, a zero's sign among them."""

        class Signed(SimulatedTarget):
            def admit(self, request: Request, state: Any, past: Any = None) -> None:
                super().admit(request, np.where(state > 0, state, np.float32(-0.0)), past)

        payload = PayloadSpec(3, "zeros")
        made = msgspec.structs.replace(history("compact", 0), payload=payload)

        assert walk(made, Signed(machine=MACHINES["compact"])).mismatches == []

    @pytest.mark.parametrize("other", DIALECTS)
    @pytest.mark.parametrize("dialect", ["ring", "compact"])
    def test_a_history_can_be_walked_on_another_dialect(self, dialect: str, other: str) -> None:
        """What one carries along another folds."""
        assert walked(history(dialect, 3), MACHINES[other]).mismatches == []

    def test_a_placed_request_can_be_saved_and_its_first_fold_proves_nothing(self) -> None:
        """Its records were rounded by us, wherever they have been since."""
        made = Trace(
            setup=SETUP,
            payload=PayloadSpec(3, "slow-decay"),
            operations=(
                Place(request=0, tag=1, base=6, records=5, flush=True),
                Save(request=0),
                Admit(request=1, tag=2),
                Restore(request=0),
                *steps("ring", 0, 10, 6, 2),
                Save(request=0),
                Restore(request=0),
                *steps("ring", 0, 20, 6, 2),
            ),
        )

        verdict = walked(made, Ring)

        assert verdict.mismatches == []
        assert verdict.situations["fold"] == 4
        assert verdict.compared["exactness"] > 0


class TestWhatIsNotOwned:
    """The books stay right whatever is left out."""

    @pytest.mark.parametrize("owned", [set(), {"save", "restore"}, {"donate", "hit"}, {"donate"}])
    @pytest.mark.parametrize("dialect", ["ring", "compact"])
    def test_is_skipped(self, dialect: str, owned: set[str]) -> None:
        """Who would have been seated on a prefix is padding; who would have been saved stays."""
        target = SimulatedTarget(machine=MACHINES[dialect])
        target.operations = target.operations - LIVES | owned

        verdict = walk(history(dialect, 3, dead="nan"), target)

        assert verdict.mismatches == []
        assert set(verdict.skipped) >= LIVES - owned - {"evict"}

    def test_no_slot_is_free_where_a_save_was_skipped(self) -> None:
        """The request that the trace seats in it is padding, and no fault of the target."""
        target = SimulatedTarget()
        target.operations = target.operations - {"save", "restore"}
        made = Trace(
            setup=msgspec.structs.replace(SETUP, slots=2),
            payload=PayloadSpec(3, "slow-decay"),
            operations=(
                Admit(request=0, tag=1),
                Save(request=0),
                Admit(request=1, tag=2),
                *steps("ring", 1, 10, 2, 2),
                Free(request=1),
                Restore(request=0),
                *steps("ring", 0, 20, 2, 2),
            ),
        )
        validate(made)

        verdict = walk(made, target)

        assert verdict.mismatches == []
        assert verdict.skipped == {"save": 1, "admit": 1, "restore": 1}
        assert verdict.windows == 2


class _Nudged(SimulatedTarget):
    """A right target, but for one bit in the memory of whoever was just seated, or in a prefix."""

    verb = "restore"

    def _nudge(self, slot: int) -> None:
        state = self.machine.memory["checkpoint"]
        state[0, slot, 0, 0, 0] = np.nextafter(state[0, slot, 0, 0, 0], np.float32(9))

    def restore(self, request: Request) -> None:
        super().restore(request)
        if self.verb == "restore":
            self._nudge(self.seats[request])

    def hit(self, request: Request, prefix: int) -> None:
        super().hit(request, prefix)
        if self.verb == "hit":
            self._nudge(self.seats[request])
        if self.verb == "prefix":
            self._nudge(self.prefixes[prefix])

    def save(self, request: Request) -> None:
        slot = self.seats[request]
        super().save(request)
        if self.verb == "save":
            self._nudge(slot)

    def donate(self, request: Request, prefix: int) -> Mapping[str, int]:
        seat = super().donate(request, prefix)
        if self.verb == "donate":
            self._nudge(seat["slot"])
        return seat


class TestFaults:
    """Each is found by the check and at the operation that it belongs to."""

    @pytest.mark.parametrize(
        ("verb", "check", "kind"),
        [
            ("restore", "state-local", "restore"),  # nothing waits, so a copy is exact
            ("hit", "state-local", "hit"),
            ("prefix", "frame", "hit"),  # a prefix may not change under those that it serves
            ("save", "frame", "save"),
            ("donate", "frame", "donate"),
        ],
    )
    def test_a_single_bit(self, verb: str, check: str, kind: str) -> None:
        """A copy of a checkpoint that lags behind nothing has its bits."""
        target = _Nudged()
        target.verb = verb

        verdict = walk(history("ring", 0, dtypes=Dtypes()), target)

        first = verdict.mismatches[0]
        assert (first.check, first.kind) == (check, kind)

    @pytest.mark.parametrize("bug", BUGS)
    def test_a_planted_bug_is_found_and_its_smallest_history_has_no_step(
        self, bug: type[Machine]
    ) -> None:
        """Placing, saving and restoring, or placing, donating and hitting, is all that it takes."""
        target = SimulatedTarget(machine=bug)
        failing = next(
            made
            for before in BEFORE
            if walk(made := history(bug.dialect.name, before, dead="garbage"), target).mismatches
        )

        shrunk = shrink(failing, target)

        assert shrunk.complete
        assert shrunk.steps == 0
        assert len(shrunk.trace.operations) <= 5


def test_a_prefix_outside_of_the_pool_needs_no_slot() -> None:
    """A target that keeps it elsewhere says so, and its slot is another's at once."""

    class Elsewhere(SimulatedTarget):
        def open(self, setup: Setup, parameters: Any) -> None:
            super().open(setup, parameters)
            self.kept: dict[int, Any] = {}

        def donate(self, request: Request, prefix: int) -> Mapping[str, int]:
            slot = self.seats.pop(request)
            self.machine.donate(slot)
            self.kept[prefix] = self.machine.memory["checkpoint"][:, [slot]].copy()
            self.slots.give(slot)
            return {}

        def hit(self, request: Request, prefix: int) -> None:
            self.admit(request, self.kept[prefix][:, 0])

        def evict(self, prefix: int) -> None:
            del self.kept[prefix]

        def twin(self) -> None:
            return None

    for before in (0, 3, 4):
        verdict = walk(history("ring", before, dead="nan"), Elsewhere())

        assert verdict.mismatches == []
        assert verdict.skipped == {}


def test_a_fork_is_not_made_of_a_request_that_is_saved() -> None:
    """Where a step was skipped the source may not be there; then the fork is padding."""
    target = resolve("sim")
    made = Trace(
        setup=SETUP,
        payload=PayloadSpec(3, "slow-decay"),
        operations=(
            Admit(request=0, tag=1),
            Donate(request=0, prefix=0),
            Hit(request=1, prefix=0),
            Fork(request=2, source=1),
            *steps("ring", 2, 10, 3, 2),
        ),
    )
    target.operations = target.operations - {"hit"}

    verdict = walk(made, target)

    assert verdict.mismatches == []
    assert verdict.skipped == {"hit": 1, "fork": 1}
    assert verdict.windows == 0
