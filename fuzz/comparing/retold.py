"""Variations of how a target is used: the same history, on memory or launches of another kind.

`variations.py` retells a history; here it stays as it is, and what is done with it changes:
pools whose slots lie apart, offsets that need more than 32 bits, windows that are verified twice,
launches that were captured once and are replayed with other cursors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.judging import arrays
from ringfold.fuzz.mutation.layouts import Layout, laid_out
from ringfold.fuzz.target import Inputs, Request, Target
from ringfold.fuzz.targets.pooled import Batch, PooledTarget

if TYPE_CHECKING:
    import torch

Verify = Callable[[Sequence[Request | None], Sequence[int], Inputs], NDArray[Any]]


def unchanged(target: Target) -> Target | None:
    """The target as it is."""
    return target


def apart(target: Target) -> Target | None:
    """Its slots lie apart, as do tokens of its inputs and entries of its lists of rows."""
    return _laid_out(target, "apart")


def far(target: Target) -> Target | None:
    """Its slots lie so far apart that their offsets need more than 32 bits."""
    return _laid_out(target, "far")


def _laid_out(target: Target, layout: Layout) -> Target | None:
    if not isinstance(target, PooledTarget):
        return None
    return laid_out(copy.copy(target), layout)


def twice(target: Target) -> Target | None:
    """Every window is verified twice before it is committed, where that may make no difference."""
    if not target.dialect.verifies:
        return None
    other = copy.copy(target)
    other.verify = _Twice(other).verify  # type: ignore[method-assign]
    return other


def captured(target: Target) -> Target | None:
    """Launches of a shape that came before are captured in a CUDA graph and replayed from then on.

    Only a target with a pool on a GPU can do that.
    """
    if not isinstance(target, PooledTarget) or target.device != "cuda":
        return None
    other = copy.copy(target)
    other.verify = _Captured(other).verify  # type: ignore[method-assign]
    return other


class _Twice:
    """Verifies again what a first verify has not folded.

    A verify that folds moves the checkpoint, and the cursors learn of it at the commit only: again
    it would fold the same records twice. So a row that is due is padding the second time.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.once: Verify = target.verify

    def verify(
        self, rows: Sequence[Request | None], lengths: Sequence[int], inputs: Inputs
    ) -> NDArray[Any]:
        """Outputs of the second verify, where there was one."""
        again = [None if row is None or self.folds(row) else row for row in rows]
        outputs = self.once(rows, lengths, inputs)
        owners = np.repeat([row is not None for row in again], lengths)
        if owners.any():
            second = self.once(again, lengths, inputs)
            outputs[:, owners] = second[:, owners]
        return outputs

    def folds(self, request: Request) -> bool:
        """Whether this request's verify moves records into its checkpoint."""
        if not self.target.dialect.folds_at_verify:
            return False
        view = self.target.views()["is_flush"]
        at = np.array([self.target.seat(request)[view.buffer.axes[0]]])
        return bool(arrays.take(view.array, (at,))[0])


class _Captured:
    """Replays captured launches, with tokens and slots copied to where they were at the capture.

    The first batch of a shape is launched as always, so that everything is compiled; capturing
    launches nothing, so the second one is captured and then replayed like all others.
    """

    def __init__(self, target: PooledTarget) -> None:
        self.target = target
        self.launched: Verify = target.verify
        self.open: Callable[..., None] = target.open
        self.met: set[tuple[int, ...]] = set()
        self.graphs: dict[tuple[int, ...], tuple[Any, list[torch.Tensor], torch.Tensor]] = {}
        target.open = self.open_anew  # type: ignore[assignment, method-assign]

    def open_anew(self, *arguments: Any) -> None:
        """Another pool: what was captured holds addresses of the last one."""
        self.graphs.clear()
        self.open(*arguments)

    def verify(
        self, rows: Sequence[Request | None], lengths: Sequence[int], inputs: Inputs
    ) -> NDArray[Any]:
        """As `PooledTarget.verify`."""
        import torch

        target, shape = self.target, (*map(int, lengths),)
        if shape not in self.met:
            self.met.add(shape)
            return self.launched(rows, lengths, inputs)
        activation = target.setup.dtypes.activation
        starts = np.concatenate([[0], np.cumsum(lengths)])
        fresh = target.tokens(inputs)
        fresh += [target.slots_of(rows), target.tensor(starts, "int32")]
        if shape not in self.graphs:
            graph, out = torch.cuda.CUDAGraph(), target.zeros(inputs.v.shape, activation)
            batch = Batch(*fresh[-2:])
            with torch.cuda.graph(graph):
                for layer in range(target.setup.layers):
                    target.launch_verify(layer, batch, [x[layer] for x in fresh[:-2]], out[layer])
            self.graphs[shape] = graph, fresh, out
        graph, held, out = self.graphs[shape]
        for there, here in zip(held, fresh, strict=True):
            there.copy_(here)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        return arrays.to_numpy(out)
