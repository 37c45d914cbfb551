"""A seeded fault in each protocol is found by the walk that all of them share.

Each machine below is the sound one of a dialect with one rule wrong. The hunt meets the histories
of a campaign, knows nothing of the faults, and has few windows; the sound machine must survive as
many, or its faulty sisters would prove nothing. (The ring's own faults are in `fuzz.planted`.)
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from ringfold.fuzz.histories.generate import history
from ringfold.fuzz.histories.story import Plan
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.running.hunt import hunt
from ringfold.fuzz.targets.simulated import SimulatedTarget
from ringfold.sim.compact import Compact
from ringfold.sim.cursors import Cursors
from ringfold.sim.decode_ring import DecodeRing
from ringfold.sim.dialects import DIALECTS
from ringfold.sim.fold_every_commit import FoldEveryCommit
from ringfold.sim.linear_cache import LinearCache
from ringfold.sim.machine import Ints, Machine
from ringfold.sim.open_loop import OpenLoop
from ringfold.sim.protocols import MACHINES
from ringfold.sim.recurrence import Deltas
from ringfold.sim.ring import Ring
from ringfold.sim.setup import Dtypes, Geometry, Setup
from ringfold.sim.snapshots import Snapshots

Array = NDArray[Any]
Mask = NDArray[np.bool_]

WINDOWS_MAX = 300


class SnapshotBeforeTheBonusToken(Snapshots):
    """Commits the state before the last accepted token."""

    def committed_step(self, accepted: Ints) -> Ints:
        """One too early."""
        return np.maximum(accepted - 2, 0)


class FoldForgetsTheNewest(Ring):
    """Replays one record too few."""

    def fold_count(self, cursors: Cursors) -> Ints:
        """One less."""
        return np.maximum(super().fold_count(cursors) - 1, 0)


class ReplayForgetsTheBonusToken(FoldEveryCommit):
    """Replays one token too few."""

    def replayed(self, accepted: Ints) -> Ints:
        """One less."""
        return np.maximum(accepted - 1, 0)


class HistoryOfTheSlot(Compact):
    """Takes a slot for a request's place where it reads records, and not where it writes them."""

    def records(self, name: str, slots: Ints, at: Ints, live: Mask) -> Array:
        """What lies in somebody else's ring."""
        return super(Compact, self).records(name, slots, at, live)


class FoldReadsHighPartsAlone(Compact):
    """Loses what the records' rounding cut off."""

    def summands(self, name: str, slots: Ints, at: Ints, live: Mask) -> Array:
        """One part of two."""
        return self.records(name, slots, at, live)


class DeltaDecaysOnceTooOften(OpenLoop):
    """Weighs a record as if its own gate came after it."""

    def history_decay(self, g: Array) -> Array:
        """From each record on, that one included."""
        return np.asarray(np.exp(g.sum(-1, keepdims=True) - g.cumsum(-1) + g))


class ReplayOfVectorsForgetsTheBonusToken(LinearCache):
    """Replays one token too few."""

    def replayed(self, accepted: Ints) -> Ints:
        """One less."""
        return np.maximum(accepted - 1, 0)


class VectorsOfAnotherHead(LinearCache):
    """Gives value heads the keys of the head beside."""

    def deltas(self, slots: Ints) -> Deltas:
        """Heads turned by one."""
        right = super().deltas(slots)
        return right._replace(k=np.roll(right.k, 1, axis=2))


class NobodyIsHeard(DecodeRing):
    """Folds when the ring is full, whoever asks."""

    def folds(self, cursors: Cursors) -> Mask:
        """The flag is not looked at."""
        return super().folds(cursors._replace(is_flush=0 * cursors.is_flush))


class ForcedFoldReadsAFullRing(DecodeRing):
    """A fold that is asked for takes L - 1 records, as an ordinary one does."""

    def recalled(self, slots: Ints, cursors: Cursors) -> Array:
        """Dead records too, where the flag is set."""
        whole = np.full_like(cursors.write_pos, self.setup.ring - 1)
        return super().recalled(
            slots, cursors._replace(write_pos=np.where(cursors.is_flush, whole, cursors.write_pos))
        )


class NeverFolds(DecodeRing):
    """Starts over where it should have stored the state."""

    def store_checkpoint(self, slots: Ints, states: Array) -> None:
        """Admissions alone write."""
        if not self.cursors(slots).write_pos.any():
            super().store_checkpoint(slots, states)


FAULTS = (
    SnapshotBeforeTheBonusToken,
    FoldForgetsTheNewest,
    ReplayForgetsTheBonusToken,
    HistoryOfTheSlot,
    DeltaDecaysOnceTooOften,
    ReplayOfVectorsForgetsTheBonusToken,
    VectorsOfAnotherHead,
    NobodyIsHeard,
    ForcedFoldReadsAFullRing,
    NeverFolds,
)


@pytest.mark.parametrize("machine", FAULTS, ids=lambda machine: machine.__name__)
def test_a_fault_is_found(machine: type[Machine]) -> None:
    """Within a few hundred row-windows."""
    found = hunt(SimulatedTarget("sim", machine), seed=1, windows_max=WINDOWS_MAX)

    assert found.mismatches


@pytest.mark.parametrize("machine", [FoldReadsHighPartsAlone, Compact])
def test_what_rounding_cuts_off_is_missed_where_little_else_is_lost(machine: type[Machine]) -> None:
    """In bfloat16 records of a state that starts at zero; a larger one's tf32 dots cover it."""
    dtypes = Dtypes("bfloat16", "bfloat16", "float32")
    setup = Setup("compact", Geometry(1, 2, 16, 8), ring=8, window=2, slots=5, dtypes=dtypes)
    target, windows, failed = SimulatedTarget("sim", machine), 0, False
    for number in range(WINDOWS_MAX):
        made = history(Plan(setup, "sim", target.operations, 4, 30, directed=False), 1, number)
        zeros = msgspec.structs.replace(made.payload, profile="zeros")
        verdict = walk(msgspec.structs.replace(made, payload=zeros), target)
        windows, failed = windows + verdict.windows, bool(verdict.mismatches)
        if failed or windows >= WINDOWS_MAX:
            break

    assert failed == (machine is not Compact)  # found after 9 to 42, by five seeds


@pytest.mark.parametrize("dialect", MACHINES)
def test_the_sound_machine_survives(dialect: str) -> None:
    """The same histories, no mismatch."""
    found = hunt(SimulatedTarget("sim", MACHINES[dialect]), seed=1, windows_max=WINDOWS_MAX)

    assert found.mismatches == []
    assert found.windows >= WINDOWS_MAX


def test_every_dialect_has_a_fault() -> None:
    """None is forgotten."""
    assert {machine.dialect.name for machine in FAULTS} == set(DIALECTS)
