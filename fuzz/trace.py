"""A trace: one history as a JSON file that a person can read, edit and replay.

It is the only thing that passes between fuzzing, replaying, shrinking and reporting. It names
requests, window lengths and accept counts; the numbers come from the payload's seed, keyed by what
a token *is* and not by when it is drawn, so that an edited history keeps all other data.

`load` refuses whatever is not a trace, and `validate` whatever no scheduler could do. Both say
where, what, the limit and the way out. docs/traces.md shows the format by example.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ringfold.fuzz.frame import Dead
from ringfold.fuzz.mismatch import Check
from ringfold.fuzz.profiles import PROFILES
from ringfold.sim.cursors import Cursors, Protocol
from ringfold.sim.dialects import DIALECTS, protocol_of
from ringfold.sim.setup import Setup

VERSION: Final = 1
FILE_BYTES_MAX: Final = 64 * 2**20
OPERATIONS_MAX: Final = 1_000_000  # after unrolling
ROWS_MAX: Final = 65_536  # of one batch
REPEAT_DEPTH_MAX: Final = 3
REQUEST_MAX: Final = 65_535
WORD_MAX: Final = 2**32 - 1
CHUNK_MAX: Final = 128  # tokens of a prefill's row: two of the chunks that kernels work in
REHEARSED_ROWS_MAX: Final = 250_000
"""Rows that `validate` walks again in repeats, waiting for their cursors to recur: about 1 s."""
LINE_MAX: Final = 100

Request = Annotated[int, Meta(ge=0, le=REQUEST_MAX)]
Prefix = Annotated[int, Meta(ge=0, le=REQUEST_MAX)]
"""The name under which a prefix cache keeps a state."""
Word = Annotated[int, Meta(ge=0, le=WORD_MAX)]
Count = Annotated[int, Meta(ge=0, le=ROWS_MAX)]
Chunk = Annotated[int, Meta(ge=1, le=CHUNK_MAX)]
Profile = Annotated[str, Meta(min_length=1, max_length=64)]
Batch = Annotated[tuple[Request | None, ...], Meta(min_length=1, max_length=ROWS_MAX)]
"""Requests in batch order; null is a padding row."""
Scalar = str | int | float | bool | None


class TraceError(ValueError):
    """A trace that cannot be read, or that no scheduler could have made."""


class _Operation(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
    tag_field="op",
    tag=str.lower,
):
    """Base of all operations. `dead` says what afterwards becomes of memory that is dead."""


class Admit(_Operation, frozen=True):
    """A request is seated after its prefill; its state is the payload's under `tag`."""

    request: Request
    tag: Word
    dead: Dead = "leave"


class Free(_Operation, frozen=True):
    """A request leaves; a window that it has in flight is lost."""

    request: Request
    dead: Dead = "leave"


class Fork(_Operation, frozen=True):
    """A request is seated on a copy of `source`, whose checkpoint lags behind nothing."""

    request: Request
    source: Request
    dead: Dead = "leave"


class Verify(_Operation, frozen=True):
    """A window of drafted tokens for each row of a batch."""

    tag: Word
    rows: Batch
    lengths: Annotated[tuple[Count, ...], Meta(max_length=ROWS_MAX)]
    profile: Profile | None = None
    dead: Dead = "leave"


class Commit(_Operation, frozen=True):
    """The first `accepted` tokens of each row of the verify with this tag are kept.

    Null stands for a row that is not committed: padding, or freed since its verify. `bound` is the
    longest window that the next verify may bring (the setup's longest, unless given). With `track`,
    rows that keep at least so many tokens also store the state after that many, apart from their
    own, for a prefix cache.
    """

    tag: Word
    accepted: Annotated[tuple[Count | None, ...], Meta(max_length=ROWS_MAX)]
    bound: Annotated[int, Meta(ge=1)] | None = None
    track: Annotated[int, Meta(ge=1)] | None = None
    dead: Dead = "leave"


