"""SGLang's own pool, backend and commit agree with the recurrence, where they do.

The releases run unedited in an environment of their own, which `ringfold targets add` builds; where
it is missing these tests are skipped, for it has 2 GB. What is compared is what a walk compares:
outputs, states, the convolution's window, cursors, records, untouched memory, and bits with the
same pool whose replay flag is off. Where a release is known to be wrong, its traces are in
`tests/corpus`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from ringfold.fuzz.histories.payload import Payload
from ringfold.fuzz.histories.trace import (
    CHUNK,
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
    PayloadSpec,
    Prefill,
    Restore,
    Save,
    Trace,
    Verify,
    validate,
)
from ringfold.fuzz.judging import walk as walking
from ringfold.fuzz.running.hunt import plans
from ringfold.fuzz.target import RefusedError
from ringfold.fuzz.targets import environments, registry, wheels
from ringfold.fuzz.targets.registry import MissingTargetError, UnknownTargetError
from ringfold.sim.setup import Dtypes, Geometry, Setup

RELEASES = ("0.5.16", "0.5.18", "0.5.20", "0.5.23")
OLDEST = "0.5.16"


def pool_of(version: str, driven: str = "") -> Any:
    """The target; skips where its wheel or the environment is missing."""
    if environments.find() is None or wheels.find(f"sglang=={version}") is None:
        pytest.skip(f"type `ringfold targets add sglang-pool=={version}` (2 GB)")
    return registry.resolve(f"sglang-pool=={version}{driven}")


def trace_of(target: Any, operations: list[Operation], **changed: Any) -> Trace:
    fields = {
        "dialect": target.dialect.name,
        "geometry": Geometry(1, 2, 32, 32),
        "ring": 8,
        "window": 2,
        "slots": 5,
        "convolution": 4,
    }
    trace = Trace(
        setup=Setup(**{**fields, **changed}),
        payload=PayloadSpec(seed=3, profile="slow-decay"),
        operations=tuple(operations),
    )
    validate(trace)
    return trace


def steps(
    *rows: int | None, first: int, accepted: list[int], dead: Any = "leave"
) -> list[Operation]:
    """So many steps of a batch, in which every request keeps as many tokens."""
    made: list[Operation] = []
    for tag, n in enumerate(accepted, start=first):
        counts = tuple(None if row is None else n for row in rows)
        made += [
            Verify(tag=tag, rows=rows, lengths=(2,) * len(rows)),
            Commit(tag=tag, accepted=counts, dead=dead),
        ]
    return made


@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_lives_that_a_release_gets_right(version: str, dtype: str) -> None:
    """Folds, padding, an idle batch, a copy, a used slot and a prefix whose records were folded."""
    target = pool_of(version)
    operations: list[Operation] = [
        Admit(request=0, tag=0),
        Fork(request=1, source=0),
        *steps(1, None, 0, first=10, accepted=[2, 1, 2, 2, 2], dead="garbage"),
        Idle(rows=2),
        Free(request=0, dead="garbage"),
        Admit(request=2, tag=1, dead="nan" if version < "0.5.20" else "garbage"),
        *steps(2, 1, first=20, accepted=[1, 2, 2]),
    ]
    walked = walking.walk(
        trace_of(target, operations, layers=2, dtypes=Dtypes(dtype, dtype, "float32")), target
    )

    assert walked.mismatches == []
    assert walked.skipped == {}
    assert walked.windows == 16
    assert walked.compared["convolution"] > 8
    if target.dialect.bitwise_fold:
        assert walked.compared["exactness"] > 0
    assert walked.seconds["target"] > 0


def drafted(tag: int, count: int, *rows: int | None, **kept: Any) -> list[Operation]:
    """A step that drafts so many, of which every request keeps all; the bound is a server's."""
    verify = Verify(tag=tag, rows=rows, lengths=(count,) * len(rows))
    accepted = tuple(None if row is None else count for row in rows)
    return [verify, Commit(tag=tag, accepted=accepted, bound=count if count < 2 else None, **kept)]


