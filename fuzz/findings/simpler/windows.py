"""Shorter windows, smaller rings and shorter prefills, of which less is stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from ringfold.fuzz.findings.simpler.edits import (
    changed,
    each,
    exchanged,
    powers,
    put,
    with_operations,
    with_setup,
)
from ringfold.fuzz.findings.simpler.seats import simpler_places
from ringfold.fuzz.histories.trace import (
    Commit,
    Decode,
    Donate,
    Operation,
    Place,
    Prefill,
    Trace,
    Verify,
    unroll,
)
from ringfold.sim.dialects import DIALECTS, protocol_of

CHUNKS: Final = (1, 2, 3, 4, 8, 16, 64, 65)
"""Lengths to try; prefill kernels work in 64 tokens at a time."""


def shorter_windows(trace: Trace) -> Iterator[Trace]:
    """Each window as short as it can be, each count of accepted tokens as small."""
    for operation, _ in unroll(trace.operations):
        if isinstance(operation, Verify):
            accepted = _accepted(trace, operation)
            for row, (length, n) in enumerate(zip(operation.lengths, accepted, strict=True)):
                for new_length in range(1, length + 1):
                    for new_n in range(new_length + 1) if n is not None else (None,):
                        yield _with_window(trace, operation.tag, row, new_length, new_n)


def _accepted(trace: Trace, verify: Verify) -> Sequence[int | None]:
    for operation, _ in unroll(trace.operations):
        if isinstance(operation, Commit) and operation.tag == verify.tag:
            return operation.accepted
    return (None,) * len(verify.rows)


def _with_window(trace: Trace, tag: int, row: int, length: int, accepted: int | None) -> Trace:
    """`trace` with another length and count in one row of the window called `tag`."""

    def change(operation: Operation) -> Operation:
        if isinstance(operation, Verify) and operation.tag == tag:
            return replace(operation, lengths=put(operation.lengths, row, length))
        if isinstance(operation, Commit) and operation.tag == tag:
            return replace(operation, accepted=put(operation.accepted, row, accepted))
        return operation

    return changed(trace, change)


def smaller_rings(trace: Trace) -> Iterator[Trace]:
    """Shorter rings and windows, with the seats as they are and then in every other state."""
    yield from shorter_rings(trace)
    for smaller in shorter_rings(trace):
        yield from simpler_places(smaller)


def shorter_rings(trace: Trace) -> Iterator[Trace]:
    """Shorter rings and windows, with the seats as they are."""
    setup = trace.setup
    for T in range(1, setup.window + 1):
        for L in powers(setup.ring):
            for lowered in dict.fromkeys((0, setup.window - T)):
                if 2 * T <= L:
                    yield _squeezed(trace, L, T, lowered)


def _squeezed(trace: Trace, L: int, T: int, lowered: int) -> Trace:
    """`trace` in a shorter ring, with bounds lowered by so much, and states that are most alike.

    No window is longer than `T`, no count above its window, no bound above `T`.
    """
    smaller = with_setup(trace, ring=L, window=T)
    has_ring = DIALECTS[smaller.setup.dialect].has_ring
    protocol = protocol_of(smaller.setup)
    lengths: dict[int, tuple[int, ...]] = {}

    def change(operation: Operation) -> Operation:
        match operation:
            case Verify(tag=tag):
                lengths[tag] = tuple(min(length, T) for length in operation.lengths)
                return replace(operation, lengths=lengths[tag])
            case Commit(tag=tag, accepted=accepted, bound=bound, track=track):
                counts = tuple(
                    None if n is None else min(n, length)
                    for n, length in zip(accepted, lengths[tag], strict=True)
                )
                bounded = None if bound is None else max(1, min(bound - lowered, T))
                tracked = None if track is None else min(track, T)
                return replace(operation, accepted=counts, bound=bounded, track=tracked)
            case Place(base=base, records=records) if has_ring:
                fewer = min(records, protocol.most(L, T))
                flush = protocol.flags(fewer, L, T)[0]
                return replace(operation, records=fewer, base=base % L, flush=flush)
            case _:
                return operation

    return changed(smaller, change)


def plainer_commits(trace: Trace) -> Iterator[Trace]:
    """Commits that store no state apart and announce the setup's own window; else small numbers."""
    for plain in ({"bound": None, "track": None}, {"bound": None}, {"track": None}):
        yield with_operations(
            trace, (replace(o, **plain) if isinstance(o, Commit) else o for o in trace.operations)
        )
    for i, commit in each(trace, Commit):
        for name in ("bound", "track"):
            for value in range(1, getattr(commit, name) or 1):
                yield exchanged(trace, i, replace(commit, **{name: value}))


def plainer_stores(trace: Trace) -> Iterator[Trace]:
    """Keys as long as their request, prompts that share no token, steps that store nothing."""
    plain: dict[type[Operation], dict[str, object]] = {
        Donate: {"cut": 0}, Prefill: {"branch": None}, Decode: {"stores": ()},
    }  # fmt: skip
    for kind, plainly in plain.items():
        yield with_operations(
            trace, (replace(o, **plainly) if isinstance(o, kind) else o for o in trace.operations)
        )
    for i, donate in each(trace, Donate):
        for cut in range(donate.cut):
            yield exchanged(trace, i, replace(donate, cut=cut))
    for i, decode in each(trace, Decode):
        for gone in range(len(decode.stores)):
            yield exchanged(trace, i, replace(decode, stores=put(decode.stores, gone)))


def shorter_chunks(trace: Trace) -> Iterator[Trace]:
    """Each row of a prefill as short as it can be."""
    for i, prefill in each(trace, Prefill):
        for row, length in enumerate(prefill.lengths):
            for n in (n for n in CHUNKS if n < length):
                yield exchanged(trace, i, replace(prefill, lengths=put(prefill.lengths, row, n)))
