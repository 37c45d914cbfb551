"""Memory: how many bytes each protocol keeps, buffer by buffer, as each SGLang release lays it out.

A buffer is a row of named axes, a layout a list of buffers, and bytes are the product of the axes'
sizes and the dtype's. What differs between releases is the axis that a ring is keyed on: a state
slot (as many as the prefix cache holds) or a running request. Both have one row more for padding.

Sources, read in the releases' wheels: `srt/mem_cache/memory_pool.py` (`MambaPool`, what is
allocated), `srt/configs/mamba_utils.py` (`Mamba2StateShape`, `replayssm_ring_bytes_per_req`) and
`srt/mem_cache/kv_cache_configurator.py` (`_handle_max_mamba_cache`, what the sizing charges) of
0.5.16-0.5.23. `docs/memory.md` says what was found there.
"""

from __future__ import annotations

from bisect import bisect_right
from math import prod
from typing import Final, NamedTuple

import msgspec

from ringfold.sim.dialects import (
    CHECKPOINT,
    DIALECTS,
    RING_CURSORS,
    SNAPSHOTS,
    STATE_RINGS,
    Buffer,
    Role,
)
from ringfold.sim.precision import DTYPES
from ringfold.sim.presets import STATE_DTYPES, Model
from ringfold.sim.setup import ACTIVATIONS, RING_MAX, Geometry, require

RUNNING_MAX: Final = 65_536
SLOTS_MAX: Final = 1_048_576