class Decode(_Operation, frozen=True):
    """Plain decoding: one token a row, committed at once."""

    tag: Word
    rows: Batch
    profile: Profile | None = None
    dead: Dead = "leave"


class Prefill(_Operation, frozen=True):
    """So many more tokens of their prompts for some requests; all are kept.

    It is a chunk of a long prompt, or the next turn of a request that kept its slot. It goes on
    from the committed state, so that what waits is folded first.
    """

    tag: Word
    rows: Annotated[tuple[Request, ...], Meta(min_length=1, max_length=ROWS_MAX)]
    lengths: Annotated[tuple[Chunk, ...], Meta(max_length=ROWS_MAX)]
    profile: Profile | None = None
    dead: Dead = "leave"


class Idle(_Operation, frozen=True):
    """A batch of nothing but `rows` padding rows."""

    rows: Annotated[int, Meta(ge=1, le=ROWS_MAX)]
    dead: Dead = "leave"


class Place(_Operation, frozen=True):
    """A request is seated in the middle of its protocol.

    Its checkpoint is the payload's state under `tag`, its ring holds the payload's first `records`
    tokens under `tag` from physical row `base` on, and `flush` says that its next verify folds.
    """

    request: Request
    tag: Word
    base: Count
    records: Count
    flush: bool
    profile: Profile | None = None
    dead: Dead = "leave"


class Save(_Operation, frozen=True):
    """A request is retracted to host memory: its slot is freed, its committed state kept.

    It may wait with any number of records, but not with a window in flight: a scheduler retracts
    between steps.
    """

    request: Request
    dead: Dead = "leave"


class Restore(_Operation, frozen=True):
    """A saved request is seated again, in whatever slot is free, on its committed state."""

    request: Request
    dead: Dead = "leave"


class Donate(_Operation, frozen=True):
    """A request has finished and leaves its state, and its slot with it, to the prefix cache.

    The dialect says whether that is the committed state or what the checkpoint holds of it
    (`Dialect.donates`). As with `Save`, records may wait, but no window may be in flight.
    """

    request: Request
    prefix: Prefix
    dead: Dead = "leave"


class Hit(_Operation, frozen=True):
    """A request is seated on a copy of what the prefix cache keeps under `prefix`."""

    request: Request
    prefix: Prefix
    dead: Dead = "leave"


class Evict(_Operation, frozen=True):
    """The prefix cache gives up a state, and its slot."""

    prefix: Prefix
    dead: Dead = "leave"


class Repeat(_Operation, frozen=True):
    """The operations inside, `times` over; every iteration has its own tokens."""

    times: Annotated[int, Meta(ge=1, le=OPERATIONS_MAX)]
    operations: Annotated[tuple[Operation, ...], Meta(min_length=1)]
    dead: Dead = "leave"


Operation = (
    Admit
    | Free
    | Fork
    | Verify
    | Commit
    | Decode
    | Prefill
    | Idle
    | Place
    | Save
    | Restore
    | Donate
    | Hit
    | Evict
    | Repeat
)


class PayloadSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where the numbers come from.

    `tensors` names a safetensors file in the trace's own folder; what it holds replaces what the
    seed would give (see `payload.load_tensors`).
    """

    seed: Word
    profile: Profile
    tensors: str | None = None


class Symptom(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What two mismatches of one cause share."""

    check: Check
    symptom: str


class _Head(msgspec.Struct):
    """What every version of the format has."""

    version: int = msgspec.field(name="ringfold_trace")


