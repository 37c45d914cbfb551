"""A peer in its steady state: every row is seated, and a step is launches alone.

The adapters of `fuzz.targets` own the launches. Here they are given inputs that lie on the device,
once for all peers, and cursors stay there too, so that a step can be captured in a CUDA graph:
nothing is allocated by the host that a replay would miss, and nothing waits for the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.bench.case import Case, accepted
from ringfold.fuzz.judging import arrays
from ringfold.fuzz.target import Device, HeadParameters, Target
from ringfold.fuzz.targets.pooled import Batch, PooledTarget
from ringfold.fuzz.targets.registry import UnknownTargetError
from ringfold.fuzz.targets.sglang import ReleasedTarget, SglangRecurrent
from ringfold.fuzz.targets.sglang_fold import SglangFold
from ringfold.fuzz.targets.sglang_places import Places
from ringfold.fuzz.targets.sglang_release import SCATTER
from ringfold.fuzz.targets.sglang_snapshots import SglangSnapshots, as_if_on_cuda
from ringfold.oracle.gdn import Parameters, Tokens, prepare, scan

if TYPE_CHECKING:
    import torch

DISTINCT_STATES = 16
"""Rows start from so many states, in turn; after a few steps they have little in common."""


class Work:
    """What all peers of a case are given: states, and inputs and acceptance of `steps` steps."""

    def __init__(self, case: Case, device: Device, steps: int, seed: int) -> None:
        import torch

        g = case.geometry
        self.case, self.device, self.steps = case, device, steps
        self.counts = accepted(case.acceptance, case.window, case.batch, steps, seed)
        random = np.random.default_rng(seed)

        def normal(*shape: int) -> NDArray[np.float32]:
            return random.standard_normal(shape, np.float32)

        states = (DISTINCT_STATES, case.layers, g.value_heads, g.value_dim, g.key_dim)
        self.states = np.float32(0.1) * normal(*states)
        heads = (case.layers, g.value_heads)
        self.parameters = HeadParameters(
            normal(*heads) * np.float32(0.5) - np.float32(2), normal(*heads)
        )
        generator = torch.Generator(device).manual_seed(seed)
        dtype = getattr(torch, case.dtype)
        tokens = case.batch * case.window
        self.inputs = [
            [
                torch.randn(case.layers, tokens, *shape, generator=generator, device=device).to(
                    dtype
                )
                for shape in (
                    (g.heads, g.key_dim),
                    (g.heads, g.key_dim),
                    (g.value_heads, g.value_dim),
                    (g.value_heads,),
                    (g.value_heads,),
                )
            ]
            for _ in range(steps)
        ]  # [step][q, k, v, a, b] of [layer, token, ...]
        self.judged = sorted({0, case.batch // 2, case.batch - 1})
        """Rows that the oracle walks too."""
        self._truth: list[NDArray[np.float64]] = []

    def truth(self, steps: int) -> list[NDArray[np.float64]]:
        """Outputs of the judged rows in the first steps, [layer, row, T, HV, V] each."""
        if len(self._truth) < steps:
            given = self.parameters.A_log, self.parameters.dt_bias
            A_log, dt_bias = (x.astype(np.float64)[:, None, None] for x in given)
            rows = np.array(self.judged)
            state = self.states[rows % DISTINCT_STATES].swapaxes(0, 1).astype(np.float64)
            for i in range(steps):
                tokens = Tokens(*(self.of_judged(x).astype(np.float64) for x in self.inputs[i]))
                updates = prepare(tokens, Parameters(A_log, dt_bias))
                self._truth.append(scan(state, updates)[0])
                state = scan(state, updates, self.counts[i, rows])[1]
        return self._truth

    def of_judged(self, x: torch.Tensor) -> NDArray[Any]:
        """The judged rows' part of `x` [layer, token, ...]: [layer, row, T, ...]."""
        rows = x.view(len(x), self.case.batch, self.case.window, *x.shape[2:])
        return arrays.to_numpy(rows[:, self.judged])


