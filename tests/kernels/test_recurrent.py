"""The recurrent kernel's outputs, states and snapshots equal the float64 recurrence's.

This kernel is the twin of the ring's fold, so what it computes must itself be trusted: it is
compared with the oracle, whose recurrence is written in another language and precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

FP32 = 2e-6  # of the largest output or of a state near 1; seen 4e-7
FP16 = 1e-3  # half a unit of fp16's last place is 4.9e-4


def tolerance(layer: Any) -> float:
    return FP16 if layer.shape.dtype == torch.float16 else FP32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("K", "V"), [(32, 32), (40, 24), (16, 72)])
def test_outputs_and_states(layer: Callable[..., Any], dtype: Any, K: int, V: int) -> None:
    """Ragged windows, an empty one and padding, heads that share keys, strided inputs."""
    one = layer(K=K, V=V, H=2, HV=4, slots=5, dtype=dtype)
    w = one.window((3, 0, 1, 4), (3, 2, 0, 1))

    one.recurrent(w, one.state, out=w.out)
    assert one.output_error(w) < tolerance(one)
    one.recurrent(w, one.state, update_state=True)
    one.truth[3] = one.walk(w, 3, 0, 3)[1]
    one.truth[4] = one.walk(w, 4, 5, 6)[1]

    assert one.state_error(one.state) < FP32


def test_only_accepted_tokens_are_walked(layer: Callable[..., Any]) -> None:
    """The state is that behind the accepted tokens; without `update_state` it stays."""
    one = layer(slots=3)
    before = one.state.clone()
    w = one.window((1, 2), (4, 3))
    counts = one.ints((2, 0))

    one.recurrent(w, one.state, num_accepted=counts)
    assert torch.equal(one.state, before)
    one.recurrent(w, one.state, num_accepted=counts, update_state=True)
    one.truth[1] = one.walk(w, 1, 0, 2)[1]

    assert one.state_error(one.state) < FP32
    assert torch.equal(one.state[2], before[2])


def test_snapshots_are_the_states_behind_each_token(layer: Callable[..., Any]) -> None:
    """A row with a negative snapshot index writes none."""
    one = layer(slots=3)
    s = one.shape
    w = one.window((1, 2), (3, 2))
    snapshots = torch.full((2, 3, s.HV, s.V, s.K), 7.0, device=one.device)

    one.recurrent(w, one.state, snapshots=snapshots, snapshot_indices=one.ints((1, -1)))

    assert (snapshots[0] == 7.0).all()
    for t in range(3):
        want = one.walk(w, 1, 0, t + 1)[1]
        assert np.abs(snapshots[1, t].double().cpu().numpy() - want).max() < FP32


def test_a_snapshot_has_the_bits_of_the_state(layer: Callable[..., Any]) -> None:
    """Walking a prefix and taking the snapshot behind it are the same thing."""
    one = layer(slots=2)
    s = one.shape
    w = one.window((1,), (3,))
    snapshots = torch.zeros(1, 3, s.HV, s.V, s.K, device=one.device)
    one.recurrent(w, one.state, snapshots=snapshots, snapshot_indices=one.ints((0,)))

    one.recurrent(w, one.state, num_accepted=one.ints((2,)), update_state=True)

    assert torch.equal(one.state[1], snapshots[0, 1])


@pytest.mark.gpu
def test_bfloat16(layer: Callable[..., Any]) -> None:
    """Where it is compiled; the interpreter computes bfloat16 wrong."""
    one = layer(K=96, V=80, H=2, HV=4, slots=3, dtype=torch.bfloat16)
    w = one.window((1, 2), (4, 2))

    one.recurrent(w, one.state, out=w.out)

    assert one.output_error(w) < 8e-3  # bfloat16's last place is worth 7.8e-3
