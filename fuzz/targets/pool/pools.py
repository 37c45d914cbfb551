"""SGLang's pool, backend and commit, driven as its scheduler and its speculative worker do.

Everything that computes or moves state is the release's own, called by the name by which its own
code calls it. Stand-ins are the objects that only carry attributes: runner, batches, requests.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from ringfold.fuzz.targets import standins
from ringfold.fuzz.targets.pool import absent, sessions, shims, tracks
from ringfold.fuzz.targets.pool.arena import DEVICE, Arena, DeviceArena
from ringfold.fuzz.targets.pool.graphs import Graphs
from ringfold.fuzz.targets.pool.prefixes import (
    Prefixes,
    forget_lengths,
    holder,
    prompt,
    set_lengths,
)
from ringfold.fuzz.targets.pool.protocol import Message
from ringfold.fuzz.targets.standins import Loose

FULL_TOKENS = 1024
"""Token places of the pool of full attention, which nothing here computes with."""

FILES = (
    "sglang.srt.mem_cache.memory_pool",
    "sglang.srt.layers.attention.hybrid_linear_attn_backend",
    "sglang.srt.layers.attention.linear.gdn_backend",
    "sglang.srt.speculative.spec_utils",
    "sglang.srt.managers.schedule_batch",
    "sglang.srt.model_executor.model_runner",
)
"""Modules whose files are part of the identity."""


class Pools:
    """Every pool that ringfold has open, by name."""

    def __init__(self) -> None:
        self.absent = absent.Finder()
        if DEVICE == "cpu":
            shims.prepare()
        else:
            sys.meta_path.append(self.absent)
        shims.leave_untuned()
        self.modules = {name: importlib.import_module(name) for name in FILES}
        if DEVICE == "cpu":
            standins.after_import()
        self.arguments = shims.publish_arguments()
        self.open_pools: dict[str, Pool] = {}

    def identity(self) -> Message:
        """Versions of what runs, and SHA-256 of the release's files that do."""
        import sglang

        files = {name.removeprefix("sglang.srt."): _digest(self.modules[name]) for name in FILES}
        versions = {"sglang": sglang.__version__, "torch": str(torch.__version__)}
        versions |= {"triton": triton.__version__, "device": "cpu (interpreter)"}
        if DEVICE == "cuda":
            versions |= {"device": torch.cuda.get_device_name()}
            versions |= {"stand-ins": ", ".join(sorted(self.absent.answered))}
        return Message("done", {**versions, **files}, [])

    def open(
        self,
        A_log: NDArray[Any],
        dt_bias: NDArray[Any],
        weight: NDArray[Any],
        *,
        pool: str,
        setup: dict[str, Any],
    ) -> Message:
        """A new pool under this name; returns where its tensors lie."""
        if pool in self.open_pools:
            self.open_pools.pop(pool).arena.close()
        self.open_pools[pool] = made = Pool(self.arguments, setup)
        parameters = zip(A_log, dt_bias, weight, strict=True)
        made.layers = [made.layer(i, *given) for i, given in enumerate(parameters)]
        made.arena.store()
        return Message("done", {"file": made.arena.file, "memory": made.memory()}, [])

    def __getattr__(self, verb: str) -> Any:
        """Any other verb is the pool's."""

        def call(*arrays: NDArray[Any], pool: str, **fields: Any) -> Message | None:
            asked = self.open_pools[pool]
            asked.arena.load()
            try:
                reply: Message | None = getattr(asked, verb)(*arrays, **fields)
            finally:
                _leave_if_broken()
                asked.arena.store()
            return reply

        return call


