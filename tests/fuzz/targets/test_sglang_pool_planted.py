"""Faults that are planted in a release's own code are found, and by the check that is meant to.

The release runs as elsewhere, in its environment, but for one function that is replaced when the
pool is opened, and put back when the next one is. Each fault is of what an extra buffer adds: a
state is stored apart, in a prompt or a window, goes to the prefix cache, waits there, and another
request begins from it. The same histories agree where nothing is planted (`test_sglang_pool.py`
walks their like in every release).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from ringfold.fuzz.histories.trace import (
    Admit,
    Commit,
    Decode,
    Donate,
    Free,
    Hit,
    Operation,
    PayloadSpec,
    Prefill,
    Trace,
    Verify,
    validate,
)
from ringfold.fuzz.judging.walk import Verdict, walk
from ringfold.fuzz.targets import environments, wheels
from ringfold.fuzz.targets.pool.process import WorkerProcess, command
from ringfold.fuzz.targets.pool.target import SglangPool
from ringfold.fuzz.targets.sglang_release import Release
from ringfold.sim.setup import Dtypes, Geometry, Setup

RELEASES: Final = ("0.5.18", "0.5.23")

BACKEND: Final = "sglang.srt.layers.attention.hybrid_linear_attn_backend"
BATCH: Final = "sglang.srt.managers.schedule_batch"
MAMBA: Final = "sglang.srt.mem_cache.unified_cache.components.mamba"
POOL: Final = "sglang.srt.mem_cache.memory_pool"
RESULTS: Final = "sglang.srt.managers.scheduler_components.batch_result_processor"

PLANTING: Final = """
import importlib.abc, importlib.util, json, pathlib, sys

FAULT = pathlib.Path(__file__).with_name("fault.json")
changed = []

def plant():
    while changed:
        owner, name, before = changed.pop()
        delattr(owner, name) if before is None else setattr(owner, name, before)
    fault = json.loads(FAULT.read_text())
    if fault is None:
        return
    module = importlib.import_module(fault["module"])
    own = [c for c in vars(module).values() if getattr(c, "__module__", "") == module.__name__]
    owners = [(o, dict(vars(o))) for o in (module, *own) if isinstance(o, type) or o is module]
    exec(fault["code"], vars(module))
    for owner, names in owners:
        for name, now in dict(vars(owner)).items():
            if names.get(name) is not now:
                changed.append((owner, name, names.get(name)))

class Planting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "ringfold.fuzz.targets.pool.pools":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        whole = spec.loader.exec_module
        def execute(module):
            whole(module)
            opens = module.Pools.open
            def opened(self, *given, **named):
                plant()
                return opens(self, *given, **named)
            module.Pools.open = opened
        spec.loader.exec_module = execute
        return spec

sys.meta_path.insert(0, Planting())
"""
"""A `sitecustomize`: whenever a pool is opened it takes back what was planted, and executes what is
to be planted now in its module."""


class Fault(NamedTuple):
    """What is planted, and what must be found."""

    module: str
    code: str
    found: tuple[str, str]
    """Kind of operation and check of the first mismatch."""


PROMPT: Final = {
    "a prompt's state is that of the chunk before": Fault(
        BACKEND,
        """
indices = MambaAttnBackendBase._init_track_ssm_indices
def earlier(self, slots, batch):
    found = [*indices(self, slots, batch)]
    at = 1 if len(found) > 4 else 0  # 0.5.18 has no chunk numbers in front
    found[at] = (found[at] - 1).clamp(min=0)
    return tuple(found)
MambaAttnBackendBase._init_track_ssm_indices = earlier
""",
        ("prefill", "state-local"),
    ),
    "a prompt's window is a token late": Fault(
        BACKEND,
        """
indices = MambaAttnBackendBase._init_track_conv_indices
MambaAttnBackendBase._init_track_conv_indices = lambda *given: indices(*given) + 1
""",
        ("prefill", "convolution"),
    ),
    "a prompt's state is not stored": Fault(
        BACKEND,
        "MambaAttnBackendBase._track_mamba_state_extend = lambda *given, **named: None",
        ("prefill", "state-local"),
    ),
    "a prompt's key claims all of it": Fault(
        BATCH,
        """
