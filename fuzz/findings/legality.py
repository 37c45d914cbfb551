"""Who can meet what a trace does: a user of a server, a caller of the library, or nobody.

Each thing that a history may contain is a `Feature`: an operation, a way of using one, a property
of the setup. `TABLE` rules on each, by releases, with the calls that lead there from a server's
scheduler. A trace is as legal as the least legal thing in it, so a finding that needs nothing but
what a server does comes first.

A chain is `file:function` from the scheduler or worker to the pool or kernel, under `sglang/srt/`;
the test suite looks each up in the wheels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple, get_args

import msgspec

from ringfold.fuzz.histories import trace as traces
from ringfold.fuzz.histories.trace import Trace, unroll
from ringfold.sim.configuration.safety import loses_bits
from ringfold.sim.configuration.serving import RELEASES, ordered


class Legality(IntEnum):
    """Who can meet it; the smaller, the sooner somebody does."""

    SERVER = 0
    LIBRARY = 1
    OUTSIDE = 2

    def __str__(self) -> str:
        return WORDS[self]


WORDS: Final = {
    Legality.SERVER: "reachable in a server",
    Legality.LIBRARY: "reachable only by calling the library",
    Legality.OUTSIDE: "outside the contract",
}
SGLANG: Final = re.compile(r"sglang(?:-[a-z-]+)?(?:==(?P<version>\d+\.\d+\.\d+))?(?:[+@].*)?")
"""Targets that are a release, or an installation or checkout of one."""
POOL: Final = re.compile(r"sglang-pool\b")


class Ruling(NamedTuple):
    """What a feature is, in the releases `first` to `last`."""

    feature: str
    first: str
    last: str
    legality: Legality
    reason: str
    chain: tuple[str, ...] = ()


class Class(msgspec.Struct, frozen=True):
    """What a trace is, and why: the ruling on the least legal thing in it."""

    legality: str
    feature: str
    reason: str
    chain: list[str]

    def __str__(self) -> str:
        path = f"; {' -> '.join(self.chain)}" if self.chain else ""
        return f"{self.legality}: {self.feature} ({self.reason}{path})"


SERVER, LIBRARY, OUTSIDE = Legality
FIRST, LAST = RELEASES[0].first, RELEASES[-1].last
WORKER: Final = "speculative/eagle_worker_v2.py:verify"
COMMIT: Final = (WORKER, "speculative/spec_utils.py:commit_mamba_states_after_verify")
BACKEND: Final = (
    WORKER,
    "layers/attention/hybrid_linear_attn_backend.py:forward_extend",
    "layers/attention/linear/gdn_backend.py:forward_extend",
)
SCHEDULE: Final = "managers/scheduler.py:get_next_batch_to_run"
RETRACTION: Final = (
    SCHEDULE,
    "managers/schedule_batch.py:retract_decode",
    "managers/schedule_batch.py:offload_kv_cache",
    "mem_cache/memory_pool.py:get_cpu_copy",
)
RETURN: Final = (
    "disaggregation/decode.py:resume_retracted_reqs",
    "managers/schedule_batch.py:load_kv_cache",
    "mem_cache/memory_pool.py:load_cpu_copy",
)
ON_DECODE_SERVERS: Final = "a decode server of disaggregated serving copies retracted states"
FINISHED: Final = "a finished request's state is kept for its prefix, or the one tracked last"
CUT: Final = "a stop lies in the last window, or thoughts are not kept (--strip-thinking-cache)"

TABLE: Final[tuple[Ruling, ...]] = (
    Ruling(
        "admit", FIRST, LAST, SERVER, "a request's prefill writes the slot it was given",
        (SCHEDULE, "managers/schedule_batch.py:prepare_for_extend",
         "mem_cache/memory_pool.py:alloc"),
    ),
    Ruling(
        "prefill", FIRST, LAST, SERVER,
        "a chunk of a long prompt, or the next turn of a streaming session, which keeps its slot",
        (SCHEDULE, "managers/schedule_batch.py:prepare_for_extend",
         "layers/attention/linear/gdn_backend.py:forward_extend"),
    ),
    Ruling(
        "prefill: branches", FIRST, LAST, SERVER,
        "with an extra buffer a prompt that parts from another one leaves the state there",
        (SCHEDULE, "managers/schedule_batch.py:_mamba_radix_cache_v2_req_prepare_for_extend",
         "layers/attention/linear/gdn_backend.py:forward_extend"),
    ),
    Ruling(
        "free", FIRST, LAST, SERVER, "a request ends or is retracted",
        ("mem_cache/common.py:release_kv_cache", "mem_cache/memory_pool.py:free_mamba_cache"),
    ),
    Ruling(
        "fork", FIRST, LAST, LIBRARY,
        "`copy_from` takes slots that the prefix cache keeps, and no running request's",
        ("mem_cache/memory_pool.py:copy_from",),
    ),
    Ruling("verify", FIRST, LAST, SERVER, "a draft is verified", BACKEND),
    Ruling(
        "verify: lengths differ in a batch", FIRST, LAST, LIBRARY,
        "the backend cuts a batch into windows of one length (`draft_token_num`); a layout of "
        "several lengths is refused for GDN",
        ("layers/attention/hybrid_linear_attn_backend.py:_forward_metadata",),
    ),
    Ruling(
        "verify: shorter than the longest window", FIRST, LAST, SERVER,
        "--speculative-adaptive changes the draft count between steps",
        ("speculative/eagle_worker_v2.py:activate_step_by_batch", *BACKEND),
    ),
    Ruling(
        "verify: no token", FIRST, LAST, LIBRARY,
        "a window holds the bonus token at least",
        ("speculative/eagle_worker_v2.py:_build_trivial_verify_input",),
    ),
    Ruling(
        "verify: padding", FIRST, LAST, SERVER,
        "batches are padded to the sizes of captured graphs; padding rows carry slot -1",
        ("layers/attention/hybrid_linear_attn_backend.py:_replay_metadata",),
    ),
    Ruling("commit", FIRST, LAST, SERVER, "accepted tokens are kept", COMMIT),
    Ruling(
        "commit: none accepted", FIRST, LAST, LIBRARY,
        "accept_lens counts the bonus token, so it is 1 at least",
        ("speculative/eagle_utils.py:eagle_sample", *COMMIT[1:]),
    ),
    Ruling(
        "commit: other bound", FIRST, LAST, SERVER,
        "the draft count of the step is handed to its commit, and it may change with every step",
        ("speculative/eagle_worker_v2.py:activate_step_by_batch", *COMMIT),
    ),
    Ruling(
        "commit: tracks", "0.5.16", "0.5.16", SERVER,
        "the extra buffer is refused together with replay, but not where `auto` becomes it later",
        ("speculative/spec_utils.py:prepare_mamba_track_for_verify", *COMMIT[1:]),
    ),
    Ruling(
        "commit: tracks", "0.5.17", LAST, SERVER,
        "with an extra buffer a window that crosses the interval is tracked",
        ("speculative/spec_utils.py:prepare_mamba_track_for_verify",
         "speculative/spec_utils.py:_verify_commit_step_indices", *COMMIT[1:]),
    ),
    Ruling(
        "commit: window lost", FIRST, LAST, LIBRARY,
        "the worker verifies and commits in one call: nothing is freed in between",
        (WORKER,),
    ),
    Ruling(
        "decode", FIRST, LAST, SERVER,
        "without drafts each token is decoded; while drafting, adaptive steps of 0 verify one",
        ("layers/attention/linear/gdn_backend.py:forward_decode",),
    ),
    Ruling(
        "decode: beside verification", FIRST, LAST, LIBRARY,
        "a server that drafts verifies a window of one where it drafts nothing; it never decodes",
        ("layers/attention/hybrid_linear_attn_backend.py:forward_decode",
         "layers/attention/linear/gdn_backend.py:forward_decode"),
    ),
    Ruling(
        "decode: stores", FIRST, LAST, SERVER,
        "with an extra buffer, and without drafts, a token at which the interval ends is tracked",
        ("managers/schedule_batch.py:prepare_for_decode",
         "layers/attention/hybrid_linear_attn_backend.py:_track_mamba_state_decode"),
    ),
    Ruling(
        "idle", FIRST, LAST, SERVER,
        "a data-parallel rank without requests runs along",
        (SCHEDULE, "managers/schedule_batch.py:prepare_for_idle"),
    ),
    Ruling(
        "place", FIRST, LAST, SERVER,
        "stands for the windows that lead to these cursors; `validate` refuses others", BACKEND,
    ),
    Ruling(
        "save", "0.5.16", "0.5.16", LIBRARY,
        f"{ON_DECODE_SERVERS}, and replay is refused on one", RETRACTION[-2:],
    ),
    Ruling("save", "0.5.17", LAST, SERVER, ON_DECODE_SERVERS, RETRACTION),
    Ruling(
        "restore", "0.5.16", "0.5.16", LIBRARY,
        f"{ON_DECODE_SERVERS}, and replay is refused on one", RETURN[1:],
    ),
    Ruling("restore", "0.5.17", LAST, SERVER, ON_DECODE_SERVERS, RETURN),
    Ruling(
        "donate", FIRST, FIRST, SERVER, FINISHED,
        ("mem_cache/common.py:release_kv_cache",
         "mem_cache/unified_cache_components/mamba_component.py:prepare_for_caching_req"),
    ),
    Ruling(
        "donate", "0.5.17", "0.5.19", SERVER, FINISHED,
        ("mem_cache/common.py:release_kv_cache",
         "mem_cache/unified_cache/components/mamba_component.py:prepare_for_caching_req"),
    ),
    Ruling(
        "donate", "0.5.20", LAST, SERVER, FINISHED,
        ("mem_cache/common.py:release_kv_cache",
         "mem_cache/unified_cache/components/mamba.py:prepare_for_caching_req"),
    ),
    Ruling(
        "donate: cut", FIRST, "0.5.20", SERVER, CUT,
        ("mem_cache/common.py:release_kv_cache",
         "managers/schedule_batch.py:effective_kv_committed_len"),
    ),
    Ruling(
        "donate: cut", "0.5.21", LAST, SERVER, CUT,
        ("mem_cache/common.py:release_kv_cache", "managers/schedule_batch.py:owned_kv_len"),
    ),
    Ruling(
        "hit", FIRST, LAST, SERVER, "a request that begins like an earlier one starts on a copy",
        ("mem_cache/unified_radix_cache.py:match_prefix", "mem_cache/memory_pool.py:copy_from"),
    ),
    Ruling(
        "evict", FIRST, LAST, SERVER, "the prefix cache makes room",
        ("mem_cache/common.py:evict_from_tree_cache",),
    ),
    Ruling(
        "repeat", FIRST, LAST, SERVER, "is nothing by itself: the operations inside are ruled on",
    ),
    Ruling(
        "dead memory holds finite garbage", FIRST, LAST, SERVER,
        "slots and places are given on with what their last owner left",
        ("mem_cache/memory_pool.py:alloc",),
    ),
    Ruling(
        "dead memory holds NaN", FIRST, LAST, SERVER,
        "once some request's numbers were not finite: it leaves its records and its place is "
        "given on",
        ("mem_cache/memory_pool.py:alloc",),
    ),
    Ruling(
        "keys of a width that is no power of two", FIRST, LAST, LIBRARY,
        "no model with such GDN heads is known",
    ),
    Ruling(
        "keys that are not normalised", FIRST, LAST, LIBRARY,
        "the backend always asks the kernel for the norm",
        ("layers/attention/linear/gdn_backend.py:_replayssm_target_verify",),
    ),
    Ruling(
        "records narrower than activations", FIRST, LAST, SERVER,
        "--dtype and SGLANG_MAMBA_CONV_DTYPE are set apart, and nobody compares them",
        ("mem_cache/kv_cache_configurator.py:_build_hybrid_req_pool",),
    ),
    Ruling(
        "a 16-bit checkpoint", "0.5.16", "0.5.16", LIBRARY,
        "--mamba-ssm-dtype other than float32 is refused together with replay",
        ("server_args.py:_handle_linear_attn_backend",),
    ),
    Ruling(
        "a 16-bit checkpoint", "0.5.17", LAST, SERVER,
        "--mamba-ssm-dtype bfloat16, with a warning",
        ("mem_cache/kv_cache_configurator.py:_build_hybrid_req_pool",),
    ),
    Ruling(
        "a 64-bit checkpoint", FIRST, LAST, OUTSIDE, "states are float32, bfloat16 or float16",
    ),
    Ruling(
        "a research protocol", FIRST, LAST, LIBRARY, "no release of SGLang serves with it",
    ),
)  # fmt: skip

KINDS: Final = tuple(str(op.__struct_config__.tag) for op in get_args(traces.Operation))
"""Every operation of a trace, by its name in the file."""

RESEARCH: Final = ("open-loop", "linear-cache")
"""Dialects of no SGLang release."""


def kind(operation: traces.Operation) -> str:
    """Its name in the file."""
    return str(operation.__struct_config__.tag)


def ruling(feature: str, version: str) -> Ruling:
    """What `feature` is in a release.

    Raises:
        KeyError: the table has no row for it.
    """
    for row in TABLE:
        if row.feature == feature and ordered(row.first) <= ordered(version) <= ordered(row.last):
            return row
    raise KeyError(f"{feature!r} in {version}: add a row to TABLE")


def features(trace: Trace) -> Iterator[str]:
    """Everything in a trace that a ruling is about, each once, in the order of its last use."""
    met = [*_of_setup(trace), *_of_operations(trace)]
    return reversed(dict.fromkeys(reversed(met)))


def _of_setup(trace: Trace) -> Iterator[str]:
    setup = trace.setup
    if setup.dialect in RESEARCH:
        yield "a research protocol"
    if (K := setup.geometry.key_dim) & (K - 1):
        yield "keys of a width that is no power of two"
    if not setup.l2norm:
        yield "keys that are not normalised"
    dtypes = setup.dtypes
    if setup.dialect != "snapshots" and loses_bits(dtypes.activation, dtypes.record):
        yield "records narrower than activations"
    if dtypes.state in ("bfloat16", "float16"):
        yield "a 16-bit checkpoint"
    if dtypes.state == "float64":
        yield "a 64-bit checkpoint"


def _of_operations(trace: Trace) -> Iterator[str]:
    window = trace.setup.window
    for operation in _inside(trace.operations):
        yield kind(operation)
        if operation.dead == "garbage":
            yield "dead memory holds finite garbage"
        if operation.dead == "nan":
            yield "dead memory holds NaN"
        yield from _ways(operation, window)
    yield from ("commit: window lost" for _ in _lost(trace))


def _ways(operation: traces.Operation, window: int) -> Iterator[str]:
    """Ways of using an operation."""
    match operation:
        case traces.Verify():
            rows = zip(operation.rows, operation.lengths, strict=False)
            yield from _of_lengths([n for row, n in rows if row is not None], window)
            if None in operation.rows:
                yield "verify: padding"
        case traces.Commit():
            if 0 in operation.accepted:
                yield "commit: none accepted"
            if operation.bound not in (None, window):
                yield "commit: other bound"
            if operation.track is not None:
                yield "commit: tracks"
        case traces.Prefill(branch=int()):
            yield "prefill: branches"
        case traces.Decode(stores=(_, *_)):
            yield "decode: stores"
        case traces.Donate(cut=cut) if cut:
            yield "donate: cut"


def _inside(operations: Iterable[traces.Operation]) -> Iterator[traces.Operation]:
    """Operations as they are written, those inside of a repeat once."""
    for operation in operations:
        yield operation
        if isinstance(operation, traces.Repeat):
            yield from _inside(operation.operations)


def _of_lengths(lengths: list[int], window: int) -> Iterator[str]:
    if 0 in lengths:
        yield "verify: no token"
    if len(set(lengths)) > 1:
        yield "verify: lengths differ in a batch"
    if lengths and 0 < max(lengths) < window:
        yield "verify: shorter than the longest window"


def _lost(trace: Trace) -> Iterator[int]:
    """Requests that leave between a verify and its commit."""
    flying: set[int] = set()
    for operation, _ in unroll(_once(trace.operations)):
        match operation:
            case traces.Verify():
                flying.update(row for row in operation.rows if row is not None)
            case traces.Commit():
                flying.clear()
            case traces.Free(request=request) if request in flying:
                yield request


def _once(operations: Iterable[traces.Operation]) -> Iterator[traces.Operation]:
    """Repeats done once: enough to see what an iteration holds, however often it is done."""
    for operation in operations:
        if isinstance(operation, traces.Repeat):
            yield msgspec.structs.replace(operation, times=1)
        else:
            yield operation


def classify(trace: Trace, target: str | None = None) -> Class | None:
    """What a trace is on a target (the trace's own, unless named); None where it is no release's.

    A target without a version is taken for the newest release of the trace's dialect.
    """
    found = SGLANG.fullmatch(target or trace.target or "")
    if found is None:
        return None
    version = found["version"] or _newest(trace.setup.dialect)
    met = [*features(trace)]
    if POOL.match(found[0]) and {"decode", "verify"} <= {*met}:
        # A kernel's step is a window of one; a pool's is its backend's.
        met.append("decode: beside verification")
    try:
        rulings = [ruling(feature, version) for feature in met]
    except (KeyError, ValueError):
        return None  # a release that the table does not reach
    # Of equals the one that is used last: a failing history ends with what failed.
    worst = max(reversed(rulings), key=_rank)
    return Class(str(worst.legality), worst.feature, worst.reason, list(worst.chain))


def _rank(row: Ruling) -> int:
    return int(row.legality)


def _newest(dialect: str) -> str:
    return next((r.last for r in reversed(RELEASES) if r.dialect == dialect), LAST)


def rank(found: Class | None) -> int:
    """Sorting key: what a user of a server meets comes first, what nobody ruled on after it."""
    by_word: Callable[[str], int] = {word: int(key) for key, word in WORDS.items()}.__getitem__
    return len(WORDS) if found is None else by_word(found.legality)
