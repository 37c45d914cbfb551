"""Does a request's state survive what a server does with it? SGLang's own pool, no ringfold.

    PYTHONPATH=RELEASE python pool_states.py

RELEASE is the unpacked wheel of SGLang 0.5.16 to 0.5.23; python that of an environment with
fuzz/targets/pool/requirements.txt. Everything runs on the CPU, kernels in Triton's interpreter.

A request is prefilled, verifies a window of two tokens and keeps both. The updates of these wait in
its ring: `pending` says how many. Then
  * it goes to host memory (`Req.offload_kv_cache`), its seat is given back, and it returns
    (`Req.load_kv_cache`), or
  * it finishes (`release_kv_cache`) and another request with the same prompt starts from the prefix
    cache (`init_next_round_input`, and the copy on write of a prefill), or
  * its next token rides in a prefill batch (`--enable-mixed-chunk`), through the release's chunked
    kernel in float16; once with records pending and once without, or
  * it finishes a turn of a streaming session (`--enable-streaming-session`), which keeps its row
    and slot, and the next turn prefills a token there, in float16; with records pending and without.
Its next tokens are those of a request that just stayed. If the state survived, the outputs are the
same to the last bit, and to float16 where they are prefilled. Where the key of the prefix is shorter than
the prompt, the state must be that of the shorter text, and so must the convolution's window: that
is compared with what it was before the two tokens.

Where nothing is drafted, records wait in the ring of plain decoding (`--enable-linear-replayssm`).
A request that has decoded two tokens goes to host memory and returns, and finishes, as above.

With the extra buffer (`--mamba-radix-cache-strategy extra_buffer`) the window crosses the track
interval at its first token, the request finishes, and another one starts from the 256 tokens that
are kept: its next outputs should be those of a request that kept that one token, to float32.
Where what a model thinks is not kept (`--strip-thinking-cache`), a request whose two tokens are
thoughts finishes, and another one starts from its prompt: if all of that is kept, state and window
should be those of the prompt, and its next outputs those of a request that has it. With an extra
buffer the state of the first thought was tracked; without, the two were drafted, or decoded.
Where nothing is drafted and scheduling overlaps, as is the default, a step's result is processed when
the next one was launched, and before, if a prefill comes in between. A request finishes whose last
step ended an interval, right before a prefill; another one finishes whose first step did, and whose
last is followed by one more that does. Both steps are prepared by the release's `prepare_for_decode`
and processed by its `_handle_finish_state_updated_req`. The state of the tokens that are kept should
be the one that the request had behind them.
With pages of 128 tokens (`--page-size`) a prompt of 130 is prefilled, in float16, and finishes. Who
begins from the 128 tokens that are kept should have the state of a prompt of 128 tokens.
With it a prompt of 64 tokens and one of 70 that begins like it are prefilled, in float16, and
finish; both leave a prefix of 64 tokens. Those who begin from them should have the same state and
the same window.
"""

# ruff: noqa: D101, D102, E402, SLF001 - imports wait for what they need; it calls as SGLang does
import contextlib
import importlib
import inspect
import os
import sys
from array import array

os.environ["TRITON_INTERPRET"] = "1"
import numpy as np
import torch
import triton.language as tl
from torch.overrides import TorchFunctionMode
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpreterBuilder

for op in ("nms", "qnms"):  # torchvision's own binary does not load beside torch for the CPU
    torch.library.define(f"torchvision::{op}", "(Tensor d, Tensor s, float t) -> Tensor")
for name, at in (("create_masked_load", 1), ("create_masked_store", 2)):  # masks made of integers
    original = getattr(InterpreterBuilder, name)

    def call(self, *given, original=original, at=at):
        if not isinstance(given[at], np.ndarray):
            given[at].data = given[at].data.astype(np.bool_)
        return original(self, *given)

    setattr(InterpreterBuilder, name, call)

