"""A server's steps: verify and commit, plain decoding, prefill, and a batch of nothing.

Each is the forward pass that a model runner makes of a batch, through the release's backend.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ringfold.fuzz.targets.pool import shims, tracks
from ringfold.fuzz.targets.pool.arena import DEVICE
from ringfold.fuzz.targets.pool.graphs import Graphs
from ringfold.fuzz.targets.pool.lives import Lives
from ringfold.fuzz.targets.pool.pages import CHUNK, PAGE, whole
from ringfold.fuzz.targets.pool.protocol import Message
from ringfold.fuzz.targets.pool.requests import extend, fed
from ringfold.fuzz.targets.pool.results import Step
from ringfold.fuzz.targets.pool.tensors import bits, indices, tensor
from ringfold.fuzz.targets.standins import Loose


class Pool(Lives):
    """All that ringfold asks of one pool: each verb is a method."""

    def __init__(self, arguments: Any, setup: dict[str, Any]) -> None:
        super().__init__(arguments, setup)
        self.graphs = Graphs(self.arena.load) if setup["graphs"] else None
        self.size = 0
        """Rows of the last forward pass, padding among them."""

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
        self.results.settle()
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
        stores: list[int],
    ) -> Message:
        """A plain step of one token a row, on the checkpoints in place.

        With an extra buffer those that it `stores` are as long as it takes for their token to end
        an interval. Returns where each of them is now, besides the outputs.
        """
        self.results.settle(1)
        batch = self._batch(rows, padding, self._mode("DECODE"), 1)
        inputs, window = [mixed, a, b], self.setup["window"]
        if not self.setup["tracks"]:
            return self._forward(batch, window, inputs, padded=padding > 0)
        requests, before = [self.requests[row] for row in rows], self._lengths(rows, stores)
        ahead = tracks.name_ends(batch, requests, before, self.pool)
        done = self._forward(batch, window, inputs, padded=padding > 0)
        self.results.steps.append(Step(ahead, [*rows], before))
        if not self.setup["overlaps"]:
            self.results.settle()
        for i, (row, length) in enumerate(zip(rows, before, strict=True)):
            self._lengthen(row, length, 1)
            if row in stores:
                self.stored[row] = length + 1
                self.given.pop(row, None)
                if self.setup["overlaps"]:  # whose result will say so
                    self.given[row] = int(ahead.mamba_track_indices[i])
        return done._replace(fields={"seats": [self._places(row) for row in rows]})

    def _lengths(self, rows: list[int], stores: list[int]) -> list[int]:
        """How long each is before a plain step, by which those that it stores end an interval."""
        if any(step.ended(row) for step in self.results.steps for row in stores):
            self.results.settle()  # no two steps in turn do
        before = []
        for row in rows:
            last = next((step for step in self.results.steps if row in step.rows), None)
            if last is None:
                ends = 1 if row in stores else None
                before.append(tracks.length(fed(self.requests[row]), 1, ends))
            else:
                before.append(last.follow(row, ends=row in stores))
                self.lengths[row][-1] = before[-1]
        return before

    def prefill(
        self,
        mixed: NDArray[Any],
        a: NDArray[Any],
        b: NDArray[Any],
        *,
        rows: list[int],
        lengths: list[int],
        stored: list[int],
        branches: list[bool],
    ) -> Message:
        """More of some prompts, on the rows and slots that they have: `prepare_for_extend`.

        Who has verified since its last one begins a turn of a session. With an extra buffer the
        state after so many tokens is `stored` apart, and the prefix cache takes it; of `branches`
        because another prompt shares these tokens, which the cache sees in multiples of a chunk.
        They begin with a page, as a server's chunks do.
        Returns where each request is now, besides the outputs.
        """
        self.results.settle()
        before = [fed(self.requests[row]) for row in rows]
        for i, (row, branch) in enumerate(zip(rows, branches, strict=True)):
            if row not in self.verified:  # else it goes on behind its turn
                before[i] = whole(before[i], CHUNK if branch else PAGE)
        for row, length, count in zip(rows, lengths, before, strict=True):
            if row in self.verified:
                self._next_turn(row, length)
            extend(self.requests[row], row, count, length)
        for row, count, tokens, branch in zip(rows, before, stored, branches, strict=True):
            if branch:
                self.prefixes.share(self.requests[row], count + tokens)
        self.verified.difference_update(rows)
        requests = [self.requests[row] for row in rows]
        if self.pool.alloc(requests) is None:
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
        if self.setup["tracks"]:
            tracks.name_chunks(batch, requests, self.pool, self.runner.model_config)
        done = self._forward(batch, self.setup["window"], [mixed, a, b], padded=False)
        if self.setup["tracks"]:
            for row, count, length, tokens in zip(rows, before, lengths, stored, strict=True):
                self._publish(row, count + tokens if tokens else 0)
                self._lengthen(row, count, length)
            self.prefixes.forget_others()
        seats = [self._places(row) for row in rows]
        return done._replace(fields={"seats": seats})

    def _publish(self, row: int, stored: int) -> None:
        """Have the prefix cache take what a prefill has stored; where it lies does not change."""
        request = self.requests[row]
        if stored:
            self.stored[row] = stored
            self.given.pop(row, None)
        slot = self._places(row)["track"]
        if self.prefixes.publish(request):
            self.given[row] = self.published[row] = slot

    def _lengthen(self, row: int, before: int, count: int, *, drafted: bool = False) -> None:
        """A step has brought `count` tokens behind the first `before`."""
        self.lengths[row] += range(before + 1, before + count + 1)
        self.accepted[row] = count if drafted else 0

    def idle(self) -> None:
        """The forward pass of a server that has nothing to do while its peers have."""
        self.results.settle()
        batch = self._batch([], 0, self._mode("IDLE"), self.setup["window"])
        channels, heads = self.layers[0].conv_weights.shape[0], self.setup["value_heads"]
        layers = len(self.layers)
        nothing = [np.zeros((layers, 0, width), np.float32) for width in (channels, heads, heads)]
        self._forward(batch, self.setup["window"], nothing, padded=False)

    def commit(
        self, *, rows: list[int], accepted: list[int], tokens: int, track: int | None = None
    ) -> Message:
        """`commit_mamba_states_after_verify`, as the speculative worker calls it.

        With `track`, the requests are as long as it takes for that token to end an interval.
        Returns where each of them is now: tracking slots take turns.
        """
        from sglang.srt.speculative.spec_utils import commit_mamba_states_after_verify

        count = len(rows)
        lengths = [tracks.length(fed(self.requests[row]), tokens, track) for row in rows]
        index = torch.full((count, tokens), -1, dtype=torch.int32)
        for i, n in enumerate(accepted):
            index[i, :n] = torch.arange(n, dtype=torch.int32) + i * tokens
        batch: Any = Loose(
            forward_mode=self._mode("TARGET_VERIFY" if count else "IDLE"),
            reqs=[self.requests[request] for request in rows],
            req_to_token_pool=self.pool,
            seq_lens=torch.tensor(lengths, dtype=torch.int64, device=DEVICE),
            tree_cache=Loose(page_size=PAGE),
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
        if self.setup["tracks"] and count:
            tracks.note(batch, rows, accepted)
            for row, length, n in zip(rows, lengths, accepted, strict=True):
                self._lengthen(row, length, n, drafted=True)
                if track is not None and n >= track:
                    self.stored[row] = length + track
                    self.given.pop(row, None)
        return Message("done", {"seats": [self._places(request) for request in rows]}, [])

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
            req_pool_indices=torch.cat([self._row_indices(rows), indices([0] * padding)]),
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
        tensors = [batch.req_pool_indices, *(tensor(values).to(dtype) for values in inputs)]
        self.size = batch.batch_size
        if graphs is None:
            return Message("done", {}, [bits(work(*tensors))])
        made = graphs.run("verify", (self.size, drafts), work, tensors)
        assert made is not None
        return Message("done", {}, [bits(made)])
