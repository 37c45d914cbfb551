"""A ring of plain decoding holds the recurrence's state, and one of length 1 is plain decoding.

Machines decode one token a step beside the float64 recurrence of `ringfold.oracle`, which knows no
ring; at L = 1 they are compared bit for bit with the recurrent machine, which stores every state.
Cursors are compared with a plain-Python retelling, over every state that there is. What is dead is
NaN all along. The last tests are about the flags under which two protocols share one ring.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ringfold.oracle import gdn
from ringfold.oracle.gdn import Parameters, Tokens
from ringfold.sim.cursors import DECODE_RING, RING, Cursors, reachable
from ringfold.sim.decode_ring import DecodeRing
from ringfold.sim.machine import MachineError
from ringfold.sim.precision import EMULATED, EMULATED_TF32, EXACT, Arithmetic
from ringfold.sim.setup import Dtypes, Geometry, Setup, SetupError
from ringfold.sim.shared_ring import Flags, after_decode, after_verify
from ringfold.sim.snapshots import Snapshots

Array = NDArray[Any]

EXACT_TOL = 1e-12  # seen 1.4e-15, states of order 1
SLOTS = np.array([2, 5, 1])
STEPS = 40
LENGTHS = (1, 2, 6, 8)


def setup_of(L: int, dialect: str = "decode-ring", **dtypes: str) -> Setup:
    ring = L if dialect == "decode-ring" else 8
    return Setup(dialect, Geometry(2, 4, 6, 5), ring, 1, slots=7, layers=2, dtypes=Dtypes(**dtypes))


def parameters_of(setup: Setup, rng: np.random.Generator) -> Parameters:
    per_head = (setup.layers, setup.geometry.value_heads)
    return Parameters(rng.uniform(-4, -1, per_head), np.zeros(per_head))  # slow: losses still show


def states_of(setup: Setup, rng: np.random.Generator) -> Array:
    g = setup.geometry
    shape = (setup.layers, SLOTS.size, g.value_heads, g.value_dim, g.key_dim)
    return rng.normal(size=shape).astype(np.float32)


def token_of(setup: Setup, rng: np.random.Generator) -> Tokens:
    g, batch = setup.geometry, (setup.layers, SLOTS.size, 1)
    shapes = [(g.heads, g.key_dim)] * 2 + [(g.value_heads, g.value_dim)] + [(g.value_heads,)] * 2
    return Tokens(*(rng.normal(size=(*batch, *s)).astype(np.float32) for s in shapes))


def poison(pool: DecodeRing) -> None:
    """NaN into every record that does not wait."""
    live = np.zeros((pool.setup.slots, pool.setup.ring), np.bool_)
    for slot in SLOTS:
        live[slot, : int(pool.memory["write_pos"][slot])] = True
    for name in ("d", "k", "g"):
        pool.memory[name].swapaxes(1, 2)[:, :, ~live] = np.nan


def represented(pool: DecodeRing) -> Array:
    memory = {n: m[:, SLOTS] for n, m in pool.memory.items() if m.ndim > 2}
    return pool.dialect.represented(memory, pool.cursors(SLOTS), pool.setup)


@pytest.mark.parametrize("asking", [0.0, 0.3])
@pytest.mark.parametrize("L", LENGTHS)
def test_an_exact_ring_stands_for_the_recurrences_state(L: int, asking: float) -> None:
    """After every step, whoever asks for folds; outputs too."""
    rng, setup = np.random.default_rng(L), setup_of(L)
    heads = parameters_of(setup, rng)
    pool = DecodeRing(setup, heads.A_log, heads.dt_bias, EXACT)
    right = states_of(setup, rng).astype(np.float64)
    pool.admit(SLOTS, right)
    A_log, dt_bias = (np.asarray(x)[:, None, None] for x in heads[:2])
    per_token = Parameters(A_log, dt_bias)
    folds = 0
    for _ in range(STEPS):
        poison(pool)
        pool.memory["is_flush"][SLOTS] = rng.random(SLOTS.size) < asking
        token = token_of(setup, rng)
        folds += int(pool.folds(pool.cursors(SLOTS)).sum())
        outputs = pool.decode(SLOTS, token)
        expected, right = gdn.scan(right, gdn.prepare(token, per_token))

        assert np.abs(outputs - expected).max() < EXACT_TOL
        assert np.abs(represented(pool) - right).max() < EXACT_TOL
    assert folds >= SLOTS.size * (STEPS // L)


@pytest.mark.parametrize("state", ["float32", "float16"])
@pytest.mark.parametrize("arithmetic", [EXACT, EMULATED, EMULATED_TF32], ids=lambda a: a.name)
def test_a_ring_of_one_is_plain_decoding_bit_for_bit(arithmetic: Arithmetic, state: str) -> None:
    """Outputs and checkpoints of every step, in each precision."""
    rng = np.random.default_rng(1)
    ring, plain = setup_of(1, state=state), setup_of(1, "snapshots", state=state)
    heads, states = parameters_of(ring, rng), states_of(ring, rng)
    pool = DecodeRing(ring, heads.A_log, heads.dt_bias, arithmetic)
    other = Snapshots(plain, heads.A_log, heads.dt_bias, arithmetic)
    for each in (pool, other):
        each.admit(SLOTS, states)
    for _ in range(STEPS):
        token = token_of(ring, rng)

        assert pool.decode(SLOTS, token).tobytes() == other.decode(SLOTS, token).tobytes()
        assert pool.memory["checkpoint"].tobytes() == other.memory["checkpoint"].tobytes()


@pytest.mark.parametrize("L", [1, 2, 3, 8, 16])
def test_cursors_follow_the_rules_as_told(L: int) -> None:
    """One more record, unless the ring is full with it or somebody asks: then none."""
    every = reachable(L, 1, DECODE_RING)

    assert set(every.states) == {Cursors(n, 0, flag) for n in range(L) for flag in (0, 1)}
    assert len(every.transitions) == 2 * L
    for before, length, accepted, after in every.transitions:
        folds = before.write_pos == L - 1 or bool(before.is_flush)

        assert (length, accepted) == (1, 1)
        assert after == Cursors(0 if folds else before.write_pos + 1, 0, 0)
        assert DECODE_RING.folded(before, 1, L, 1) == (before.write_pos + 1 if folds else 0)


def test_padding_and_bystanders_are_left_alone() -> None:
    """A step of one request beside a row of padding changes nothing of another one."""
    rng, setup = np.random.default_rng(2), setup_of(6)
    heads = parameters_of(setup, rng)
    pool = DecodeRing(setup, heads.A_log, heads.dt_bias, EMULATED)
    pool.admit(SLOTS, states_of(setup, rng))
    before = {name: memory.copy() for name, memory in pool.memory.items()}

    outputs = pool.decode([0, 5, 0], token_of(setup, rng))

    assert not outputs[:, [0, 2]].any()
    assert outputs[:, 1].any()
    for name, memory in pool.memory.items():
        axis = 0 if memory.ndim == 1 else 1
        others = np.delete(memory, 5, axis)
        assert others.tobytes() == np.delete(before[name], 5, axis).tobytes()


def test_nothing_is_drafted() -> None:
    """A verify and a commit are refused; ring lengths that a circular ring may not have are not."""
    setup = setup_of(3)
    pool = DecodeRing(setup, np.zeros(4), np.zeros(4))
    token = token_of(setup, np.random.default_rng(0))

    with pytest.raises(MachineError, match="verifies no drafts"):
        pool.verify(SLOTS, np.ones(3), token)
    with pytest.raises(MachineError, match="commits in its decode step"):
        pool.commit(SLOTS, np.ones(3), 1)
    with pytest.raises(SetupError, match="ring is 0"):
        setup_of(0)


class TestTheRingThatTwoPathsShare:
    """One path's step never moves the other's cursors."""

    @pytest.mark.parametrize(("L", "T"), [(8, 2), (16, 4), (64, 8)])
    def test_plain_decoding_leaves_the_cursors_of_verification(self, L: int, T: int) -> None:
        """At every state that verification can reach."""
        flags = Flags(decode_ring=False, spec_ring=True)

        for state in reachable(L, T, RING).states:
            assert after_decode(state, flags, L) == state

    @pytest.mark.parametrize("L", [1, 6, 16])
    def test_verification_leaves_the_cursors_of_plain_decoding(self, L: int) -> None:
        """At every state that plain decoding can reach, and however much is accepted."""
        flags = Flags(decode_ring=True, spec_ring=False)

        for state in reachable(L, 1, DECODE_RING).states:
            for accepted in range(5):
                assert after_verify(state, flags, accepted, L, 4) == state

    def test_each_owner_moves_its_own(self) -> None:
        """Else the two claims above would be empty."""
        for step in reachable(8, 2, RING).transitions:
            moved = after_verify(step.before, Flags(False, True), step.accepted, 8, 2)
            assert moved == step.after
        for step in reachable(8, 1, DECODE_RING).transitions:
            assert after_decode(step.before, Flags(True, False), 8) == step.after

    def test_both_at_once_would_move_each_others_and_are_refused(self) -> None:
        """A decode step adds a record that no commit knows of, or drops those that one does."""
        both = Flags(True, True)
        states = reachable(8, 2, RING).states
        moved = [state for state in states if after_decode(state, both, 8) != state]

        assert moved == list(states)
        assert "enable one of them" in both.refusal
        assert not Flags(True, False).refusal
        assert not Flags(False, True).refusal
        assert not Flags(False, False).refusal