class Trace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A history, what a replay of it must find, and what was seen when it was written."""

    version: Literal[1] = msgspec.field(name="ringfold_trace", default=1)  # `VERSION`
    setup: Setup
    payload: PayloadSpec
    target: str | None = None
    identity: dict[str, str] = {}
    operations: tuple[Operation, ...]
    expected: Literal["agree"] | tuple[Symptom, ...] = "agree"
    seen: tuple[dict[str, Scalar | list[Scalar]], ...] = ()


def unroll(operations: Iterable[Operation], iteration: int = 0) -> Iterator[tuple[Operation, int]]:
    """Every operation in order, with the iteration that enters the payload's key.

    Outside of a repeat the iteration is 0. In nested repeats it counts through all of them.
    """
    for operation in operations:
        if isinstance(operation, Repeat):
            for i in range(operation.times):
                yield from unroll(operation.operations, iteration * operation.times + i)
        else:
            yield operation, iteration


# ---------------------------------------------------------------------------- meaning


def validate(trace: Trace) -> None:
    """Raise `TraceError`, with the operation's index, for a history that no scheduler could do."""
    _check_profile(trace.payload.profile, "payload.profile")
    name = trace.payload.tensors
    if name is not None and (name in {"", ".", ".."} or set(name) & set("/\\\0")):
        raise TraceError(
            f"payload.tensors is {_shown(name)}, but must be a bare file name: "
            f"put the file into the trace's own folder"
        )
    _check_size(trace.operations)
    _check_tags(trace.operations, "operations", set())
    _Rehearsal(trace).run(trace.operations, "operations")


def _check_profile(profile: str, where: str) -> None:
    if profile not in PROFILES:
        raise TraceError(
            f"{where} is {_shown(profile)}, but must be one of {', '.join(PROFILES)}: "
            f"name a profile from this list"
        )


def _check_size(operations: tuple[Operation, ...]) -> None:
    total = _count(operations, "operations", 0)
    if total > OPERATIONS_MAX:
        raise TraceError(
            f"the history has {total} operations with its repeats unrolled, "
            f"but at most {OPERATIONS_MAX} are allowed: repeat fewer times, or split the trace"
        )


def _count(operations: tuple[Operation, ...], where: str, depth: int) -> int:
    total = 0
    for i, operation in enumerate(operations):
        if isinstance(operation, Repeat):
            if depth == REPEAT_DEPTH_MAX:
                raise TraceError(
                    f"{where}[{i}] (repeat) is nested {depth + 1} deep, but at most "
                    f"{REPEAT_DEPTH_MAX} are allowed: multiply the inner `times` out"
                )
            inside = _count(operation.operations, f"{where}[{i}].operations", depth + 1)
            total += operation.times * inside
        else:
            total += 1
    return total


def _check_tags(operations: tuple[Operation, ...], where: str, used: set[int]) -> None:
    """A tag stands for one window, in the text of the trace; profiles are looked up on the way."""
    for i, operation in enumerate(operations):
        here = f"{where}[{i}]"
        if isinstance(operation, Repeat):
            _check_tags(operation.operations, f"{here}.operations", used)
        elif isinstance(operation, Verify | Decode | Prefill | Place):
            if operation.tag in used:
                raise TraceError(
                    f"{here} ({_kind(operation)}): tag {operation.tag} stands for an earlier "
                    f"window: give every verify, decode, prefill and place a tag of its own"
                )
            used.add(operation.tag)
            if operation.profile is not None:
                _check_profile(operation.profile, f"{here}.profile")


def _asks_for_cursors(operations: tuple[Operation, ...]) -> bool:
    """Whether a fork or a bound is there, which not every cursor allows."""
    return any(
        isinstance(op, Fork)
        or (isinstance(op, Commit) and op.bound is not None)
        or (isinstance(op, Repeat) and _asks_for_cursors(op.operations))
        for op in operations
    )


@dataclass(slots=True)
class _Seat:
    """What decides whether the next operation of a request is legal."""

    cursors: Cursors
    bound: int
    pending: int | None = None  # the tag of the window in flight
    length: int = 0

    def key(self) -> tuple[int, ...]:
        """All of it but `cache_base`, on which no rule depends."""
        c = self.cursors
        return (c.write_pos, c.is_flush, self.bound, -1 if self.pending is None else self.pending)


@lru_cache(maxsize=65_536)
def _committed(
    protocol: Protocol, cursors: Cursors, accepted: int, ring: int, bound: int
) -> Cursors:
    return protocol.commit(cursors, accepted, ring, bound)


