"""Work that is captured in a CUDA graph the first time it comes, and replayed from then on.

As in a server a graph belongs to a batch size: what it reads lies in buffers that keep their place,
and is filled anew before each replay. A server captures the forward pass alone and launches the
commit one kernel at a time; here the commit is captured, too, behind it. Where that cannot be, it
is launched as it comes, and `refused` says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import torch

Work = Callable[..., torch.Tensor | None]


class Captured(NamedTuple):
    """A graph, what it reads and what it returns."""

    graph: torch.cuda.CUDAGraph
    inputs: list[torch.Tensor]
    outputs: torch.Tensor | None


class Graphs:
    """Graphs by name and size."""

    def __init__(self, restore: Callable[[], None]) -> None:
        """`restore` takes back what was written since the last request."""
        self.restore = restore
        self.captured: dict[tuple[str, Hashable], Captured] = {}
        self.replays: dict[str, int] = {}
        self.refused: dict[str, str] = {}

    def run(
        self, name: str, size: Hashable, work: Work, inputs: Sequence[torch.Tensor]
    ) -> torch.Tensor | None:
        """`work` on `inputs`: by a replay, unless work of this name could not be captured."""
        if name not in self.refused and (name, size) not in self.captured:
            self._capture(name, size, work, inputs)
        if name in self.refused:
            return work(*inputs)
        graph, buffers, outputs = self.captured[name, size]
        for buffer, values in zip(buffers, inputs, strict=True):
            buffer.copy_(values)
        graph.replay()
        self.replays[name] = self.replays.get(name, 0) + 1
        return outputs

    def _capture(
        self, name: str, size: Hashable, work: Work, inputs: Sequence[torch.Tensor]
    ) -> None:
        buffers = [values.clone() for values in inputs]
        # What is compiled and allocated at a first run must not be while a graph is captured.
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            work(*buffers)
        torch.cuda.synchronize()
        self.restore()
        for buffer, values in zip(buffers, inputs, strict=True):
            buffer.copy_(values)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                outputs = work(*buffers)
        except RuntimeError as error:
            torch.cuda.synchronize()
            logging.exception("%s was not captured", name)
            self.refused[name] = str(error).partition("\n")[0]
        else:
            self.captured[name, size] = Captured(graph, buffers, outputs)
