"""A served workload as a trace: the engine's events in the order in which they happened.

A trace names windows by tags and rows by requests, and knows padding rows as null; the numbers of
every token are the payload's. So whatever a target makes of the workload is judged as any history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from ringfold.fuzz.histories import trace as ops
from ringfold.fuzz.judging.frame import Dead
from ringfold.sim.dialects import DIALECTS, VERIFIERS, protocol_of
from ringfold.sim.engine import events
from ringfold.sim.engine.scheduler import Engine
from ringfold.sim.engine.workload import Workload
from ringfold.sim.setup import Dtypes, Geometry, Setup, require

DEFAULT: Final = Dtypes()
PROFILE: Final = "slow-decay"
"""Strong forgetting would hide who read what another one left."""

# Events whose fields are those of an operation.
ALIKE: Final[Mapping[type, Callable[..., ops.Operation]]] = {
    events.Fork: ops.Fork,
    events.Donate: ops.Donate,
    events.Hit: ops.Hit,
    events.Evict: ops.Evict,
    events.Save: ops.Save,
    events.Restore: ops.Restore,
    events.Free: ops.Free,
}
GIVES_BACK: Final = (events.Evict, events.Save, events.Free)


def served(
    load: Workload,
    dialect: str,
    geometry: Geometry,
    dtypes: Dtypes = DEFAULT,
    convolution: int = 0,
) -> ops.Trace:
    """The history of serving `load` with the cursors of `dialect`, in a pool of the load's size.

    `convolution` is the width of the one in front of the recurrence, 0 for none.

    Raises:
        SetupError: no such setup can be, or a trace has no names for so many requests.
    """
    most = ops.REQUEST_MAX + 1
    require(load.requests <= most, "requests", load.requests, f"at most {most}", "serve fewer")
    slots = load.running + load.cached + 1  # the null slot
    window = load.window if dialect in VERIFIERS else 1
    setup = Setup(
        dialect, geometry, load.ring, window, slots, dtypes=dtypes, convolution=convolution
    )
    happened = Engine(load, DIALECTS[dialect], protocol_of(setup)).run()
    return ops.Trace(
        setup=setup,
        payload=ops.PayloadSpec(seed=load.seed, profile=PROFILE),
        operations=tuple(operations(happened)),
    )


def operations(happened: Iterable[events.Event]) -> Iterator[ops.Operation]:
    """Each event as an operation; where a slot is given back, it holds NaN from then on."""
    for tag, event in enumerate(happened):
        match event:
            case events.Prefill(request):
                yield ops.Admit(request=request, tag=tag)
            case events.Verify(rows, lengths, padding):
                flight, longest, behind = tag, int(lengths.max()), [None] * padding
                yield ops.Verify(
                    tag=flight,
                    rows=(*rows.tolist(), *behind),
                    lengths=(*lengths.tolist(), *[longest] * padding),
                )
            case events.Commit(accepted=accepted):
                kept = (None if n < 0 else n for n in accepted.tolist())
                yield ops.Commit(tag=flight, accepted=(*kept, *behind))
            case events.Decode(rows, padding):
                yield ops.Decode(tag=tag, rows=(*rows.tolist(), *[None] * padding))
            case events.Idle(padding):
                yield ops.Idle(rows=padding)
            case _:
                dead: Dead = "nan" if isinstance(event, GIVES_BACK) else "leave"
                yield ALIKE[type(event)](**event._asdict(), dead=dead)
