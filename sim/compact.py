"""The `compact` protocol: deltas and keys in two parts each, folded inside the commit.

It is `open-loop` with two differences. A record keeps, beside delta and key rounded to the records'
dtype, what that rounding cut off, and the fold adds up both. (The verify reads the high parts
alone, as the released kernel does, so the next deltas still come from a rounded history: the parts
gain a factor of a few, where reading both would gain a thousand.) And the fold is the commit's:
once the next window might not fit, all records, those just accepted included, go into the
checkpoint and the ring starts over behind them. A checkpoint that is narrower than float32 is
folded at every commit, so the ring holds one window.

Rings and cursors belong to a *running request*, the checkpoint to its slot. The two are numbered
apart here, the last place for the first slot, so that taking one for the other shows.

Source: SGLang 0.5.20 and later.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ringfold.sim import dialects
from ringfold.sim.cursors import Cursors
from ringfold.sim.machine import Batch, Ints, Window, as_hardware_does
from ringfold.sim.open_loop import OpenLoop
from ringfold.sim.precision import rounded
from ringfold.sim.recurrence import Array
from ringfold.sim.ring import Mask


class Compact(OpenLoop):
    """The reference machine of the dialect `compact`."""

    dialect = dialects.COMPACT_DIALECT

    @as_hardware_does
    def commit(self, slots: ArrayLike, accepted: ArrayLike, bound: int) -> None:
        """Append what was accepted, and fold the rows that are due; see `Machine.commit`."""
        batch = self.batch(slots, accepted)
        self.require_bound(bound)
        before, counts = self.cursors(batch.slots), self.accepted(batch.lengths)
        appended = before.write_pos + counts
        flag = np.asarray(self.flag(appended, bound))
        self.fold(batch.slots, Cursors(appended, before.cache_base, flag))
        self.write_cursors(batch.slots, self.moved(before, counts, bound))

    # ------------------------------------------------------------------ rules

    def places(self, slots: Ints) -> Ints:
        """Where each request keeps its ring and cursors."""
        return self.setup.slots - slots

    def moved(self, before: Cursors, counts: Ints, bound: int) -> Cursors:
        """Cursors after a commit of `counts` tokens: by the table."""
        protocol = dialects.protocol_of(self.setup)
        return protocol.commit(before, counts, self.setup.ring, bound)

    def flag(self, write_pos: Any, bound: int) -> Any:
        """Whether this commit folds."""
        return dialects.protocol_of(self.setup).due(write_pos, self.setup.ring, bound)

    def kept(self, window: Window, d: Array, k: Array) -> dict[str, Array]:
        """The records, and what their rounding cuts off where the dtype does so."""
        records = super().kept(window, d, k)
        for name in ("d", "k"):
            if (low := f"{name}_low") in self.memory:
                records[low] = records[name] - self.high(records[name])
        return records

    def high(self, values: Array) -> Array:
        """What the records' dtype keeps of `values`."""
        return rounded(values, self.setup.dtypes.record) if self.arithmetic.emulates else values

    # ------------------------------------------------------------------ memory, by place

    def record(self, batch: Batch, cursors: Cursors, window: Window, d: Array, k: Array) -> None:
        """Write the window's records behind the history."""
        super().record(batch._replace(slots=self.places(batch.slots)), cursors, window, d, k)

    def records(self, name: str, slots: Ints, at: Ints, live: Mask) -> Array:
        """High parts at ring rows `at` [row, L], which is what a verify reads."""
        return super().records(name, self.places(slots), at, live)

    def summands(self, name: str, slots: Ints, at: Ints, live: Mask) -> Array:
        """Both parts' sum, which is what a fold reads."""
        high = self.records(name, slots, at, live)
        low = f"{name}_low"
        return high + self.records(low, slots, at, live) if low in self.memory else high

    def cursors(self, slots: Ints) -> Cursors:
        """Cursors of `slots`, int64 [row]."""
        return super().cursors(self.places(slots))

    def write_cursors(self, slots: Ints, cursors: Cursors) -> None:
        """Store cursors (ints or [row])."""
        super().write_cursors(self.places(slots), cursors)

    def require_flushed(self, slots: Ints) -> None:
        """A checkpoint alone can be copied only when no record waits to be folded."""
        super().require_flushed(self.places(slots))