class Pool(msgspec.Struct, frozen=True):
    """What one rank's pool is sized for.

    `geometry` holds the rank's heads; `window` is the most tokens of one verify (T), `running` the
    most requests at a time, `slots` the states that are kept (with those of the prefix cache),
    `ring` the ring's length (L). Records are kept in `conv_dtype`, that of the activations.
    """

    layers: int
    geometry: Geometry
    conv_width: int
    window: int
    running: int
    slots: int
    ring: int
    state_dtype: str = "float32"
    conv_dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        for what, limit in (
            ("window", RING_MAX // 2),
            ("running", RUNNING_MAX),
            ("slots", SLOTS_MAX),
        ):
            value = getattr(self, what)
            require(1 <= value <= limit, what, value, f"in 1..{limit}", f"choose {what} <= {limit}")
        require(
            self.slots >= self.running,
            "slots",
            self.slots,
            f"at least running = {self.running}",
            "every running request has a state",
        )
        shortest = 1 << (2 * self.window - 1).bit_length()
        require(
            self.ring >= 2 * self.window and self.ring & (self.ring - 1) == 0,
            "ring",
            self.ring,
            f"a power of two of at least two windows, 2 * {self.window}",
            f"use {max(shortest, 1 << (max(self.ring, 1) - 1).bit_length())}",
        )
        require(self.ring <= RING_MAX, "ring", self.ring, f"at most {RING_MAX}", "shorten it")
        for what, value, allowed in (
            ("state dtype", self.state_dtype, STATE_DTYPES),
            ("conv dtype", self.conv_dtype, ACTIVATIONS),
        ):
            require(value in allowed, what, value, f"one of {', '.join(allowed)}", "name one")

    def size(self, axis: str) -> int:
        """How long an axis is."""
        g, past = self.geometry, self.conv_width - 1
        sizes = {
            "layer": self.layers,
            "slot": self.slots + 1,
            "request": self.running + 1,
            "head": g.heads,
            "value_head": g.value_heads,
            "k": g.key_dim,
            "v": g.value_dim,
            "ring": self.ring,
            "step": self.window,
            "channel": 2 * g.heads * g.key_dim + g.value_heads * g.value_dim,
            "past": past,
            "past and step": past + self.window - 1,
        }
        return sizes[axis]

    def dtype(self, role: Role) -> str:
        """Dtype of a buffer of this role."""
        dtypes: dict[Role, str] = {
            "state": self.state_dtype,
            "record": self.conv_dtype,
            "gate": "float32",
            "position": "int32",
            "flag": "int8",
        }
        return dtypes[role]


def pool_of(
    model: Model,
    *,
    window: int,
    running: int,
    ring: int,
    slots: int | None = None,
    state_dtype: str | None = None,
    conv_dtype: str = "bfloat16",
    tp: int = 1,
) -> Pool:
    """The pool of one of `tp` tensor-parallel ranks, which share the heads.

    `slots` is `running` if not given, as SGLang does with its prefix cache off. Raises
    `SetupError` for a value out of range.
    """
    g = model.geometry
    require(
        tp >= 1 and g.heads % tp == 0 and g.value_heads % tp == 0,
        "tp",
        tp,
        f"a divisor of heads = {g.heads} and value_heads = {g.value_heads}",
        "give every rank whole heads",
    )
    return Pool(
        model.layers,
        Geometry(g.heads // tp, g.value_heads // tp, g.key_dim, g.value_dim),
        model.conv_width,
        window,
        running,
        running if slots is None else slots,
        ring,
        model.state_dtype if state_dtype is None else state_dtype,
        conv_dtype,
    )


# ------------------------------------------------------------------ what is allocated

CONV: Final = Buffer("conv", ("layer", "slot", "channel", "past"), "record")
# The windows of consecutive drafts overlap, so all of one request's share one stretch of inputs.
CONV_WINDOWS: Final = Buffer(
    "conv_windows", ("layer", "request", "channel", "past and step"), "record"
)


# Its base and its flag are not kept.
DECODE_RING: Final = (CHECKPOINT, *STATE_RINGS, RING_CURSORS[0])


def speculative(dialect: str) -> tuple[Buffer, ...]:
    """What a pool keeps that verifies drafts by this protocol."""
    return (*DIALECTS[dialect].buffers, CONV, CONV_WINDOWS)


class Budget(NamedTuple):
    """What a release's own sizing charges, in states and windows of one slot, and in rings."""

    padding: int
    """Padding rows that it counts."""
    drafts: bool
    """Whether it charges a state and a convolution window per drafted token of every request."""
    rings: bool
    """Whether it charges the rings."""


class Layout(NamedTuple):
    """One protocol as some releases allocate it."""

    dialect: str
    releases: str
    buffers: tuple[Buffer, ...]
    budget: Budget | None = None
    """None where there is no release."""

    @property
    def name(self) -> str:
        """Dialect and releases."""
        return f"{self.dialect} ({self.releases})"

    def kept(self, pool: Pool) -> tuple[Buffer, ...]:
        """The buffers that `pool` needs: float32 records have no low part."""
        whole = pool.conv_dtype == "float32"
        return tuple(b for b in self.buffers if not (whole and b.low_part))


LAYOUTS: Final = (
    Layout("snapshots", "0.5.16", speculative("snapshots"), Budget(0, drafts=True, rings=False)),
    Layout(
        "ring",
        "0.5.16",
        speculative("ring"),
        Budget(0, drafts=True, rings=False),
    ),
    Layout(
        "snapshots",
        "0.5.17-0.5.23",
        speculative("snapshots"),
        Budget(1, drafts=True, rings=False),
    ),
    Layout(
        "fold-every-commit",
        "0.5.17-0.5.19",
        speculative("fold-every-commit"),
        Budget(1, drafts=False, rings=True),
    ),
    Layout(
        "compact",
        "0.5.20-0.5.23",
        speculative("compact"),
        Budget(1, drafts=False, rings=True),
    ),
    Layout("open-loop", "no release", speculative("open-loop")),
    Layout("linear-cache", "no release", speculative("linear-cache")),
    Layout(
        "decode-ring",
        "0.5.16",
        (CONV, *DECODE_RING),
        Budget(0, drafts=False, rings=False),
    ),
    Layout(
        "decode-ring",
        "0.5.17-0.5.23",
        (CONV, *DECODE_RING),
        Budget(1, drafts=False, rings=False),
    ),
)


# ------------------------------------------------------------------ what it comes to


class Kept(msgspec.Struct, frozen=True):
    """A buffer of a pool, in bytes."""

    name: str
    keyed_on: str
    """`slot` or `request`."""
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    bytes_each: int
    """Of one slot or request, all layers."""


class Account(msgspec.Struct, frozen=True):
    """A layout of a pool, in bytes; all integers, of one rank."""

    dialect: str
    releases: str
    buffers: tuple[Kept, ...]
    bytes: int
    snapshots_bytes: int
    rings_bytes: int
    rings_bytes_per_slot: int
    """Rings keyed on slots, cursors left out."""
    rings_bytes_per_request: int
    saved_bytes: int
    """What `snapshots` takes more; negative where this takes more."""
    running_in_same_bytes: int
    """Requests that fit, slots in the pool's proportion, in the bytes of `snapshots`."""
    rings_in_budget: bool | None
    """Whether the release's sizing charges the rings; None without rings or release."""
    budget_bytes: int | None
    unbudgeted_bytes: int | None
    """Allocated beyond what the sizing charged; negative where it charged too much."""


def is_ring(buffer: Buffer) -> bool:
    """Whether a buffer holds records of tokens."""
    cursor = buffer.role in ("position", "flag")
    return not cursor and buffer not in (CHECKPOINT, SNAPSHOTS, CONV, CONV_WINDOWS)


def kept(buffer: Buffer, pool: Pool) -> Kept:
    """A buffer's shape and bytes in `pool`."""
    shape = tuple(pool.size(axis) for axis in buffer.axes)
    dtype = pool.dtype(buffer.role)
    # NumPy knows the integers' names, but bfloat16 only through `DTYPES`.
    width = {"int32": 4, "int8": 1}.get(dtype) or DTYPES[dtype].itemsize
    size = prod(shape) * width
    key = "slot" if "slot" in buffer.axes else "request"
    return Kept(buffer.name, key, shape, dtype, size, size // pool.size(key))


def total(layout: Layout, pool: Pool) -> int:
    """Bytes of everything that a layout keeps in `pool`."""
    return sum(kept(b, pool).bytes for b in layout.kept(pool))


def requests_that_fit(layout: Layout, pool: Pool, budget: int) -> int:
    """Most running requests whose pool takes at most `budget` bytes; slots grow in proportion.

    Caches of full-attention layers are not part of it: they take what is left to them.
    """

    def taken(running: int) -> int:
        slots = -(-running * pool.slots // pool.running)
        return total(layout, msgspec.structs.replace(pool, running=running, slots=slots))

    limit = min(RUNNING_MAX, SLOTS_MAX * pool.running // pool.slots)
    return bisect_right(range(1, limit + 1), budget, key=taken)


def budgeted(layout: Layout, pool: Pool) -> int | None:
    """Bytes that the release's own sizing charges for `pool`; None without a release."""
    if layout.budget is None:
        return None
    padding, drafts, rings = layout.budget
    each = sum(kept(b, pool).bytes_each for b in (CHECKPOINT, CONV))
    charged = (pool.slots + padding) * each
    if drafts:
        charged += (pool.running + padding) * pool.window * each
    if rings:
        charged += sum(kept(b, pool).bytes for b in layout.kept(pool) if is_ring(b))
    return charged


def account(layout: Layout, pool: Pool) -> Account:
    """Everything about one layout."""
    rows = [(b, kept(b, pool)) for b in layout.kept(pool)]
    size = sum(row.bytes for _, row in rows)
    rings = [row for b, row in rows if is_ring(b)]
    baseline = total(LAYOUTS[0], pool)
    charged = budgeted(layout, pool)
    return Account(
        layout.dialect,
        layout.releases,
        tuple(row for _, row in rows),
        size,
        sum(row.bytes for b, row in rows if b.name == SNAPSHOTS.name),
        sum(row.bytes for row in rings),
        sum(row.bytes_each for row in rings if row.keyed_on == "slot"),
        sum(row.bytes_each for row in rings if row.keyed_on == "request"),
        baseline - size,
        requests_that_fit(layout, pool, baseline),
        layout.budget.rings if rings and layout.budget else None,
        charged,
        None if charged is None else size - charged,
    )


def accounts(pool: Pool) -> list[Account]:
    """Every layout of one pool."""
    return [account(layout, pool) for layout in LAYOUTS]
