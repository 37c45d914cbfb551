"""The base of most adapters: what it does for a kernel, and nothing that a kernel should do.

A user's target is written here in plain torch, in about forty lines: the recurrence of the README
with a snapshot a token. It is found by its name in a folder on the path, agrees, and is found out
when a line of it is wrong. What the base hands to a launch is compared with what was asked for.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringfold.fuzz.histories.payload import Payload
from ringfold.fuzz.histories.trace import (
    Admit,
    Commit,
    Decode,
    Free,
    Idle,
    PayloadSpec,
    Place,
    Trace,
    Verify,
    validate,
)
from ringfold.fuzz.judging.walk import Verdict, walk
from ringfold.fuzz.target import RefusedError
from ringfold.fuzz.targets.pooled import Batch, PooledTarget
from ringfold.fuzz.targets.registry import resolve
from ringfold.sim.dialects import RING_DIALECT, SNAPSHOTS_DIALECT
from ringfold.sim.setup import NULL_SLOT, Dtypes, Geometry, Setup

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

MINE = '''
"""Plain recurrent decoding in torch, with a snapshot a token."""

import torch

from ringfold.fuzz.target import IEEE
from ringfold.fuzz.targets.pooled import PooledTarget
from ringfold.sim.dialects import SNAPSHOTS_DIALECT


class Mine(PooledTarget):
    dialect = SNAPSHOTS_DIALECT
    precision = IEEE

    def __init__(self, device="cpu"):
        super().__init__("plain torch", device)

    def launch_verify(self, layer, batch, inputs, out):
        q, k, v, a, b = (x.float() for x in inputs)
        share = self.setup.geometry.group
        g = -self.A_log[layer].exp() * torch.nn.functional.softplus(a + self.dt_bias[layer])
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
        q = q * self.setup.geometry.key_dim**-0.5
        q, k = (x.repeat_interleave(share, 1) for x in (q, k))
        for row, slot in enumerate(batch.slots.tolist()):
            first, last = batch.starts[row : row + 2].tolist()
            out[first:last] = 0
            if slot <= 0:
                continue
            S = self.memory["checkpoint"][layer, slot].float()
            for t in range(first, last):
                S = S * g[t].exp()[:, None, None]
                u = b[t].sigmoid()[:, None] * (v[t] - torch.einsum("hvk,hk->hv", S, k[t]))
                S = S + u[:, :, None] * k[t][:, None, :]
                out[t] = torch.einsum("hvk,hk->hv", S, q[t])
                self.memory["snapshots"][layer, slot, t - first] = S

    def launch_commit(self, slots, accepted, bound):
        for slot, n in zip(slots.tolist(), accepted.tolist()):
            if slot > 0 and n > 0:
                kept = self.memory["snapshots"][:, slot, n - 1]
                self.memory["checkpoint"][:, slot] = kept

    def launch_reset(self, slots):
        pass
'''

HISTORY = (
    Admit(request=0, tag=1, dead="nan"),
    Admit(request=1, tag=2, dead="nan"),
    Verify(tag=3, rows=(1, None, 0), lengths=(3, 1, 2), dead="nan"),
    Commit(tag=3, accepted=(2, None, 0), dead="nan"),
    Decode(tag=4, rows=(0, None), dead="garbage"),
    Idle(rows=2),
    Free(request=1, dead="nan"),
    Admit(request=2, tag=5),
    Verify(tag=6, rows=(2, 0), lengths=(1, 3), dead="nan"),
    Commit(tag=6, accepted=(1, 3)),
)


def walked(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Verdict:
    """A module `name` with this code, imported by the registry and walked."""
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    dtypes = Dtypes("float16", "float16", "float32")
    setup = Setup("snapshots", Geometry(1, 2, 16, 8), 8, 3, 4, layers=2, dtypes=dtypes)
    made = Trace(setup=setup, payload=PayloadSpec(1, "slow-decay"), operations=HISTORY)
    validate(made)
    try:
        return walk(made, resolve(f"{name}:Mine"))
    finally:
        sys.modules.pop(name, None)


def test_a_users_target_agrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """About forty lines of one's own, and every check is made."""
    verdict = walked(MINE, tmp_path, monkeypatch, "mine_right")

    assert verdict.mismatches == []
    assert verdict.skipped == {"decode": 1}  # it has no kernel for that
    assert verdict.windows == 4
    assert verdict.compared["outputs"] == 3
    assert verdict.compared["frame"] >= 10
    assert 0 < verdict.largest["state-local"] < 1
    assert len(MINE.strip().splitlines()) <= 48


