"""What a server would do with an accepted configuration, done with the release's own code.

`run` builds the request pool as `KVCacheConfigurator` does, once as configured and once with the
replay flags off, the linear-attention backend on each, and then does on both what the resolved
arguments make a server do: verify windows of every draft count in every order, a draft tree where
one is drafted, a mixed batch where they are allowed, a retraction to host memory on a decode
server, a finished request's donation, a tracked state. The recurrent path with its snapshots is
what a replay has to agree with, so an event after which the two disagree is a finding, and it
follows from the flags alone. Stand-ins are namespaces for the runner, batches and requests.

Runs in a release's environment, from `worker.py`; imports nothing of ringfold.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

standins: Any = importlib.import_module("standins")  # the worker has loaded it
Loose = standins.Loose

REQUESTS: Final = 4
TOLERANCES: Final = {"torch.float32": 2e-5, "torch.float16": 3e-2}
"""Largest difference over the largest number; where nothing is wrong 4e-7 and 1e-3 were seen."""
FLAGS: Final = (
    "enable_gdn_replayssm_spec",
    "enable_linear_replayssm_spec",
    "enable_linear_replayssm",
)


class Disagreement(Exception):  # noqa: N818 - a result, not a failure of this program
    """The release with the flag on is not the release with it off."""


class Side:
    """A pool, the backends on it, and what drives them."""

    def __init__(self, pool: Any, arguments: Any, model_config: Any) -> None:
        attention = "sglang.srt.layers.attention"
        hybrid = importlib.import_module(f"{attention}.hybrid_linear_attn_backend")
        gdn = importlib.import_module(f"{attention}.linear.gdn_backend")
        utils = importlib.import_module(f"{attention}.linear.utils")
        self.pool = pool
        self.runner = Loose(
            device="cpu",
            server_args=arguments,
            is_draft_worker=False,
            req_to_token_pool=pool,
            model_config=model_config,
        )
        if hasattr(utils, "resolve_linear_attn_backends"):
            self.runner.linear_attn_backends = utils.resolve_linear_attn_backends()
        elif hasattr(utils, "initialize_linear_attn_config"):
            utils.initialize_linear_attn_config(arguments)
        self.linear = gdn.GDNAttnBackend(self.runner)
        # The chunked kernel of prefill wants a driver; it is asked for one token, which this is.
        self.linear.kernel_dispatcher.extend = _one_token
        full = Loose(req_to_token_pool=pool, needs_cpu_seq_lens=False)
        self.hybrid = hybrid.HybridLinearAttnBackend(full, self.linear, [])
        self.runner.attn_backend = self.hybrid
        self.modes = importlib.import_module(
            "sglang.srt.model_executor.forward_batch_info"
        ).ForwardMode

    def request(self) -> Any:
        """A request that was just given its row and slot."""
        request = Loose(inflight_middle_chunks=0, kv_committed_len=0, mamba_needs_clear=False)
        batch = importlib.import_module("sglang.srt.managers.schedule_batch")
        if "mamba_pool_idx" in getattr(batch.ReqKvInfo, "__dataclass_fields__", {}):
            request.kv = batch.ReqKvInfo()
        self.pool.alloc([request])
        return request

    def row(self, request: Any) -> int:
        """Its row in the pool of running requests."""
        return int(_held(request, "req_pool_idx"))

    def slot(self, request: Any) -> int:
        """Its slot in the pool of states."""
        return int(_held(request, "mamba_pool_idx"))

    def state(self, slot: int) -> Any:
        """[layer, HV, V, K] of a slot: what `temporal` holds."""
        return self.pool.mamba_pool.mamba_cache.temporal[:, slot]

    def kept(self, slot: int) -> tuple[Any, Any]:
        """Copies of a slot's state and convolution window."""
        cache = self.pool.mamba_pool.mamba_cache
        return self.state(slot).clone(), cache.conv[0][:, slot].clone()

    def verify(self, request: Any, layer: Any, tokens: Any, tree: Any = None) -> Any:
        """One window through the hybrid backend, convolution included."""
        count = tokens[0].shape[0]
        info = Loose(draft_token_num=count)
        if tree is not None:
            info.retrieve_next_token, info.retrieve_next_sibling = (t.clone() for t in tree)
        return self._forward(request, layer, tokens, self.modes.TARGET_VERIFY, info)

    def mixed(self, request: Any, layer: Any, tokens: Any, prefix: int) -> Any:
        """One token of a running request inside a prefill batch."""
        ones = torch.ones(1, dtype=torch.int32)
        return self._forward(
            request,
            layer,
            tokens,
            self.modes.MIXED,
            None,
            extend_start_loc=0 * ones,
            extend_seq_lens=ones,
            extend_prefix_lens=prefix * ones,
            extend_seq_lens_cpu=[1],
            extend_prefix_lens_cpu=[prefix],
            seq_lens_cpu=(prefix + 1) * ones,
            extend_num_tokens=1,
        )

    def _forward(
        self, request: Any, layer: Any, tokens: Any, mode: Any, info: Any, **more: Any
    ) -> Any:
        batch = Loose(
            batch_size=1,
            req_pool_indices=torch.tensor([self.row(request)]),
            forward_mode=mode,
            logical_forward_mode=mode,
            input_ids=torch.zeros(tokens[0].shape[0], dtype=torch.int64),
            spec_info=info,
            **more,
        )
        self.linear.init_forward_metadata(batch)
        mixed_qkv, a, b = (t.clone() for t in tokens)
        return self.hybrid.forward(
            layer=layer, forward_batch=batch, mixed_qkv=mixed_qkv, a=a, b=b
        ).float()

    def commit(
        self,
        request: Any,
        accepted: Sequence[int],
        count: int,
        track: int | None = None,
        length: int = 0,
        direct: bool = False,
    ) -> None:
        """Keep the window's tokens with these numbers; `direct` as the block-diffusion worker."""
        index = torch.full((1, count), -1, dtype=torch.int32)
        index[0, : len(accepted)] = torch.tensor(accepted, dtype=torch.int32)
        rows = torch.tensor([self.row(request)])
        tracks = None if track is None else torch.tensor([track])
        if direct:
            self.hybrid.update_mamba_state_after_mtp_verify(
                last_correct_step_indices=torch.tensor([accepted[-1]]),
                mamba_track_indices=tracks,
                mamba_steps_to_track=None,
                model=None,
                **_only(
                    self.hybrid.update_mamba_state_after_mtp_verify, {"req_pool_indices": rows}
                ),
            )
            return
        batch = Loose(
            forward_mode=self.modes.TARGET_VERIFY,
            req_pool_indices=rows,
            mamba_track_indices=tracks,
            seq_lens=torch.tensor([length]),
            tree_cache=Loose(page_size=1),
        )
        importlib.import_module(
            "sglang.srt.speculative.spec_utils"
        ).commit_mamba_states_after_verify(
            Loose(model_runner=self.runner),
            batch,
            torch.tensor([len(accepted)], dtype=torch.int32),
            index,
            count,
        )


