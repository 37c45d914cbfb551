"""A history for kernels, told as a server would live through it.

Whatever the generator makes must stay a legal history when batches are made even and committed at
once: `validate`, which knows nothing of servers, says so for each of them. What a request accepts
in each of its steps must stay what it was, or be one where it was nothing.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from msgspec.structs import replace

from ringfold.fuzz.histories.generate import history
from ringfold.fuzz.histories.lockstep import UNREACHABLE, in_lockstep
from ringfold.fuzz.histories.story import Plan
from ringfold.fuzz.histories.trace import (
    CHUNK,
    Admit,
    Commit,
    Decode,
    Donate,
    Fork,
    Free,
    Operation,
    PayloadSpec,
    Place,
    Prefill,
    Save,
    Trace,
    Verify,
    unroll,
    validate,
)
from ringfold.sim.setup import Dtypes, Geometry, Setup
from ringfold.sim.situations import SITUATIONS

HISTORIES = 150  # a prefix whose owner was left out came up once in fifty
SHARE_AS_TOLD = 0.95  # the ring: 0.978; all others: 1
OPERATIONS = frozenset(
    {
        *("admit", "free", "fork", "verify", "commit", "prefill", "idle", "place"),
        *("save", "restore", "donate", "hit", "evict"),
    }
)


def setup_of(dialect: str) -> Setup:
    return Setup(dialect=dialect, geometry=Geometry(1, 2, 4, 4), ring=8, window=2, slots=5)


def accepted_of(operations: tuple[Operation, ...]) -> dict[int, list[int]]:
    """What each request accepted, step by step."""
    rows, accepted = dict[int, tuple[int | None, ...]](), defaultdict[int, list[int]](list)
    for operation, _ in unroll(operations):
        if isinstance(operation, Verify):
            rows[operation.tag] = operation.rows
        elif isinstance(operation, Commit):
            for row, n in zip(rows.pop(operation.tag), operation.accepted, strict=True):
                if row is not None and n is not None:
                    accepted[row].append(n)
    return accepted


@pytest.mark.parametrize("dialect", ["ring", "fold-every-commit", "compact", "snapshots"])
def test_a_history_stays_legal_and_accepts_what_it_did(dialect: str) -> None:
    """Histories of a dialect, with everything in them that a target may own."""
    setup = setup_of(dialect)
    plan = Plan(setup, "sim", OPERATIONS, rows=3, steps=20, directed=True)
    as_told = all_told = 0
    drafts = list[int]()
    for number in range(HISTORIES):
        trace = history(plan, 7, number)
        served = Trace(
            setup=setup,
            payload=trace.payload,
            operations=in_lockstep(trace.operations, setup),
        )

        validate(served)

        walked = [operation for operation, _ in unroll(served.operations)]
        for verify, after in zip(walked, [*walked[1:], None], strict=True):
            if isinstance(verify, Verify):
                assert isinstance(after, Commit)
                assert after.tag == verify.tag
                assert len(set(verify.lengths)) == 1
                assert (after.bound or setup.window) == verify.lengths[0]
                assert len(verify.rows) < setup.slots
                drafts.append(verify.lengths[0])
        before, now = accepted_of(trace.operations), accepted_of(served.operations)
        for request, counts in now.items():
            # A request that left with a window in flight has now kept a token of that first.
            kept = [*(max(n, 1) for n in before[request]), 1][: len(counts)]
            assert len(counts) - len(before[request]) in (0, 1)
            # Where there was no room for a window that was longer than the last, less is kept.
            assert all(1 <= n <= most for n, most in zip(counts, kept, strict=True))
            as_told += sum(n == most for n, most in zip(counts, kept, strict=True))
            all_told += len(counts)
    assert as_told >= SHARE_AS_TOLD * all_told
    assert {before < now for before, now in pairwise(drafts)} == {True, False}


@pytest.mark.parametrize("dialect", ["ring", "fold-every-commit", "compact"])
def test_a_history_with_plain_decoding_stays_legal(dialect: str) -> None:
    """Steps in place where nothing waits, and windows of one elsewhere."""
    setup = setup_of(dialect)
    plan = Plan(setup, "sim", OPERATIONS | {"decode"}, rows=3, steps=20, directed=False)
    for number in range(HISTORIES // 3):
        trace = history(plan, 8, number)
        operations = in_lockstep(trace.operations, setup)
        validate(Trace(setup=setup, payload=trace.payload, operations=operations))


def test_whoever_stops_does_so_within_its_last_window() -> None:
    """Behind a state that was stored, and before one that was stored last; or it has thought.

    Nobody does so in a session, and no prompt of a session shares tokens with another.
    """
    dtypes = Dtypes("float16", "float16", "float32")
    setup = replace(setup_of("compact"), ring=16, window=4, dtypes=dtypes)
    owned = OPERATIONS | {"track", "cut", "branch"}
    plan = Plan(setup, "sim", owned, rows=3, steps=40, directed=False)
    stops, thoughts, branches = 0, 0, 0
    for number in range(HISTORIES // 4):
        trace = history(plan, 10, number)
        served = in_lockstep(trace.operations, setup, tracks=True)
        validate(Trace(setup=setup, payload=trace.payload, operations=served))
        tracked, verified, turns, prompted = set[int](), set[int](), set[int](), set[int]()
        last: Commit | None = None
        for operation in (operation for operation, _ in unroll(served)):
            match operation:
                case Verify(rows=rows):
                    batch = rows
                    verified.update(row for row in rows if row is not None)
                case Commit(accepted=accepted, track=track):
                    last = operation
                    pairs = zip(batch, accepted, strict=True)
                    before = set(tracked)
                    tracked |= {
                        row for row, n in pairs if row is not None and n and track and n >= track
                    }
                case Prefill(rows=rows, lengths=lengths, branch=branch):
                    turns |= verified & set(rows)
                    long = {row for row, n in zip(rows, lengths, strict=True) if n >= CHUNK}
                    prompted |= long - turns
                    verified -= set(rows)
                    assert branch is None or not turns & set(rows)
                    branches += branch is not None
                case Save(request=request) | Free(request=request):
                    for known in (tracked, verified, turns, prompted):
                        known.discard(request)
                case Donate(request=request) if request in turns & prompted:
                    pytest.fail("a session holds on to the state of that prompt")
                case Donate(request=request, cut=cut) if cut > setup.window:
                    assert request not in turns
                    thoughts += 1
                case Donate(request=request, cut=cut) if cut:
                    assert last is not None
                    assert batch == (request,)
                    (n,) = last.accepted
                    assert n is not None
                    assert last.track == n
                    assert 1 <= cut <= n - 2
                    assert request in before - turns
                    stops += 1

    assert stops > 10
    assert thoughts > 0
    assert branches > 0


@pytest.mark.parametrize("activation", ["float32", "float16"])
@pytest.mark.parametrize("dialect", ["ring", "fold-every-commit", "compact"])
def test_whoever_leaves_a_prefix_was_tracked(dialect: str, activation: str) -> None:
    """At some token, since it was seated; who was not before is in a step of its own.

    A long chunk of a prompt tracks as well, unless it is in float32, which no server's is; and so
    does a plain step.
    """
    dtypes = Dtypes(activation, activation, "float32")
    setup = replace(setup_of(dialect), dtypes=dtypes)
    owned = OPERATIONS | {"track", "store", "decode", "prefill", "donate", "hit", "evict"}
    plan = Plan(setup, "sim", owned, rows=3, steps=40, directed=False)
    left, at_the_end, by_prompts, plainly = 0, 0, 0, 0
    for number in range(HISTORIES):
        trace = history(plan, 9, number)
        served = in_lockstep(trace.operations, setup, tracks=True)
        validate(Trace(setup=setup, payload=trace.payload, operations=served))
        tracked = dict[int, str]()
        for operation in (operation for operation, _ in unroll(served)):
            match operation:
                case Verify(rows=rows):
                    batch = rows
                case Commit(accepted=accepted, track=int(track)):
                    for row, n in zip(batch, accepted, strict=True):
                        if row is not None and n is not None and n >= track:
                            tracked[row] = "at the end" if n == track else "earlier"
                case Prefill(rows=rows, lengths=lengths) if activation != "float32":
                    tracked |= {
                        row: "prompt" for row, n in zip(rows, lengths, strict=True) if n >= CHUNK
                    }
                case Decode(stores=stores):
                    tracked |= dict.fromkeys(stores, "plainly")
                    plainly += len(stores)
                case Save(request=request) | Free(request=request):
                    tracked.pop(request, None)
                case Donate(request=request):
                    how = tracked.pop(request)
                    left += 1
                    at_the_end += how == "at the end"
                    by_prompts += how == "prompt"

    assert left > 10
    assert 0 < at_the_end < left
    assert (by_prompts > 0) == (activation != "float32")
    assert plainly > 0


def test_plain_decoding_is_a_window_of_one_where_records_wait() -> None:
    """A backend's decode step goes on from the checkpoint, and would lack them."""
    setup = setup_of("ring")
    operations: list[Operation] = [
        Admit(request=0, tag=1),
        Decode(tag=2, rows=(0, None)),
        Verify(tag=3, rows=(0,), lengths=(2,)),
        Commit(tag=3, accepted=(1,)),
        Decode(tag=4, rows=(0, None), dead="nan"),
        Verify(tag=5, rows=(0,), lengths=(2,)),
        Commit(tag=5, accepted=(2,)),
    ]

    served = in_lockstep(operations, setup)

    assert served == (
        *operations[:4],
        Verify(tag=4, rows=(0, None), lengths=(1, 1)),
        Commit(tag=4, accepted=(1, None), bound=1, dead="nan"),
        *operations[5:],
    )
    validate(Trace(setup=setup, payload=PayloadSpec(1, "ordinary"), operations=served))


