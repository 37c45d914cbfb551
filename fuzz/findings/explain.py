"""A history as a person reads it: a row an operation, with the cursors and the ring drawn in text.

The protocol alone is walked; no target runs. One character stands for each physical ring row:

    .  dead        #  a live record        w  a window in flight
    f  folded by the verify in flight; the cursors still claim it
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec
import numpy as np
from rich.table import Table
from rich.text import Text

from ringfold.fuzz.histories.trace import (
    Admit,
    Commit,
    Decode,
    Donate,
    Evict,
    Fork,
    Free,
    Hit,
    Idle,
    Operation,
    Place,
    Prefill,
    Restore,
    Save,
    Trace,
    Verify,
    unroll,
)
from ringfold.fuzz.judging.ledger import Entry, Ledger
from ringfold.fuzz.judging.mismatch import failed_checks
from ringfold.sim.dialects import DIALECTS, physical
from ringfold.sim.setup import Setup


class Lane(msgspec.Struct):
    """One request after an operation."""

    request: int
    did: str
    """What the operation did to it, such as `3 of 4 kept`."""
    write_pos: int
    cache_base: int
    is_flush: int
    ring: str


class Line(msgspec.Struct):
    """One operation."""

    number: int
    iteration: int
    operation: str
    lanes: list[Lane]
    failed: list[str] = []
    """Checks that were recorded as failing here."""


def explain(trace: Trace) -> Iterator[Line]:
    """The history, operation by operation."""
    setup, dialect = trace.setup, DIALECTS[trace.setup.dialect]
    ledger = Ledger(setup, dialect)
    flights: dict[int, Verify] = {}
    failed = failed_checks(trace.seen)
    for number, (operation, iteration) in enumerate(unroll(trace.operations)):
        text, touched = _apply(operation, ledger, flights, setup)
        lanes = [
            _lane(request, did, ledger.entry(request), setup)
            for request, did in touched
            if request in ledger
        ]
        yield Line(number, iteration, text, lanes, failed.get(number, []))


def table(lines: Iterable[Line]) -> Table:
    """The same to print."""
    drawn = Table(
        "", "operation", "request", "", "pos", "base", "flush", "ring", box=None, pad_edge=False
    )
    for line in lines:
        number = f"{line.number}" + (f" ({line.iteration})" if line.iteration else "")
        cells = [number, line.operation]
        if not line.lanes:
            drawn.add_row(*map(Text, cells))
        for lane in line.lanes:
            cursors = (lane.write_pos, lane.cache_base, lane.is_flush)
            row = (*cells, str(lane.request), lane.did, *map(str, cursors), lane.ring)
            drawn.add_row(*map(Text, row))
            cells = ["", ""]
        if line.failed:
            drawn.add_row("", f"^ here: {', '.join(line.failed)}", *[""] * 6, style="bold red")
    return drawn


def _apply(
    operation: Operation, ledger: Ledger, flights: dict[int, Verify], setup: Setup
) -> tuple[str, list[tuple[int, str]]]:
    """Move the ledger; returns the operation in words, and what it did to which request."""
    match operation:
        case Verify(tag=tag, rows=rows, lengths=lengths):
            flights[tag] = operation
            did = [
                (row, f"window of {length}" + (", folds" if ledger.verify([row], [length]) else ""))
                for row, length in zip(rows, lengths, strict=True)
                if row is not None
            ]
            return f"verify {_batch(rows)} (tag {tag})", did
        case Commit(tag=tag):
            return f"commit (tag {tag})", _commit(operation, flights.pop(tag), ledger, setup)
        case Decode(rows=rows):
            real = [row for row in rows if row is not None]
            for request in real:
                ledger.verify([request], [1])
                ledger.commit([request], [1], setup.window)
            return f"decode {_batch(rows)}", [(request, "1 token") for request in real]
        case Prefill(rows=rows, lengths=lengths):
            did = [
                (
                    request,
                    f"{n} tokens" + ", folded first" * bool(ledger.advance_in_place([request])),
                )
                for request, n in zip(rows, lengths, strict=True)
            ]
            return f"prefill {_batch(rows)}", did
        case Idle(rows=count):
            return f"idle, {count} padding rows", []
        case _:
            return _move(operation, ledger)


def _move(operation: Operation, ledger: Ledger) -> tuple[str, list[tuple[int, str]]]:
    """The same for an operation that seats a request or takes it from its seat."""
    did = []
    match operation:
        case Admit(request=request):
            ledger.admit(request, _seat(request))
            text, did = f"admit {request}", [(request, "seated")]
        case Place(request=request, base=base, records=records, flush=flush):
            ledger.admit(request, _seat(request), ledger.placed(records, base, flush))
            text, did = f"place {request}", [(request, f"seated with {records} records")]
        case Fork(request=request, source=source):
            ledger.admit(request, _seat(request))
            text, did = f"fork {request} from {source}", [(request, "seated")]
        case Free(request=request):
            ledger.free(request)
            text = f"free {request}"
        case Save(request=request):
            ledger.save(request)
            text = f"save {request}"
        case Restore(request=request):
            folded = ledger.restore(request, _seat(request))
            text, did = f"restore {request}", [(request, "seated" + ", folded" * folded)]
        case Donate(request=request, prefix=prefix):
            lag = ledger.entry(request).lag if ledger.dialect.donates == "checkpoint" else 0
            ledger.donate(request, prefix, {})
            text = f"donate {request} as prefix {prefix}"
            text += f", without {lag} records that wait" if lag else ""
        case Hit(request=request, prefix=prefix):
            ledger.admit(request, _seat(request))
            text, did = f"hit of prefix {prefix} by {request}", [(request, "seated")]
        case Evict(prefix=prefix):
            ledger.evict(prefix)
            text = f"evict prefix {prefix}"
        case _:
            raise AssertionError(f"unroll yields no {type(operation).__name__}")
    return text, did


def _commit(commit: Commit, verify: Verify, ledger: Ledger, setup: Setup) -> list[tuple[int, str]]:
    did = []
    for row, length, n in zip(verify.rows, verify.lengths, commit.accepted, strict=True):
        if row is not None and n is not None:
            ledger.commit([row], [n], commit.bound or setup.window)
            did.append((row, f"{n} of {length} kept"))
    return did


def _lane(request: int, did: str, entry: Entry, setup: Setup) -> Lane:
    cursors, L = entry.cursors, setup.ring
    rows = np.full(L, ".")
    history = np.arange(cursors.write_pos)
    rows[physical(cursors.cache_base, history, L)] = "f" if entry.folded else "#"
    window = cursors.write_pos + np.arange(entry.pending)
    rows[physical(cursors.cache_base, window, L)] = "w"
    return Lane(request, did, *cursors, "".join(rows))


def _batch(rows: Iterable[int | None]) -> str:
    """Rows in their order; padding is a dash each, and its number where it is more than three."""
    said: list[str] = []
    for padding, run in groupby(rows, lambda row: row is None):
        some = ["-" if row is None else str(row) for row in run]
        said += [f"- x {len(some)}"] if padding and len(some) > 3 else some
    return f"[{' '.join(said)}]"


def _seat(request: int) -> dict[str, int]:
    return {"slot": request, "request": request}