prepare = ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend
def claiming(self, request):
    entry = prepare(self, request)
    owner = request.kv if hasattr(request.kv, "mamba_last_track_seqlen") else request
    owner.mamba_last_track_seqlen += 1
    return entry
ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend = claiming
""",
        ("donate", "crash"),
    ),
    "the cache takes the other slot": Fault(
        POOL,
        """
keep = HybridReqToTokenPool.get_mamba_ping_pong_keep_idx
donate = HybridReqToTokenPool.donate_mamba_ping_pong_slot
def other(self, request, slot):
    kept = type(self).get_mamba_ping_pong_keep_idx
    type(self).get_mamba_ping_pong_keep_idx = lambda self, request: 1 - keep(self, request)
    try:
        return donate(self, request, slot)
    finally:
        type(self).get_mamba_ping_pong_keep_idx = kept
HybridReqToTokenPool.donate_mamba_ping_pong_slot = other
""",
        ("hit", "convolution"),
    ),
}
BRANCH: Final = {
    "the state of the last chunk is kept at the branch": Fault(
        BATCH,
        """
prepare = ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend
def last(self, request):
    branch, request.mamba_branching_seqlen = request.mamba_branching_seqlen, None
    entry = prepare(self, request)
    if branch is not None:
        owner = request.kv if hasattr(request.kv, "mamba_last_track_seqlen") else request
        owner.mamba_last_track_seqlen = branch
    return entry
ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend = last
""",
        ("prefill", "state-local"),
    ),
    "the branch is a chunk late": Fault(
        BATCH,
        """
prepare = ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend
def late(self, request):
    if request.mamba_branching_seqlen is not None:
        request.mamba_branching_seqlen += 64
    return prepare(self, request)
ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend = late
""",
        ("prefill", "state-local"),
    ),
}
WINDOW: Final = {
    "a finished request leaves its own slot": Fault(
        POOL,
        """
free = HybridReqToTokenPool.free_mamba_cache
def copying(self, request, mamba_ping_pong_track_buffer_to_keep=None):
    owner = request.kv if hasattr(request.kv, "mamba_pool_idx") else request
    if mamba_ping_pong_track_buffer_to_keep is not None:
        to = owner.mamba_ping_pong_track_buffer[mamba_ping_pong_track_buffer_to_keep]
        self.mamba_pool.copy_from(owner.mamba_pool_idx[None], to[None])
    free(self, request, mamba_ping_pong_track_buffer_to_keep)
HybridReqToTokenPool.free_mamba_cache = copying
""",
        ("donate", "frame"),
    ),
    "a kept slot is given away as well": Fault(
        POOL,
        """
free = HybridReqToTokenPool.free_mamba_cache
HybridReqToTokenPool.free_mamba_cache = lambda self, request, **keep: free(self, request)
""",
        ("commit", "frame"),
    ),
    "every commit stores apart, in the slot that is kept": Fault(
        "sglang.srt.speculative.spec_utils",
        """
import torch
commit = commit_mamba_states_after_verify
def overwriting(worker, batch, *given):
    commit(worker, batch, *given)
    cache = worker.model_runner.req_to_token_pool.mamba_pool.mamba_cache
    for request in batch.reqs:
        owner = request.kv if hasattr(request.kv, "mamba_pool_idx") else request
        slots = owner.mamba_ping_pong_track_buffer
        cache.temporal[:, slots] = cache.temporal[:, owner.mamba_pool_idx, None].clone()
commit_mamba_states_after_verify = overwriting
""",
        ("commit", "frame"),
    ),
}
PLAIN: Final = {
    "a plain step stores nothing": Fault(
        BACKEND,
        "MambaAttnBackendBase._track_mamba_state_decode = lambda *given, **named: None",
        ("decode", "state-local"),
    ),
    "a plain step stores whoever is in the batch": Fault(
        BACKEND,
        """
store = MambaAttnBackendBase._track_mamba_state_decode
def all(self, batch, *given, **named):
    batch.mamba_track_mask = batch.mamba_track_mask | True
    store(self, batch, *given, **named)