class _Rehearsal:
    """Walks a history through seats and windows alone, at some 300,000 rows a second."""

    def __init__(self, trace: Trace) -> None:
        setup = self.setup = trace.setup
        self.has_ring = DIALECTS[setup.dialect].has_ring
        self.protocol = protocol_of(setup)
        # Cursors decide on nothing else; without them a repeat recurs in a turn or two.
        self.moves_cursors = self.has_ring and _asks_for_cursors(trace.operations)
        self.carries_records = DIALECTS[setup.dialect].saves == "records"
        self.seats: dict[int, _Seat] = {}
        self.saved: dict[int, _Seat] = {}
        self.prefixes: set[int] = set()
        self.verified: dict[int, Verify] = {}  # windows in flight, by tag
        self.rows = 0
        self.rows_again = 0

    def run(self, operations: tuple[Operation, ...], where: str) -> None:
        for i, operation in enumerate(operations):
            here = f"{where}[{i}]"
            if isinstance(operation, Repeat):
                self.repeat(operation, here)
                continue
            try:
                self.apply(operation)
            except TraceError as error:
                raise TraceError(f"{here} ({_kind(operation)}): {error}") from None

    def repeat(self, operation: Repeat, where: str) -> None:
        """Iterate until the seats are as they were before: from there on nothing new can happen."""
        met: dict[int, int] = {}
        i = 0
        while i < operation.times:
            seats, saved = (
                frozenset((request, seat.key()) for request, seat in those.items())
                for those in (self.seats, self.saved)
            )
            state = hash((seats, saved, frozenset(self.prefixes), frozenset(self.verified)))
            if state in met:
                period = i - met[state]
                i = operation.times - (operation.times - i) % period
                met.clear()
                if i == operation.times:
                    return
            met[state] = i
            before = self.rows
            try:
                self.run(operation.operations, f"{where}.operations")
                if i:
                    self.spend(self.rows - before + len(self.seats) + len(self.verified))
            except TraceError as error:
                late = f" [in iteration {i} of {operation.times}]" if i else ""
                raise TraceError(f"{error}{late}") from None
            i += 1

    def spend(self, rows: int) -> None:
        """Count rows that were walked again."""
        self.rows_again += rows
        if self.rows_again > REHEARSED_ROWS_MAX:
            raise TraceError(
                f"its repeats have walked {REHEARSED_ROWS_MAX} rows and do not come back to the "
                f"cursors that they had: repeat fewer times, or take the forks out"
            )

    def apply(self, operation: Operation) -> None:
        match operation:
            case Admit():
                self.seat(operation.request, self.fresh())
            case Free():
                self.seated(operation.request)
                del self.seats[operation.request]
            case Fork():
                self.fork(operation)
            case Verify():
                self.verify(operation)
            case Commit():
                self.commit(operation)
            case Decode():
                self.batch(operation.rows)
                for request in operation.rows:
                    if request is not None:
                        self.advance(self.ready(request), 1, self.setup.window)
            case Prefill():
                self.prefill(operation)
            case Place():
                self.place(operation)
            case _:
                self.move(operation)
        self.rows += 1

    def move(self, operation: Operation) -> None:
        """One that changes its place, or what the prefix cache keeps."""
        match operation:
            case Save(request=request):
                self.ready(request)
                self.saved[request] = self.seats.pop(request)
            case Restore(request=request):
                self.restore(request)
            case Donate():
                self.donate(operation)
            case Hit(request=request, prefix=prefix):
                self.kept(prefix)
                self.seat(request, self.fresh())
            case Evict(prefix=prefix):
                self.kept(prefix)
                self.prefixes.remove(prefix)

    def fresh(self) -> _Seat:
        return _Seat(self.protocol.reset(self.setup.ring, self.setup.window), self.setup.window)

    def seat(self, request: int, seat: _Seat) -> None:
        if request in self.seats:
            raise TraceError(f"request {request} is seated already: free it first")
        if request in self.saved:
            raise TraceError(f"request {request} is saved: restore it, or seat another one")
        taken = len(self.seats) + len(self.prefixes)
        if taken >= self.setup.slots - 1:
            raise TraceError(
                f"request {request} finds no slot, {taken} of {self.setup.slots} are "
                f"taken and one is the null slot: free a request, evict a prefix, "
                f"or raise setup.slots"
            )
        self.seats[request] = seat

    def seated(self, request: int) -> _Seat:
        if request in self.saved:
            raise TraceError(f"request {request} is saved: restore it first")
        if request not in self.seats:
            raise TraceError(f"request {request} is not seated: admit, fork or place it first")
        return self.seats[request]

    def ready(self, request: int) -> _Seat:
        seat = self.seated(request)
        if seat.pending is not None:
            raise TraceError(
                f"request {request} has the window with tag {seat.pending} in flight: "
                f"commit that first (0 rejects all of it)"
            )
        return seat

    def batch(self, rows: tuple[int | None, ...]) -> None:
        self.rows += len(rows)
        met: set[int] = set()
        for request in rows:
            if request in met:
                raise TraceError(f"request {request} has two rows: a batch holds a request once")
            if request is not None:
                met.add(request)

    def fork(self, operation: Fork) -> None:
        source = self.ready(operation.source)
        if source.cursors.write_pos:
            raise TraceError(
                f"the checkpoint of source {operation.source} lags behind "
                f"{source.cursors.write_pos} records: fork right after an admission, "
                f"or after a flush that accepted 0"
            )
        self.seat(operation.request, self.fresh())

    def restore(self, request: int) -> None:
        seat = self.saved.pop(request, None)
        if seat is None:
            raise TraceError(f"request {request} is not saved: save it first")
        self.seat(request, seat if self.carries_records else self.fresh())

    def donate(self, operation: Donate) -> None:
        self.ready(operation.request)
        if operation.prefix in self.prefixes:
            raise TraceError(
                f"prefix {operation.prefix} is kept already: evict it first, or use another name"
            )
        del self.seats[operation.request]
        self.prefixes.add(operation.prefix)

    def kept(self, prefix: int) -> None:
        if prefix not in self.prefixes:
            raise TraceError(f"prefix {prefix} is not kept: donate it first")

    def verify(self, operation: Verify) -> None:
        rows, lengths = operation.rows, operation.lengths
        if len(lengths) != len(rows):
            raise TraceError(f"{len(lengths)} lengths for {len(rows)} rows: give one for each row")
        self.batch(rows)
        window = self.setup.window
        for row, (request, length) in enumerate(zip(rows, lengths, strict=True)):
            if not 0 <= length <= window:
                raise TraceError(
                    f"lengths[{row}] is {length}, but must be in 0..{window}: "
                    f"shorten the window, or raise setup.window"
                )
            if request is None:
                continue
            seat = self.ready(request)
            room = self.setup.ring - seat.cursors.write_pos
            if length > max(seat.bound, room):
                raise TraceError(
                    f"lengths[{row}] is {length}, but request {request} was last committed with "
                    f"bound {seat.bound}, and behind its {seat.cursors.write_pos} records there is "
                    f"room for {room}: shorten the window, or raise that commit's bound"
                )
            seat.pending, seat.length = operation.tag, length
        self.verified[operation.tag] = operation

    def prefill(self, operation: Prefill) -> None:
        """No rule counts on what it folds, since not every target owns it."""
        rows, lengths = operation.rows, operation.lengths
        if len(lengths) != len(rows):
            raise TraceError(f"{len(lengths)} lengths for {len(rows)} rows: give one for each row")
        self.batch(rows)
        for request in rows:
            self.ready(request)

    def commit(self, operation: Commit) -> None:
        verify = self.verified.pop(operation.tag, None)
        if verify is None:
            raise TraceError(
                f"no window with tag {operation.tag} is in flight: "
                f"commit the tag of an earlier verify, once"
            )
        rows, accepted, window = verify.rows, operation.accepted, self.setup.window
        if len(accepted) != len(rows):
            raise TraceError(
                f"{len(accepted)} counts for the {len(rows)} rows of its verify: "
                f"give one for each row"
            )
        bound = window if operation.bound is None else operation.bound
        if not 1 <= bound <= window:
            raise TraceError(
                f"bound is {bound}, but must be in 1..{window}: lower it, or raise setup.window"
            )
        if operation.track is not None and operation.track > window:
            raise TraceError(
                f"track is {operation.track}, but must be in 1..{window}: "
                f"a window has no more tokens; lower it, or raise setup.window"
            )
        self.rows += len(rows)
        for row, (request, count) in enumerate(zip(rows, accepted, strict=True)):
            seat = None if request is None else self.seats.get(request)
            if seat is None or seat.pending != operation.tag:
                if count is not None:
                    raise TraceError(
                        f"accepted[{row}] is {count}, but its row is padding or was freed since "
                        f"its verify: write null"
                    )
            elif count is None or not 0 <= count <= seat.length:
                raise TraceError(
                    f"accepted[{row}] is {_shown(count)}, but request {request} has a window of "
                    f"{seat.length} in flight: accept 0..{seat.length}"
                )
            else:
                self.advance(seat, count, bound)

    def advance(self, seat: _Seat, accepted: int, bound: int) -> None:
        if self.moves_cursors:
            L = self.setup.ring
            seat.cursors = _committed(self.protocol, seat.cursors, accepted, L, bound)
            if (records := seat.cursors.write_pos) + bound > L:
                raise TraceError(
                    f"bound is {bound}, but behind {records} records a ring of {L} has room for "
                    f"{L - records}: a bound may grow only as far as that"
                )
        seat.bound, seat.pending = bound, None

    def place(self, operation: Place) -> None:
        """States that `sim.cursors.reachable` holds: any base, and records that may wait."""
        base, records = operation.base, operation.records
        L, T = (self.setup.ring, self.setup.window) if self.has_ring else (1, 1)
        if base >= (1 if self.protocol.plain else L):
            raise TraceError(
                f"base is {base}, but must be in 0..{0 if self.protocol.plain else L - 1}: "
                "name a physical row of the ring"
            )
        most = self.protocol.most(L, T)
        if records > most:
            raise TraceError(
                f"records is {records}, but must be in 0..{most}: "
                f"no commit leaves more than {most} records in this ring"
            )
        flags = self.protocol.flags(records, L, T)
        if operation.flush not in flags:
            raise TraceError(
                f"flush is {operation.flush}, but {records} records in this ring mean {flags[0]} "
                f"(records + 2 * window > ring): change either"
            )
        self.seat(operation.request, _Seat(Cursors(records, base, int(operation.flush)), T))
        self.seats[operation.request].bound = self.setup.window


