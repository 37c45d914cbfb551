"""What can happen in a history: every operation with its fields, and repeats of them.

The limits of a field stand in its type, so that a file is held to them while it is read. What one
operation means for another is the business of `validity.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ringfold.fuzz.judging.frame import Dead

OPERATIONS_MAX: Final = 1_000_000  # after unrolling
ROWS_MAX: Final = 65_536  # of one batch
REQUEST_MAX: Final = 65_535
WORD_MAX: Final = 2**32 - 1
CHUNK: Final = 64  # tokens that a prefill's kernels work on at a time
CHUNK_MAX: Final = 3 * CHUNK  # tokens of a prefill's row

Request = Annotated[int, Meta(ge=0, le=REQUEST_MAX)]
Prefix = Annotated[int, Meta(ge=0, le=REQUEST_MAX)]
"""The name under which a prefix cache keeps a state."""
Word = Annotated[int, Meta(ge=0, le=WORD_MAX)]
Count = Annotated[int, Meta(ge=0, le=ROWS_MAX)]
Chunk = Annotated[int, Meta(ge=1, le=CHUNK_MAX)]
Profile = Annotated[str, Meta(min_length=1, max_length=64)]
Batch = Annotated[tuple[Request | None, ...], Meta(min_length=1, max_length=ROWS_MAX)]
"""Requests in batch order; null is a padding row."""


class _Operation(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
    tag_field="op",
    tag=str.lower,
):
    """Base of all operations."""

    dead: Dead = "leave"
    """What afterwards becomes of memory that is dead. Named always, so it is the last in a file."""


class Admit(_Operation, frozen=True):
    """A request is seated after its prefill; its state is the payload's under `tag`."""

    request: Request
    tag: Word


class Free(_Operation, frozen=True):
    """A request leaves; a window that it has in flight is lost."""

    request: Request


class Fork(_Operation, frozen=True):
    """A request is seated on a copy of `source`, whose checkpoint lags behind nothing."""

    request: Request
    source: Request


class Verify(_Operation, frozen=True):
    """A window of drafted tokens for each row of a batch."""

    tag: Word
    rows: Batch
    lengths: Annotated[tuple[Count, ...], Meta(max_length=ROWS_MAX)]
    profile: Profile | None = None


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


class Decode(_Operation, frozen=True):
    """Plain decoding: one token a row, committed at once.

    Of the rows that it `stores`, the state behind that token is also stored apart.
    """

    tag: Word
    rows: Batch
    stores: tuple[Request, ...] = ()
    profile: Profile | None = None


class Prefill(_Operation, frozen=True):
    """So many more tokens of their prompts for some requests; all are kept.

    It is a chunk of a long prompt, or the next turn of a request that kept its slot. It goes on
    from the committed state, so that what waits is folded first.

    Rows of more than `branch` tokens share so many of them with another prompt, which goes on
    otherwise. A target that stores the state of a prompt's last whole chunk, and owns `branch`,
    stores the one after so many in its place.
    """

    tag: Word
    rows: Annotated[tuple[Request, ...], Meta(min_length=1, max_length=ROWS_MAX)]
    lengths: Annotated[tuple[Chunk, ...], Meta(max_length=ROWS_MAX)]
    branch: Annotated[int, Meta(ge=1, le=CHUNK_MAX, multiple_of=CHUNK)] | None = None
    profile: Profile | None = None


class Idle(_Operation, frozen=True):
    """A batch of nothing but `rows` padding rows."""

    rows: Annotated[int, Meta(ge=1, le=ROWS_MAX)]


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


class Save(_Operation, frozen=True):
    """A request is retracted to host memory: its slot is freed, its committed state kept.

    It may wait with any number of records, but not with a window in flight: a scheduler retracts
    between steps.
    """

    request: Request


class Restore(_Operation, frozen=True):
    """A saved request is seated again, in whatever slot is free, on its committed state."""

    request: Request


class Donate(_Operation, frozen=True):
    """A request has finished and leaves its state, and its slot with it, to the prefix cache.

    The dialect says whether that is the committed state or what the checkpoint holds of it
    (`Dialect.donates`). As with `Save`, records may wait, but no window may be in flight.

    The prefix's key lacks the last `cut` tokens: they lie behind a stop, or are what a model
    thought and nobody keeps. So a target that owns `cut` leaves an older state, or none.
    """

    request: Request
    prefix: Prefix
    cut: Count = 0


class Hit(_Operation, frozen=True):
    """A request is seated on a copy of what the prefix cache keeps under `prefix`."""

    request: Request
    prefix: Prefix


class Evict(_Operation, frozen=True):
    """The prefix cache gives up a state, and its slot."""

    prefix: Prefix


class Repeat(_Operation, frozen=True):
    """The operations inside, `times` over; every iteration has its own tokens."""

    times: Annotated[int, Meta(ge=1, le=OPERATIONS_MAX)]
    operations: Annotated[tuple[Operation, ...], Meta(min_length=1)]


Operation = (
    Admit | Free | Fork | Verify | Commit | Decode | Prefill | Idle
    | Place | Save | Restore | Donate | Hit | Evict | Repeat
)  # fmt: skip

Seats = Admit | Place | Fork | Hit
"""What seats a request for the first time."""
Batched = Verify | Decode | Prefill
"""What brings tokens of several requests."""
Tagged = Batched | Place
"""What has tokens of its own, under a tag that nothing else has, and maybe in another profile."""


def kind(operation: Operation) -> str:
    """The name of an operation, as in a file."""
    return type(operation).__name__.lower()


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


def rewritten(
    operations: Iterable[Operation], change: Callable[[Operation], Iterable[Operation]]
) -> tuple[Operation, ...]:
    """What `change` makes of each operation, in repeats too; a repeat of nothing is left out."""
    made: list[Operation] = []
    for operation in operations:
        if not isinstance(operation, Repeat):
            made += change(operation)
        elif inside := rewritten(operation.operations, change):
            made.append(msgspec.structs.replace(operation, operations=inside))
    return tuple(made)