import sglang
import sglang.kernels.ops.mamba.mamba_state_scatter_triton as scatter
from sglang.srt.configs import Qwen3NextConfig
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend
from sglang.srt.layers.attention.linear import utils as linear_utils
from sglang.srt.layers.attention.linear.gdn_backend import GDNAttnBackend
from sglang.srt.layers.radix_linear_attention import RadixLinearAttention
from sglang.srt.managers import schedule_batch
from sglang.srt.managers.schedule_batch import (
    FINISH_LENGTH,
    Req,
    ReqKvInfo,
    ScheduleBatch,
    set_mamba_track_indices_from_reqs,
)
from sglang.srt.managers.scheduler_components import batch_result_processor
from sglang.srt.mem_cache import registry
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, HybridReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.srt.speculative.spec_utils import commit_mamba_states_after_verify

H, HV, K, V, L, D, PROMPT = 1, 2, 32, 32, 16, 2, 24
CHUNK, MOST = 64, 128  # of prompts: what a prefill works on at a time, how long they are at most
INTERVAL = 256  # of tracks, unless --mamba-track-interval says another
DIM = 2 * H * K + HV * V


class Namespace:
    def __init__(self, **given):
        self.__dict__.update(given)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)


class OnCpu(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        if function is torch.Tensor.pin_memory:
            return args[0]
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


class Copying(TorchFunctionMode):  # .to("cpu") copies from a GPU, and is an alias on the CPU
    def __torch_function__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        return made.clone() if function is torch.Tensor.to else made


def claiming_cuda(function):
    def call(*given, **named):
        torch.Tensor.is_cuda = property(lambda tensor: True)
        try:
            return function(*given, **named)
        finally:
            del torch.Tensor.is_cuda

    return call


for name in ("fused_conv_window_scatter_with_mask", "fused_mamba_state_scatter_with_mask"):
    if hasattr(scatter, name):
        setattr(scatter, name, claiming_cuda(getattr(scatter, name)))


PROCESSOR = batch_result_processor.SchedulerBatchResultProcessor
RESULTS = Namespace(tree_cache=Namespace(page_size=1))
RESULTS._mamba_check_track_boundary = lambda *given: PROCESSOR._mamba_check_track_boundary(
    RESULTS, *given
)


class Step(int):
    def to(self, *dtype):
        return self


vars(torch.cpu)["device"] = lambda index: contextlib.nullcontext()  # there is but one
for name, module in list(sys.modules.items()):  # the interpreter replaces tl.exp, not its aliases
    if name.startswith("sglang.kernels.") and hasattr(module, "exp"):
        module.exp = lambda x: tl.exp(x)
Autotuner.run = lambda self, *given, **named: self.fn.run(
    *given, **named, **self.configs[0].all_kwargs()
)  # whichever: nothing is timed

for folder in ("fla", "linear"):  # a loop variable is a plain int in the interpreter
    with contextlib.suppress(ImportError):
        fold = importlib.import_module(
            f"sglang.kernels.ops.attention.{folder}.gdn_replayssm_spec_fold"
        )
        fold.range = lambda *bounds: map(Step, range(*(int(b) for b in bounds)))


def publish(page=1, **more):
    """Arguments as a scheduler has them, with a model that is never looked for."""
    arguments = ServerArgs(
        model_path="dummy", speculative_eagle_topk=1, linear_attn_backend="triton", page_size=page,
        strip_thinking_cache=True,  # a request that thinks has `reasoning_tokens`
        **more,
    )  # fmt: skip
    arguments._mamba_cache_chunk_size = max(CHUNK, page)  # as they would say of that model
    set_global_server_args_for_scheduler(arguments)
    return arguments


ARGUMENTS = publish()


class Server:
    def __init__(self, dtype=torch.float32, tracks=False, drafts=True, overlaps=False, page=1):
        self.dtype, self.tracks, self.page = dtype, tracks, page
        shape = Mamba2StateShape.create(
            tp_world_size=1, intermediate_size=HV * V, n_groups=H, num_heads=HV, head_dim=V,
            state_size=K, conv_kernel=4,
        )  # fmt: skip
        takes = inspect.signature(HybridReqToTokenPool.__init__).parameters
        flags = ("enable_linear_replayssm_spec", "enable_gdn_replayssm_spec")
        replay = {"enable_linear_replayssm": True}
        if drafts:
            replay = {next(f for f in flags if f in takes): True}
            replay |= {"speculative_num_draft_tokens": D, "speculative_eagle_topk": 1}
        if overlaps:
            replay = {}
        with OnCpu():
            self.pool = HybridReqToTokenPool(
                size=3, mamba_size=9 if overlaps else 6, mamba_spec_state_size=3, max_context_len=1024, device="cpu",
                enable_memory_saver=False, mamba_layer_ids=[0], enable_mamba_extra_buffer=tracks,
                cache_params=Mamba2CacheParams(
                    shape=shape,
                    layers=[0],
                    dtype=Mamba2StateDType(conv=dtype, temporal=torch.float32),
                ),
                enable_overlap_schedule=overlaps, linear_replayssm_cache_len=L, start_layer=0,
                **replay,
            )  # fmt: skip
        config = Namespace(hf_config=Qwen3NextConfig(), is_draft_model=False)
        self.runner = Namespace(
            device="cpu", server_args=ARGUMENTS, is_draft_worker=False, model_config=config,
            req_to_token_pool=self.pool,
        )  # fmt: skip
        if hasattr(linear_utils, "resolve_linear_attn_backends"):
            self.runner.linear_attn_backends = linear_utils.resolve_linear_attn_backends()
        full = Namespace(req_to_token_pool=self.pool, needs_cpu_seq_lens=False)
        self.linear = GDNAttnBackend(self.runner)
        self.runner.attn_backend = HybridLinearAttnBackend(full, self.linear, [])
        draw = torch.Generator().manual_seed(0)
        self.layer = RadixLinearAttention(
            0, H, H, HV, K, K, V, bias=None,
            conv_weights=(torch.randn(DIM, 4, generator=draw) * 0.4).to(dtype),
            activation="silu", A_log=torch.full((HV,), -3.0),
            dt_bias=torch.randn(HV, generator=draw),
        )  # fmt: skip
        given = (torch.float32, "cpu", Namespace(maybe_get_custom_mem_pool=lambda: None), False)
        if page == 1:
            allocator = TokenToKVPoolAllocator(2048, *given)
        else:
            allocator = PagedTokenToKVPoolAllocator(2048, page, *given)
        params = CacheInitParams(
            disable=False, req_to_token_pool=self.pool, token_to_kv_pool_allocator=allocator,
            page_size=page, enable_mamba_extra_buffer=tracks,
        )  # fmt: skip
        context = Namespace(params=params, server_args=ARGUMENTS, is_hybrid_ssm=True)
        context.disable_radix_cache = context.is_hybrid_swa = False
        context.enable_hierarchical_cache = False
        self.cache, self.allocator = registry.default_radix_cache_factory(context), allocator
        self.states = self.pool.mamba_pool.mamba_cache

    def begin(self, tokens, session=None):
        """Match, allocate, clear or copy: returns how many tokens of the prompt were kept."""
        req = Req("r", "", tokens, SamplingParams(max_new_tokens=1))
        req.session = session
        req.init_next_round_input(self.cache)
        source, held = holder(req).mamba_cow_src_index, holder(req).mamba_pool_idx is not None
        self.pool.alloc([req])
        if session is not None and hasattr(self.cache.session, "take"):
            self.cache.session.take(req)
        if session is not None and held:
            return req  # on the slot of the turn before
        slot = torch.tensor([slot_of(req)])
        batch = Namespace(forward_mode=ForwardMode.EXTEND)
        if source is None:
            batch.mamba_clear_indices = slot
        else:
            batch.mamba_cow_src_indices, batch.mamba_cow_dst_indices = source, slot
        ModelRunner._maybe_execute_deferred_mamba_cow_and_clear(self.runner, batch)
        return req

    def prefilled(self, length=PROMPT, session=None):
        """What a prefill leaves: a state and the convolution's window."""
        req = self.begin(array("q", range(length)), session)
        draw = torch.Generator().manual_seed(1)
        slot = slot_of(req)
        self.states.temporal[:, slot] = torch.randn(1, HV, V, K, generator=draw)
        self.states.conv[0][:, slot] = torch.randn(1, DIM, 3, generator=draw)
        return req

    def forward(self, req, count, seed, mode, **facts):
        """Outputs of the first `count` of the tokens that the seed stands for."""
        draw = torch.Generator().manual_seed(seed)
        batch = Namespace(
            batch_size=1, req_pool_indices=torch.tensor([row_of(req)]), forward_mode=mode,
            logical_forward_mode=mode, input_ids=torch.zeros(count, dtype=torch.int64), **facts,
        )  # fmt: skip
        self.linear.init_forward_metadata(batch)
        qkv, a, b = (
            torch.randn(D if count <= D else MOST, size, generator=draw)[:count].to(self.dtype)
            for size in (DIM, HV, HV)
        )
        return batch, self.runner.attn_backend.forward(
            layer=self.layer, forward_batch=batch, mixed_qkv=qkv, a=a, b=b
        )

    def decode(self, req, seed):
        """One token, far from the track interval."""
        facts = {"seq_lens": torch.tensor([PROMPT]), "seq_lens_cpu": torch.tensor([PROMPT])}
        return self.forward(req, 1, seed, ForwardMode.DECODE, **facts)[1].flatten().clone()

    def launch(self, req, length):
        """One more token of a request that is so long without it, which is not looked at yet."""
        lengths = torch.tensor([length])
        batch = Namespace(
            reqs=[req], seq_lens=lengths, seq_lens_cpu=lengths, orig_seq_lens=lengths,
            req_pool_indices=torch.tensor([row_of(req)]), req_to_token_pool=self.pool, device="cpu",
            spec_algorithm=Namespace(is_none=lambda: True), model_config=Namespace(),
            sampling_info=Namespace(penalizer_orchestrator=Namespace()), enable_overlap=True,
            tree_cache=Namespace(page_size=1),
        )  # fmt: skip
        with OnCpu():
            ScheduleBatch.prepare_for_decode(batch)
        for owner in (req, req.kv):
            for field in ("kv_committed_len", "kv_allocated_len"):
                if hasattr(owner, field):
                    setattr(owner, field, length + 1)
        tracks = {f: getattr(batch, f) for f in ("mamba_track_indices", "mamba_track_mask")}
        facts = {"seq_lens": batch.seq_lens, "seq_lens_cpu": batch.seq_lens_cpu, **tracks}
        self.forward(req, 1, length, ForwardMode.DECODE, **facts)
        return batch

    def process(self, batch, finishes=False):
        """What the scheduler makes of a step's result, by which the request has one token more."""
        (req,) = batch.reqs
        length = int(batch.seq_lens_cpu[0])
        prompt = len(req.origin_input_ids)
        req.output_ids = array("q", range(prompt, length + 1))
        if finishes:
            self.place(req, int(getattr(req, "kv_committed_len", 0) or req.kv.kv_committed_len))
            req.finished_reason = FINISH_LENGTH(length=length)
        PROCESSOR._handle_finish_state_updated_req(
            Scheduler(self.cache), req, batch, Namespace(), 0, None
        )

    def prefill(self, req, seed, mode):
        """One token of it in a prefill batch."""
        one = torch.ones(1, dtype=torch.int32)
        _, out = self.forward(
            req, 1, seed, mode, extend_start_loc=0 * one, extend_seq_lens=one,
            extend_prefix_lens=PROMPT * one, extend_seq_lens_cpu=[1],
            extend_prefix_lens_cpu=[PROMPT], seq_lens_cpu=(PROMPT + 1) * one, extend_num_tokens=1,
        )  # fmt: skip
        return out.flatten()

    def prompted(self, count, seed):
        """A request all of whose prompt was prefilled at once, and tracked as a scheduler has it."""
        req = self.begin(array("q", range(count)))
        if hasattr(req, "set_extend_range"):
            req.set_extend_range(0, count)
        else:
            req.prefix_len, req.extend_end = 0, count
        config = Namespace(hf_text_config=Qwen3NextConfig())
        batch = Namespace(
            req_to_token_pool=self.pool, tree_cache=Namespace(page_size=self.page),
            model_config=config,
        )  # fmt: skip
        entry = ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend(batch, req)
        owner = req.kv if hasattr(req.kv, "mamba_ping_pong_track_buffer") else req
        slot = getattr(entry, "track_index", None)
        if slot is None:
            slot = int(owner.mamba_ping_pong_track_buffer[entry.track_position])
        one, tracked = torch.ones(1, dtype=torch.int32), torch.tensor([entry.track_seqlen])
        facts = Namespace(
            extend_start_loc=0 * one, extend_seq_lens=count * one, extend_prefix_lens=0 * one,
            extend_seq_lens_cpu=[count], extend_prefix_lens_cpu=[0], extend_num_tokens=count,
            seq_lens_cpu=count * one, mamba_track_mask=torch.tensor([entry.track_mask]),
            mamba_track_indices=torch.tensor([slot]), mamba_track_seqlens=tracked,
            mamba_prefill_track_mask_cpu=[entry.track_mask],
            mamba_track_seqlens_cpu=[entry.track_seqlen],
        )  # fmt: skip
        if hasattr(ForwardBatch, "mamba_track_aligned_lens"):
            facts.mamba_track_aligned_lens = lambda: ForwardBatch.mamba_track_aligned_lens(facts)
        self.forward(req, count, seed, ForwardMode.EXTEND, **vars(facts))
        return req

    def step(self, req, seed, keep=D, length=PROMPT):
        """Verify a window of D tokens behind `length` others and keep the first of them."""
        batch, out = self.forward(
            req, D, seed, ForwardMode.TARGET_VERIFY, spec_info=Namespace(draft_token_num=D),
            seq_lens=torch.tensor([length]), reqs=[req], req_to_token_pool=self.pool,
            tree_cache=Namespace(page_size=1), spec_algorithm=Namespace(is_none=lambda: False),
        )  # fmt: skip
        if self.tracks:
            with OnCpu():
                set_mamba_track_indices_from_reqs(batch)
        kept = torch.tensor([keep], dtype=torch.int32)
        index = torch.full((1, D), -1, dtype=torch.int32)
        index[0, :keep] = torch.arange(keep)
        worker = Namespace(model_runner=self.runner)
        commit_mamba_states_after_verify(worker, batch, kept, index, D)
        req.output_ids = array("q", range(length, length + keep + 1))  # the last is not yet fed
        if self.tracks:
            result = Namespace(num_correct_drafts_per_req_cpu=[keep - 1])
            PROCESSOR._mamba_prefix_cache_update(RESULTS, req, batch, result, 0)
        return out.flatten().clone()

    def pending(self, req):
        pool = self.pool.mamba_pool
        by_row = getattr(pool, "replayssm_spec_write_pos", None)
        by_slot = getattr(pool, "replayssm_write_pos", None)
        if by_row is not None:
            return int(by_row[row_of(req)])
        return 0 if by_slot is None else int(by_slot[slot_of(req)])

    def retract_and_return(self, req):
        kv = Namespace(mamba_pool=self.pool.mamba_pool, _mamba_translate=lambda indices: indices)
        kv.full_kv_pool = Namespace(get_cpu_copy=nothing, load_cpu_copy=nothing)
        kv.cpu_copy_carries_mamba = getattr(HybridLinearKVPool, "cpu_copy_carries_mamba", None)
        allocator = Namespace(
            get_kvcache=lambda: kv,
            get_cpu_copy=lambda *a, **k: HybridLinearKVPool.get_cpu_copy(kv, *a, **k),
            load_cpu_copy=lambda *a, **k: HybridLinearKVPool.load_cpu_copy(kv, *a, **k),
        )
        with Copying():
            req.offload_kv_cache(self.pool, allocator)
        self.pool.free_mamba_cache(req)
        self.pool.free(req)
        self.prefilled()  # somebody else takes the seat
        self.pool.alloc([req])
        req.load_kv_cache(self.pool, allocator)

    def place(self, req, length):
        """Give keys and values of so many tokens a place."""
        whole = -(-length // self.page) * self.page
        places = self.allocator.alloc(whole).to(torch.int32)
        self.pool.req_to_token[row_of(req), :whole] = places
        if req.kv is None:
            takes = inspect.signature(ReqKvInfo).parameters
            given = {"kv_allocated_len": length, "swa_evicted_seqlen": 0}
            req.kv = ReqKvInfo(**{k: v for k, v in given.items() if k in takes})
        for owner in (req, req.kv):
            for field in ("kv_committed_len", "kv_allocated_len"):
                if hasattr(owner, field):
                    setattr(owner, field, length)

    def finish(self, req, length=PROMPT):
        self.place(req, length)
        req.finished_reason = FINISH_LENGTH(length=length)
        named = inspect.signature(release_kv_cache).parameters
        release_kv_cache(
            req, self.cache, **{"checkpoint" if "checkpoint" in named else "is_insert": True}
        )


class Scheduler:
    """What processes results, by the release's functions; the rest it does is nothing."""

    def __init__(self, cache):
        self.tree_cache, self.server_args = cache, Namespace()

    def __getattr__(self, name):
        found = inspect.getattr_static(PROCESSOR, name, None)
        if "mamba" not in name:
            return nothing
        return found.__func__ if isinstance(found, staticmethod) else found.__get__(self)


def kept_of(req):
    """How many tokens of a prompt were found."""
    indices = getattr(req, "prefix_indices", None)
    kept = getattr(req, "prefix_len", None) if indices is None else len(indices)
    return req.kv.cache_protected_len if kept is None else kept


def nothing(*given, **named):
    pass


def holder(req):
    return req.kv if hasattr(req.kv, "mamba_pool_idx") else req


def slot_of(req):
    return int(holder(req).mamba_pool_idx)


def row_of(req):
    return int(req.kv.req_pool_idx if hasattr(req.kv, "req_pool_idx") else req.req_pool_idx)


def difference(a, b):
    return f"off by {(a - b).abs().max():.3g} (largest output {b.abs().max():.3g})"


server = Server()
stays = server.prefilled()
server.step(stays, seed=2)
right = server.step(stays, seed=3)

server = Server()
retracted = server.prefilled()
server.step(retracted, seed=2)
print(f"sglang {sglang.__version__}: pending {server.pending(retracted)} of {D} accepted tokens")
server.retract_and_return(retracted)
print(f"  retracted and back: next outputs {difference(server.step(retracted, seed=3), right)}")

server = Server()
donor = server.prefilled()
before = server.states.conv[0][:, slot_of(donor)].clone()
server.step(donor, seed=2)
pending = server.pending(donor)
now = server.states.conv[0][:, slot_of(donor)].clone()
server.finish(donor)
heir = server.begin(array("q", range(PROMPT + 1)))
window = server.states.conv[0][:, slot_of(heir)]
kept = kept_of(heir)
print(f"  finished with {pending} pending: {kept} of {PROMPT} tokens are kept")
if kept == PROMPT:
    print(f"  started from them: next outputs {difference(server.step(heir, seed=3), right)}")
else:
    place = "that of the kept tokens" if torch.equal(window, before) else "another one"
    place = f"{place}: that of all {PROMPT}" if torch.equal(window, now) else place
    print(f"  started from them: the convolution's window is {place}")

for waits in (True, False):
    server = Server(torch.float16)
    rides, stays = server.prefilled(), server.prefilled()
    if waits:
        for req in (rides, stays):
            server.step(req, seed=2)
    pending = server.pending(rides)
    got = server.prefill(rides, seed=3, mode=ForwardMode.MIXED)
    right = server.step(stays, seed=3)[: HV * V]
    print(f"  in a mixed batch with {pending} pending: its output {difference(got, right)}")

for waits in (True, False):
    server = Server(torch.float16)
    session = Namespace(session_id="s", streaming=True, finish_req=nothing)
    turn, stays = server.prefilled(session=session), server.prefilled()
    if waits:
        for req in (turn, stays):
            server.step(req, seed=2)
    pending, place = server.pending(turn), (row_of(turn), slot_of(turn))
    server.finish(turn)
    following = server.begin(array("q", range(PROMPT + 1)), session)
    kept = (row_of(following), slot_of(following)) == place and kept_of(following) == PROMPT
    got = server.prefill(following, seed=3, mode=ForwardMode.EXTEND)
    right = server.step(stays, seed=3)[: HV * V]
    print(
        f"  next turn of a session with {pending} pending, {'on' if kept else 'NOT on'} its slot: "
        f"its output {difference(got, right)}"
    )

server = Server(drafts=False)
stays, retracted = server.prefilled(), server.prefilled()
for seed in (2, 3):
    for req in (stays, retracted):
        server.decode(req, seed)
pending = server.pending(retracted)
server.retract_and_return(retracted)
got, right = server.decode(retracted, seed=4), server.decode(stays, seed=4)
print(
    f"  decoding with {pending} pending, retracted and back: next output {difference(got, right)}"
)

server = Server(drafts=False)
donor = server.prefilled()
before = server.states.conv[0][:, slot_of(donor)].clone()
for seed in (2, 3):
    server.decode(donor, seed)
now = server.states.conv[0][:, slot_of(donor)].clone()
server.finish(donor)
heir = server.begin(array("q", range(PROMPT + 1)))
window = server.states.conv[0][:, slot_of(heir)]
place = "that of the kept tokens" if torch.equal(window, before) else "another one"
place = f"{place}: that of all {PROMPT}" if torch.equal(window, now) else place
print(f"  decoded and finished: {kept_of(heir)} of {PROMPT} tokens are kept; the window is {place}")

server, before = Server(tracks=True), INTERVAL - 1
donor = server.prefilled(before)
server.step(donor, seed=2, length=before)
server.finish(donor, before + D)
heir = server.begin(array("q", range(before + D + 1)))
kept = kept_of(heir)
print(f"  finished behind the track interval: {kept} of {before + D} tokens are kept")
stays = server.prefilled(before)
server.step(stays, seed=2, keep=kept - before, length=before)
got, right = (server.step(req, seed=3, length=kept) for req in (heir, stays))
print(f"  started from them: next outputs {difference(got, right)}")

for tracks, drafts in ((True, True), (False, True), (False, False)):
    server = Server(tracks=tracks, drafts=drafts)
    thinks, stays = server.prefilled(before), server.prefilled(before)
    if drafts:
        server.step(thinks, seed=2, length=before)
    else:
        for seed in (2, 3):
            server.decode(thinks, seed)
        thinks.output_ids = array("q", range(before, before + D + 1))
    thinks.reasoning_tokens = D
    for owner in (thinks, thinks.kv):
        if hasattr(owner, "kv_committed_len"):
            owner.kv_committed_len = before + D
    if hasattr(PROCESSOR, "_mamba_can_cache_finished_req"):
        result = Namespace(num_correct_drafts_per_req_cpu=[D - 1] if drafts else None)
        scheduler = Namespace(tree_cache=server.cache)
        may = PROCESSOR._mamba_can_cache_finished_req(scheduler, thinks, result, 0)
        thinks.skip_radix_cache_insert = not may
    server.finish(thinks, before + D)
    heir = server.begin(array("q", range(before + 1)))
    kept, how = kept_of(heir), "drafted" if drafts else "decoded"
    with_buffer = "with an extra buffer" if tracks else "without an extra buffer"
    print(f"  {how} {D} thoughts, {with_buffer}: {kept} tokens of the prompt of {before} are kept")
    if kept:
        same = [
            "that of the prompt"
            if torch.equal(s[:, slot_of(heir)], s[:, slot_of(stays)])
            else "NOT"
            for s in (server.states.temporal, server.states.conv[0])
        ]
        print(f"  their state is {same[0]}, the window {same[1]}")
    if kept == before:
        got, right = (server.step(req, seed=4, length=kept) for req in (heir, stays))
        print(f"  started from them: next outputs {difference(got, right)}")

publish(mamba_radix_cache_strategy="extra_buffer")
schedule_batch.alloc_for_decode = nothing  # places are given when a request finishes
for prompt, last in ((INTERVAL - 2, INTERVAL), (INTERVAL - 1, 2 * INTERVAL - 1)):
    server = Server(tracks=True, drafts=False, overlaps=True)
    donor, waiting, states = server.prefilled(prompt), None, {}
    for length in range(prompt, last + (last % INTERVAL != 0)):
        launched = server.launch(donor, length)
        states[length + 1] = [
            s[:, slot_of(donor)].clone() for s in (server.states.temporal, server.states.conv[0])
        ]
        if waiting is not None:
            server.process(waiting, finishes=length == last)
        waiting = launched
    if last % INTERVAL == 0:  # a prefill was launched in place of one more step
        server.process(waiting, finishes=True)
    heir = server.begin(array("q", range(last + 2)))
    kept = kept_of(heir)
    print(f"  overlapped, from {prompt} to {last} tokens: {kept} are kept")
    if kept:
        got = [s[:, slot_of(heir)] for s in (server.states.temporal, server.states.conv[0])]
        whose = [n for n, own in states.items() if all(map(torch.equal, got, own))]
        whose = f"that of {whose[0]}" if whose else "nobody's"
        off = difference(got[0], states[kept][0]).replace("output", "number")
        print(f"  their state is {whose}: {off}")
MOST, PAGE = 192, 128
publish(PAGE)
prefixes = {}
for count in (CHUNK, PAGE, PAGE + 2):
    server = Server(torch.float16, tracks=True, page=PAGE)
    donor = server.prompted(count, seed=5)
    own = server.states.temporal[:, slot_of(donor)].clone()
    prefixes[count] = own
    if count > PAGE:
        server.finish(donor, count)
        heir = server.begin(array("q", range(count + 1)))
        got = server.states.temporal[:, slot_of(heir)]
        right = difference(got, prefixes[PAGE]).replace("output", "number")
        half = difference(got, prefixes[CHUNK]).replace("output", "number")
        print(f"  pages of {PAGE}, a prompt of {count}: {kept_of(heir)} tokens are kept")
        print(f"  their state is {right}; from that of {CHUNK} tokens it is {half}")
publish()
MOST = 128

left = []
for count in (CHUNK, CHUNK + 6):
    server = Server(torch.float16, tracks=True)
    server.finish(server.prompted(count, seed=5), count)
    heir = server.begin(array("q", range(count + 1)))
    state, window = (
        server.states.temporal[:, slot_of(heir)],
        server.states.conv[0][:, slot_of(heir)],
    )
    left.append((state.clone(), window.clone()))
    narrow = (state.half().float() == state).float().mean()
    print(
        f"  a prompt of {count}: {kept_of(heir)} tokens are kept; {narrow:.0%} of the state's "
        "numbers are float16's"
    )
(state, window), (other, after) = left
off = (state - other).abs().max() / state.abs().max()
same = "the same" if torch.equal(window, after) else "NOT the same"
print(f"  the two states differ by {off:.2g} of the largest number; the window is {same}")