@pytest.mark.parametrize("dialect", ["fold-every-commit", "compact"])
def test_overlapped_plain_steps_come_in_turn(dialect: str) -> None:
    """As many as the ring has room for, if it counts them; other rows end an interval in each."""
    setup = setup_of(dialect)
    rows = (1, None, 0)
    operations: list[Operation] = [
        *(Admit(request=number, tag=number) for number in (0, 1)),
        *(Decode(tag=tag, rows=rows, stores=(0,)) for tag in (4, 7, 10)),
    ]

    served = in_lockstep(operations, setup, tracks=True, overlaps=True)

    validate(Trace(setup=setup, payload=PayloadSpec(1, "ordinary"), operations=served))
    steps = [o for o in served if isinstance(o, Decode)]
    assert served[2:] == tuple(o for o in served if isinstance(o, Decode | Verify | Commit))
    assert [step.tag for step in steps[:2]] == [4, 7]  # a multiple of four goes by itself
    assert {step.stores for step in steps} >= {(0,), (1,)}
    assert len({step.tag for step in steps}) == len(steps) > 5


def test_a_prompt_that_fills_no_chunk_was_not_tracked() -> None:
    """Whoever has such a prompt verifies before it leaves a prefix; a chunk may be a long page."""
    dtypes = Dtypes("float16", "float16", "float32")
    setup = replace(setup_of("compact"), dtypes=dtypes)
    operations: list[Operation] = [
        Admit(request=0, tag=0),
        Prefill(tag=1, rows=(0,), lengths=(100,)),
        Donate(request=0, prefix=0),
    ]

    assert in_lockstep(operations, setup, tracks=True) == tuple(operations)
    verified = in_lockstep(operations, setup, tracks=True, chunk=128)
    assert [type(operation) for operation in verified] == [Admit, Prefill, Verify, Commit, Donate]