@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES)
def test_chunks_plain_steps_and_counts_that_change(version: str) -> None:
    """Prompts in chunks, the last of one token, beside rows that verify; K is not V."""
    target = pool_of(version)
    operations: list[Operation] = [
        Admit(request=0, tag=0),
        Admit(request=1, tag=1),
        Prefill(tag=2, rows=(1, 0), lengths=(5, 70)),
        *drafted(3, 2, 0),
        Prefill(tag=4, rows=(1,), lengths=(1,)),
        Decode(tag=5, rows=(1, None)),
        *drafted(6, 1, 1, 0),
        Decode(tag=7, rows=(1,)),  # where records wait it is left out
        *drafted(8, 2, None, 0, 1),
        *drafted(9, 1, 0),
        *drafted(10, 2, 1, 0),
        *drafted(11, 2, 1, 0),
    ]

    walked = walking.walk(
        trace_of(
            target,
            operations,
            geometry=Geometry(1, 2, 64, 32),
            dtypes=Dtypes("float16", "float16", "float32"),
        ),
        target,
    )

    assert walked.mismatches == []
    assert walked.skipped == ({"decode": 1} if target.dialect.has_ring else {})
    if target.dialect.bitwise_fold:
        assert walked.compared["exactness"] > 0


@pytest.mark.slow
def test_a_float32_prompt_is_no_release_s() -> None:
    """Its prefill refuses that dtype, so the target owns none until it is opened with another."""
    target = pool_of("0.5.23")
    operations: list[Operation] = [
        Admit(request=0, tag=0),
        Prefill(tag=1, rows=(0,), lengths=(2,)),
    ]
    for dtype, skipped in (("float32", {"prefill": 1}), ("float16", {})):
        dtypes = Dtypes(dtype, dtype, "float32")
        walked = walking.walk(trace_of(target, operations, dtypes=dtypes), target)

        assert walked.skipped == skipped
        assert walked.mismatches == []


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.18", "0.5.20", "0.5.23"])
def test_tracked_states_are_those_of_their_tokens(version: str) -> None:
    """State and window, in slots of their own, with records that wait and with none."""
    target = pool_of(version, "+tracks")
    operations: list[Operation] = [
        Admit(request=0, tag=0),
        Admit(request=1, tag=1),
        *drafted(2, 2, 1, 0, track=2),
        *drafted(3, 2, None, 0, 1, track=1),
        Free(request=0, dead="garbage"),
        *drafted(4, 1, 1, track=1),
        *drafted(5, 2, 1),
    ]

    walked = walking.walk(trace_of(target, operations), target)

    assert walked.mismatches == []
    assert walked.skipped == {}
    # An admission, four commits, and three that also stored states apart.
    assert walked.compared["convolution"] == 1 + 4 + 3


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.18", "0.5.23"])
def test_tracking_slots_take_turns(version: str) -> None:
    """A request that tracks stores in its other slot; one that does not keeps what it stored."""
    target = pool_of(version, "+tracks")
    operations: list[Operation] = [Admit(request=0, tag=0), Admit(request=1, tag=1)]
    slots = []
    for tag, rows in enumerate([(1, 0), (0,), (0, None)], start=2):
        operations += drafted(tag, 2, *rows, track=1)
        walked = walking.walk(trace_of(target, operations), target)
        slots.append([target.seat(request)["track"] for request in (0, 1)])

        assert walked.mismatches == []

    (first, other), (second, kept), (third, last) = slots
    assert len({first, second, other}) == 3
    assert (third, kept, last) == (first, other, other)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.17", "0.5.18", "0.5.20", "0.5.23"])
