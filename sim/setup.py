"""What is being simulated: geometry, ring, window, slots and dtypes, each value checked.

A `Setup` is part of every trace, so it is validated whenever one is read.
An illegal value is refused with its name, its limit and the way out.
"""

from __future__ import annotations

from typing import Final

import msgspec

CIRCULAR: Final = ("ring", "compact", "open-loop")
"""Dialects whose records wrap by a bit mask, and whose ring must hold two windows."""
DIALECT_NAMES: Final = (
    "snapshots",
    "ring",
    "fold-every-commit",
    "compact",
    "open-loop",
    "linear-cache",
    "decode-ring",
)
ACTIVATIONS: Final = ("float32", "bfloat16", "float16")
STATES: Final = ("float32", "bfloat16", "float16", "float64")
HEAD_DIM_MAX: Final = 256
HEADS_MAX: Final = 256
LAYERS_MAX: Final = 256
RING_MAX: Final = 1024
SLOTS_MAX: Final = 65_536
CONVOLUTION_MAX: Final = 8

NULL_SLOT: Final = 0
"""Slots at or under this index are padding: the allocator never gives them to a request."""


class SetupError(ValueError):
    """A configuration that no implementation could serve."""


def require(holds: bool, what: str, value: object, limit: str, remedy: str) -> None:
    """Raise `SetupError` that names the value, the limit and the way out, unless `holds`."""
    if not holds:
        raise SetupError(f"{what} is {value!r}, but must be {limit}: {remedy}")


class Geometry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shape of one GDN layer: `heads` key heads shared by `value_heads` value heads."""

    heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        for name, limit in (("heads", HEADS_MAX), ("value_heads", HEADS_MAX)):
            value = getattr(self, name)
            require(1 <= value <= limit, name, value, f"in 1..{limit}", f"choose {name} <= {limit}")
        for name in ("key_dim", "value_dim"):
            value = getattr(self, name)
            require(
                1 <= value <= HEAD_DIM_MAX,
                name,
                value,
                f"in 1..{HEAD_DIM_MAX}",
                f"split the head, or choose {name} <= {HEAD_DIM_MAX}",
            )
        require(
            self.value_heads % self.heads == 0,
            "value_heads",
            self.value_heads,
            f"a multiple of heads = {self.heads}",
            "each key head serves the same number of value heads",
        )

    @property
    def group(self) -> int:
        """Value heads per key head."""
        return self.value_heads // self.heads

    def __str__(self) -> str:
        return f"H={self.heads} HV={self.value_heads} K={self.key_dim} V={self.value_dim}"


class Dtypes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dtype names of the activations, of the ring's raw records and of the checkpoint."""

    activation: str = "float32"
    record: str = "float32"
    state: str = "float32"

    def __post_init__(self) -> None:
        for name, allowed in (
            ("activation", ACTIVATIONS),
            ("record", ACTIVATIONS),
            ("state", STATES),
        ):
            value = getattr(self, name)
            require(
                value in allowed,
                f"dtypes.{name}",
                value,
                f"one of {', '.join(allowed)}",
                "name a dtype from this list",
            )


class Setup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that `Target.open` needs to know.

    `ring` is the ring's length L in records, `window` the longest window T in tokens,
    `slots` the number of physical blocks in the state pool, the null slot included.
    Only a dialect that owns a ring uses `ring`. `convolution` is the width W of the causal
    convolution that makes queries, keys and values out of projections; 0 means that there is none.
    """

    dialect: str
    geometry: Geometry
    ring: int
    window: int
    slots: int
    layers: int = 1
    dtypes: Dtypes = Dtypes()
    l2norm: bool = True
    convolution: int = 0

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values of all heads."""
        g = self.geometry
        return 2 * g.heads * g.key_dim + g.value_heads * g.value_dim

    def __post_init__(self) -> None:
        require(
            self.convolution == 0 or 2 <= self.convolution <= CONVOLUTION_MAX,
            "convolution",
            self.convolution,
            f"0 or in 2..{CONVOLUTION_MAX}",
            "a convolution of width 1 remembers nothing; 4 is what the models have",
        )
        require(
            self.dialect in DIALECT_NAMES,
            "dialect",
            self.dialect,
            f"one of {', '.join(DIALECT_NAMES)}",
            "name a dialect from this list",
        )
        require(
            1 <= self.layers <= LAYERS_MAX,
            "layers",
            self.layers,
            f"in 1..{LAYERS_MAX}",
            f"choose layers <= {LAYERS_MAX}",
        )
        require(self.window >= 1, "window", self.window, "at least 1", "a verify has a token")
        circular = self.dialect in CIRCULAR
        require(
            1 + circular <= self.ring <= RING_MAX,
            "ring",
            self.ring,
            f"in {1 + circular}..{RING_MAX}",
            f"choose a power of two up to {RING_MAX}",
        )
        require(
            not circular or self.ring & (self.ring - 1) == 0,
            "ring",
            self.ring,
            "a power of two",
            f"records wrap by a bit mask; use {1 << (self.ring - 1).bit_length()}",
        )
        require(
            not circular or self.ring >= 2 * self.window,
            "ring",
            self.ring,
            f"at least two windows, 2 * {self.window}",
            f"lengthen the ring to {1 << (2 * self.window - 1).bit_length()} "
            f"or shorten the window to {self.ring // 2}",
        )
        require(
            2 <= self.slots <= SLOTS_MAX,
            "slots",
            self.slots,
            f"in 2..{SLOTS_MAX}",
            "slot 0 is the null slot, so one request needs two",
        )

    def __str__(self) -> str:
        dtypes = self.dtypes
        return (
            f"{self.dialect} {self.geometry} L={self.ring} T={self.window} "
            f"{dtypes.activation}/{dtypes.record}/{dtypes.state}"
            + (f" layers={self.layers}" if self.layers > 1 else "")
            + ("" if self.l2norm else " no-l2norm")
            + (f" conv={self.convolution}" if self.convolution else "")
        )
