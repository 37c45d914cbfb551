"""The base of most adapters: a pool of slots in torch, and a kernel launched layer by layer.

It seats requests, allocates the dialect's buffers and converts the inputs; a subclass says how its
kernels are launched. Nothing here imitates what a kernel does: admission writes the checkpoint that
a prefill would have left, everything else is a launch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.judging import arrays
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
from ringfold.fuzz.targets import interpreter
from ringfold.sim.dialects import CHECKPOINT, SNAPSHOTS_DIALECT, Dialect
from ringfold.sim.precision import EMULATED
from ringfold.sim.setup import NULL_SLOT, Setup
from ringfold.sim.slots import Slots

if TYPE_CHECKING:
    import torch

LIST_STRIDE: Final = 2
"""Of lists with an entry a row. One for all, since kernels may be compiled for a stride."""

KEPT: Final = 2
"""Requests in a reset's batch whose cursors stay."""


class Batch(NamedTuple):
    """Rows of one launch, as the kernels want them: on the device, int32."""

    slots: torch.Tensor  # [row]; at or under NULL_SLOT: padding
    starts: torch.Tensor  # [row + 1]; the row's tokens are starts[i] .. starts[i + 1]


class PooledTarget(ABC):
    """A target whose slots this class allocates and whose kernels a subclass launches."""

    dialect: Dialect
    precision: Precision = TF32
    padding_slots: tuple[int, ...] = (-1, NULL_SLOT)
    """What stands in padding rows, in turn: SGLang's backend writes -1, its wrappers take 0."""
    packed_lists: bool = False
    """Whether its kernels are promised that lists of slots, starts and counts are contiguous."""
    packed_tokens: bool = False
    """Whether they are promised that tokens of each input lie side by side."""
    operations: frozenset[str] = frozenset(
        {"admit", "free", "verify", "commit", "decode", "idle", "place"}
    )

    def __init__(self, name: str, device: Device = "cpu") -> None:
        """On the CPU, kernels run in Triton's interpreter; must precede the import of triton."""
        self.name = name
        self.device = device
        interpreter.set_device_mode(device)
        if device == "cpu":
            interpreter.enable()
        if self.dialect.decodes_in_place and type(self).decode is PooledTarget.decode:
            self.operations = self.operations - {"decode"}

    # What a subclass provides.

    @abstractmethod
    def launch_verify(
        self, layer: int, batch: Batch, inputs: Sequence[torch.Tensor], out: torch.Tensor
    ) -> None:
        """Verify one layer: `inputs` are q, k, v, a, b [token, ...]; write `out` [token, HV, V]."""

    @abstractmethod
    def launch_commit(self, slots: torch.Tensor, accepted: torch.Tensor, bound: int) -> None:
        """Commit `accepted` [row] tokens of each slot's window, for all layers."""

    @abstractmethod
    def launch_reset(self, slots: torch.Tensor) -> None:
        """Make the cursors of `slots` those of an empty ring.

        Where a kernel takes a flag a row, `amid_others` has rows whose flag is not set.
        """

    def twin(self) -> Target | None:
        """No recurrent kernel of its own, unless a subclass has one."""
        return None

    # The verbs of a Target.

    def identity(self) -> Mapping[str, str]:
        """Versions of what runs the kernels, and where; a subclass adds what the kernels are."""
        import torch
        import triton

        on = torch.cuda.get_device_name() if self.device == "cuda" else "cpu (interpreter)"
        return {"torch": str(torch.__version__), "triton": triton.__version__, "device": on}

    def open(self, setup: Setup, parameters: HeadParameters) -> None:
        """Allocate the pool and the parameters for `setup`; refuse dtypes that can't run here."""
        interpreter.check_dtype(setup.dtypes.activation)
        interpreter.check_dtype(setup.dtypes.record)
        self.setup = setup
        self.seats: dict[Request, int] = {}
        self.slots = Slots(setup.slots)
        self.memory = {
            buffer.name: self.zeros(buffer.shape(setup), EMULATED.storage(setup, buffer.role).name)
            for buffer in self.dialect.kept(setup)
        }
        for buffer in self.dialect.kept(setup):
            if buffer.role in ("position", "flag"):
                # As if somebody had left them: whose reset is forgotten, or who resets the null
                # slot too, shows.
                self.memory[buffer.name].fill_(1)
        self.A_log = self.tensor(parameters.A_log, "float32")
        self.dt_bias = self.tensor(parameters.dt_bias, "float32")

    def admit(self, request: Request, state: Floats) -> None:
        """Seat one."""
        self.admit_all([request], state[:, None])

    def admit_all(self, requests: Sequence[Request], states: Floats) -> None:
        """Take slots, write their checkpoints, reset their cursors, all with one launch.

        A GPU takes as long for thousands as for one.
        """
        slots = np.array([self.slots.take() for _ in requests])
        self.seats.update(zip(requests, slots.tolist(), strict=True))
        arrays.put(self.memory[CHECKPOINT.name], (slice(None), slots), states)
        self.launch_reset(self.tensor(slots, "int32"))

    def free(self, request: Request) -> None:
        """Give the slot back, its contents and cursors as they are."""
        self.slots.give(self.seats.pop(request))

    def fork(self, request: Request, source: Request) -> None:
        """Kernels alone own no copy between slots."""
        raise NotImplementedError(f"{self.name} owns no fork")

    def verify(
        self, rows: Sequence[Request | None], lengths: Sequence[int], inputs: Inputs
    ) -> NDArray[Any]:
        """Launch every layer on a fresh `out` full of NaN."""
        activation = self.setup.dtypes.activation
        starts = self.tensor(np.concatenate([[0], np.cumsum(lengths)]), "int32")
        batch = Batch(self.apart(self.slots_of(rows)), self.apart(starts))
        tensors = self.tokens(inputs)
        out = self.zeros(inputs.v.shape, activation).fill_(float("nan"))
        for layer in range(self.setup.layers):
            self.launch_verify(layer, batch, [x[layer] for x in tensors], out[layer])
        return arrays.to_numpy(out)

    def commit(self, rows: Sequence[Request | None], accepted: Sequence[int], bound: int) -> None:
        """One launch for all layers."""
        counts = self.tensor(np.array(accepted), "int32")
        self.launch_commit(self.apart(self.slots_of(rows)), self.apart(counts), bound)

    def decode(self, rows: Sequence[Request | None], inputs: Inputs) -> NDArray[Any]:
        """Not owned, unless a subclass has a kernel for it; see `Dialect.decodes_in_place`."""
        raise NotImplementedError(f"{self.name} owns no plain decode step")

    def seat(self, request: Request) -> Mapping[str, int]:
        """The request's slot, which also names its place among the running requests."""
        slot = self.seats[request]
        return {"slot": slot, "request": slot}

    def views(self) -> Mapping[str, View]:
        """The pool, live."""
        return {b.name: View(b, self.memory[b.name]) for b in self.dialect.kept(self.setup)}

    # For subclasses.

    def slots_of(self, rows: Sequence[Request | None]) -> torch.Tensor:
        """Slot of each row, int32; padding rows carry each of the indices that mean padding."""
        return self.tensor(
            np.array(
                [
                    self.padding_slots[i % len(self.padding_slots)]
                    if row is None
                    else self.seats[row]
                    for i, row in enumerate(rows)
                ]
            ),
            "int32",
        )

    def amid_others(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`slots` amid padding and requests that go on, and [row] 1 for who is new or padding.

        So a server resets: a batch of prefills has requests that are not new. Who comes into an
        empty pool is by itself.
        """
        new = dict.fromkeys(slots.tolist())
        kept = list(islice((slot for slot in self.seats.values() if slot not in new), KEPT))
        padding = self.padding_slots if kept else ()
        rows = np.array([*kept[:1], *padding[:1], *new, *padding[1:], *kept[1:]])
        flags = np.isin(rows, kept, invert=True)
        return self.apart(self.tensor(rows, "int32")), self.apart(self.tensor(flags, "int32"))

    def apart(self, entries: torch.Tensor) -> torch.Tensor:
        """One entry a row, as a column of a wider table, where kernels must go by its stride."""
        if self.packed_lists:
            return entries
        table = entries.new_full((len(entries), LIST_STRIDE), -1)
        column: torch.Tensor = table[:, 0]
        column[:] = entries
        return column

    def tokens(self, inputs: Inputs) -> list[torch.Tensor]:
        """Each of the inputs, in the dtype of activations.

        A server's are views: q, k and v of one projection, a and b of another. So a token is
        further from the next one than it is wide, unless that was promised otherwise.
        """
        activation = self.setup.dtypes.activation
        if self.packed_tokens:
            return [self.tensor(x, activation) for x in inputs]
        q, k, v, a, b = inputs
        return [
            *self.side_by_side((q, k, v), activation),
            *self.side_by_side((a, b), activation),
        ]

    def side_by_side(self, parts: Sequence[NDArray[Any]], dtype: str) -> Iterator[torch.Tensor]:
        """Views of one table that has a row for each token; `parts` [layer, token, ...]."""
        flat = [part.reshape(*part.shape[:2], -1) for part in parts]
        table, at = self.tensor(np.concatenate(flat, axis=-1), dtype), 0
        for part, columns in zip(parts, flat, strict=True):
            end = at + columns.shape[-1]
            yield table[..., at:end].view(part.shape)
            at = end

    def tensor(self, values: NDArray[Any], dtype: str) -> torch.Tensor:
        """`values` on the device, in the dtype of that name."""
        import torch

        sent: torch.Tensor = arrays.sent(values, self.device, getattr(torch, dtype))
        return sent

    def zeros(self, shape: Sequence[int], dtype: str) -> torch.Tensor:
        """Zeros on the device, in the dtype of that name."""
        import torch

        return torch.zeros(tuple(shape), dtype=getattr(torch, dtype), device=self.device)


class CopiedSnapshots(PooledTarget):
    """A recurrent verify that stores a snapshot per drafted token; a subclass launches it.

    Committing is a plain copy of one snapshot, so that a twin's state is what the kernel wrote.
    """

    dialect = SNAPSHOTS_DIALECT
    precision = IEEE

    def launch_commit(self, slots: torch.Tensor, accepted: torch.Tensor, bound: int) -> None:
        """Copy the snapshot of the last accepted token over the checkpoint."""
        kept = ((slots > NULL_SLOT) & (accepted > 0)).nonzero()[:, 0]
        slot, last = slots[kept].long(), accepted[kept].long() - 1
        self.memory["checkpoint"][:, slot] = self.memory["snapshots"][:, slot, last]

    def launch_reset(self, slots: torch.Tensor) -> None:
        """There are no cursors."""
