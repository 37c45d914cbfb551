"""One side of a comparison: a pool, the backends on it, and what drives them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .release import Loose, srt


class Side:
    """Drives requests through a pool as a server's runner would."""

    def __init__(self, pool: Any, arguments: Any, model_config: Any) -> None:
        hybrid = srt("layers.attention.hybrid_linear_attn_backend")
        gdn = srt("layers.attention.linear.gdn_backend")
        utils = srt("layers.attention.linear.utils")
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
        self.modes = srt("model_executor.forward_batch_info").ForwardMode

    def request(self) -> Any:
        """A request that was just given its row and slot."""
        request = Loose(inflight_middle_chunks=0, kv_committed_len=0, mamba_needs_clear=False)
        batch = srt("managers.schedule_batch")
        if "mamba_pool_idx" in getattr(batch.ReqKvInfo, "__dataclass_fields__", {}):
            request.kv = batch.ReqKvInfo()
        self.pool.alloc([request])
        return request

    def row(self, request: Any) -> int:
        """Its row in the pool of running requests."""
        return int(held(request, "req_pool_idx"))

    def slot(self, request: Any) -> int:
        """Its slot in the pool of states."""
        return int(held(request, "mamba_pool_idx"))

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
        srt("speculative.spec_utils").commit_mamba_states_after_verify(
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
    names = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in names}


def held(request: Any, name: str) -> Any:
    """What a request holds: on itself, or in newer releases on a part of it."""
    kv = getattr(request, "kv", None)
    value = getattr(kv, name, None) if kv is not None else None
    return getattr(request, name) if value is None else value