def test_a_prefix_is_what_was_tracked(version: str) -> None:
    """With an extra buffer a prefix survives records that wait, whom it is handed on to as well."""
    target = pool_of(version, "+tracks")
    operations: list[Operation] = [
        Admit(request=0, tag=0),
        Admit(request=1, tag=1),
        *drafted(2, 2, 1, 0),
        *drafted(3, 2, None, 1, track=2),
        Donate(request=1, prefix=0),
        Free(request=0, dead="garbage"),
        Hit(request=2, prefix=0),
        *drafted(5, 2, 2, dead="garbage"),
        *drafted(6, 1, 2, track=1),
        Donate(request=2, prefix=1, dead="garbage"),
        Evict(prefix=0, dead="garbage"),
        Hit(request=3, prefix=1),
        Hit(request=4, prefix=1, dead="garbage"),
        *drafted(7, 2, 3, 4),
    ]

    walked = walking.walk(trace_of(target, operations), target)

    assert walked.mismatches == []
    assert walked.skipped == {}
    if target.dialect.bitwise_fold:
        assert walked.compared["exactness"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.17", "0.5.18", "0.5.20", "0.5.23"])
@pytest.mark.parametrize("driven", ["", "+tracks"])
def test_turns_of_sessions(version: str, driven: str) -> None:
    """After one turn a request leaves a prefix, if it can; after two another's session is closed.

    Then as many are admitted as there is room for: nothing was lost of their seats.
    """
    target = pool_of(version, driven)
    track = {"track": 2} if driven else {}
    folds = [step for tag in (2, 3, 4) for step in drafted(tag, 2, 0, 1, **track)]
    again = [step for tag in (6, 7, 8) for step in drafted(tag, 2, 1, 0)]
    prefixes = driven or not target.dialect.has_ring
    operations: list[Operation] = [
        Admit(request=0, tag=0),
        Admit(request=1, tag=1),
        *folds,
        Prefill(tag=5, rows=(0, 1), lengths=(3, 2)),
        *again,
        Prefill(tag=9, rows=(1,), lengths=(1,), dead="garbage"),
        *drafted(10, 2, 1, 0, **track),
        *([Donate(request=0, prefix=0)] if prefixes else [Free(request=0)]),
        Free(request=1, dead="garbage"),
        *([Hit(request=2, prefix=0)] if prefixes else []),
        *(Admit(request=number, tag=number) for number in range(3, 5 if prefixes else 7)),
        *drafted(11, 2, 4, 3),
    ]
    dtypes = Dtypes("float16", "float16", "float32")

    walked = walking.walk(trace_of(target, operations, dtypes=dtypes), target)

    assert walked.mismatches == []
    assert walked.skipped == {}


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.17", "0.5.18", "0.5.20", "0.5.23"])
def test_a_prefix_may_be_older_than_its_request(version: str) -> None:
    """Windows, a plain step, an idle batch and garbage stand between the track and the finish.

    So they do between a plain step that stores and the finish.
    """
    target = pool_of(version, "+tracks")
    operations: list[Operation] = [
        Admit(request=0, tag=0),
        Admit(request=1, tag=1),
        *drafted(2, 2, 1, 0, track=1, dead="garbage"),
        *drafted(3, 2, 0, 1, dead="garbage"),
        Idle(rows=2),
        Decode(tag=4, rows=(0, 1)),
        *drafted(5, 2, 1, dead="garbage"),
        Donate(request=1, prefix=0, dead="garbage"),
        Admit(request=2, tag=6, dead="garbage"),
        Decode(tag=10, rows=(2,), dead="garbage"),
        Decode(tag=11, rows=(None, 2), stores=(2,), dead="garbage"),
        *drafted(7, 2, 2, 0),
        Hit(request=3, prefix=0, dead="garbage"),
        *drafted(8, 2, 3),
        Donate(request=0, prefix=1),
        Evict(prefix=0, dead="garbage"),
        Hit(request=4, prefix=1),
        *drafted(9, 2, 4, 2),
        Donate(request=2, prefix=2, dead="garbage"),
        Evict(prefix=1, dead="garbage"),
        Hit(request=5, prefix=2),
        *drafted(12, 2, 5, 4),
    ]

    walked = walking.walk(trace_of(target, operations), target)

    assert walked.mismatches == []
    assert walked.skipped == ({"decode": 1} if target.dialect.has_ring else {})


@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES)
def test_overlapped_plain_steps(version: str) -> None:
    """Results are processed a step late; of who finishes one more step was launched, or none was.

    Request 1 leaves what it stored before the step that is on its way then, in which it stores
    again; or that, in the first two releases.
    """
    target = pool_of(version, "+tracks+overlap")
    operations: list[Operation] = [
        Admit(request=0, tag=0),
        Admit(request=1, tag=1, dead="garbage"),
        Decode(tag=2, rows=(0, 1), dead="garbage"),
        Decode(tag=3, rows=(1, None, 0), stores=(1,), dead="garbage"),
        Decode(tag=4, rows=(0, 1), dead="garbage"),
        Decode(tag=5, rows=(1, 0), stores=(1, 0)),
        Donate(request=1, prefix=0, dead="garbage"),
        Decode(tag=6, rows=(0,), dead="garbage"),
        Decode(tag=7, rows=(0,), dead="garbage"),
        Donate(request=0, prefix=1),
        Hit(request=2, prefix=0, dead="garbage"),
        Hit(request=3, prefix=1),
        Decode(tag=8, rows=(2, 3), stores=(2,), dead="garbage"),
        Decode(tag=9, rows=(3, 2), dead="garbage"),
        Evict(prefix=0, dead="garbage"),
        Idle(rows=2),
        *drafted(10, 2, 3, 2),
        Donate(request=2, prefix=2, dead="garbage"),
        Free(request=3),
        Hit(request=4, prefix=2),
        Decode(tag=11, rows=(4,)),
        Decode(tag=12, rows=(4,)),
        Free(request=4),
        *(Admit(request=number, tag=number) for number in (13, 14)),
        Decode(tag=15, rows=(14, 13)),
    ]

    walked = walking.walk(trace_of(target, operations), target)

    assert walked.mismatches == []
    # An end that no result notes is lost in the first two: it came with the first of two steps.
    assert walked.skipped == ({"hit": 1} if version == OLDEST else {})


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.20", "0.5.23"])
def test_pages_longer_than_a_chunk(version: str) -> None:
    """Prompts are tracked page by page, and branch with one; windows and plain steps as ever.

    A prompt that fills no page leaves nothing, so its request verifies once more before it does. A
    branch where no page ends is left out.
    """
    target = pool_of(version, "+tracks+page=128")
    operations: list[Operation] = [
        Admit(request=0, tag=0),
        Admit(request=1, tag=1, dead="garbage"),
        Prefill(tag=2, rows=(0, 1), lengths=(70, 130), branch=64, dead="garbage"),
        Decode(tag=3, rows=(0, 1)),
        Donate(request=1, prefix=0, dead="garbage"),
        Hit(request=2, prefix=0),
        Prefill(tag=4, rows=(2,), lengths=(192,), branch=128, dead="garbage"),
        *drafted(5, 2, 0, 2, track=2, dead="garbage"),
        Donate(request=0, prefix=1),
        Evict(prefix=0, dead="garbage"),
        Hit(request=3, prefix=1),
        Decode(tag=6, rows=(3,), stores=(3,), dead="garbage"),
        *drafted(7, 2, 2, 3, dead="garbage"),
        Donate(request=2, prefix=2, dead="garbage"),
        Hit(request=4, prefix=2),
        *drafted(8, 2, 3, 4),
        Free(request=3),
        Free(request=4),
        *(Admit(request=number, tag=number) for number in (13, 14)),
    ]
    trace = trace_of(target, operations, dtypes=Dtypes("float16", "float16", "float32"))

    walked = walking.walk(replace(trace, payload=PayloadSpec(seed=3, profile="ordinary")), target)

    assert walked.mismatches == []
    assert walked.skipped == {"branch": 1}


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.18", "0.5.23"])
def test_short_pages(version: str) -> None:
    """Chunks of 64 tokens are whole pages of 16; a branch at 64 is one too."""
    target = pool_of(version, "+tracks+page=16")
    operations: list[Operation] = [
        Admit(request=0, tag=0),
        Admit(request=1, tag=1),
        Prefill(tag=2, rows=(1, 0), lengths=(70, 130), branch=64, dead="garbage"),
        Decode(tag=3, rows=(0, 1), stores=(1,)),
        Donate(request=1, prefix=0, dead="garbage"),
        Donate(request=0, prefix=1, dead="garbage"),
        Hit(request=2, prefix=0),
        Hit(request=3, prefix=1),
        *drafted(4, 2, 3, 2, dead="garbage"),
    ]
    trace = trace_of(target, operations, dtypes=Dtypes("float16", "float16", "float32"))

    walked = walking.walk(trace, target)

    assert walked.mismatches == []
    assert walked.skipped == {}


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.18", "0.5.23"])
def test_who_keeps_less_than_is_tracked_keeps_what_was_stored(version: str) -> None:
    """Its length crosses no interval's end, so its tracking slots do not take turns."""
    target = pool_of(version, "+tracks")
    operations: list[Operation] = [
        Admit(request=0, tag=0),
        Admit(request=1, tag=1),
        Verify(tag=2, rows=(0, 1), lengths=(2, 2)),
        Commit(tag=2, accepted=(2, 1), track=1),
        Verify(tag=3, rows=(0, 1), lengths=(2, 2)),
        Commit(tag=3, accepted=(2, 1), track=2, dead="garbage"),
        Donate(request=1, prefix=0),
        Hit(request=2, prefix=0),
        *drafted(4, 2, 2, 0),
    ]

    walked = walking.walk(trace_of(target, operations), target)

    assert walked.mismatches == []


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.18", "0.5.23"])
def test_a_prefix_lacks_what_lies_behind_a_stop(version: str) -> None:
    """The last state, if it lies before the stop; else an older one, or the whole request is kept.

    What a model thought is cut off, too, in a release that goes back to older states, among them
    the one of the prompt.
    """
    target = pool_of(version, "+tracks")
    goes_back = version == "0.5.23"
    thought: list[Operation] = [
        *drafted(7, 4, 4, 3),
        Donate(request=4, prefix=2, cut=14, dead="garbage"),
        Hit(request=5, prefix=2, dead="garbage"),
        *drafted(8, 4, 5, 3, track=4),
        Donate(request=5, prefix=3, cut=1),
        Hit(request=6, prefix=3),
    ]
    operations: list[Operation] = [
        *(Admit(request=number, tag=number) for number in (0, 1, 4)),
        Prefill(tag=2, rows=(4,), lengths=(70,), dead="garbage"),
        *drafted(3, 4, 0, 1, track=2),
        *drafted(4, 4, 1, 0, 4, track=4, dead="garbage"),
        *drafted(5, 4, 1, track=2),
        Donate(request=0, prefix=0, cut=2, dead="garbage"),
        Donate(request=1, prefix=1, cut=2, dead="garbage"),
        Hit(request=2, prefix=0),
        Hit(request=3, prefix=1, dead="garbage"),
        *drafted(6, 4, 2, 3, 4, track=1),
        Free(request=2, dead="garbage"),
        *(thought if goes_back else []),
    ]
    dtypes = Dtypes("float16", "float16", "float32")
    setup = {"ring": 16, "window": 4, "slots": 7, "dtypes": dtypes}

    walked = walking.walk(trace_of(target, operations, **setup), target)

    assert walked.mismatches == []
    assert walked.skipped == ({"hit": 1} if goes_back else {})