MambaAttnBackendBase._track_mamba_state_decode = all
""",
        ("decode", "frame"),
    ),
}
LATE: Final = {
    "a length counts the step that is on its way": Fault(
        RESULTS,
        """
handle = SchedulerBatchResultProcessor._handle_finish_state_updated_req
def longer(self, request, batch, result, i, *given):
    handle(self, request, batch, result, i, *given)
    if batch.mamba_track_mask_cpu[i]:
        owner = request.kv if hasattr(request.kv, "mamba_last_track_seqlen") else request
        owner.mamba_last_track_seqlen += (
            request.decode_batch_idx - batch.mamba_decode_batch_idx_cpu[i]
        )
SchedulerBatchResultProcessor._handle_finish_state_updated_req = longer
""",
        ("donate", "crash"),
    ),
    "slots take no turns": Fault(
        POOL,
        "HybridReqToTokenPool.get_mamba_ping_pong_other_idx = lambda self, index: index",
        ("donate", "state-local"),
    ),
}
PAGED: Final = {
    "the state of a page is looked for where the kernels have that of a chunk": Fault(
        BACKEND,
        "MambaAttnBackendBase.mamba_chunk_size = property(lambda self: 128)",
        ("prefill", "state-local"),
    ),
    "a prompt is tracked that fills a chunk and no page": Fault(
        BATCH, "mamba_checkpoint_grid = lambda page: 64", ("prefill", "frame")
    ),
}
CUT: Final = {
    "a key that ends early has the last state": Fault(
        MAMBA,
        """
def last(self, request, tokens):
    kept = self.cache.req_to_token_pool.get_mamba_ping_pong_keep_idx(request)
    return request.kv.mamba_last_track_seqlen, kept
MambaComponent._select_finished_checkpoint = last
""",
        ("donate", "state-local"),
    ),
    "the length is that of the state before, and the slot is not": Fault(
        MAMBA,
        """
select = MambaComponent._select_finished_checkpoint
def mistaken(self, request, tokens):
    length, _ = select(self, request, tokens)
    return length, self.cache.req_to_token_pool.get_mamba_ping_pong_keep_idx(request)
MambaComponent._select_finished_checkpoint = mistaken
""",
        ("donate", "state-local"),
    ),
}
"""Of releases that go back to the slot before."""


class Planted(NamedTuple):
    """The pool of a release with an extra buffer, in a process where faults can be planted."""

    target: SglangPool
    late: SglangPool
    """The same with overlapped steps."""
    where: Path

    def walk(
        self,
        fault: Fault | None,
        operations: list[Operation],
        dtype: str,
        window: int = 2,
        late: bool = False,
        profile: str = "slow-decay",
    ) -> Verdict:
        """The verdict on a history."""
        told = None if fault is None else {"module": fault.module, "code": fault.code}
        self.where.write_text(json.dumps(told), encoding="utf-8")
        return walked(self.late if late else self.target, operations, dtype, window, profile)


@pytest.fixture(scope="module", params=RELEASES)
def planted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Planted]:
    """One process a release, for all faults; skips where it cannot run."""
    with in_process_of(request.param, tmp_path_factory.mktemp("planted")) as made:
        yield made


@pytest.fixture(scope="module")
def paged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    """The same of the newest, with pages of 128 tokens."""
    with in_process_of(RELEASES[-1], tmp_path_factory.mktemp("paged"), page=128) as made:
        yield made


@contextmanager
def in_process_of(version: str, folder: Path, page: int = 1) -> Iterator[Planted]:
    """A release's pools in a process of their own; skips where it cannot run."""
    release, environment = f"sglang=={version}", environments.find()
    if environment is None or wheels.find(release) is None:
        pytest.skip(f"type `ringfold targets add sglang-pool=={version}` (2 GB)")
    (folder / "sitecustomize.py").write_text(PLANTING, encoding="utf-8")
    variables = environments.variables(release, folder) | {"RINGFOLD_POOL_PAGE": str(page)}
    worker = WorkerProcess(release, command(environment.python, "pool.worker"), variables)
    with closing(worker):
        dialect = Release(release).dialect
        target = SglangPool(release, "planted", dialect, worker, tracks=True, page=page)
        late = SglangPool(release, "planted", dialect, worker, tracks=True, overlaps=True)
        yield Planted(target, late, folder / "fault.json")


