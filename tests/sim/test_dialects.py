"""The machines that fold at a commit hold the recurrence's state, and so says their dialect.

`fold-every-commit`, `compact` and `linear-cache` walk one random history beside the float64
recurrence of `ringfold.oracle`, which knows neither records nor parts. In float64 what their memory
stands for must be its state; in the kernels' precision `fold-every-commit` must have the bits of
`snapshots`, and so must the outputs of `linear-cache`.
Whatever is dead is NaN all along. The cursors of `compact` are compared with a retelling of its
rules in plain Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from ringfold.oracle import gdn
from ringfold.oracle.gdn import Parameters, Tokens
from ringfold.sim.compact import Compact
from ringfold.sim.cursors import COMPACT, COMPACT_NARROW, Cursors, Protocol, reachable
from ringfold.sim.dialects import COMPACT_DIALECT, DIALECTS, physical, protocol_of
from ringfold.sim.fold_every_commit import FoldEveryCommit
from ringfold.sim.machine import Ints, Machine, Window
from ringfold.sim.precision import EMULATED, EXACT, Arithmetic
from ringfold.sim.protocols import MACHINES, machine
from ringfold.sim.setup import DIALECT_NAMES, Dtypes, Geometry, Setup

Array = NDArray[Any]

EXACT_TOL = 1e-10  # seen 1.4e-15, states of order 1
PARTS_GAIN = 2.0  # seen 3.5 (float16) and 2.5 (bfloat16)
READING_GAIN = 100.0  # seen 750 and 258
VECTORS_LOSE = 300.0  # seen 1,320
STEPS = 40
SLOTS = np.array([2, 5, 1])


def setup_of(dialect: str, **dtypes: str) -> Setup:
    """H < HV and K != V, a ring that wraps often."""
    return Setup(
        dialect, Geometry(2, 4, 6, 5), ring=8, window=2, slots=7, layers=2, dtypes=Dtypes(**dtypes)
    )


class Step(NamedTuple):
    """A verify of ragged windows and what is accepted of them."""

    lengths: NDArray[np.int64]
    accepted: NDArray[np.int64]
    tokens: Tokens


def history(setup: Setup, seed: int = 0) -> tuple[Array, Parameters, Iterator[Step]]:
    """States at admission [layer, row, HV, V, K], head parameters, and steps."""
    rng, g = np.random.default_rng(seed), setup.geometry
    A_log = rng.uniform(-4, -1, (setup.layers, g.value_heads))  # slow: what was lost still shows
    states = rng.normal(size=(setup.layers, SLOTS.size, g.value_heads, g.value_dim, g.key_dim))

    def steps() -> Iterator[Step]:
        shapes = ((g.heads, g.key_dim),) * 2 + ((g.value_heads, g.value_dim),)
        for _ in range(STEPS):
            lengths = rng.integers(1, setup.window + 1, SLOTS.size)
            batch = (setup.layers, SLOTS.size, setup.window)
            numbers = [rng.normal(size=(*batch, *s)) for s in (*shapes, *((g.value_heads,),) * 2)]
            tokens = Tokens(*(x.astype(np.float16).astype(np.float32) for x in numbers))
            yield Step(lengths, rng.integers(0, lengths + 1), tokens)

    return states.astype(np.float32), Parameters(A_log, np.zeros_like(A_log)), steps()


def poison(pool: Machine, lengths: NDArray[np.int64]) -> None:
    """NaN into every record that is neither live nor of the windows just verified."""
    setup, dialect = pool.setup, pool.dialect
    places = pool.places(SLOTS)
    live = np.zeros((setup.slots, setup.ring if dialect.has_ring else setup.window), np.bool_)
    for place, length in zip(places, lengths, strict=True):
        if dialect.has_ring:
            base, count = (int(pool.memory[n][place]) for n in ("cache_base", "write_pos"))
            live[place, physical(base, np.arange(count + length), setup.ring)] = True
        else:
            live[place, :length] = True
    for buffer in dialect.kept(setup):
        if buffer.role in ("record", "gate"):
            pool.memory[buffer.name].swapaxes(1, 2)[:, :, ~live] = np.nan


def represented(pool: Machine) -> Array:
    """What the dialect says that memory stands for, [layer, row, HV, V, K]."""
    index = {"slot": SLOTS, "request": pool.places(SLOTS)}
    memory = {b.name: b for b in pool.dialect.kept(pool.setup)}
    gathered = {
        name: pool.memory[name][:, index[b.axes[1]]] for name, b in memory.items() if b.axes[1:]
    }
    cursors = Cursors(0, 0, 0)
    if pool.dialect.has_ring:
        cursors = Cursors(*(pool.memory[n][index["request"]] for n in Cursors._fields))
    return pool.dialect.represented(gathered, cursors, pool.setup)


def largest_error(setup: Setup, arithmetic: Arithmetic, kind: type[Machine] | None = None) -> float:
    """Of represented states, over a history, against the recurrence."""
    states, parameters, steps = history(setup)
    build = kind or MACHINES[setup.dialect]
    pool = build(setup, parameters.A_log, parameters.dt_bias, arithmetic)
    pool.admit(SLOTS, states)
    right, worst = states.astype(np.float64), 0.0
    A_log, dt_bias = (np.asarray(x)[:, None, None] for x in parameters[:2])
    per_token = Parameters(A_log, dt_bias)
    for lengths, accepted, tokens in steps:
        pool.verify(SLOTS, lengths, tokens)
        poison(pool, lengths)
        pool.commit(SLOTS, accepted, setup.window)
        poison(pool, 0 * lengths)
        right = gdn.scan(right, gdn.prepare(tokens, per_token), lengths=accepted)[1]
        worst = max(worst, float(np.abs(represented(pool) - right).max()))
    return worst


@pytest.mark.parametrize("dialect", ["fold-every-commit", "compact", "linear-cache"])
@pytest.mark.parametrize("state", ["float32", "float16"])
def test_an_exact_machine_stands_for_the_recurrences_state(dialect: str, state: str) -> None:
    """After every commit, dead memory NaN; with a 16-bit checkpoint `compact` folds each time."""
    assert largest_error(setup_of(dialect, state=state), EXACT) < EXACT_TOL


@pytest.mark.parametrize(
    ("dialect", "record"), [("fold-every-commit", "float16"), ("linear-cache", "float32")]
)
def test_a_window_walked_like_snapshots_has_their_bits(dialect: str, record: str) -> None:
    """Outputs and checkpoints, in float32 with records that lose nothing."""
    setups = [setup_of(d, record=record) for d in (dialect, "snapshots")]
    states, parameters, steps = history(setups[0])
    pools = [machine(s, parameters.A_log, parameters.dt_bias, EMULATED) for s in setups]
    for pool in pools:
        pool.admit(SLOTS, states)
    for lengths, accepted, tokens in steps:
        outputs = [pool.verify(SLOTS, lengths, tokens) for pool in pools]
        for pool in pools:
            pool.commit(SLOTS, accepted, 2)

        checkpoints = [pool.memory["checkpoint"] for pool in pools]

        assert np.array_equal(outputs[0], outputs[1])
        assert np.array_equal(checkpoints[0], checkpoints[1])


def test_linear_cache_loses_what_its_vectors_lose() -> None:
    """As many ULP of a state as a 16-bit record has: bfloat16 eight times float16."""
    exact, half, brain = (
        largest_error(setup_of("linear-cache", record=record), EMULATED)
        for record in ("float32", "float16", "bfloat16")
    )

    assert exact * VECTORS_LOSE < half
    assert 4 < brain / half < 16


class HighPartsStored(Compact):
    """Stores deltas and keys rounded, as `open-loop` does."""

    def kept(self, window: Window, d: Array, k: Array) -> dict[str, Array]:
        """The low parts are zero."""
        records = super().kept(window, d, k)
        return {n: 0 * x if n.endswith("_low") else x for n, x in records.items()}


class BothPartsRead(Compact):
    """Verifies from both parts, as no release does."""

    def records(self, name: str, slots: Ints, at: Ints, live: NDArray[np.bool_]) -> Array:
        """The sum, for a verify as for a fold."""
        high, low = super().records(name, slots, at, live), f"{name}_low"
        return high + super().records(low, slots, at, live) if low in self.memory else high

    def summands(self, name: str, slots: Ints, at: Ints, live: NDArray[np.bool_]) -> Array:
        """The same."""
        return self.records(name, slots, at, live)


@pytest.mark.parametrize("record", ["float16", "bfloat16"])
def test_low_parts_gain_little_while_a_verify_reads_the_high_ones(record: str) -> None:
    """They bring the state nearer to the recurrence; reading them would bring it far nearer."""
    setup = setup_of("compact", activation="float32", record=record)
    none, some, all_ = (
        largest_error(setup, EMULATED, kind) for kind in (HighPartsStored, Compact, BothPartsRead)
    )

    assert some * PARTS_GAIN < none
    assert all_ * READING_GAIN < some


def test_fold_reads_what_was_accepted_and_no_more() -> None:
    """A machine that replays one token too few is far from the recurrence."""

    class OneShort(FoldEveryCommit):
        """Forgets the bonus token."""

        def replayed(self, accepted: NDArray[np.int64]) -> NDArray[np.int64]:
            """One less."""
            return np.maximum(accepted - 1, 0)

    assert largest_error(setup_of("fold-every-commit"), EXACT, OneShort) > 0.1


@pytest.mark.parametrize(("L", "T"), [(8, 2), (16, 4), (8, 4)])
@pytest.mark.parametrize("protocol", [COMPACT, COMPACT_NARROW], ids=lambda p: p.name)
def test_compact_cursors_follow_the_rules_as_told(protocol: Protocol, L: int, T: int) -> None:
    """Append, then fold all of it if two windows might not fit (or always); the flag stays down."""
    for before, length, n, after in reachable(L, T, protocol).transitions:
        count = before.write_pos + n
        folds = count > 0 if protocol is COMPACT_NARROW else count + 2 * T > L
        base = (before.cache_base + count) % L if folds else before.cache_base

        assert after == Cursors(0 if folds else count, base, 0)
        assert protocol.folded(before, n, L, T) == (count if folds else 0)
        assert before.write_pos + length <= L


def test_a_protocol_says_how_much_may_wait() -> None:
    """`most` is the largest write_pos of any reachable state."""
    for protocol in (COMPACT, COMPACT_NARROW):
        states = reachable(16, 4, protocol).states

        assert max(state.write_pos for state in states) == protocol.most(16, 4)


def test_low_parts_exist_where_records_are_rounded() -> None:
    """And nowhere else."""
    names = [{b.name for b in COMPACT_DIALECT.kept(setup_of("compact", record=r))} for r in RECORDS]

    assert names[0] == names[1] | {"d_low", "k_low"}


RECORDS = ("float16", "float32")


def test_a_16_bit_checkpoint_folds_at_every_commit() -> None:
    """The protocol follows the checkpoint's dtype."""
    assert protocol_of(setup_of("compact", state="float16")) is COMPACT_NARROW
    assert protocol_of(setup_of("compact")) is COMPACT


def test_every_dialect_has_a_row_and_a_machine() -> None:
    """Names in a setup, rows of the table and machines are the same."""
    assert set(DIALECT_NAMES) == set(DIALECTS) == set(MACHINES)