CHUNKS = ((64, 63), (65, 191), (128, 1), (192, 130))
"""Of two prompts: the last chunk is whole, and read off the request's slot; or it is not, and the
state is one of those that the kernels have at each chunk's start."""


@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("lengths", CHUNKS)
def test_prompts_are_tracked_at_their_last_whole_chunk(
    version: str, lengths: tuple[int, int]
) -> None:
    """State and window; the cache has them while the request goes on, and another begins there."""
    target = pool_of(version, "+tracks")
    first, second = lengths
    begun: list[Operation] = [Donate(request=0, prefix=1), Hit(request=3, prefix=1)]
    operations: list[Operation] = [
        Admit(request=0, tag=0),
        Admit(request=1, tag=1),
        Prefill(tag=2, rows=(1, 0), lengths=(first, second), dead="garbage"),
        *drafted(3, 2, 0, 1, dead="garbage"),
        Donate(request=1, prefix=0, dead="garbage"),
        Hit(request=2, prefix=0, dead="garbage"),
        *drafted(4, 2, 0, 2),
        *(begun if second >= CHUNK else []),
        Free(request=2),
        Evict(prefix=0, dead="garbage"),
        *(Admit(request=number, tag=number) for number in (5, 6)),
        *drafted(7, 2, 5, 6, *([3] if second >= CHUNK else [])),
    ]
    dtypes = Dtypes("float16", "float16", "float32")

    walked = walking.walk(trace_of(target, operations, dtypes=dtypes), target)

    assert walked.mismatches == []
    assert walked.skipped == {}