def _kind(operation: Operation) -> str:
    return type(operation).__name__.lower()


# ---------------------------------------------------------------------------- on disk


def load(path: Path | str) -> Trace:
    """Read and validate a trace; `TraceError` names file, place, value, limit and way out."""
    path = Path(path)
    data = _read(path)
    try:
        _check_version(msgspec.json.decode(data, type=_Head).version)
        trace = msgspec.json.decode(data, type=Trace)
        validate(trace)
    except msgspec.ValidationError as error:
        raise TraceError(f"{path}: {_explained(str(error), data)}") from None
    except msgspec.DecodeError as error:
        raise TraceError(f"{path}: {_located(str(error), data)}") from None
    except RecursionError:
        raise TraceError(
            f"{path}: nested too deep to read: repeats may be nested {REPEAT_DEPTH_MAX} deep"
        ) from None
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    return trace


def save(trace: Trace, path: Path | str) -> None:
    """Write `trace`, the same bytes each time; a reader sees the old file or the whole new one."""
    path = Path(path)
    content = msgspec.to_builtins(trace, order="deterministic")
    content["seen"] = _finite(content["seen"])
    text = _pretty(content, "") + "\n"
    with replacing(path) as file:
        file.write_text(text, encoding="utf-8")


def digest(trace: Trace) -> str:
    """12 hex digits of SHA-256 over what decides a run: setup, payload and operations.

    A tensors file enters by its name, not by its content.
    """
    decides = (trace.setup, trace.payload, trace.operations)
    return hashlib.sha256(msgspec.json.encode(decides)).hexdigest()[:12]


