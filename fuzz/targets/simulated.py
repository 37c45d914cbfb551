"""The simulator's reference machines as targets: `sim`, `sim@DIALECT`, each planted bug `sim:NAME`.

They compute in float32 and store in the setup's dtypes, as kernels do, so the walk judges them by
the same limits. Their twin is the machine of the dialect `snapshots`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ringfold import __version__
from ringfold.fuzz.comparing.variations import BITWISE
from ringfold.fuzz.histories.payload import packed, tokens_of
from ringfold.fuzz.judging.checks import eps
from ringfold.fuzz.target import (
    IEEE,
    TF32,
    Device,
    Floats,
    HeadParameters,
    Inputs,
    Precision,
    Request,
    Target,
    View,
)
from ringfold.sim.convolution import Convolution, Front
from ringfold.sim.decode_ring import DecodeRing
from ringfold.sim.dialects import CONVOLUTION
from ringfold.sim.machine import Machine, Saved
from ringfold.sim.precision import EMULATED_TF32
from ringfold.sim.ring import Ring
from ringfold.sim.setup import NULL_SLOT, Setup
from ringfold.sim.slots import Slots
from ringfold.sim.snapshots import Snapshots


class SimulatedTarget:
    """A machine of the simulator, float32 and tf32 as the kernels are."""

    device: Device = "cpu"
    operations = frozenset(
        {"admit", "free", "fork", "verify", "commit", "decode", "idle", "place"}
        | {"save", "restore", "donate", "hit", "evict"}
    )
    repeats_bits = BITWISE
    convolves = True

    def __init__(self, name: str = "sim", machine: type[Machine] = Ring) -> None:
        self.name = name
        self.kind = machine
        self.dialect = machine.dialect
        self.precision = TF32 if issubclass(machine, Ring) else IEEE
        if not self.dialect.verifies:
            self.operations = self.operations - {"verify", "commit", "idle"}

    def identity(self) -> Mapping[str, str]:
        """The machine's class and the versions of what computes."""
        return {
            "machine": self.kind.__qualname__,
            "ringfold": __version__,
            "numpy": np.__version__,
        }

    def open(self, setup: Setup, parameters: HeadParameters) -> None:
        """Build the machine."""
        self.seats: dict[Request, int] = {}
        self.saved: dict[Request, tuple[Saved, Any]] = {}
        self.prefixes: dict[int, int] = {}
        self.slots = Slots(setup.slots)
        if issubclass(self.kind, DecodeRing):  # it stores the state that its output came from
            dot = max(TF32.dot, eps(setup.dtypes.activation))
            self.precision = Precision(dot, dot)
        self.machine = self.kind(
            msgspec.structs.replace(setup, dialect=self.dialect.name),
            parameters.A_log,
            parameters.dt_bias,
            EMULATED_TF32,
        )
        weight = parameters.convolution
        self.front = Front() if weight is None else Convolution(setup, weight)

    def admit(self, request: Request, state: Floats, past: Floats | None = None) -> None:
        """Take a slot and admit."""
        slot = self.seats[request] = self.slots.take()
        self.front.admit(slot, past)
        self.machine.admit([slot], state[:, None])

    def free(self, request: Request) -> None:
        """Give the slot back as it is."""
        self.slots.give(self.seats.pop(request))

    def fork(self, request: Request, source: Request) -> None:
        """Take a slot and copy the source's."""
        slot = self.seats[request] = self.slots.take()
        self.front.copy(self.seats[source], slot)
        self.machine.copy(self.seats[source], slot)

    def save(self, request: Request) -> None:
        """Copy what the machine says belongs to the request, and give the slot back."""
        slot = self.seats.pop(request)
        self.saved[request] = self.machine.save(slot), self.front.save(slot)
        self.slots.give(slot)

    def restore(self, request: Request) -> None:
        """Take a slot and put the copy there."""
        slot = self.seats[request] = self.slots.take()
        state, past = self.saved.pop(request)
        self.front.restore(slot, past)
        self.machine.restore(slot, state)

    def donate(self, request: Request, prefix: int) -> Mapping[str, int]:
        """The slot stays taken, and is the prefix cache's from now on."""
        slot = self.prefixes[prefix] = self.seats.pop(request)
        if self.dialect.donates == "checkpoint":
            self.front.rewind(slot, int(self.machine.waiting(np.array([slot]))[0]))
        self.machine.donate(slot)
        return {"slot": slot}

    def hit(self, request: Request, prefix: int) -> None:
        """Take a slot and copy the prefix."""
        slot = self.seats[request] = self.slots.take()
        self.front.copy(self.prefixes[prefix], slot)
        self.machine.hit(self.prefixes[prefix], slot)

    def evict(self, prefix: int) -> None:
        """Give the slot back as it is."""
        self.slots.give(self.prefixes.pop(prefix))

    def verify(
        self, rows: Sequence[Request | None], lengths: Sequence[int], inputs: Inputs
    ) -> NDArray[Any]:
        """Verify a batch; the machine writes zeros where a kernel would write nothing."""
        counts = np.array(lengths)
        slots = self._slots(rows)
        tokens = self.front.verify(slots, counts, tokens_of(inputs, counts))
        return packed(self.machine.verify(slots, counts, tokens), counts)

    def commit(self, rows: Sequence[Request | None], accepted: Sequence[int], bound: int) -> None:
        """Commit a batch."""
        slots, counts = self._slots(rows), np.array(accepted)
        self.front.commit(slots, counts)
        self.machine.commit(slots, counts, bound)

    def decode(self, rows: Sequence[Request | None], inputs: Inputs) -> NDArray[Any]:
        """One token a row."""
        slots, ones = self._slots(rows), np.ones(len(rows), np.int64)
        tokens = self.front.verify(slots, ones, tokens_of(inputs, ones))
        self.front.commit(slots, ones)
        return packed(self.machine.decode(slots, tokens), ones)

    def seat(self, request: Request) -> Mapping[str, int]:
        """Its slot, and its place among the running requests."""
        slot = np.array([self.seats[request]])
        return {"slot": int(slot[0]), "request": int(self.machine.places(slot)[0])}

    def views(self) -> Mapping[str, View]:
        """The machine's memory."""
        buffers = self.dialect.kept(self.machine.setup)
        views = {b.name: View(b, self.machine.memory[b.name]) for b in buffers}
        if self.front.memory is not None:
            views[CONVOLUTION.name] = View(CONVOLUTION, self.front.memory)
        return views

    def twin(self) -> Target | None:
        """The recurrent machine."""
        return SimulatedTarget(f"{self.name} recurrent", Snapshots)

    def _slots(self, rows: Sequence[Request | None]) -> NDArray[np.int64]:
        return np.array([NULL_SLOT if row is None else self.seats[row] for row in rows], np.int64)