@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES)
def test_a_prompt_is_tracked_chunk_by_chunk(version: str) -> None:
    """Each takes the place of the last; who leaves or is retracted takes what it has left along.

    The last prompts share their first 64 tokens with others, and one of them is stored there.

    As many are admitted afterwards as there is room for: nothing was lost of their seats.
    """
    target = pool_of(version, "+tracks")
    rounds = [((70, 64, 65), None), ((64, 3, 100), None), ((5, 66, 129), CHUNK)]
    retracted: list[Operation] = [Save(request=0), Restore(request=0)]
    operations: list[Operation] = [
        *(Admit(request=number, tag=number) for number in range(4)),
        *(
            Prefill(tag=10 + i, rows=(0, 1, 2), lengths=lengths, branch=branch, dead="garbage")
            for i, (lengths, branch) in enumerate(rounds)
        ),
        Decode(tag=19, rows=(3, 1, None), stores=(3,), dead="garbage"),
        *drafted(20, 2, 0, 3, 1),
        Free(request=1, dead="garbage"),
        *([] if target.dialect.has_ring else retracted),
        Donate(request=2, prefix=0, dead="garbage"),
        *drafted(21, 2, 0),
        Hit(request=4, prefix=0),
        Free(request=0),
        Free(request=3, dead="garbage"),
        Evict(prefix=0, dead="garbage"),
        *(Admit(request=number, tag=number) for number in (5, 6, 7)),
        Prefill(tag=30, rows=(7, 4), lengths=(64, 65)),
        *drafted(31, 2, 4, 7, 6, 5),
    ]
    dtypes = Dtypes("float16", "float16", "float32")

    walked = walking.walk(trace_of(target, operations, dtypes=dtypes), target)

    assert walked.mismatches == []
    assert walked.skipped == {}