def _read(path: Path) -> bytes:
    """The bytes of a regular file of acceptable size; never waits on a pipe or a device."""
    try:
        if path.is_dir():
            raise TraceError(f"{path}: is a folder: name the trace.json inside")
        if path.exists() and not path.is_file():
            raise TraceError(f"{path}: is not a regular file: copy its content to one")
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise TraceError(f"{path}: does not exist: check the path") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise TraceError(
            f"{path}: has more than {FILE_BYTES_MAX} bytes, the limit of a trace: "
            f"use repeat, or split the trace"
        )
    begins = data.lstrip()[:12]
    if not begins:
        raise TraceError(f"{path}: is empty: write a trace, as docs/traces.md shows")
    if begins[:1] != b"{":
        raise TraceError(f"{path}: is not a trace: it begins with {begins!r} in place of `{{`")
    return data


def _check_version(version: int) -> None:
    if version != VERSION:
        raise TraceError(
            f"ringfold_trace is {version}, but this release reads version {VERSION}: "
            f"use the release that wrote it"
        )


def _located(message: str, data: bytes) -> str:
    """Malformed JSON: the line and column in place of the byte."""
    if "truncated" in message:
        return f"ends after {len(data)} bytes inside an object: restore the end of the file"
    if not (found := re.search(r"\(byte (\d+)\)", message)):
        return f"is not JSON: {message}"
    at = int(found[1])
    line, column = data.count(b"\n", 0, at) + 1, at - data.rfind(b"\n", 0, at)
    message = message[: found.start()].strip().removeprefix("JSON is malformed: ")
    not_finite = data[at : at + 1] in (b"N", b"I")
    remedy = "write NaN and infinities as strings" if not_finite else "see what stands before it"
    found_there = _shown(data[at : at + 8])
    return f"is not JSON at line {line}, column {column} ({message} {found_there}): {remedy}"