def drafted(tag: int, *rows: int, count: int = 2, track: int | None = None) -> list[Operation]:
    """A window, of which all is kept."""
    counts = (count,) * len(rows)
    commit = Commit(tag=tag, accepted=counts, track=track)
    return [Verify(tag=tag, rows=rows, lengths=counts), commit]


def walked(
    target: Any, operations: list[Operation], dtype: str, window: int, profile: str
) -> Verdict:
    """The history's verdict."""
    setup = Setup(
        dialect=target.dialect.name,
        geometry=Geometry(1, 2, 32, 32),
        ring=4 * window,
        window=window,
        slots=5,
        convolution=4,
        dtypes=Dtypes(dtype, dtype, "float32"),
    )
    trace = Trace(
        setup=setup,
        payload=PayloadSpec(seed=3, profile=profile),
        operations=tuple(operations),
    )
    validate(trace)
    return walk(trace, target)


def prompts() -> list[Operation]:
    """A prefix of a prompt is given to another request while its own goes on."""
    return [
        Admit(request=0, tag=0),
        Admit(request=1, tag=1),
        Prefill(tag=2, rows=(0, 1), lengths=(66, 130)),
        *drafted(3, 0, 1),
        Donate(request=1, prefix=0),
        Hit(request=2, prefix=0),
        *drafted(4, 2, 0),
    ]


def branches() -> list[Operation]:
    """Of two prompts that share tokens with others, one is long enough to be stored there."""
    return [
        Admit(request=0, tag=0),
        Admit(request=1, tag=1),
        Prefill(tag=2, rows=(0, 1), lengths=(64, 192), branch=64),
        *drafted(3, 0, 1),
        Donate(request=1, prefix=0),
        Hit(request=2, prefix=0),
        *drafted(4, 2, 0),
    ]


def windows() -> list[Operation]:
    """A prefix that is three tokens older than its request waits while others come and go."""
    return [
        Admit(request=0, tag=0),
        Admit(request=1, tag=1),
        *drafted(2, 0, 1, track=1),
        *drafted(3, 0, 1),
        Donate(request=1, prefix=0),
        *(Admit(request=number, tag=number) for number in (4, 5)),
        Free(request=4),
        Admit(request=6, tag=6),
        *(step for tag in (7, 8) for step in drafted(tag, 6, track=2)),
        Free(request=6),
        Hit(request=7, prefix=0),
        *drafted(9, 7, 0),
    ]


def plainly() -> list[Operation]:
    """Two decode, one of whom is stored, later both; a prefix is older than its request."""
    return [
        Admit(request=0, tag=0),
        Admit(request=1, tag=1),
        Decode(tag=2, rows=(0, 1), stores=(1,)),
        Decode(tag=3, rows=(1, 0), stores=(1, 0)),
        Decode(tag=4, rows=(0, 1)),
        Donate(request=1, prefix=0),
        Hit(request=2, prefix=0),
        Decode(tag=5, rows=(2, 0)),
    ]


def pages() -> list[Operation]:
    """Two prompts, one of which fills a page; its prefix is given to another request."""
    return [
        Admit(request=0, tag=0),
        Admit(request=1, tag=1),
        Prefill(tag=2, rows=(0, 1), lengths=(70, 130)),
        *drafted(3, 0, 1),
        Donate(request=1, prefix=0),
        Hit(request=2, prefix=0),
        *drafted(4, 2, 0),
    ]


def overlapped() -> list[Operation]:
    """A request stores, goes on, and finishes when a step in which it stores is on its way."""
    return [
        Admit(request=0, tag=0),
        Admit(request=1, tag=1),
        Decode(tag=2, rows=(0, 1)),
        Decode(tag=3, rows=(1, 0), stores=(1,)),
        Decode(tag=4, rows=(0, 1)),
        Decode(tag=5, rows=(0, 1), stores=(1,)),
        Donate(request=1, prefix=0),
        Hit(request=2, prefix=0),
        Decode(tag=6, rows=(2, 0)),
    ]


