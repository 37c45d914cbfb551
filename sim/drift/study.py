"""What is studied: texts by gate strength and key similarity, and the machines that walk them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from ringfold.sim.dialects import DIALECTS, Dialect
from ringfold.sim.precision import EMULATED, EMULATED_TF32, Arithmetic
from ringfold.sim.setup import Dtypes, Geometry, require

TOKENS_MAX: Final = 1_000_000


class Study(msgspec.Struct, frozen=True):
    """The texts of a study: one for each gate strength, key similarity and seed."""

    geometry: Geometry = Geometry(1, 2, 32, 32)
    window: int = 4
    tokens: int = 100_000
    gates: tuple[float, ...] = (-1.0, -4.0, -7.0, -10.0)
    """A_log; a token keeps about exp(-0.8 exp(A_log)) of the state."""
    similarities: tuple[float, ...] = (0.0, 0.5, 0.9)
    """Mean cosine of two raw keys: the share of their variance that is common to all."""
    seeds: int = 2
    vocabulary: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        limits = (("tokens", 1, TOKENS_MAX), ("seeds", 1, 64), ("vocabulary", 2, 2**16))
        for what, low, limit in limits:
            value = getattr(self, what)
            require(low <= value <= limit, what, value, f"in {low}..{limit}", "choose one of these")
        for value in self.gates:
            require(-20 <= value <= 5, "gate", value, "an A_log in -20..5", "choose one of these")
        for value in self.similarities:
            require(0 <= value <= 1, "similarity", value, "in 0..1", "it is a cosine")

    @property
    def rows(self) -> int:
        """Rows of a batch: similarities, and within each the seeds."""
        return len(self.similarities) * self.seeds

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of what is kept of each text: [gate][similarity][seed]."""
        return len(self.gates), len(self.similarities), self.seeds


class Precision(NamedTuple):
    """How a machine computes and stores."""

    arithmetic: Arithmetic
    dtypes: Dtypes
    about: str


PRECISIONS: Final = {
    "fp32": Precision(EMULATED, Dtypes(), "everything float32"),
    "tf32": Precision(EMULATED_TF32, Dtypes(), "dot products of outputs take tf32 operands"),
    "bf16-records": Precision(EMULATED, Dtypes(record="bfloat16"), "records bfloat16"),
    "fp16-records": Precision(EMULATED, Dtypes(record="float16"), "records float16"),
    "bf16-state": Precision(
        EMULATED, Dtypes(record="bfloat16", state="bfloat16"), "records and states bfloat16"
    ),
    "fp16-state": Precision(
        EMULATED, Dtypes(record="float16", state="float16"), "records and states float16"
    ),
    "kernel": Precision(
        EMULATED_TF32,
        Dtypes("bfloat16", "bfloat16"),
        "as deployed: tf32 dot products, bfloat16 outputs and records, float32 states",
    ),
}


class Case(msgspec.Struct, frozen=True):
    """One machine: its protocol, precision, ring length and how likely a draft is accepted."""

    dialect: str
    precision: str
    ring: int = 16
    acceptance: float = 0.7
    target: str = ""
    """An implementation that is walked instead; its dot products are what they are."""

    def __post_init__(self) -> None:
        _dtypes(self.precision)
        require(0 <= self.acceptance <= 1, "acceptance", self.acceptance, "in 0..1", "it is a rate")

    @property
    def who(self) -> str:
        """The target, or the dialect of a machine of the simulator."""
        return self.target or self.dialect

    def __str__(self) -> str:
        return f"{self.who} {self.precision} L={self.ring} acceptance={self.acceptance:g}"


def cases_of(
    dialects: Sequence[str],
    precisions: Sequence[str],
    rings: Sequence[int],
    acceptances: Sequence[float],
) -> list[Case]:
    """Every protocol in every precision on the first ring and at the first acceptance rate.

    Then the other rings, and the other rates, each alone and in the first precision that rounds
    what the protocol keeps from step to step (or in the first). A case that could differ from
    another one in nothing is left out: dot products are tf32 only where there is a ring, records
    of a dtype of their own matter where they outlive a commit or make the state, and a protocol
    without drafts has no acceptance rate.
    """
    chosen: list[Case] = []
    for dialect in map(DIALECTS.__getitem__, dialects):
        names: dict[object, str] = {}
        for name in precisions:
            kept, activation = _kept(dialect, name), _dtypes(name).activation
            computed = PRECISIONS[name].arithmetic.name if dialect.has_ring else None
            names.setdefault((computed, activation, kept), name)
        first, *others = names.values()
        swept = next((p for p in names.values() if set(_kept(dialect, p)) > {"float32"}), first)
        base = Case(dialect.name, first, rings[0], acceptances[0])
        chosen += [msgspec.structs.replace(base, precision=p) for p in (first, *others)]
        base = msgspec.structs.replace(base, precision=swept)
        if dialect.has_ring:
            chosen += [msgspec.structs.replace(base, ring=length) for length in rings[1:]]
        if dialect.verifies:
            chosen += [msgspec.structs.replace(base, acceptance=rate) for rate in acceptances[1:]]
    return chosen


def _kept(dialect: Dialect, precision: str) -> tuple[str, str]:
    """Dtypes of the states and of the records that a protocol keeps, float32 if it keeps none."""
    dtypes, roles = _dtypes(precision), {buffer.role for buffer in dialect.buffers}
    lasting = dialect.has_ring or dialect.state_from_deltas
    return dtypes.state, dtypes.record if "record" in roles and lasting else "float32"


def _dtypes(precision: str) -> Dtypes:
    require(
        precision in PRECISIONS,
        "precision",
        precision,
        f"one of {', '.join(PRECISIONS)}",
        "name one",
    )
    return PRECISIONS[precision].dtypes
