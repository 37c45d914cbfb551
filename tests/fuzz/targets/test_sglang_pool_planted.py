"""Faults that are planted in a release's own code are found, and by the check that is meant to.

The release runs as elsewhere, in its environment, but for one function that is replaced once its
module is imported. Each fault is of what an extra buffer adds: a state is stored apart, in a prompt
or a window, goes to the prefix cache, waits there, and another request begins from it. The same
histories agree where nothing is planted (`test_sglang_pool.py` walks their like in every release).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from ringfold.fuzz.histories.trace import (
    Admit,
    Commit,
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
from ringfold.fuzz.judging import walk as walking
from ringfold.fuzz.targets import environments, wheels
from ringfold.fuzz.targets.pool.process import WorkerProcess, command
from ringfold.fuzz.targets.pool.target import SglangPool
from ringfold.fuzz.targets.sglang_release import Release
from ringfold.sim.setup import Dtypes, Geometry, Setup

RELEASES: Final = ("0.5.18", "0.5.23")

BACKEND: Final = "sglang.srt.layers.attention.hybrid_linear_attn_backend"
BATCH: Final = "sglang.srt.managers.schedule_batch"
POOL: Final = "sglang.srt.mem_cache.memory_pool"

PLANTING: Final = """
import importlib.abc, importlib.util, sys

class Planted(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != {module!r}:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        whole = spec.loader.exec_module
        def execute(module):
            whole(module)
            exec({code!r}, vars(module))
        spec.loader.exec_module = execute
        return spec

sys.meta_path.insert(0, Planted())
"""
"""A `sitecustomize` that executes code behind a module's own."""


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


@contextmanager
def planted(version: str, fault: Fault | None, folder: Path) -> Iterator[Any]:
    """The pool of a release with an extra buffer and a fault; skips where it cannot run."""
    release, environment = f"sglang=={version}", environments.find()
    if environment is None or wheels.find(release) is None:
        pytest.skip(f"type `ringfold targets add sglang-pool=={version}` (2 GB)")
    if fault is not None:
        code = PLANTING.format(module=fault.module, code=fault.code)
        (folder / "sitecustomize.py").write_text(code, encoding="utf-8")
    variables = environments.variables(release, folder)
    worker = WorkerProcess(release, command(environment.python, "pool.worker"), variables)
    with closing(worker):
        yield SglangPool(release, "planted", Release(release).dialect, worker, tracks=True)


def drafted(tag: int, *rows: int, track: int | None = None) -> list[Operation]:
    """A window of two, of which all is kept."""
    twos = (2,) * len(rows)
    return [Verify(tag=tag, rows=rows, lengths=twos), Commit(tag=tag, accepted=twos, track=track)]


def walked(target: Any, operations: list[Operation], dtype: str) -> walking.Verdict:
    """The history's verdict."""
    setup = Setup(
        dialect=target.dialect.name,
        geometry=Geometry(1, 2, 32, 32),
        ring=8,
        window=2,
        slots=5,
        convolution=4,
        dtypes=Dtypes(dtype, dtype, "float32"),
    )
    trace = Trace(
        setup=setup,
        payload=PayloadSpec(seed=3, profile="slow-decay"),
        operations=tuple(operations),
    )
    validate(trace)
    return walking.walk(trace, target)


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


def in_turns(names: Iterable[str]) -> list[tuple[str, str]]:
    """Each fault in one release, every other one in the same: both would take twice the time."""
    return [(name, RELEASES[i % len(RELEASES)]) for i, name in enumerate(names)]


@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES)
def test_where_nothing_is_planted_they_agree(version: str, tmp_path: Path) -> None:
    """Both histories, in a process that is started the same way."""
    with planted(version, None, tmp_path) as target:
        assert walked(target, prompts(), "float16").mismatches == []
        assert walked(target, windows(), "float32").mismatches == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "version"), in_turns(PROMPT))
def test_faults_of_prompts_are_found(name: str, version: str, tmp_path: Path) -> None:
    """Where they are, and not first in what comes of them."""
    fault = PROMPT[name]
    with planted(version, fault, tmp_path) as target:
        first = walked(target, prompts(), "float16").mismatches[0]

    assert (first.kind, first.check) == fault.found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "version"), in_turns(WINDOW))
def test_faults_of_older_prefixes_are_found(name: str, version: str, tmp_path: Path) -> None:
    """In the slot that waits, before anybody begins from it."""
    fault = WINDOW[name]
    with planted(version, fault, tmp_path) as target:
        first = walked(target, windows(), "float32").mismatches[0]

    assert (first.kind, first.check) == fault.found