class Pool:
    """One `HybridReqToTokenPool` with the attention backend that uses it."""

    layers: list[Any]
    """`RadixLinearAttention`, one a layer of the model."""

    def __init__(self, arguments: Any, setup: dict[str, Any]) -> None:
        self.setup, self.arena = setup, Arena() if DEVICE == "cpu" else DeviceArena()
        self.graphs = Graphs(self.arena.load) if setup["graphs"] else None
        self.size = 0
        """Rows of the last forward pass, padding among them."""
        self.prompt = 2 * setup["ring"] + setup["window"]
        """Tokens of a request's prompt: a prefix that ends at the last fold has some, too."""
        self.requests: dict[int, Any] = {}
        self.saved: dict[int, Any] = {}
        self.verified: set[int] = set()
        """Requests that have verified since they were prefilled last."""
        self.pool = self._pool()
        self.prefixes = Prefixes(self.pool, arguments, tracks=setup["tracks"])
        self.runner = self._runner(arguments)
        self.backends: dict[int, Any] = {}
        """By draft count: a server that changes it has a backend for each."""

    # What a server builds when it starts.

    def _pool(self) -> Any:
        from sglang.srt.configs.mamba_utils import (
            Mamba2CacheParams,
            Mamba2StateDType,
            Mamba2StateShape,
        )
        from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

        s = self.setup
        shape = Mamba2StateShape.create(
            tp_world_size=1,
            intermediate_size=s["value_heads"] * s["value_dim"],
            n_groups=s["heads"],
            num_heads=s["value_heads"],
            head_dim=s["value_dim"],
            state_size=s["key_dim"],
            conv_kernel=s["convolution"] or IDENTITY_WIDTH,
        )
        dtype = Mamba2StateDType(
            conv=getattr(torch, s["activation"]), temporal=getattr(torch, s["state"])
        )
        layers = list(range(s["layers"]))
        accepted = inspect.signature(HybridReqToTokenPool.__init__).parameters
        flags = ("enable_linear_replayssm_spec", "enable_gdn_replayssm_spec")
        flag = next(flag for flag in flags if flag in accepted)
        running = s["slots"] - 1
        with shims.Allocating(self.arena.take):
            return HybridReqToTokenPool(
                size=running,
                mamba_size=2 * running if s["tracks"] else running,
                mamba_spec_state_size=running,
                max_context_len=FULL_TOKENS,
                device=DEVICE,
                enable_memory_saver=False,
                cache_params=Mamba2CacheParams(shape=shape, layers=layers, dtype=dtype),
                mamba_layer_ids=layers,
                enable_mamba_extra_buffer=s["tracks"],
                speculative_num_draft_tokens=s["window"],
                speculative_eagle_topk=1,
                enable_overlap_schedule=False,
                start_layer=0,
                linear_replayssm_cache_len=s["ring"],
                **{flag: s["replay"]},
            )

    def _runner(self, arguments: Any) -> Any:
        from sglang.srt.configs import Qwen3NextConfig
        from sglang.srt.layers.attention.linear import utils

        runner: Any = Loose(
            device=DEVICE,
            server_args=arguments,
            is_draft_worker=False,
            req_to_token_pool=self.pool,
            model_config=Loose(
                hf_config=Qwen3NextConfig(), hf_text_config=Qwen3NextConfig(), is_draft_model=False
            ),
        )
        if hasattr(utils, "resolve_linear_attn_backends"):
            runner.linear_attn_backends = utils.resolve_linear_attn_backends()
        return runner

    def _backend(self, drafts: int) -> Any:
        """The attention backend that verifies windows of so many tokens, as the runner's own."""
        from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend
        from sglang.srt.layers.attention.linear.gdn_backend import GDNAttnBackend

        if drafts not in self.backends:
            full = Loose(req_to_token_pool=self.pool, needs_cpu_seq_lens=False)
            linear = GDNAttnBackend(self.runner)
            running = self.setup["slots"] - 1
            linear.init_cuda_graph_state(running, running * drafts)
            self.backends[drafts] = HybridLinearAttnBackend(full, linear, [])
        self.runner.attn_backend = self.backends[drafts]
        return self.runner.attn_backend

    def layer(
        self, number: int, A_log: NDArray[Any], dt_bias: NDArray[Any], weight: NDArray[Any]
    ) -> Any:
        """A layer of a model; a convolution is followed by SiLU, as in all of them."""
        from sglang.srt.layers.radix_linear_attention import RadixLinearAttention

        s = self.setup
        return RadixLinearAttention(
            number,
            s["heads"],
            s["heads"],
            s["value_heads"],
            s["key_dim"],
            s["key_dim"],
            s["value_dim"],
            conv_weights=_tensor(weight).to(getattr(torch, s["activation"])),
            bias=None,
            activation="silu" if s["convolution"] else None,
            A_log=_tensor(A_log),
            dt_bias=_tensor(dt_bias),
        )

    def memory(self) -> dict[str, dict[str, Any]]:
        """Where each tensor of the pool lies that belongs to a dialect, by the release's name."""
        pool, cache = self.pool.mamba_pool, self.pool.mamba_pool.mamba_cache
        found = {name: getattr(cache, name, None) for name in CACHED} | {"conv": cache.conv[0]}
        found |= {name: getattr(pool, name, None) for name in CURSORS}
        return {name: self.arena.where(t) for name, t in found.items() if t is not None}

    # The life of a request.

    def admit(
        self, state: NDArray[Any], past: NDArray[Any] | None = None, *, request: int
    ) -> Message:
        """Allocate, clear as the forward pass of a prefill does, and write what prefill leaves."""
        made = _request(request, self.prompt)
        self.prefixes.match(made)
        self._alloc(request, made)
        self._clear_or_copy(clear=self._slot(request))
        cache, slot = self.pool.mamba_pool.mamba_cache, self._slot(request)
        cache.temporal[:, slot] = _tensor(state)
        if past is not None:
            cache.conv[0][:, slot] = _tensor(past)
        return self._seat(request)

    def fork(self, *, request: int, source: int) -> Message:
        """A request that matched a cached prefix: its slot is taken first, and copied into later.

        This is what `match_prefix` prepares for a copy on write.
        """
        made = _request(request, self.prompt)
        self.prefixes.match(made)
        slot = self.pool.mamba_allocator.alloc(1)
        assert slot is not None
        holder(made).mamba_pool_idx = slot[0]
        self._alloc(request, made)
        self._clear_or_copy(copy=(self._slot(source), self._slot(request)))
        return self._seat(request)

    def free(self, *, request: int) -> None:
        """Give slots and row back, as `release_kv_cache` does where no cache keeps them.

        Those of a session's request are given back when the session is closed.
        """
        made = self._gone(request)
        if (session := made.session) is not None:
            self.prefixes.end(made)
            sessions.close(self.prefixes.cache, session)
            return
        self.pool.free_mamba_cache(made)
        self.pool.free(made)
        forget_lengths(made)

    def donate(self, *, request: int, prefix: int) -> Message:
        """Finish: its slot, or the one that was tracked, is the prefix cache's from now on."""
        seat = self._places(request)
        made = self._gone(request)
        sessions.leave(self.prefixes.cache, made)
        lacks = self.prefixes.finish(made, prefix)
        return Message("done", {"slot": seat.get("track", seat["slot"]), "lacks": lacks}, [])

    def hit(self, *, request: int, prefix: int) -> Message:
        """Begin with a prompt whose first tokens are a prefix that is kept."""
        tokens = self.prefixes.kept[prefix] + prompt(request, 1)
        made = _request(request, tokens=tokens)
        self.prefixes.match(made)
        source = holder(made).mamba_cow_src_index
        if source is None:
            raise RuntimeError(f"the prefix cache has no state for prefix {prefix}")
        self._alloc(request, made)
        self._clear_or_copy(copy=(int(source), self._slot(request)))
        self.requests[request] = self._unlocked(request, made)
        return self._seat(request)

    def evict(self, *, prefix: int) -> None:
        """Have the prefix cache give a state up."""
        self.prefixes.evict(prefix)

    def save(self, *, request: int) -> None:
        """Retract to host memory: `Req.offload_kv_cache`, then give the seat back and forget it."""
        made = self.requests[request]
        sessions.leave(self.prefixes.cache, made)
        with shims.Copying():
            made.offload_kv_cache(self.pool, self._allocator())
        self.free(request=request)
        made.reset_for_retract()
        self.saved[request] = made

    def restore(self, *, request: int) -> Message:
        """Resume: match and allocate anew, then `Req.load_kv_cache`."""
        made = self.saved.pop(request)
        self.prefixes.match(made)
        self._alloc(request, made)
        made.load_kv_cache(self.pool, self._allocator())
        return self._seat(request)

    # A step.

    def verify(
        self,
        mixed: NDArray[Any],
        a: NDArray[Any],
        b: NDArray[Any],
        *,
        rows: list[int],
        padding: int,
        tokens: int,
    ) -> Message:
        """The forward pass of every layer on `rows`, then `padding` rows, of `tokens` each."""
        self.verified.update(rows)
        mode = self._mode("TARGET_VERIFY")
        batch = self._batch(rows, padding, mode, tokens)
        return self._forward(batch, tokens, [mixed, a, b], padded=padding > 0)

    def decode(
        self,
        mixed: NDArray[Any],
        a: NDArray[Any],
        b: NDArray[Any],
        *,
        rows: list[int],
        padding: int,
    ) -> Message:
        """A plain step of one token a row, on the checkpoints in place."""
        batch = self._batch(rows, padding, self._mode("DECODE"), 1)
        return self._forward(batch, self.setup["window"], [mixed, a, b], padded=padding > 0)

    def prefill(
        self,
        mixed: NDArray[Any],
        a: NDArray[Any],
        b: NDArray[Any],
        *,
        rows: list[int],
        lengths: list[int],
    ) -> Message:
        """More of some prompts, on the rows and slots that they have: `prepare_for_extend`.

        Who has verified since its last one begins a turn of a session.
        """
        before = [self.prompt] * len(rows)
        for row in rows:
            if row in self.verified:
                self._next_turn(row)
            else:
                set_lengths(self.requests[row], self.prompt)
        self.verified.difference_update(rows)
        if self.pool.alloc([self.requests[row] for row in rows]) is None:
            raise RuntimeError("the pool has no row left")
        starts = np.cumsum([0, *lengths[:-1]])
        batch = self._batch(rows, 0, self._mode("EXTEND"), 0)
        batch.input_ids = torch.zeros(sum(lengths), dtype=torch.int64, device=DEVICE)
        batch.extend_num_tokens = sum(lengths)
        batch.extend_start_loc = torch.tensor(starts, dtype=torch.int32, device=DEVICE)
        batch.extend_seq_lens = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
        batch.extend_prefix_lens = torch.tensor(before, dtype=torch.int32, device=DEVICE)
        batch.extend_seq_lens_cpu, batch.extend_prefix_lens_cpu = lengths, before
        batch.seq_lens = batch.extend_prefix_lens + batch.extend_seq_lens
        batch.seq_lens_cpu = batch.seq_lens.cpu()
        return self._forward(batch, self.setup["window"], [mixed, a, b], padded=False)

    def idle(self) -> None:
        """The forward pass of a server that has nothing to do while its peers have."""
        batch = self._batch([], 0, self._mode("IDLE"), self.setup["window"])
        channels, heads = self.layers[0].conv_weights.shape[0], self.setup["value_heads"]
        layers = len(self.layers)
        nothing = [np.zeros((layers, 0, width), np.float32) for width in (channels, heads, heads)]
        self._forward(batch, self.setup["window"], nothing, padded=False)

    def commit(
        self, *, rows: list[int], accepted: list[int], tokens: int, track: int | None = None
    ) -> None:
        """`commit_mamba_states_after_verify`, as the speculative worker calls it.

        With `track`, the requests are as long as it takes for that token to end an interval.
        """
        from sglang.srt.speculative.spec_utils import commit_mamba_states_after_verify

        count = len(rows)
        index = torch.full((count, tokens), -1, dtype=torch.int32)
        for i, n in enumerate(accepted):
            index[i, :n] = torch.arange(n, dtype=torch.int32) + i * tokens
        batch: Any = Loose(
            forward_mode=self._mode("TARGET_VERIFY" if count else "IDLE"),
            reqs=[self.requests[request] for request in rows],
            req_to_token_pool=self.pool,
            seq_lens=torch.full((count,), tracks.length(track), dtype=torch.int64, device=DEVICE),
            tree_cache=Loose(page_size=1),
            spec_algorithm=Loose(is_none=lambda: False),
        )

        def work(places: torch.Tensor, kept: torch.Tensor, index: torch.Tensor) -> None:
            batch.req_pool_indices = places
            worker = Loose(model_runner=self.runner)
            commit_mamba_states_after_verify(worker, batch, kept, index, tokens)

        kept = torch.tensor(accepted, dtype=torch.int32, device=DEVICE)
        inputs = [self._row_indices(rows), kept, index.to(DEVICE)]
        if self.setup["tracks"] and count:
            tracks.name_slots(batch, inputs[0])
        if self.graphs is None or not count or self.setup["tracks"]:
            work(*inputs)
        else:
            # Where snapshots are copied, the slots are those of the forward pass before.
            self.graphs.run("commit", (self.size, count, tokens), work, inputs)
        if self.setup["tracks"] and track is not None:
            tracks.note(batch, rows, accepted, track)

    def captured(self) -> Message:
        """How often graphs were replayed, and why what was not captured was not."""
        assert self.graphs is not None
        replays, refused = self.graphs.replays, self.graphs.refused
        return Message("done", {"replays": replays, "refused": refused}, [])

    # Shared by them.

    def _batch(self, rows: list[int], padding: int, mode: Any, tokens: int) -> Any:
        count = len(rows) + padding
        return Loose(
            batch_size=count,
            num_padding=padding,
            req_pool_indices=torch.cat([self._row_indices(rows), _row_zero(padding)]),
            forward_mode=mode,
            logical_forward_mode=mode,
            input_ids=torch.zeros(count * tokens, dtype=torch.int64, device=DEVICE),
            spec_info=Loose(draft_token_num=tokens),
        )

    @staticmethod
    def _mode(name: str) -> Any:
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        return ForwardMode[name]

    def _forward(
        self, batch: Any, drafts: int, inputs: list[NDArray[Any]], *, padded: bool
    ) -> Message:
        """Every layer; inputs [layer, token, ...] are projections, a and b."""
        backend = self._backend(drafts)
        linear = backend.linear_attn_backend
        graphs = self.graphs if batch.forward_mode.is_target_verify() else None
        # Batches are padded for captured graphs, whose replay brings its own metadata.
        replayed = padded or graphs is not None
        prepare = (
            linear.init_forward_metadata_out_graph if replayed else linear.init_forward_metadata
        )
        prepare(batch)
        heads, dim = self.setup["value_heads"], self.setup["value_dim"]

        def work(places: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
            batch.req_pool_indices = places
            outputs = []
            for layer, mixed_qkv, a, b in zip(self.layers, *given, strict=True):
                with shims.Poisoning():
                    out = backend.forward(
                        layer=layer, forward_batch=batch, mixed_qkv=mixed_qkv, a=a, b=b
                    )
                outputs.append(out.reshape(-1, heads, dim))
            return torch.stack(outputs)

        dtype = getattr(torch, self.setup["activation"])
        tensors = [batch.req_pool_indices, *(_tensor(values).to(dtype) for values in inputs)]
        self.size = batch.batch_size
        if graphs is None:
            return Message("done", {}, [_bits(work(*tensors))])
        made = graphs.run("verify", (self.size, drafts), work, tensors)
        assert made is not None
        return Message("done", {}, [_bits(made)])

    def _alloc(self, request: int, made: Any) -> None:
        if self.pool.alloc([made]) is None:
            raise RuntimeError("the pool has no row left")
        self.requests[request] = made

    def _gone(self, request: int) -> Any:
        self.verified.discard(request)
        return self.requests.pop(request)

    def _unlocked(self, request: int, made: Any) -> Any:
        """A request in the seat of `made` that matched nothing.

        A scheduler locks what a running request matched, eviction passes that over, and finishing
        gives the lock back. Here the copy was made, so that it may go: nothing is locked, and who
        finishes must hold no lock to give back.
        """
        fresh = _request(request, self.prompt)
        self.prefixes.match(fresh)
        for field in PLACES:
            if hasattr(holder(made, field), field):
                setattr(holder(fresh, field), field, getattr(holder(made, field), field))
        return fresh

    def _next_turn(self, request: int) -> None:
        """Finish a session's turn and begin the next, in the places that the session kept."""
        ends, before = self.requests[request], self._places(request)
        sessions.join(self.prefixes.cache, ends)
        session = ends.session
        count = self.prefixes.end(ends)
        made = _request(request, count + 1)
        made.session = session
        self.prefixes.match(made)
        self.requests[request] = made
        if (now := self._places(request)) != before:
            raise RuntimeError(f"a turn ended in {before}, and the next begins in {now}")

    def _clear_or_copy(self, clear: int | None = None, copy: tuple[int, int] | None = None) -> None:
        from sglang.srt.model_executor.forward_batch_info import ForwardMode
        from sglang.srt.model_executor.model_runner import ModelRunner

        source, target = copy or (None, None)
        batch = Loose(
            forward_mode=ForwardMode.EXTEND,
            mamba_clear_indices=_indices(clear),
            mamba_cow_src_indices=_indices(source),
            mamba_cow_dst_indices=_indices(target),
        )
        ModelRunner._maybe_execute_deferred_mamba_cow_and_clear(self.runner, batch)

    def _allocator(self) -> Any:
        """What moves the keys and values of full attention: here, nothing but the mamba part."""
        from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool

        pool = Loose(
            mamba_pool=self.pool.mamba_pool,
            _mamba_translate=lambda indices: indices,
            full_kv_pool=Loose(
                get_cpu_copy=lambda *a, **k: None, load_cpu_copy=lambda *a, **k: None
            ),
            cpu_copy_carries_mamba=getattr(HybridLinearKVPool, "cpu_copy_carries_mamba", None),
        )
        return Loose(
            get_kvcache=lambda: pool,
            get_cpu_copy=lambda *a, **k: HybridLinearKVPool.get_cpu_copy(pool, *a, **k),
            load_cpu_copy=lambda *a, **k: HybridLinearKVPool.load_cpu_copy(pool, *a, **k),
        )

    def _row(self, request: int) -> int:
        return int(holder(self.requests[request], "req_pool_idx").req_pool_idx)

    def _slot(self, request: int) -> int:
        return int(holder(self.requests[request]).mamba_pool_idx)

    def _row_indices(self, rows: list[int]) -> torch.Tensor:
        places = [self._row(request) for request in rows]
        return torch.tensor(places, dtype=torch.int64, device=DEVICE)

    def _seat(self, request: int) -> Message:
        return Message("done", self._places(request), [])

    def _places(self, request: int) -> dict[str, int]:
        seat = {"slot": self._slot(request), "request": self._row(request)}
        if self.setup["tracks"]:
            made, name = self.requests[request], "mamba_ping_pong_track_buffer"
            seat["track"] = int(getattr(holder(made, name), name)[0])
        return seat


IDENTITY_WIDTH = 4
"""Of a convolution that only hands the token on, where the setup has none."""

PLACES = (
    "req_pool_idx",
    "mamba_pool_idx",
    "mamba_ping_pong_track_buffer",
    "mamba_ping_pong_empty",
    "mamba_next_track_idx",
)
"""What a release knows of where a request is, as far as it has it."""

CACHED = (
    "temporal",
    "intermediate_ssm",
    "replayssm_d",
    "replayssm_k",
    "replayssm_g",
    "replayssm_rawv",
    "replayssm_rawk",
    "replayssm_beta",
)
CURSORS = (
    "replayssm_write_pos",
    "replayssm_spec_write_pos",
    "replayssm_cache_base",
    "replayssm_is_flush",
)


def _request(number: int, length: int = 0, tokens: Any = None) -> Any:
    """A request with tokens of its own, or with these."""
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    own = prompt(number, length) if tokens is None else tokens
    return Req(str(number), "", own, SamplingParams(max_new_tokens=1))


def _indices(index: int | None) -> torch.Tensor | None:
    return None if index is None else torch.tensor([index], dtype=torch.int64, device=DEVICE)


def _row_zero(count: int) -> torch.Tensor:
    """Rows of padding."""
    return torch.zeros(count, dtype=torch.int64, device=DEVICE)


def _tensor(values: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.array(values)).to(DEVICE)


def _bits(tensor: torch.Tensor) -> NDArray[Any]:
    """Its elements; those of bfloat16, which NumPy has not, as integers of the same bits."""
    host = tensor.cpu()
    return (host.view(torch.int16) if host.dtype == torch.bfloat16 else host).numpy()


def _leave_if_broken() -> None:
    """End this process if the GPU refuses all further work: the next one has another context."""
    try:
        if DEVICE == "cuda":
            torch.cuda.synchronize()
    except RuntimeError:
        traceback.print_exc()
        os._exit(1)


def _digest(module: Any) -> str:
    path = Path(os.fspath(module.__file__))
    return hashlib.sha256(path.read_bytes()).hexdigest()