@pytest.mark.slow
def test_a_prefix_of_a_request_that_was_never_tracked_is_refused() -> None:
    """The cache would keep nothing, and the trace names it."""
    target = pool_of("0.5.18", "+tracks")
    operations = [Admit(request=0, tag=0), *drafted(2, 2, 0), Donate(request=0, prefix=0)]

    with pytest.raises(RefusedError, match="there is none: track one of its tokens before"):
        walking.walk(trace_of(target, operations), target)


@pytest.mark.slow
def test_nothing_is_lost_where_every_commit_folds() -> None:
    """0.5.18 takes a request to host memory and back, and gives its state to a prefix."""
    target = pool_of("0.5.18")
    operations: list[Operation] = [
        Admit(request=0, tag=0),
        Admit(request=1, tag=1),
        *steps(0, 1, first=10, accepted=[1, 2]),
        Save(request=0, dead="nan"),
        Admit(request=2, tag=2),
        Restore(request=0),
        *steps(2, 0, first=20, accepted=[2]),
        Donate(request=1, prefix=0),
        Hit(request=3, prefix=0),
        *steps(3, first=30, accepted=[2]),
        Evict(prefix=0, dead="nan"),
        *steps(3, 0, first=40, accepted=[1]),
    ]

    walked = walking.walk(trace_of(target, operations), target)

    assert walked.mismatches == []
    assert walked.skipped == {}


@pytest.mark.slow
def test_a_worker_serves_many_pools_and_says_what_it_runs() -> None:
    """One process for all histories, and the digests of the files that drive the pool."""
    target = pool_of(OLDEST)
    identity = dict(target.identity())
    starts = target.worker.starts
    for slots in (3, 4):
        walking.walk(trace_of(target, [Admit(request=0, tag=0)], slots=slots), target)

    assert target.worker.starts == starts
    assert identity["sglang"] == OLDEST
    assert len(identity["mem_cache.memory_pool"]) == 64


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operations", "why"),
    [
        ([Verify(tag=1, rows=(0, 1), lengths=(1, 2))], r"windows of \[1, 2\] tokens in a batch"),
        (
            [
                Verify(tag=1, rows=(0,), lengths=(1,)),
                Commit(tag=1, accepted=(1,)),
            ],
            "a bound of 2, but it goes by the 1 it drafts",
        ),
        (
            [
                Verify(tag=1, rows=(0,), lengths=(2,)),
                Verify(tag=2, rows=(1,), lengths=(2,)),
            ],
            "a verify before that of requests",
        ),
        (
            [
                Verify(tag=1, rows=(0,), lengths=(2,)),
                Commit(tag=1, accepted=(0,)),
            ],
            r"\[0\] tokens accepted, but it always keeps one",
        ),
    ],
)
def test_what_no_server_does_is_refused(operations: list[Operation], why: str) -> None:
    """A history for kernels is no finding here."""
    target = pool_of(OLDEST)
    seated: list[Operation] = [Admit(request=0, tag=0), Admit(request=1, tag=9)]

    with pytest.raises(RefusedError, match=why):
        walking.walk(trace_of(target, [*seated, *operations]), target)