def _explained(message: str, data: bytes) -> str:
    """Right JSON, wrong content: the place, the value found there, what must stand there."""
    problem, _, place = message.partition(" - at `")
    place = place.rstrip("`") or "$"
    value = ""
    with contextlib.suppress(Exception):  # a value that cannot be shown is only left out
        value = f" (found {_shown(_value_at(msgspec.json.decode(data), place))})"
    problem = problem[0].lower() + problem[1:]
    return f"at {place}: {problem}{value}: see the fields in docs/traces.md"


def _value_at(value: Any, place: str) -> Any:
    for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", place):
        value = value[key] if key else value[int(index)]
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _pretty(value: Any, indent: str) -> str:
    """JSON with an operation a line: a dict stands on one if it fits, a list of plain values does.

    Only what holds a list of dicts is always spread out.
    """
    deeper = indent + "  "
    if isinstance(value, dict):
        line = "" if any(map(_lists_dicts, value.values())) else _compact(value)
        if line and len(indent) + len(line) <= LINE_MAX:
            return line
        inside = [f"{_compact(key)}: {_pretty(item, deeper)}" for key, item in value.items()]
        opening, closing = "{}"
    elif _lists_dicts(value):
        inside = [_pretty(item, deeper) for item in value]
        opening, closing = "[]"
    else:
        return _compact(value)
    return f"{opening}\n{deeper}" + f",\n{deeper}".join(inside) + f"\n{indent}{closing}"


def _lists_dicts(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and isinstance(value[0], dict)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: as strings they survive."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place at the end, or goes away."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
