"""A step captured once and replayed: acceptance, inputs and cursors change on the device alone.

The graph holds the ring verify, the recurrent twin's walk and the commit. Between replays the
buffers that it reads are filled anew, so that every replay is another step of one long history.
Each replay's outputs are compared with the float64 recurrence, which walks the same history, and
each folded checkpoint with the twin's, bit for bit. Where kernels are interpreted there is no
graph: the same steps are launched one by one, a few of them, so that the test itself is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ringfold.oracle.gdn import Parameters, Tokens, prepare, scan

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

REPLAYS = {"cuda": 10_000, "cpu": 24}
OUTPUT = {"cuda": 2e-2, "cpu": 5e-3}
"""Of the largest output of a step; bf16 on a GPU, seen 6e-3 there in single steps; fp16 in the
interpreter, seen 5.4e-4."""
STATE = 5e-6  # of the largest entry, seen 1.6e-7 in the interpreter after 24 steps


def captured(step: Callable[[], None], device: str) -> Any:
    """What runs the step: a graph of it, after a first run that compiles; itself without a GPU."""
    if device == "cpu":
        return step
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("at_once", "together"), [(8, 32), (2, 0)])
def test_a_captured_step_replays_a_history(
    layer: Callable[..., Any],
    device: str,
    at_once: int,
    together: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten thousand steps of three rows and a padding row: outputs and folds.

    A tenth of them in the order of larger batches.
    """
    from ringfold.kernels import ring
    from ringfold.kernels.cursors import commit_gdn_replayssm_spec
    from ringfold.kernels.recurrent import gdn_recurrent_verify

    monkeypatch.setattr(ring, "AT_ONCE", at_once)
    monkeypatch.setattr(ring, "TOGETHER", together)
    K, V, L, T = (128, 64, 16, 4) if device == "cuda" else (16, 16, 8, 2)
    dtype = torch.bfloat16 if device == "cuda" else torch.float16
    one = layer(H=1, HV=2, K=K, V=V, L=L, T=T, slots=4, dtype=dtype)
    w = one.window((3, 0, 1, 2), (T,) * 4)
    buffers = (w.q, w.k, w.v, w.a, w.b)
    slots, starts = one.ints(w.slots), one.ints(w.starts)
    counts = one.ints((1, 1, 1, 1))

    def step() -> None:
        ring.gdn_replayssm_spec_decode(
            *buffers, one.A_log, one.dt_bias, one.state, **one.rings, out=w.out,
            query_start_loc=starts, ssm_state_indices=slots, write_pos=one.write_pos,
            cache_base=one.cache_base, is_flush=one.is_flush, max_cache_len=L, max_spec_len=T,
        )  # fmt: skip
        gdn_recurrent_verify(
            *buffers, one.A_log, one.dt_bias, one.twin, starts, slots,
            num_accepted=counts, update_state=True,
        )  # fmt: skip
        commit_gdn_replayssm_spec(one.write_pos, one.cache_base, one.is_flush, counts, slots, L, T)

    moving = (one.state, one.twin, one.write_pos, one.cache_base, one.is_flush)
    start = [x.clone() for x in moving]
    replay = captured(step, device)
    for x, was in zip(moving, start, strict=True):
        x.copy_(was)
    random = np.random.default_rng(0)
    rows = [0, 2, 3]  # of the batch; row 1 is padding
    order = [w.slots[row] for row in rows]
    truth = one.truth[order]
    parameters = Parameters(*(x.double().cpu().numpy() for x in (one.A_log, one.dt_bias)))
    worst, folds = 0.0, 0
    replays = max(24, REPLAYS[device] // 10) if not together else REPLAYS[device]
    for _ in range(replays):
        for x in buffers:
            x.copy_(one.draw(*x.shape))
        accepted = random.integers(0, T + 1, 4)
        counts.copy_(one.ints(accepted.tolist()))
        due = one.is_flush[order].cpu().numpy() != 0
        expected = one.twin.clone()

        replay()

        tokens = Tokens(
            *(x.double().cpu().numpy().reshape(4, T, *x.shape[1:])[rows] for x in buffers)
        )
        updates = prepare(tokens, parameters)
        wanted, _ = scan(truth, updates)
        truth = scan(truth, updates, accepted[rows])[1]
        got = w.out.double().cpu().numpy().reshape(4, T, *w.out.shape[1:])
        assert not got[1].any()
        worst = max(worst, float(np.abs(got[rows] - wanted).max() / np.abs(wanted).max()))
        folded = [slot for slot, flag in zip(order, due, strict=True) if flag]
        folds += len(folded)
        assert torch.equal(one.state[folded], expected[folded])

    twin = one.twin[order].double().cpu().numpy()
    assert worst < OUTPUT[device]
    assert np.abs(twin - truth).max() / np.abs(truth).max() < STATE
    assert folds > replays / 4
