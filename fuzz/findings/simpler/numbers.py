"""Quieter memory, smaller heads, plainer setups, numbers and names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from ringfold.fuzz.findings.simpler.edits import (
    exchanged,
    nearer,
    powers,
    with_operations,
    with_payload,
    with_setup,
)
from ringfold.fuzz.findings.simpler.order import DEAD, PLAIN, elements
from ringfold.fuzz.findings.simpler.requests import alone, renamed, slots_needed
from ringfold.fuzz.histories.trace import Tagged, Trace
from ringfold.sim.setup import HEAD_DIM_MAX, Dtypes, Geometry

SEEDS: Final = range(8)
SHAPES_MAX: Final = 300


def living(trace: Trace) -> Iterator[Trace]:
    """Dead memory left alone: everywhere, then after one operation."""
    for dead in DEAD:
        yield with_operations(trace, (replace(o, dead=dead) for o in trace.operations))
    for i, operation in enumerate(trace.operations):
        for dead in DEAD[: DEAD.index(operation.dead)]:
            yield exchanged(trace, i, replace(operation, dead=dead))


def smaller_geometry(trace: Trace) -> Iterator[Trace]:
    """One head of one element; else each size by itself as small as it can be."""
    g = trace.setup.geometry
    yield with_setup(trace, geometry=Geometry(1, 1, 1, 1))
    for heads, value_heads in _heads(g):
        yield with_setup(trace, geometry=replace(g, heads=heads, value_heads=value_heads))
    for name in ("key_dim", "value_dim"):
        for dim in powers(getattr(g, name)):
            yield with_setup(trace, geometry=replace(g, **{name: dim}))


def other_shapes(trace: Trace) -> Iterator[Trace]:
    """One head of any size, as wide as heads may be; then every shape with fewer elements.

    A fault of offsets counts elements alone; another may take a shape of which one side is longer.
    """
    g = trace.setup.geometry
    for size in nearer(elements(g)):
        key_dim = -(-size // HEAD_DIM_MAX)
        if key_dim <= HEAD_DIM_MAX:
            yield with_setup(trace, geometry=Geometry(1, 1, key_dim, -(-size // key_dim)))
    dims = powers(max(g.key_dim, g.value_dim))
    shapes = [Geometry(*pair, K, V) for pair in _heads(g) for K in dims for V in dims]
    for shape in sorted(shapes, key=elements)[:SHAPES_MAX]:
        yield with_setup(trace, geometry=shape)


def larger_heads(trace: Trace) -> Iterator[Trace]:
    """Fewer requests in the largest head there is: what takes so much memory may take one slot."""
    for fewer in alone(trace):
        yield with_setup(fewer, geometry=Geometry(1, 1, HEAD_DIM_MAX, HEAD_DIM_MAX))


def _heads(g: Geometry) -> list[tuple[int, int]]:
    """Pairs (H, HV) no larger than those of `g`."""
    return [
        (H, HV)
        for HV in range(1, g.value_heads + 1)
        for H in range(1, min(HV, g.heads) + 1)
        if HV % H == 0
    ]


def plainer_setup(trace: Trace) -> Iterator[Trace]:
    """One layer, float32, the L2 norm, no convolution, no more slots than the requests need."""
    plain = {
        "layers": 1,
        "dtypes": Dtypes(),
        "l2norm": True,
        "convolution": 0,
        "slots": slots_needed(trace),
    }
    yield with_setup(trace, **plain)
    for name, value in plain.items():
        yield with_setup(trace, **{name: value})
    # Records that are narrower than activations lose what raw records must keep.
    for names in (("activation", "record"), ("state",)):
        wide = replace(trace.setup.dtypes, **dict.fromkeys(names, "float32"))
        yield with_setup(trace, dtypes=wide)


def plainer_payload(trace: Trace) -> Iterator[Trace]:
    """Numbers from a seed, one profile for all, a simple one first."""
    same = with_operations(
        trace,
        (replace(o, profile=None) if isinstance(o, Tagged) else o for o in trace.operations),
    )
    for profile in PLAIN:
        for either in (same, trace):
            yield with_payload(either, profile=profile, tensors=None)


def other_names(trace: Trace) -> Iterator[Trace]:
    """Requests and tags counted from the start, and a small seed."""
    for seed in dict.fromkeys((*SEEDS, trace.payload.seed)):
        yield with_payload(renamed(trace), seed=seed)