def test_a_window_grows_as_far_as_there_is_room() -> None:
    """Seven records in a ring of eight leave room for one token until they are folded."""
    setup = setup_of("ring")
    ones: list[Operation] = []
    for tag in range(1, 8):
        ones += [
            Verify(tag=tag, rows=(0,), lengths=(1,)),
            Commit(tag=tag, accepted=(1,), bound=1),
        ]
    longer: list[Operation] = []
    for tag in (8, 9):
        longer += [Verify(tag=tag, rows=(0,), lengths=(2,)), Commit(tag=tag, accepted=(2,))]

    served = in_lockstep([Admit(request=0, tag=0), *ones, *longer], setup)

    drafts = [o.lengths[0] for o in served if isinstance(o, Verify)]
    assert drafts == [1] * 8 + [2]
    validate(Trace(setup=setup, payload=PayloadSpec(1, "ordinary"), operations=served))


def test_a_request_whose_source_waits_with_records_is_left_out() -> None:
    """What a fork copies is a checkpoint, and that of its source would lack three records."""
    setup = setup_of("ring")
    operations: list[Operation] = [
        Place(request=0, tag=1, base=0, records=3, flush=False),
        Fork(request=1, source=0),
        Verify(tag=2, rows=(1, 0), lengths=(2, 2)),
        Commit(tag=2, accepted=(1, 1)),
        Free(request=1),
    ]

    served = in_lockstep(operations, setup)

    assert served == (
        operations[0],
        Verify(tag=2, rows=(None, 0), lengths=(2, 2)),
        Commit(tag=2, accepted=(None, 1)),
    )


def test_padding_is_cut_to_what_a_server_runs() -> None:
    """A pool for three requests pads a batch to three rows."""
    setup = Setup(dialect="ring", geometry=Geometry(1, 1, 4, 4), ring=8, window=2, slots=4)
    operations: list[Operation] = [
        Admit(request=0, tag=1),
        Verify(tag=2, rows=(None, None, 0, None), lengths=(1, 1, 2, 1)),
        Commit(tag=2, accepted=(None, None, 2, None)),
    ]

    served = in_lockstep(operations, setup)

    assert served[1] == Verify(tag=2, rows=(None, 0, None), lengths=(2, 2, 2))
    validate(Trace(setup=setup, payload=PayloadSpec(1, "ordinary"), operations=served))


def test_what_a_server_never_does_is_named_as_the_situations_are() -> None:
    """A name that means no situation would excuse nothing."""
    names = {situation.name for situation in SITUATIONS}

    assert names > UNREACHABLE
