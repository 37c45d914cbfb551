"""The order of traces: what a person would rather read, and what a shrinker works towards.

Fewer requests, then fewer steps, then shorter windows, a smaller ring, a smaller head, quieter
memory and plainer numbers. The order is total, so of two traces one is simpler or they are equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from ringfold.fuzz.findings.simpler.requests import renamed
from ringfold.fuzz.histories import trace as ops
from ringfold.fuzz.histories.profiles import PROFILES
from ringfold.fuzz.histories.trace import Trace
from ringfold.fuzz.judging.frame import Dead
from ringfold.sim.setup import ACTIVATIONS, Geometry

APART: Final = (
    ops.Decode, ops.Prefill, ops.Idle, ops.Fork, ops.Save, ops.Donate, ops.Hit, ops.Evict,
)  # fmt: skip
"""Operations that a history is simpler without, whatever stands in their place."""
DEAD: Final[tuple[Dead, ...]] = ("leave", "garbage", "nan")
"""What becomes of dead memory, the quietest first."""
PLAIN: Final = tuple(dict.fromkeys(("slow-decay", "ordinary", *PROFILES)))
"""Profiles, the plainest first: what nothing is forgotten in makes a lost token plain to see."""


def steps(trace: Trace) -> int:
    """A step is a verify and its commit, or a plain decode; a batch of padding counts too."""
    return sum(
        isinstance(o, ops.Verify | ops.Decode | ops.Idle) for o, _ in ops.unroll(trace.operations)
    )


def apart(operation: ops.Operation) -> bool:
    """Whether a history is simpler without it; a batch of padding alone is as good as idle."""
    padding = isinstance(operation, ops.Verify) and not any(r is not None for r in operation.rows)
    return padding or isinstance(operation, APART)


def elements(g: Geometry) -> int:
    """How large a geometry is."""
    return g.heads * g.value_heads * g.key_dim * g.value_dim


def worst(operations: Iterable[ops.Operation]) -> Dead:
    """The loudest that dead memory is filled with."""
    return max((o.dead for o in operations), key=DEAD.index)


def size(trace: Trace) -> tuple[Any, ...]:
    """The smaller tuple is the simpler trace."""
    operations = [operation for operation, _ in ops.unroll(trace.operations)]
    setup, g, dtypes = trace.setup, trace.setup.geometry, trace.setup.dtypes
    verifies = [o for o in operations if isinstance(o, ops.Verify)]
    places = [o for o in operations if isinstance(o, ops.Place)]
    commits = [o for o in operations if isinstance(o, ops.Commit)]
    return (
        sum(isinstance(o, ops.Seats) for o in operations),
        steps(trace),
        sum(map(apart, operations)),
        len(operations),
        sum(len(o.rows) for o in operations if isinstance(o, ops.Batched)),
        sum(sum(o.lengths) for o in verifies),
        setup.window,
        setup.ring,
        elements(g),
        (g.heads, g.value_heads, g.key_dim, g.value_dim),
        setup.layers,
        setup.slots,
        [ACTIVATIONS.index(dtypes.activation), ACTIVATIONS.index(dtypes.record)],
        dtypes.state != "float32",
        not setup.l2norm,
        setup.convolution,
        sum(DEAD.index(o.dead) for o in operations),
        sum(o.profile is not None for o in operations if isinstance(o, ops.Tagged)),
        trace.payload.tensors is not None,
        PLAIN.index(trace.payload.profile),
        sum(o.rows for o in operations if isinstance(o, ops.Idle)),
        len(places),
        sum(o.records for o in places),
        sum(o.base for o in places),
        sum(n or 0 for o in commits for n in o.accepted),
        sum(o.bound or 0 for o in commits),
        sum(o.track or 0 for o in commits),
        sum(o.cut for o in operations if isinstance(o, ops.Donate)),
        sum(o.branch or 0 for o in operations if isinstance(o, ops.Prefill)),
        sum(len(o.stores) for o in operations if isinstance(o, ops.Decode)),
        sum(o.flush for o in places),
        sum(sum(o.lengths) for o in operations if isinstance(o, ops.Prefill)),
        renamed(trace).operations != trace.operations,
        trace.payload.seed,
        msgspec.json.encode(trace.operations),
    )