def stops() -> list[Operation]:
    """The state that was stored last lies behind a stop, and the one before becomes a prefix."""
    return [
        Admit(request=0, tag=0),
        Admit(request=1, tag=1),
        *drafted(2, 0, 1, count=4, track=2),
        *drafted(3, 1, 0, count=4),
        *drafted(4, 0, 1, count=4, track=4),
        Donate(request=1, prefix=0, cut=2),
        Hit(request=2, prefix=0),
        *drafted(5, 2, 0, count=4),
    ]


@pytest.mark.slow
def test_where_nothing_is_planted_they_agree(planted: Planted) -> None:
    """All histories, in the same process, before and after something was."""
    fault = next(iter(WINDOW.values()))
    for _ in range(2):
        assert planted.walk(None, prompts(), "float16").mismatches == []
        assert planted.walk(None, branches(), "float16").mismatches == []
        assert planted.walk(None, windows(), "float32").mismatches == []
        assert planted.walk(None, plainly(), "float32").mismatches == []
        assert planted.walk(None, overlapped(), "float32", late=True).mismatches == []
        assert planted.walk(None, stops(), "float32", window=4).mismatches == []
        assert planted.walk(fault, windows(), "float32").mismatches != []


@pytest.mark.slow
@pytest.mark.parametrize("name", PROMPT)
def test_faults_of_prompts_are_found(name: str, planted: Planted) -> None:
    """Where they are, and not first in what comes of them."""
    fault = PROMPT[name]
    first = planted.walk(fault, prompts(), "float16").mismatches[0]

    assert (first.kind, first.check) == fault.found


@pytest.mark.slow
@pytest.mark.parametrize("name", BRANCH)
def test_faults_of_branches_are_found(name: str, planted: Planted) -> None:
    """When the prompt is prefilled."""
    fault = BRANCH[name]
    first = planted.walk(fault, branches(), "float16").mismatches[0]

    assert (first.kind, first.check) == fault.found


@pytest.mark.slow
@pytest.mark.parametrize("name", WINDOW)
def test_faults_of_older_prefixes_are_found(name: str, planted: Planted) -> None:
    """In the slot that waits, before anybody begins from it."""
    fault = WINDOW[name]
    first = planted.walk(fault, windows(), "float32").mismatches[0]

    assert (first.kind, first.check) == fault.found


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_faults_of_plain_steps_are_found(name: str, planted: Planted) -> None:
    """In the slots of the rows that are stored, and of those that are not."""
    fault = PLAIN[name]
    first = planted.walk(fault, plainly(), "float32").mismatches[0]

    assert (first.kind, first.check) == fault.found


@pytest.mark.slow
@pytest.mark.parametrize("name", LATE)
def test_faults_of_overlapped_steps_are_found(name: str, planted: Planted) -> None:
    """When the request finishes whose last result was not looked at."""
    fault = LATE[name]
    first = planted.walk(fault, overlapped(), "float32", late=True).mismatches[0]

    assert (first.kind, first.check) == fault.found


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGED)
def test_faults_of_long_pages_are_found(name: str, paged: Planted) -> None:
    """When the prompt is prefilled; without them nothing is.

    Its numbers fade: what may be lost in a prompt of 128 tokens that keep is more than they are.
    """
    fault = PAGED[name]
    sound = paged.walk(None, pages(), "float16", profile="ordinary")
    first = paged.walk(fault, pages(), "float16", profile="ordinary").mismatches[0]

    assert sound.mismatches == []
    assert (first.kind, first.check) == fault.found


@pytest.mark.slow
@pytest.mark.parametrize("planted", RELEASES[-1:], indirect=True)
@pytest.mark.parametrize("name", CUT)
def test_faults_of_what_is_cut_off_are_found(name: str, planted: Planted) -> None:
    """When the request finishes."""
    fault = CUT[name]
    first = planted.walk(fault, stops(), "float32", window=4).mismatches[0]

    assert (first.kind, first.check) == fault.found