def test_without_its_environment_it_says_what_to_type(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else is here."""
    monkeypatch.setenv("RINGFOLD_CACHE", str(tmp_path))
    with pytest.raises(MissingTargetError, match=r"type `ringfold targets add sglang-pool==0\.5"):
        registry.resolve("sglang-pool==0.5.16")
    with pytest.raises(MissingTargetError, match="torch for CUDA: set RINGFOLD_POOL_PYTHON to"):
        registry.resolve("sglang-pool==0.5.16", "cuda")
    with pytest.raises(MissingTargetError, match="needs --device cuda: there are no graphs here"):
        registry.resolve("sglang-pool==0.5.16+graph")
    with pytest.raises(UnknownTargetError, match=r"name sglang-pool==0\.5\.16\+tracks\+overlap"):
        registry.resolve("sglang-pool==0.5.16+overlap")
    for driven in ("+page=128", "+tracks+page=100", "+tracks+page=16+page=32"):
        with pytest.raises(UnknownTargetError, match="a page has 2, 4, 8, 16, 32, 64, 128, 256"):
            registry.resolve(f"sglang-pool==0.5.16{driven}")
    with pytest.raises(UnknownTargetError, match="a commit that tracks is not captured"):
        registry.resolve("sglang-pool==0.5.16+graph+tracks")
    monkeypatch.setenv("RINGFOLD_POOL_PYTHON", sys.executable)
    with pytest.raises(MissingTargetError, match=r"type `ringfold targets add sglang==0\.5\.16`"):
        registry.resolve("sglang-pool==0.5.16", "cuda")
    with pytest.raises(MissingTargetError, match=r"has no SGLang of its own"):
        registry.resolve("sglang-pool")


@pytest.mark.slow
def test_a_batch_may_be_verified_once_more() -> None:
    """A twin that was levelled is: the same outputs, and windows that moved on once."""
    target = pool_of(OLDEST).twin()
    setup = trace_of(pool_of(OLDEST), []).setup
    payload = Payload(setup, 3, "ordinary")
    target.open(setup, payload.parameters())
    target.admit(0, payload.state(0, 0), payload.past(0, 0))
    inputs = payload.window(np.array([0]), np.array([2]), 1)
    window = target.views()["convolution"].array

    first, moved = target.verify([0], [2], inputs), window.copy()
    again = target.verify([0], [2], inputs)

    assert np.array_equal(first, again)
    assert np.array_equal(window, moved)
    with pytest.raises(RefusedError, match="a verify before that of requests"):
        target.verify([0], [1], payload.window(np.array([0]), np.array([1]), 2))


def test_every_plan_is_a_server_s() -> None:
    """Full windows, a convolution, and geometries that the release's models can have."""
    target = pool_of(OLDEST)
    made = plans(target)

    assert len(made) >= 3
    for plan in made:
        assert plan.lockstep
        assert plan.setup.convolution == 4
        assert plan.setup.geometry.key_dim in (32, 64, 128)
    assert any(p.setup.geometry.key_dim != p.setup.geometry.value_dim for p in made)


def test_the_page_is_true_of_what_lies_here() -> None:
    """docs/integration.md: its example runs, and what it links to is there."""
    docs = Path(__file__).parents[3] / "docs"
    page = (docs / "integration.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", page)}
    if wheels.find("sglang==0.5.16") is not None or environments.find() is None:
        subprocess.run([sys.executable, "-c", example], check=True)

    assert len(links) > 5
    assert [link for link in links if not (docs / link).exists()] == []