def _one_token(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    ssm_states: Any,
    cache_indices: Any,
    **_: Any,
) -> tuple[Any, None, None]:
    """Prefill of one token of one request: the recurrence, on the slot that it is handed."""
    q, k, v, g, beta = (t.float().squeeze(0)[0] for t in (q, k, v, g, beta))
    group = v.shape[0] // k.shape[0]
    q, k = (
        (t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(group, 0)
        for t in (q, k)
    )
    slot = int(cache_indices[0])
    state = ssm_states[slot].float() * g.exp()[:, None, None]  # [HV, V, K]
    written = beta[:, None] * (v - torch.einsum("hvk,hk->hv", state, k))
    state = state + torch.einsum("hv,hk->hvk", written, k)
    ssm_states[slot] = state.to(ssm_states.dtype)
    out = torch.einsum("hvk,hk->hv", state, q) * q.shape[-1] ** -0.5
    return out[None, None], None, None


def _only(function: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    names = importlib.import_module("inspect").signature(function).parameters
    return {name: value for name, value in options.items() if name in names}


def _held(request: Any, name: str) -> Any:
    kv = getattr(request, "kv", None)
    value = getattr(kv, name, None) if kv is not None else None
    return getattr(request, name) if value is None else value


def build(arguments: Any, model_config: Any) -> tuple[Any, Any]:
    """The pool of these arguments, by the release's own configurator, and one without replay."""
    configurator = importlib.import_module("sglang.srt.mem_cache.kv_cache_configurator")
    architecture = importlib.import_module("sglang.srt.configs.hybrid_arch")
    maker = object.__new__(configurator.KVCacheConfigurator)
    hybrid = architecture.mambaish_config(model_config)
    facts = {
        "server_args": arguments,
        "model_config": model_config,
        "device": "cpu",
        "is_draft_worker": False,
        "mambaish_config": hybrid,
        "layer_info": Loose(start_layer=0, end_layer=hybrid.num_hidden_layers),
    }
    for name in ("hybrid_gdn_config", "hybrid_kda_config"):
        if hasattr(architecture, name):
            facts[name] = getattr(architecture, name)(model_config)
    for name, value in facts.items():
        object.__setattr__(maker, name, value)
    with standins.OnCpu(), _recorded() as calls:
        pool = maker._build_req_to_token_pool(max_num_reqs=REQUESTS)
        off = {n: False if n in FLAGS else value for n, value in calls[-1].items()}
        return pool, type(pool)(**off)


@contextlib.contextmanager
def _recorded() -> Iterator[list[dict[str, Any]]]:
    """What a hybrid pool was built with."""
    pools = importlib.import_module("sglang.srt.mem_cache.memory_pool")
    decode = importlib.import_module("sglang.srt.disaggregation.decode")
    calls: list[dict[str, Any]] = []
    classes = [pools.HybridReqToTokenPool, decode.HybridMambaDecodeReqToTokenPool]
    originals = [cls.__init__ for cls in classes]

    def recording(original: Any) -> Any:
        def init(self: Any, *args: Any, **options: Any) -> None:
            if not args:
                calls.append(options)
            original(self, *args, **options)

        return init

    for cls, original in zip(classes, originals, strict=True):
        cls.__init__ = recording(original)
    try:
        yield calls
    finally:
        for cls, original in zip(classes, originals, strict=True):
            cls.__init__ = original


def described(pool: Any) -> dict[str, Any]:
    """Which replay buffers exist, how they are keyed, and whether snapshots do."""
    mamba = pool.mamba_pool
    cache = mamba.mamba_cache
    names = ("d", "k", "g", "rawv", "rawk", "beta")
    rings = {name: getattr(cache, f"replayssm_{name}", None) for name in names}
    cursors = ("write_pos", "spec_write_pos", "cache_base", "is_flush")
    return {
        "rings": {
            name: [list(ring.shape), str(ring.dtype)]
            for name, ring in rings.items()
            if ring is not None
        },
        "cursors": {
            name: list(getattr(mamba, f"replayssm_{name}").shape)
            for name in cursors
            if getattr(mamba, f"replayssm_{name}", None) is not None
        },
        "snapshots": getattr(cache, "intermediate_ssm", None) is not None,
        "checkpoint": str(cache.temporal.dtype),
        "slots": cache.temporal.shape[1],
        "extra_buffer": bool(getattr(pool, "enable_mamba_extra_buffer", False)),
    }


class Walk:
    """The same history on both sides."""

    def __init__(self, on: Side, off: Side, hybrid: Any, dtype: Any) -> None:
        self.sides = (on, off)
        self.dtype = dtype
        self.tolerance = TOLERANCES[str(dtype)]
        cache = on.pool.mamba_pool.mamba_cache
        if cache.replayssm_d is not None and cache.replayssm_beta is None:
            # Stored deltas are the state, so what their dtype rounds off is allowed.
            self.tolerance = max(self.tolerance, TOLERANCES[str(cache.replayssm_d.dtype)])
        self.random = torch.Generator().manual_seed(0)
        self.shape = hybrid
        H, HV = hybrid.linear_num_key_heads, hybrid.linear_num_value_heads
        K, V = hybrid.linear_key_head_dim, hybrid.linear_value_head_dim
        self.width, self.HV = 2 * H * K + HV * V, HV
        layers = importlib.import_module("sglang.srt.layers.radix_linear_attention")
        self.layer = layers.RadixLinearAttention(
            hybrid.linear_layer_ids[0], H, H, HV, K, K, V,
            conv_weights=(self.draw(self.width, hybrid.linear_conv_kernel_dim) * 0.4).to(dtype),
            bias=None,
            activation="silu",
            A_log=torch.full((HV,), -3.0),
            dt_bias=torch.zeros(HV),
        )  # fmt: skip
        self.largest = 0.0

    def draw(self, *shape: int) -> Any:
        """Normal numbers."""
        return torch.randn(*shape, generator=self.random)

    def tokens(self, count: int) -> tuple[Any, Any, Any]:
        """Projections of `count` tokens, before the convolution."""
        return (
            self.draw(count, self.width).to(self.dtype),
            (self.draw(count, self.HV) * 0.3).to(self.dtype),
            self.draw(count, self.HV).to(self.dtype),
        )

    def admit(self) -> list[Any]:
        """A request on each side, the only one, with one state after its prefill."""
        for side in self.sides:
            side.pool.clear()
        requests = [side.request() for side in self.sides]
        first = self.sides[0]
        state = self.draw(*first.state(0).shape) * 0.3
        window = self.draw(*first.pool.mamba_pool.mamba_cache.conv[0][:, 0].shape)
        for side, request in zip(self.sides, requests, strict=True):
            side.state(side.slot(request)).copy_(state)
            side.pool.mamba_pool.mamba_cache.conv[0][:, side.slot(request)].copy_(window)
        return requests

    def agree(self, found: Sequence[Any], what: str) -> None:
        """Raise `Disagreement` where the two differ by more than rounding."""
        on, off = (x.float().reshape(-1) for x in found)
        off_by = float((on - off).abs().max() / off.abs().max().clamp_min(1e-6))
        if not off_by <= self.tolerance:
            raise Disagreement(f"{what}: off by {off_by:.2g} of the largest number")
        self.largest = max(self.largest, off_by)

    def step(
        self,
        requests: Sequence[Any],
        count: int,
        accepted: Sequence[int] | None = None,
        tree: Any = None,
        **options: Any,
    ) -> None:
        """Verify a window of `count`, compare outputs, keep the tokens `accepted` (or all)."""
        tokens = self.tokens(count)
        pairs = list(zip(self.sides, requests, strict=True))
        outputs = [side.verify(request, self.layer, tokens, tree) for side, request in pairs]
        what = f"outputs of a {'tree' if tree is not None else 'window'} of {count}"
        self.agree(outputs, what)
        for side, request in pairs:
            side.commit(request, range(count) if accepted is None else accepted, count, **options)

    # ------------------------------------------------------------ events

    def windows(self, counts: Sequence[int], ring: int, direct: bool) -> None:
        """Shortest and longest draft counts, kept whole and in part, until a ring is full."""
        for count in {min(counts), max(counts)}:
            requests = self.admit()
            for i in range(min(2 + ring // count, 8)):
                kept = range(count if i % 3 else max(1, count - 1))
                self.step(requests, count, kept, direct=direct)

    def counts_change(self, counts: Sequence[int], ring: int) -> None:
        """From a ring as full as windows of `before` leave it, to longer windows."""
        pairs = [(before, after) for before in counts for after in counts if after > before]
        for before, after in sorted(pairs, key=lambda pair: pair[0] - pair[1]):
            requests = self.admit()
            for _ in range(max(0, ring // before - 2)):
                self.step(requests, before)
            for _ in range(2):
                self.step(requests, after)

    def tree(self, count: int, width: int) -> None:
        """The root's first `width` children are siblings; the rest hang from the first one."""
        following = torch.full((1, count), -1, dtype=torch.int64)
        sibling = following.clone()
        children = min(width, count - 1)
        following[0, 0] = 1
        sibling[0, 1:children] = torch.arange(2, children + 1)
        rest = list(range(children + 1, count))
        for parent, child in zip([1, *rest], rest, strict=False):
            following[0, parent] = child
        requests = self.admit()
        self.step(requests, count, (0, children), (following, sibling))
        self.step(requests, count, (0, children), (following, sibling))

    def mixed(self, count: int) -> None:
        """A running request's token rides in a prefill batch, while records wait."""
        requests = self.admit()
        self.step(requests, count)
        tokens = self.tokens(1)
        self.agree(
            [
                side.mixed(request, self.layer, tokens, 100)
                for side, request in zip(self.sides, requests, strict=True)
            ],
            "output of one token in a mixed batch",
        )
        self.step(requests, count)

    def retracted(self, count: int) -> None:
        """A request goes to host memory and comes back, while records wait."""
        requests = self.admit()
        self.step(requests, count)
        restored = []
        for side, request in zip(self.sides, requests, strict=True):
            pool = side.pool.mamba_pool
            saved = pool.get_cpu_copy(torch.tensor([side.slot(request)]))
            back = side.request()  # before the old one is freed: into another place
            pool.load_cpu_copy(saved, torch.tensor([side.slot(back)]))
            restored.append(back)
        self.step(restored, count)

    def donated(self, count: int) -> None:
        """A request finishes while records wait; the prefix cache keeps its slot."""
        requests = self.admit()
        off, its = self.sides[1], requests[1]
        current = [off.kept(off.slot(its))]  # by number of windows, where nothing ever waits
        windows = 4  # by default three of them are folded, and one waits
        for _ in range(windows):
            self.step(requests, count)
            current.append(off.kept(off.slot(its)))
        length = windows * count
        on, request = self.sides[0], requests[0]
        cut = donation(on, request, length)
        if cut % count:
            raise Disagreement(f"a prefix of {cut} of {length} tokens is kept, no window's end")
        for what, *found in zip(
            ("state", "convolution window"),
            on.kept(on.slot(request)),
            current[cut // count],
            strict=True,
        ):
            self.agree(found, f"{what} that is kept for a prefix of {cut} of {length} tokens")

    def tracked(self, count: int) -> None:
        """A window crosses the track interval: its state goes into a second slot."""
        requests = self.admit()
        slots = []
        for side, request in zip(self.sides, requests, strict=True):
            buffer = _held(request, "mamba_ping_pong_track_buffer")
            slots.append(int(buffer[0]))
            side.state(slots[-1]).zero_()
        tokens = self.tokens(count)
        for side, request, slot in zip(self.sides, requests, slots, strict=True):
            side.verify(request, self.layer, tokens)
            side.commit(request, range(count), count, track=slot, length=256 - 1)
        self.agree(
            [side.state(slot) for side, slot in zip(self.sides, slots, strict=True)],
            "state that is tracked for the prefix cache",
        )


def donation(side: Side, request: Any, length: int) -> int:
    """How many of a finished request's `length` tokens the prefix cache keeps its state for."""
    tree = Loose(
        enable_mamba_extra_buffer=False,
        req_to_token_pool=side.pool,
        page_size=1,
        token_to_kv_pool_allocator=Loose(free=lambda _: None),
        dec_lock_ref=lambda *_: None,
    )
    with contextlib.suppress(ImportError):
        component = importlib.import_module("sglang.srt.mem_cache.unified_cache.components.mamba")
        tree = Loose(cache=tree)
        return int(
            component.MambaComponent.prepare_for_caching_req(tree, request, Loose(), length, True)
        )
    radix = importlib.import_module("sglang.srt.mem_cache.mamba_radix_cache")
    kept: list[int] = []

    def insert(params: Any) -> Any:
        kept.append(len(params.key))
        raise StopIteration

    tree.insert = insert
    request.origin_input_ids, request.output_ids = [0] * length, []
    request.cache_protected_len, request.extra_key = 0, None
    with contextlib.suppress(StopIteration):
        radix.MambaRadixCache.cache_finished_req(tree, request, kv_len_to_handle=length)
    return kept[0]


def run(
    arguments: Any, resolved: Any, described_error: Callable[[BaseException], Any]
) -> dict[str, Any]:
    """Everything that the resolved arguments make a server do; see the module."""
    found: dict[str, Any] = {"stage": "pool", "events": []}
    try:
        standins.after_import()
        module = importlib.import_module("sglang.srt.server_args")
        module.set_global_server_args_for_scheduler(arguments)
        parallel = importlib.import_module("sglang.srt.distributed.parallel_state")
        vars(parallel)["_ATTN_TP"] = Loose(world_size=1, rank_in_group=0)  # one rank
        model_config = _model_config(arguments)
        pool, plain = build(arguments, model_config)
        found["pool"] = described(pool)
        if not found["pool"]["cursors"] and not found["pool"]["rings"]:
            return found
        hybrid = importlib.import_module("sglang.srt.configs.hybrid_arch").hybrid_gdn_config(
            model_config
        )
        if hybrid is None or not resolved.speculative_num_draft_tokens:
            return found
        found["stage"] = "backend"
        sides = [Side(one, arguments, model_config) for one in (pool, plain)]
        dtype = getattr(torch, str(model_config.dtype).rpartition(".")[2])
        for name, event in _events(resolved, found["pool"]):
            found["stage"] = name
            walk = Walk(sides[0], sides[1], hybrid, dtype)
            event(walk)
            found["events"].append([name, walk.largest])
    except Disagreement as difference:
        found["differs"] = {"event": found["stage"], "text": str(difference)}
    except Exception as error:  # noqa: BLE001 - whatever a server would die of
        found["crashed"] = described_error(error)
    return found


def _model_config(arguments: Any) -> Any:
    if hasattr(arguments, "get_model_config"):
        return arguments.get_model_config()
    overrides = importlib.import_module("sglang.srt.arg_groups.overrides")
    return overrides.model_config_of(arguments)


def _events(resolved: Any, pool: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[Walk], None]]]:
    drafts = int(resolved.speculative_num_draft_tokens)
    counts = [drafts]
    ring = int(resolved.linear_replayssm_cache_len)
    if resolved.speculative_adaptive:
        adaptive = importlib.import_module("sglang.srt.speculative.adaptive_spec_params")
        steps = adaptive.resolve_candidate_steps_from_config(resolved.speculative_adaptive_config)
        counts = sorted({step + 1 for step in steps})
    direct = str(resolved.speculative_algorithm).upper() in ("DFLASH", "DSPARK")
    if (resolved.speculative_eagle_topk or 1) > 1:
        yield "tree", lambda walk: walk.tree(drafts, int(resolved.speculative_eagle_topk))
        return
    yield "windows", lambda walk: walk.windows(counts, ring, direct)
    if pool["extra_buffer"]:
        yield "tracked", lambda walk: walk.tracked(drafts)
    elif resolved.uses_mamba_radix_cache:
        yield "donated", lambda walk: walk.donated(drafts)
    if resolved.enable_mixed_chunk:
        yield "mixed", lambda walk: walk.mixed(drafts)
    if resolved.disaggregation_mode == "decode":
        yield "retracted", lambda walk: walk.retracted(drafts)
    if len(counts) > 1:
        yield "counts change", lambda walk: walk.counts_change(counts, ring)