@pytest.mark.parametrize(
    ("right", "wrong", "check"),
    [
        ("n - 1]", "n - 2]", "state-local"),
        ("if slot <= 0:", "if slot < 0:", "frame"),
        ("out[first:last] = 0", "pass", None),
        ("b[t].sigmoid()", "b[t]", "outputs"),
        ("out[t] = torch.einsum", "out[first] = torch.einsum", "outputs"),
        ("* self.setup.geometry.key_dim**-0.5", "", "outputs"),
    ],
)
def test_a_wrong_line_is_found_out(
    right: str,
    wrong: str,
    check: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each by the check that it fails; what a padding row returns means nothing here."""
    assert right in MINE
    name = f"mine_{abs(hash(wrong))}"

    verdict = walked(MINE.replace(right, wrong), tmp_path, monkeypatch, name)

    assert [m.check for m in verdict.mismatches][:1] == ([check] if check else [])


# ------------------------------------------------------------------ what the base does


class _Watched(PooledTarget):
    """Keeps what it is asked to launch."""

    dialect = RING_DIALECT

    def __init__(self) -> None:
        super().__init__("watched")
        self.asked: list[tuple[str, Any]] = []

    def launch_verify(self, layer: int, batch: Batch, inputs: Any, out: Any) -> None:
        self.asked.append(("verify", (layer, batch, inputs, out.clone())))
        out[0] = 5.0

    def launch_commit(self, slots: Any, accepted: Any, bound: int) -> None:
        self.asked.append(("commit", (slots.tolist(), accepted.tolist(), bound)))

    def launch_reset(self, slots: Any) -> None:
        self.asked.append(("reset", slots.tolist()))


@pytest.fixture(autouse=True)
def interpreted(device: str) -> None:
    """A process that compiles kernels can't interpret any."""
    if device == "cuda":
        pytest.skip("the pools here lie on the CPU")


@pytest.fixture
def payload() -> Payload:
    setup = Setup("ring", Geometry(1, 2, 16, 8), 8, 2, 4, layers=2)
    return Payload(setup, 1, "ordinary")


@pytest.fixture
def watched(payload: Payload) -> _Watched:
    target = _Watched()
    target.open(payload.setup, payload.parameters())
    return target


def test_a_pool_is_what_the_dialect_keeps(watched: _Watched, payload: Payload) -> None:
    """Every buffer, in its shape and dtype; the views are the pool itself.

    Zero but for cursors, which begin as if somebody had left them.
    """
    for buffer in RING_DIALECT.kept(payload.setup):
        array = watched.views()[buffer.name].array
        assert tuple(array.shape) == buffer.shape(payload.setup)
        assert bool((array == (buffer.role in {"position", "flag"})).all())
        assert array is watched.memory[buffer.name]
    assert watched.memory["is_flush"].dtype == torch.int8
    assert watched.memory["write_pos"].dtype == torch.int32


def test_an_admission_writes_the_checkpoint_and_resets(watched: _Watched, payload: Payload) -> None:
    """In a slot of its own, and nothing else."""
    state = payload.state(7, 1)

    watched.admit(7, state)

    slot = watched.seat(7)["slot"]
    assert watched.asked == [("reset", [slot])]
    assert np.array_equal(watched.memory["checkpoint"][:, slot].numpy(), state)
    assert watched.memory["checkpoint"].count_nonzero() == state.size
    assert watched.seat(7) == {"slot": slot, "request": slot}


def test_many_are_seated_at_once(watched: _Watched, payload: Payload) -> None:
    """As one after the other, but with one launch."""
    states = payload.states(np.array([7, 3]), np.array([1, 1]))

    watched.admit_all([7, 3], states)

    slots = [watched.seat(request)["slot"] for request in (7, 3)]
    assert watched.asked == [("reset", slots)]
    assert len({*slots}) == 2
    assert np.array_equal(watched.memory["checkpoint"][:, slots].numpy(), states)
    assert watched.memory["checkpoint"].count_nonzero() == states.size


class _Flagged(_Watched):
    """Resets as a kernel that takes a flag a row; `obeys` them or resets every request it meets."""

    obeys = True

    def launch_reset(self, slots: Any) -> None:
        rows, new = self.amid_others(slots)
        self.asked.append(("reset", (rows, new)))
        for slot, flag in zip(rows.tolist(), new.tolist(), strict=True):
            if slot > NULL_SLOT and (flag or not self.obeys):
                for name in ("write_pos", "cache_base", "is_flush"):
                    self.memory[name][slot] = 0


def test_a_reset_meets_who_goes_on_and_padding() -> None:
    """Flags tell them apart, lists are columns; who enters an empty pool is by itself."""
    setup = Setup("ring", Geometry(1, 2, 16, 8), 8, 2, 6)
    target, payload = _Flagged(), Payload(setup, 1, "ordinary")
    target.open(setup, payload.parameters())
    for requests in ([0], [1, 2], [3]):
        count = np.ones(len(requests), np.int64)
        target.admit_all(requests, payload.states(np.array(requests), count))

    a, b, c, d = (target.seat(request)["slot"] for request in range(4))
    told = [(rows.tolist(), new.tolist()) for _, (rows, new) in target.asked]
    assert told == [
        ([a], [1]),
        ([a, -1, b, c, 0], [0, 1, 1, 1, 1]),
        ([a, -1, d, 0, b], [0, 1, 1, 1, 0]),
    ]
    assert all(entries.stride() == (2,) for _, asked in target.asked for entries in asked)


@pytest.mark.parametrize(("obeys", "checks"), [(True, []), (False, ["frame"])])
def test_a_reset_that_ignores_its_flags_is_found_out(obeys: bool, checks: list[str]) -> None:
    """By whom it resets although they go on: here a request with three records, at base 5."""
    target = _Flagged()
    target.obeys = obeys
    operations = (Place(request=0, tag=0, base=5, records=3, flush=False), Admit(request=1, tag=1))
    setup = Setup("ring", Geometry(1, 2, 16, 8), 8, 2, 4)
    made = Trace(setup=setup, payload=PayloadSpec(1, "ordinary"), operations=operations)
    validate(made)

    assert [m.check for m in walk(made, target).mismatches][:1] == checks


def test_a_launch_gets_what_was_asked_for(watched: _Watched, payload: Payload) -> None:
    """Slots in batch order, both kinds of padding, where rows start, inputs, NaN to write on."""
    for request in (3, 8):
        watched.admit(request, payload.state(request, 1))
    inputs = payload.window(np.array([-1, 8, -1, 3]), np.array([1, 2, 1, 1]), 2)
    watched.asked.clear()

    outputs = watched.verify([None, 8, None, 3], [1, 2, 1, 1], inputs)

    (_, first), (_, second) = watched.asked
    layer, batch, tensors, out = second
    slots = [watched.seat(r)["slot"] for r in (8, 3)]
    assert (first[0], layer) == (0, 1)
    assert batch.slots.tolist() == [-1, slots[0], -1, slots[1]]
    assert batch.starts.tolist() == [0, 1, 3, 4, 5]
    assert batch.slots.dtype == batch.starts.dtype == torch.int32
    assert batch.slots.stride() == batch.starts.stride() == (2,)
    assert all(np.array_equal(x.numpy(), y[1]) for x, y in zip(tensors, inputs, strict=True))
    assert out.isnan().all()
    assert (outputs[:, 0] == 5.0).all()
    assert np.isnan(outputs[:, 1:]).all()
    watched.commit([None, 8], [0, 2], 1)
    assert watched.asked[-1] == ("commit", ([-1, slots[0]], [0, 2], 1))
    watched.commit([8, None], [1, 0], 2)
    assert watched.asked[-1] == ("commit", ([slots[0], 0], [1, 0], 2))


@pytest.mark.parametrize("packed", [False, True])
def test_tokens_are_views_of_wider_rows(packed: bool, watched: _Watched, payload: Payload) -> None:
    """As a server's projections are split, so that strides count; unless packed ones are promised.

    Of a head the elements lie side by side in either case.
    """
    watched.packed_tokens = packed
    inputs = payload.window(np.array([-1]), np.array([2]), 2)
    g = payload.setup.geometry
    widths = [g.heads * g.key_dim] * 2 + [g.value_heads * g.value_dim] + [g.value_heads] * 2

    tensors = watched.tokens(inputs)

    assert all(np.array_equal(x.numpy(), y) for x, y in zip(tensors, inputs, strict=True))
    assert all(x.stride(-1) == 1 for x in tensors)
    assert all((x.stride(1) == n) is packed for x, n in zip(tensors, widths, strict=True))


def test_what_it_does_not_own_it_does_not_imitate(watched: _Watched) -> None:
    """A copy between slots is a pool's; on a ring, decoding is a window of one."""

    class Snapshots(_Watched):
        dialect = SNAPSHOTS_DIALECT

    assert "fork" not in watched.operations
    assert "decode" in watched.operations
    assert "decode" not in Snapshots().operations
    assert watched.twin() is None
    with pytest.raises(NotImplementedError, match="owns no fork"):
        watched.fork(1, 0)


@pytest.mark.parametrize("dtypes", [Dtypes("bfloat16"), Dtypes("float32", "bfloat16")], ids=str)
def test_bfloat16_is_refused_where_kernels_are_interpreted(dtypes: Dtypes) -> None:
    """Activations and records alike."""
    setup = Setup("ring", Geometry(1, 1, 16, 8), 8, 2, 3, dtypes=dtypes)

    with pytest.raises(RefusedError, match="bfloat16 is silently wrong"):
        _Watched().open(setup, Payload(setup, 1, "ordinary").parameters())


def test_it_names_what_runs_the_kernels(watched: _Watched) -> None:
    """Versions and where."""
    import triton

    assert watched.identity() == {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "device": "cpu (interpreter)",
    }
