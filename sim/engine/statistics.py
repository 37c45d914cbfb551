"""What a workload comes to: how often rows fold, how many records wait, who came and went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
import numpy as np

from ringfold.sim.cursors import Protocol
from ringfold.sim.dialects import Dialect
from ringfold.sim.engine.events import Commit, Decode, Event, Verify
from ringfold.sim.engine.scheduler import Engine
from ringfold.sim.engine.workload import Workload


class Statistics(msgspec.Struct, frozen=True):
    """Means over all row-windows of drafts that were committed, prompts left out."""

    steps: int
    windows: int
    """Row-windows; a plain decode step of a row is one too."""
    padding: float
    """Rows of a batch that are padding, of all its rows."""
    accepted: float
    """Tokens a window."""
    fold_share: float
    """Of the windows, those that fold a record into the checkpoint."""
    folded: float
    """Records folded a window."""
    live: float
    """Records that a window's outputs read."""
    waiting: float
    """Records that wait in the ring after a commit."""
    waiting_max: int
    events: dict[str, int]
    """How often each thing happened."""


def serve(load: Workload, dialect: Dialect, protocol: Protocol | None = None) -> Statistics:
    """Serve all requests of `load` by one protocol, the dialect's unless another is given.

    The seed decides what is accepted, alike for every protocol.
    """
    protocol = protocol or dialect.protocol
    return statistics(Engine(load, dialect, protocol).run(), protocol, load)


def statistics(events: Iterable[Event], protocol: Protocol, load: Workload) -> Statistics:
    """Add up what happened."""
    at_verify, L, T = protocol.folds_at == "verify", load.ring, load.window
    count: Counter[str] = Counter()
    steps = windows = padding = accepted_sum = folds = folded_sum = live_sum = waiting = most = 0
    for event in events:
        count[type(event).__name__.lower()] += 1
        if isinstance(event, Verify | Decode):
            padding += event.padding
        if not isinstance(event, Commit | Decode) or event.prompt:
            continue
        accepted = np.ones(event.rows.size, np.int64)
        if isinstance(event, Commit):
            accepted = event.accepted
        kept = accepted >= 0
        folded = np.asarray(protocol.folded(event.before, accepted, L, T))[kept]
        records, accepted = event.before.write_pos[kept], accepted[kept]
        steps += 1
        windows += accepted.size
        accepted_sum += int(accepted.sum())
        folds += int((folded > 0).sum())
        folded_sum += int(folded.sum())
        live_sum += int((np.where(folded > 0, 0, records) if at_verify else records).sum())
        waiting += int(event.after.write_pos[kept].sum())
        most = max(most, int(event.after.write_pos[kept].max(initial=0)))
    rows = max(1, windows)
    return Statistics(
        steps,
        windows,
        padding / (padding + rows),
        accepted_sum / rows,
        folds / rows,
        folded_sum / rows,
        live_sum / rows,
        waiting / rows,
        most,
        dict(count),
    )