class Steady:
    """One target with every row seated. Steps count from 0 and start over after the last."""

    def __init__(self, target: PooledTarget, work: Work) -> None:
        """Open it and seat the rows. Raises what opening raises, such as `RefusedError`."""
        import torch

        case = work.case
        self.target, self.work = target, work
        target.open(case.setup(target.dialect.name), work.parameters)
        _trim(target)
        rows = list(range(case.batch))
        for row in rows:
            target.admit(row, work.states[row % DISTINCT_STATES])
        if isinstance(target, Places):
            target.name_places(rows)
        starts = np.arange(case.batch + 1) * case.window
        self.batch = Batch(target.slots_of(rows), target.tensor(starts, "int32"))
        self.accepted = target.tensor(work.counts, "int32")
        self.outputs = list(torch.full_like(work.inputs[0][2], float("nan")))
        """[layer] of [token, HV, V]: of the last verify."""

    def verify(self, step: int) -> None:
        """Launch every layer."""
        inputs = self.work.inputs[step % self.work.steps]
        for layer in range(self.work.case.layers):
            self.launch(layer, [x[layer] for x in inputs])

    def launch(self, layer: int, inputs: list[torch.Tensor]) -> None:
        """Launch one layer."""
        self.target.launch_verify(layer, self.batch, inputs, self.outputs[layer])

    def commit(self, step: int) -> None:
        """Commit all layers."""
        counts = self.accepted[step % self.work.steps]
        self.target.launch_commit(self.batch.slots, counts, self.work.case.window)

    def step(self, step: int) -> None:
        """Verify and commit."""
        self.verify(step)
        self.commit(step)

    def output_error(self, steps: int) -> float:
        """Run the first steps and compare with the oracle: the worst row's error in 2-norm.

        Relative to the row's outputs. Must come first, while the rows are where they were seated.
        """
        import torch

        worst = 0.0
        for i, wanted in enumerate(self.work.truth(steps)[:steps]):
            self.verify(i)
            got = self.work.of_judged(torch.stack(self.outputs)).astype(np.float64)
            axes = (0, 2, 3, 4)
            error = np.sqrt(((got - wanted) ** 2).sum(axes) / (wanted**2).sum(axes))
            worst = max(worst, float(error.max()) if np.isfinite(error).all() else np.inf)
            self.commit(i)
        return worst

    def written_share(self, steps: int) -> float:
        """Run so many steps and count the rows whose checkpoint changes in one."""
        slots = self.batch.slots.long()
        checkpoint = self.target.memory["checkpoint"][0, :, 0]
        changed = 0
        for i in range(steps):
            before = checkpoint[slots]
            self.step(i)
            changed += int((checkpoint[slots] != before).flatten(1).any(1).sum())
        return changed / (steps * len(slots))


class SteadyWalk(Steady):
    """A recurrent verify of SGLang's, whose kernel makes its outputs itself."""

    target: SglangRecurrent | SglangFold

    def launch(self, layer: int, inputs: list[torch.Tensor]) -> None:
        """No copy of the outputs, as in a server."""
        self.outputs[layer] = self.target.walk_window(layer, self.batch, inputs)


class SteadySnapshots(SteadyWalk):
    """SGLang's snapshots: they lie by row of the batch, as a server's do, and so are scattered."""

    target: SglangSnapshots

    def __init__(self, target: SglangSnapshots, work: Work) -> None:
        super().__init__(target, work)
        target.row_places = target.tensor(np.arange(work.case.batch), "int32")
        self.last_steps = target.tensor(work.counts - 1, "int32")

    def commit(self, step: int) -> None:
        """One scatter for all layers."""
        with as_if_on_cuda(self.target.device):
            self.target.release.module(SCATTER).fused_mamba_state_scatter_with_mask(
                self.target.memory["checkpoint"],
                self.target.memory["snapshots"],
                self.batch.slots,
                self.last_steps[step % self.work.steps],
            )


def seat(target: Target, work: Work) -> Steady:
    """The target in its steady state.

    Raises:
        UnknownTargetError: it has no launches that could be captured.
    """
    if isinstance(target, ReleasedTarget):
        target.spare_tokens = False
    if isinstance(target, SglangSnapshots):
        return SteadySnapshots(target, work)
    if isinstance(target, SglangFold):
        return SteadyWalk(target, work)
    if isinstance(target, PooledTarget):
        return Steady(target, work)
    raise UnknownTargetError(
        f"target {target.name!r} can't be measured: its verbs take arrays of the host's; "
        "derive it from ringfold.fuzz.targets.pooled.PooledTarget"
    )


def _trim(target: PooledTarget) -> None:
    """Give up slots beyond those that were asked for: prefix tracking is not measured."""
    for buffer in target.dialect.kept(target.setup):
        if "slot" in buffer.axes:
            axis, memory = buffer.axes.index("slot"), target.memory[buffer.name]
            if memory.shape[axis] > target.setup.slots:
                target.memory[buffer.name] = memory.narrow(axis, 0, target.setup.slots).clone()
