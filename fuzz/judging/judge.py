"""The judge: gathers what the checks compare, and turns a finding into a mismatch with its place.

It reads the target's memory and never writes it, except that a twin is brought level with the
target after their checkpoints first differ, so that one difference is reported once.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.histories.payload import tokens_of
from ringfold.fuzz.judging import arrays, checks
from ringfold.fuzz.judging.checks import Finding, Judged, eps, tiny
from ringfold.fuzz.judging.folding import fold_error
from ringfold.fuzz.judging.frame import Mirror, Region
from ringfold.fuzz.judging.ledger import Ledger
from ringfold.fuzz.judging.mismatch import Check, Mismatch
from ringfold.fuzz.judging.truth import (
    BLOCK_ELEMENTS,
    ERROR,
    GLOBAL,
    LOCAL,
    PAST,
    STATE,
    Kept,
    Losses,
    Truth,
    Window,
    lost_by_decays,
)
from ringfold.fuzz.target import Inputs, Request, Target, require_views
from ringfold.oracle.gdn import L2NORM_EPS
from ringfold.oracle.units import UNIT, sizes
from ringfold.sim.cursors import Cursors
from ringfold.sim.dialects import CONVOLUTION
from ringfold.sim.setup import Setup

OPERANDS = 4
"""Operands between a stored number and an output: a record's key and the query make a score, the
score and the record's delta a contribution. Each may lose `precision.dot`, and truncation always
loses in one direction, so the losses add up."""

PRODUCTS = 4
"""Roundings that a prefill adds up to. It rounds a token's key, beta, both times the decay, a row
of the inverted triangle, what it writes and reads, the chunk's first state and the delta, but to
nearest, not all of them the same way. Seen, in float16 and rows of up to 128 tokens: 0.11 of what
that allows for a state, 0.22 for an output."""

STATE_AXES = ("layer", "row", "value_head", "v", "k")


class Position(msgspec.Struct, frozen=True):
    """Where in the history a check was made."""

    operation: int
    kind: str
    iteration: int
    step: int


class Judge:
    """Findings of one walk, and how near to its limit each check came."""

    def __init__(
        self, setup: Setup, target: Target, twin: Target | None, ledger: Ledger, truth: Truth
    ) -> None:
        self.setup, self.target, self.twin = setup, target, twin
        self.ledger, self.truth = ledger, truth
        self.dialect = target.dialect
        self.position = Position(0, "open", 0, 0)
        self.mirror: Mirror
        """The target's memory, once it is open."""
        self.mismatches: list[Mismatch] = []
        self.unproven: set[Request] = set()
        """Requests whose next fold proves nothing about bits: their records were placed."""
        self.largest: dict[str, float] = {}
        self.compared: dict[str, int] = {}

    def open(self) -> None:
        """Look at the target, which was just opened, and at how precise it says it is."""
        require_views(self.target, self.setup)
        setup, dialect, precision = self.setup, self.dialect, self.target.precision
        self.mirror = Mirror(self.target)
        self.truth.product = precision.convolution
        record = setup.dtypes.record
        rounding = 2 * eps(record) if dialect.has_ring else 0.0
        self.eps_dot = OPERANDS * precision.dot + rounding
        self.record_tiny = setup.ring * tiny(record) if dialect.has_ring else 0.0
        if dialect.state_from_deltas:
            halves = any(buffer.low_part for buffer in dialect.kept(setup))
            self.truth.losses = Losses(
                delta=self.eps_dot + 2 * setup.window * UNIT,
                record=eps(record) ** (2 if halves else 1),
                smallest=tiny(record),
                fold=2 * precision.fold + setup.ring * UNIT,
                records=setup.ring,
            )
        elif dialect.raw_records and eps(record) > eps(setup.dtypes.activation):
            # What a fold replays was rounded: keys and values, and so what a delta subtracts.
            # A key near zero is divided by no less than the root of the norm's epsilon.
            smallest = tiny(record) / (L2NORM_EPS**0.5 if setup.l2norm else 1.0)
            self.truth.losses = Losses(2 * eps(record), eps(record), smallest, 0.0, 1)

    @contextmanager
    def prefilling(self, tokens: int) -> Iterator[None]:
        """Within it, outputs and states are judged as a prefill's, in chunks of so many tokens.

        A chunk's deltas, and what they are made of, are stored in the dtype of the activations
        where a verify computes on: see `PRODUCTS`.
        """
        activation = self.setup.dtypes.activation
        rounding, losses = PRODUCTS * self.target.precision.prefill, self.truth.losses
        widest = Losses(rounding, rounding, tiny(activation), rounding, tokens)
        narrow, self.eps_dot = self.eps_dot, max(self.eps_dot, rounding)
        self.truth.losses = losses.or_worse(widest) if losses else widest
        try:
            yield
        finally:
            self.eps_dot, self.truth.losses = narrow, losses

    # The checks.

    def outputs(self, outputs: NDArray[Any], owners: NDArray[np.bool_], window: Window) -> None:
        """Check 1. `outputs` [layer, token, HV, V]; `owners` [token]: tokens of real rows."""
        if self.dialect.zeroes_padding:
            self._judged("outputs", checks.padding(outputs[:, ~owners]), (), ("layer", "token"))
        live = window.live
        got = np.zeros((outputs.shape[0], *live.shape, *outputs.shape[2:]), outputs.dtype)
        got[:, live] = outputs[:, owners]
        sequential, parts = 0.0, []
        for some, part in window.blocks(self.truth.elements):
            seen, judged = self._outputs(got[:, some], part)
            sequential = max(sequential, seen)
            parts.append(judged.after(some.start))
        judged = checks.worst(parts)
        if self.dialect.has_ring and judged.finding is None:
            self._raise("precision", sequential)
        axes = ("layer", "row", "token", "value_head", "v")
        self._judged("outputs", judged, window.requests, axes, window.batch_rows)

    def _outputs(self, got: NDArray[Any], window: Window) -> tuple[float, Judged]:
        """The same for a few rows, [layer, row, T, HV, V].

        What a sequential computation would not lose is no fault of logic, so it is told apart: the
        first of the two is the largest error over what such a computation may lose.
        """
        truth, trail = self.truth, self.truth.outputs(window)
        query = sizes(window.updates.q)[..., None]
        floor, slack = self.record_tiny * query, window.convolved and window.convolved.query
        limits = [checks.outputs_limit(got.dtype.name, trail, query, self.eps_dot, floor, slack)]
        if self.dialect.has_ring:
            at = truth.at(window.requests)
            decays = lost_by_decays(truth.running_gates(at, trail.tokens))[..., None]
            more = query * decays * trail.masses + truth.lost_by_underflow(at, trail, query)
            limits.append(limits[0] + more)
        judged = checks.outputs(got, trail.outputs, limits, window.live)
        return judged[0].seen, judged[-1]

    def require_outputs(self, outputs: Any, tokens: int) -> None:
        """Raise TypeError for outputs of another shape, or of a dtype with other limits."""
        g = self.setup.geometry
        shape = [self.setup.layers, tokens, g.value_heads, g.value_dim]
        found, wanted = np.asarray(outputs), f"{self.setup.dtypes.activation} {shape}"
        if f"{found.dtype.name} {list(found.shape)}" != wanted:
            raise TypeError(
                f"outputs are {found.dtype.name} {list(found.shape)}, but must be {wanted}"
            )

    def state(self, requests: Sequence[Request], *, restart: bool = False) -> None:
        """Check 2, from the last checkpoint on and since admission.

        `restart`: the checkpoints were just written, so from here on the first of the two goes on
        from what they hold.
        """
        if not requests:
            return
        judged: dict[Check, list[Judged]] = {"state-local": [], "state-global": []}
        rows = max(1, BLOCK_ELEMENTS // self.truth.elements)
        lagging = self.ledger.lagging(requests)
        if len(requests) > rows:  # a block walks through as many records as its longest row has
            apart = self.truth.apart[self.truth.at(requests)]
            order = np.lexsort((lagging.write_pos, apart))
            requests = [requests[i] for i in order]
            lagging = Cursors(*(values[order] for values in lagging))
        memory = self._memory(requests)
        for start in range(0, len(requests), rows):
            some = slice(start, start + rows)
            block = list(requests[some])
            part = {name: array[:, some] for name, array in memory.items()}
            behind = Cursors(*(values[some] for values in lagging))
            got = self.dialect.represented(part, behind, self.setup)
            expected, error = self.truth.expected(block)
            each = [
                checks.state("state-global", got, *which, self.setup.dtypes.state).after(start)
                for which in zip(expected, error, strict=True)
            ]
            judged["state-global"].append(each[GLOBAL])
            judged["state-local"].append(each[-1])
            if restart:
                self.truth.restart(block, got)
        for check, parts in judged.items():
            self._judged(check, checks.worst(parts), requests, STATE_AXES)

    def folds(self, requests: Sequence[Request], cursors: Cursors, where: str = "slot") -> None:
        """Check 2 of what the last operation folded, apart from what deltas lost before.

        `cursors` count the records that it took of these requests, `where` names the slot that it
        stored them in. A state that is wrong as a whole has been told.
        """
        if any(mismatch.check in ("state-local", "state-global") for mismatch in self.mismatches):
            return
        losses, truth, dialect = self.truth.losses, self.truth, self.dialect
        if not requests or losses is None or not (dialect.state_from_deltas and dialect.has_ring):
            return
        rounding, parts = (truth.state_eps, truth.state_smallest), []
        stored = self.mirror.take("checkpoint", {"slot": self.ledger.seats(requests, where)})
        memory, rows = self._memory(requests, before=True), max(1, BLOCK_ELEMENTS // truth.elements)
        for start in range(0, len(requests), rows):
            some = slice(start, start + rows)
            were = {name: array[:, some] for name, array in memory.items()}
            taken = Cursors(*(values[some] for values in cursors))
            expected = dialect.represented(were, taken, self.setup)
            error = fold_error(were, taken, self.setup, expected, losses, truth.underflow, rounding)
            got, dtype = stored[:, some].astype(np.float64), self.setup.dtypes.state
            judged = checks.state("state-local", got, expected, error, dtype, "folded state")
            parts.append(judged.after(start))
        self._judged("state-local", checks.worst(parts), requests, STATE_AXES)

    def cursors(self) -> None:
        """Check 3: the integers of every seated request are exactly those of the protocol."""
        requests = list(self.ledger.lines)
        if not self.dialect.has_ring or not requests:
            return
        expected = self.ledger.cursors(requests)
        places = self.ledger.place(requests)
        taken = self.mirror.take_all(dict.fromkeys(expected._fields, places))
        for name, right in expected._asdict().items():
            got = taken[name].astype(np.int64)
            self._count("cursors")
            wrong = np.flatnonzero(got != right)
            if wrong.size:
                first = int(wrong[0])
                self._mismatch(
                    "cursors",
                    f"{name} is not the protocol's",
                    request=requests[first],
                    expected=str(int(right[first])),
                    got=str(int(got[first])),
                    elements=int(wrong.size),
                )

    def records(self, window: Window, inputs: Inputs, lengths: Sequence[int]) -> None:
        """Check 4: raw records bit for bit, derived ones within rounding."""
        dialect, live = self.dialect, window.live
        if not (dialect.raw_records or dialect.derived_records) or not window.requests:
            return
        names = [name for name, _ in dialect.raw_records] + [*dialect.derived_records]
        if "k" in names and "k_low" in self.mirror.buffers:
            names.append("k_low")
        there = self.mirror.take_all(dict.fromkeys(names, self.ledger.window(window.requests)))

        def stored(name: str) -> NDArray[Any]:  # [layer, row, T, heads(, width)]
            # A slice parts the slot and ring indices, so their common axis comes first.
            packed = there[name]
            padded = np.zeros((packed.shape[1], *live.shape, *packed.shape[2:]), packed.dtype)
            padded[:, live] = np.moveaxis(packed, 0, 1)
            return padded

        axes = ("layer", "row", "token", "head", "element")
        rows = window.batch_rows
        tokens = tokens_of(inputs, np.asarray(lengths))
        behind = window.convolved
        for name, source in dialect.raw_records:
            got = stored(name)
            if behind is not None:
                expected, slack = getattr(behind, source), getattr(behind, f"{source}_slack")
                activation = self.setup.dtypes.activation
                judged = checks.convolved(name, got, expected, slack, activation, live)
                self._judged("records", judged, window.requests, axes, rows)
                continue
            given = getattr(tokens, source)[:, rows].astype(got.dtype)
            finding = checks.raw(name, got, given, live)
            self._judged("records", Judged(0.0, finding), window.requests, axes, rows)
        updates, group = window.updates, self.setup.geometry.group
        for name in dialect.derived_records:
            if name == "k":
                low = stored("k_low") if "k_low" in there else None
                off = 0.0 if behind is None else behind.unit_k_slack
                judged = checks.keys(stored("k"), low, updates.k[..., ::group, :], live, off)
            else:
                judged = checks.gate(name, stored(name), updates, self.truth.exp_A, live)
            self._judged("records", judged, window.requests, axes, rows)

    def convolution(self, requests: Sequence[Request]) -> None:
        """The convolution's window holds the last committed projections, bit for bit."""
        if requests:
            region: Region = {"slot": self.ledger.seats(requests, "slot")}
            past = self.truth.past[0][:, self.truth.at(list(requests))]
            self._judge_past(requests, region, past)

    def _judge_past(
        self, requests: Sequence[Request], region: Region, past: NDArray[np.float64]
    ) -> None:
        """Windows there are `past` [layer, row, channel, W - 1]."""
        name = CONVOLUTION.name
        if name not in self.mirror.buffers:
            return
        got = self.mirror.take(name, region)
        expected = past.astype(got.dtype)
        symptom = "the convolution's window is not the last committed projections"
        finding = checks.same_bits("convolution", symptom, got, expected)
        axes = ("layer", "row", "channel", "tap")
        self._judged("convolution", Judged(0.0, finding), requests, axes)

    def frame(self, allowed: Mapping[str, Iterable[Region]]) -> None:
        """Check 5: nothing else has changed, bit for bit."""
        self._count("frame")
        for change in self.mirror.changes(allowed):
            self._mismatch(
                "frame",
                f"{change.buffer} changed where this operation may not write",
                where=", ".join(f"{axis} {i}" for axis, i in change.where.items()),
                expected=f"{change.before:.9g}",
                got=f"{change.after:.9g}",
                elements=change.elements,
            )

    def tracked(
        self, requests: Sequence[Request], slots: Sequence[int], kept: Sequence[Kept]
    ) -> NDArray[np.float64]:
        """Checks 2 and of the convolution, for states that were stored apart in these slots.

        Returns them, [layer, row, HV, V, K].
        """
        region: Region = {"slot": np.array(slots, np.int64)}
        got = self.mirror.take("checkpoint", region).astype(np.float64)
        locally: tuple[Check, int] = ("state-local", LOCAL)
        globally: tuple[Check, int] = ("state-global", GLOBAL)
        for check, which in (locally, globally):
            expected = np.stack([one[STATE][which] for one in kept], axis=1)
            error = np.stack([one[ERROR][which] for one in kept], axis=1)
            judged = checks.state(
                check, got, expected, error, self.setup.dtypes.state, "tracked state"
            )
            self._judged(check, judged, requests, STATE_AXES)
        past = np.stack([one[PAST][0] for one in kept], axis=1)
        self._judge_past(requests, region, past)
        return got

    def misnamed(self, request: Request, behind: int, stored: Sequence[int]) -> None:
        """Check 2 for a prefix that ends so many tokens before its request, where nothing was."""
        self._mismatch(
            "state-local",
            "a prefix ends where no state was stored that it may be",
            request=request,
            expected=f"{' or '.join(map(str, stored))} tokens before the request's end",
            got=str(behind),
        )

    def same_tracked(self, requests: Sequence[Request], tokens: int) -> None:
        """Check 6 for the same: they have the bits of what the twin stored, or of its snapshots.

        After `tokens` tokens of a window; a twin that stores nothing apart has no others.
        """
        if self.twin is None or not requests:
            return
        got = self.mirror.take("checkpoint", {"slot": self.ledger.seats(requests, "track")})
        seats, views = [self.twin.seat(r) for r in requests], self.twin.views()
        if "track" in self.twin.operations:
            slots = np.array([seat["track"] for seat in seats], np.int64)
            expected = arrays.take(views["checkpoint"].array, (slice(None), slots))
        else:
            places = np.array([seat["request"] for seat in seats], np.int64)
            index = (slice(None), places, tokens - 1)
            expected = arrays.take(views["snapshots"].array, index)
        symptom = "the tracked state differs from the recurrent kernel's"
        finding = checks.same_bits("exactness", symptom, got, expected)
        self._judged("exactness", Judged(0.0, finding), requests, STATE_AXES)

    def same_outputs(
        self, outputs: NDArray[Any], twins: NDArray[Any], owners: NDArray[np.bool_], window: Window
    ) -> None:
        """Check 6, for a target that claims the recurrent kernel's outputs too."""
        live = window.live
        shape = (outputs.shape[0], *live.shape, *outputs.shape[2:])
        got, expected = np.zeros((2, *shape), outputs.dtype)
        got[:, live], expected[:, live] = outputs[:, owners], twins[:, owners]
        symptom = "an output differs from the recurrent kernel's"
        finding = checks.same_bits("exactness", symptom, got, expected)
        axes = ("layer", "row", "token", "value_head", "v")
        self._judged("exactness", Judged(0.0, finding), window.requests, axes, window.batch_rows)

    def exactness(self, requests: Sequence[Request]) -> bool:
        """Check 6: folded checkpoints have the bits of the twin's.

        Returns whether the twin had to be levelled with the target: what it verified last then
        started from another state.
        """
        if self.twin is None or not requests:
            return False
        got = self.mirror.take("checkpoint", {"slot": self.ledger.seats(requests, "slot")})
        other = self.twin.views()["checkpoint"].array
        seats = (slice(None), np.array([self.twin.seat(r)["slot"] for r in requests], np.int64))
        expected = arrays.take(other, seats)
        proven = np.array([r not in self.unproven for r in requests])
        finding = checks.same_bits(
            "exactness",
            "the folded checkpoint differs from the recurrent kernel's",
            got[:, proven],
            expected[:, proven],
        )
        proved = [r for r in requests if r not in self.unproven]
        self._judged("exactness", Judged(0.0, finding), proved, STATE_AXES)
        self.unproven.difference_update(requests)
        level = finding is not None or not bool(proven.all())
        if level:
            self.level(requests)
        return level

    def level(self, requests: Sequence[Request]) -> None:
        """Give the twin the target's checkpoints, and its convolution's windows."""
        if self.twin is None:
            return
        slots: Region = {"slot": self.ledger.seats(requests, "slot")}
        seats = np.array([self.twin.seat(r)["slot"] for r in requests], np.int64)
        views = self.twin.views()
        for name in {"checkpoint", CONVOLUTION.name} & views.keys() & self.mirror.buffers.keys():
            arrays.put(views[name].array, (slice(None), seats), self.mirror.take(name, slots))

    def crash(self, error: BaseException) -> None:
        """A verb of the target raised."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        self._mismatch(
            "crash",
            f"the target raised {type(error).__name__}",
            where=f"{last.filename}:{last.lineno}",
            got=str(error)[:500],
            expected="no exception",
        )

    # Reading memory.

    def represented(self, requests: Sequence[Request]) -> NDArray[np.float64]:
        """What the target's memory stands for, [layer, row, HV, V, K]."""
        lagging = self.ledger.lagging(requests)
        return self.dialect.represented(self._memory(requests), lagging, self.setup)

    def _memory(
        self, requests: Sequence[Request], *, before: bool = False
    ) -> dict[str, NDArray[Any]]:
        """What `represented` reads of these requests: [layer, row, ...] by buffer."""
        places = self.ledger.place(requests)
        buffers = {n: b for n, b in self.mirror.buffers.items() if n in self.dialect.represents}
        return self.mirror.take_all(
            {name: {axis: places[axis]} for name, b in buffers.items() if (axis := b.axes[1])},
            before=before,
        )

    # Reporting.

    def _count(self, check: Check) -> None:
        self.compared[check] = self.compared.get(check, 0) + 1

    def _judged(
        self,
        check: Check,
        judged: Judged,
        requests: Sequence[Request],
        axes: Sequence[str],
        batch_rows: Sequence[int] = (),
    ) -> None:
        self._count(check)
        self._raise(check, judged.seen)
        finding = judged.finding
        if finding is None:
            return
        at = dict(zip(axes, finding.where, strict=False))
        row = at.pop("row", None)
        self._mismatch(
            check,
            finding.symptom,
            request=None if row is None else requests[row],
            row=batch_rows[row] if row is not None and batch_rows else None,
            where=", ".join(f"{axis} {i}" for axis, i in at.items()),
            **numbers(finding),
        )

    def _raise(self, name: str, seen: float) -> None:
        if np.isfinite(seen):
            self.largest[name] = max(self.largest.get(name, 0.0), seen)

    def _mismatch(self, check: Check, symptom: str, **details: Any) -> None:
        """Report a symptom once: what follows of it is the same finding."""
        if all(m.key != (check, symptom) for m in self.mismatches):
            position = msgspec.structs.asdict(self.position)
            self.mismatches.append(Mismatch(check=check, symptom=symptom, **position, **details))


def numbers(finding: Finding) -> dict[str, Any]:
    """A finding's figures, as a mismatch carries them."""
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.abs(np.float64(finding.got) - finding.expected) / abs(finding.expected)
    return {
        "expected": f"{finding.expected:.9g}",
        "got": f"{finding.got:.9g}",
        "error": f"{finding.error:.3g}",
        "allowed": f"{finding.allowed:.3g}",
        "relative": f"{relative:.3g}",
        "ulp": str(finding.ulp),
        "units": finding.units if np.isfinite(finding.units) else None,
        "elements": finding.elements,
    }
