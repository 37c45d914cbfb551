"""The reference machines hold and return what the recurrence holds and returns.

A machine and the float64 recurrence of `ringfold.oracle` walk the same random history: ragged
windows, any acceptance, padding rows, rows in any order, plain decode steps, slots that change
hands, rings that wrap many times. The recurrence knows no ring, so it cannot share a ring's bug.
Everything that the protocol calls dead is NaN all along: what it must not read, it does not read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ringfold.oracle import gdn, units
from ringfold.oracle.gdn import Parameters, Tokens
from ringfold.oracle.units import Units
from ringfold.sim.cursors import Cursors
from ringfold.sim.dialects import physical
from ringfold.sim.machine import Ints, Machine, MachineError
from ringfold.sim.precision import EMULATED, EMULATED_TF32, EXACT, Arithmetic, rounded
from ringfold.sim.protocols import machine
from ringfold.sim.ring import Ring
from ringfold.sim.setup import NULL_SLOT, Dtypes, Geometry, Setup
from ringfold.sim.slots import Slots

Array = NDArray[np.float64]

EXACT_TOL = 1e-10  # seen 4.3e-14, outputs and states of order 1
EPS_DOT = {"emulated": 2.0**-24, "emulated tf32": 4 * 2.0**-10}
# tf32 cuts up to 2^-10 off each of a dot product's two operands, and what comes out of the history
# passed two dot products. (2^-10 alone was exceeded: 1.02 times the limit, K = 6.)
FLOOR_RATIO = 1e-3  # seen at least 0.06 of a limit
STEPS = 60


def setup_of(dialect: str, **changes: Any) -> Setup:
    """A small setup with H < HV and K != V."""
    chosen: dict[str, Any] = {
        "geometry": Geometry(2, 4, 6, 5),
        "ring": 8,
        "window": 2,
        "slots": 7,
    }
    return Setup(dialect=dialect, **(chosen | changes))


class Walk:
    """A machine and the recurrence on one history; keeps the largest disagreements."""

    def __init__(
        self, setup: Setup, arithmetic: Arithmetic, seed: int, kind: type[Machine] | None = None
    ) -> None:
        g, layers = setup.geometry, setup.layers
        self.setup, self.arithmetic = setup, arithmetic
        self.rng = np.random.default_rng(seed)
        # Slow decay, so that what was lost long ago still shows.
        A_log = rounded(self.rng.uniform(-4, -1, (layers, g.value_heads)), "float32")
        dt_bias = rounded(self.rng.normal(size=(layers, g.value_heads)), "float32")
        self.machine = (kind or machine)(setup, A_log, dt_bias, arithmetic)
        self.parameters = Parameters(
            A_log[:, None, None], dt_bias[:, None, None], l2norm=setup.l2norm
        )
        self.pool = Slots(setup.slots)
        self.seated: list[int] = []
        rows = (layers, setup.slots, g.value_heads, g.value_dim)
        self.state = np.zeros((*rows, g.key_dim))
        self.error, self.mass = np.zeros(rows), np.zeros(rows)
        self.output_error = self.state_error = 0.0  # absolute
        self.output_ratio = self.state_ratio = 0.0  # over the oracle's units

    # -------------------------------------------------------------- the life of a request

    def admit(self) -> None:
        """Seat a request on a random state."""
        slot = self.pool.take()
        g = self.setup.geometry
        state = self.rng.normal(size=(self.setup.layers, g.value_heads, g.value_dim, g.key_dim))
        state = rounded(state, self.setup.dtypes.state)
        self.machine.admit([slot], state[:, None])
        self.state[:, slot] = state
        self.error[:, slot], self.mass[:, slot] = units.zero(state)
        self.seated.append(slot)

    def free(self) -> None:
        """Give the slot of a random request back."""
        self.pool.give(self.seated.pop(self.rng.integers(len(self.seated))))

    def fill(self) -> None:
        """Seat a request in every free slot."""
        while self.pool.free:
            self.admit()

    def live_some(self, steps: int) -> None:
        """A random history."""
        self.fill()
        for _ in range(steps):
            if self.rng.random() < 0.2 and len(self.seated) > 1:
                self.free()
            if self.rng.random() < 0.5:
                self.fill()
            self.decode() if self.rng.random() < 0.1 else self.verify_and_commit()

    def rows(self) -> Ints:
        """Some of the requests' slots in any order, padding among them."""
        rows = self.rng.permutation(self.seated)[: self.rng.integers(1, len(self.seated) + 1)]
        return np.where(self.rng.random(len(rows)) < 0.2, self.rng.choice([-1, 0]), rows)

    def tokens(self, lengths: Ints) -> Tokens:
        """Random tokens as the activation dtype holds them, NaN behind each length."""
        g, T = self.setup.geometry, int(lengths.max(initial=1))
        key, value, gate = (g.heads, g.key_dim), (g.value_heads, g.value_dim), (g.value_heads,)
        dead = np.arange(T) >= lengths[:, None]
        drawn = []
        for shape in (key, key, value, gate, gate):
            x = self.rng.normal(size=(self.setup.layers, len(lengths), T, *shape))
            x = rounded(x, self.setup.dtypes.activation)
            x[:, dead] = np.nan
            drawn.append(x)
        return Tokens(*drawn)

    # -------------------------------------------------------------- steps

    def verify_and_commit(self) -> None:
        """One step with ragged windows and any acceptance."""
        slots = self.rows()
        lengths = self.rng.integers(1, self.setup.window + 1, len(slots))
        real = slots > NULL_SLOT
        tokens = self.tokens(np.where(real, lengths, 0))
        updates = gdn.prepare(tokens, self.parameters)
        accepted = self.rng.integers(0, lengths + 1)

        self.poison(slots[real], written=np.zeros(real.sum(), np.int64), verified=False)
        outputs = self.machine.verify(slots, lengths, tokens)
        self.store(slots[real], at_verify=True)
        self.judge_outputs(slots, np.where(real, lengths, 0), updates, outputs)
        self.poison(slots[real], written=lengths[real], verified=True)
        self.judge_states(verified=slots[real])
        self.machine.commit(slots, accepted, self.setup.window)
        self.advance(slots[real], accepted[real], updates, real)
        self.store(slots[real][accepted[real] > 0], at_verify=False)
        self.judge_states()

    def decode(self) -> None:
        """One plain decode step."""
        slots = self.rows()
        real = slots > NULL_SLOT
        ones = real.astype(np.int64)
        tokens = self.tokens(ones)
        updates = gdn.prepare(tokens, self.parameters)

        self.poison(slots[real], written=np.zeros(real.sum(), np.int64), verified=False)
        self.store(slots[real], at_verify=True)
        outputs = self.machine.decode(slots, tokens)
        self.judge_outputs(slots, ones, updates, outputs)
        self.advance(slots[real], ones[real], updates, real)
        self.store(slots[real], at_verify=False)
        self.judge_states()

    def advance(self, at: Ints, accepted: Ints, updates: gdn.Updates, real: Any) -> None:
        """The recurrence commits."""
        trail = units.scan_units(
            self.state[:, at],
            Units(self.error[:, at], self.mass[:, at]),
            gdn.Updates(*(x[:, real] for x in updates)),
            np.exp(self.parameters.A_log),
            np.broadcast_to(accepted, (self.setup.layers, len(at))),
        )
        self.state[:, at], (self.error[:, at], self.mass[:, at]) = trail.state, trail.units

    def store(self, at: Ints, *, at_verify: bool) -> None:
        """A checkpoint that was just written was rounded once more."""
        if at_verify != self.machine.dialect.folds_at_verify:
            return
        if at_verify:
            at = at[self.machine.memory["is_flush"][at] != 0]
        eps = 0.0 if self.setup.dtypes.state == "float32" else 2.0**-8
        carried = Units(self.error[:, at], self.mass[:, at])
        state = self.state[:, at]
        self.error[:, at], self.mass[:, at] = units.rebase(
            units.round_state(carried, state, eps), state
        )

    # -------------------------------------------------------------- dead memory

    def poison(self, slots: Ints, written: Ints, *, verified: bool) -> None:
        """NaN into everything but checkpoints, live records and the window just `written`."""
        memory, setup = self.machine.memory, self.setup
        free = np.setdiff1d(np.arange(setup.slots), self.seated)
        memory["checkpoint"][:, free] = np.nan
        if setup.dialect == "snapshots":
            dead = np.ones((setup.slots, setup.window), np.bool_)
            dead[slots] = np.arange(setup.window) >= written[:, None]
            memory["snapshots"][:, dead] = np.nan
            return
        base, write_pos, flag = (
            memory[name].astype(np.int64) for name in ("cache_base", "write_pos", "is_flush")
        )
        length = np.zeros(setup.slots, np.int64)
        length[slots] = written
        position = np.arange(setup.ring)
        folded = np.zeros(setup.slots, np.bool_)
        folded[slots] = verified & (flag[slots] != 0)
        start = np.where(folded, write_pos, 0)[:, None]
        live = (position >= start) & (position < (write_pos + length)[:, None])
        live[free] = False
        slot, at = np.nonzero(~live)
        row = physical(base[slot], at, setup.ring)
        for name in (b.name for b in self.machine.dialect.buffers if "ring" in b.axes):
            heads = np.arange(memory[name].shape[2])
            memory[name][:, slot[:, None], heads, row[:, None]] = np.nan

    # -------------------------------------------------------------- judging

    def judge_outputs(
        self, slots: Ints, lengths: Ints, updates: gdn.Updates, outputs: NDArray[Any]
    ) -> None:
        """What a verify returned, against the recurrence from the committed state."""
        at = np.where(slots > NULL_SLOT, slots, NULL_SLOT)
        trail = units.scan_units(
            self.state[:, at],
            Units(self.error[:, at], self.mass[:, at]),
            updates,
            np.exp(self.parameters.A_log),
            np.broadcast_to(lengths, (self.setup.layers, len(at))),
        )
        dtypes = self.setup.dtypes
        off = np.abs(outputs.astype(np.float64) - trail.outputs)
        narrow = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
        dot = EPS_DOT.get(self.arithmetic.name, 0.0)
        dot += 2 * narrow[dtypes.record] if dtypes.record != "float32" else 0.0
        limit = units.output_limit(
            units.sizes(updates.q),
            trail.errors,
            trail.masses,
            trail.outputs,
            dot,
            narrow[dtypes.activation],
            2.0**-24 if dtypes.activation == "float16" else units.FLOOR,
        )
        live = np.arange(off.shape[2]) < lengths[:, None]
        self.output_error = max(self.output_error, off.max(initial=0))
        self.output_ratio = max(self.output_ratio, (off / limit)[:, live].max(initial=0))

        assert not np.isnan(off).any()
        assert not outputs[:, ~live].any()

    def judge_states(self, verified: Ints | None = None) -> None:
        """What the dialect says that each request's memory stands for, against the recurrence."""
        memory, dialect = self.machine.memory, self.machine.dialect
        at = np.array(self.seated)
        cursors = Cursors(0, 0, 0)
        if dialect.has_ring:
            cursors = Cursors(*(memory[name][at].astype(np.int64) for name in Cursors._fields))
        if verified is not None and dialect.has_ring:
            folded = (cursors.is_flush != 0) & np.isin(at, verified)
            cursors = cursors._replace(write_pos=np.where(folded, 0, cursors.write_pos))
        pools = [b.name for b in dialect.buffers if b.axes[0] == "layer"]
        represented = dialect.represented(
            {name: memory[name][:, at] for name in pools}, cursors, self.setup
        )
        off = represented - self.state[:, at]
        limit = units.state_limit(Units(self.error[:, at], self.mass[:, at]))
        self.state_error = max(self.state_error, np.abs(off).max())
        self.state_ratio = max(self.state_ratio, (units.sizes(off) / limit).max())

        assert not np.isnan(off).any()


@pytest.mark.parametrize("dialect", ["ring", "snapshots", "open-loop"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layers": 3, "geometry": Geometry(1, 3, 4, 8)},
        {"ring": 16, "window": 4, "geometry": Geometry(3, 3, 5, 2)},
        {"ring": 2, "window": 1},
        {"ring": 8, "window": 4, "l2norm": False, "geometry": Geometry(1, 1, 3, 3)},
    ],
    ids=str,
)
def test_an_exact_machine_equals_the_recurrence(dialect: str, changes: dict[str, Any]) -> None:
    """In float64 outputs and represented states are the recurrence's, after every operation."""
    for seed in range(3):
        walk = Walk(setup_of(dialect, **changes), EXACT, seed)
        walk.live_some(STEPS)

        assert walk.output_error < EXACT_TOL
        assert walk.state_error < EXACT_TOL


@pytest.mark.parametrize(
    ("dialect", "arithmetic"),
    [("ring", EMULATED), ("ring", EMULATED_TF32), ("snapshots", EMULATED)],
    ids=["ring", "ring-tf32", "snapshots"],
)
@pytest.mark.parametrize(
    "dtypes",
    [
        Dtypes(),
        Dtypes("bfloat16", "bfloat16"),
        Dtypes("float16", "float16"),
        Dtypes("bfloat16", "bfloat16", "bfloat16"),
    ],
    ids=lambda d: f"{d.activation}-{d.state}",
)
def test_an_emulated_machine_stays_within_the_units(
    dialect: str, dtypes: Dtypes, arithmetic: Arithmetic
) -> None:
    """Rounding as the kernels do it costs less than one unit of the oracle, global since admission.

    It does cost something: were the emulation exact, it would emulate nothing.
    """
    walk = Walk(setup_of(dialect, ring=16, window=4, dtypes=dtypes), arithmetic, seed=7)
    walk.live_some(3 * STEPS)

    assert FLOOR_RATIO < walk.output_ratio < 1
    assert FLOOR_RATIO < walk.state_ratio < 1


@pytest.mark.parametrize("activation", ["float32", "bfloat16", "float16"])
def test_a_folded_checkpoint_is_that_of_the_recurrent_path_bit_for_bit(activation: str) -> None:
    """Folding raw records later gives the very bits of committing snapshots at once."""
    dtypes = Dtypes(activation, activation)
    walk = Walk(setup_of("ring", dtypes=dtypes), EMULATED, seed=3)
    twin = Walk(setup_of("snapshots", dtypes=dtypes), EMULATED, seed=3)
    folds = 0
    for w in (walk, twin):
        w.fill()
    for _ in range(3 * STEPS):
        slots = walk.rows()
        slots = slots[slots > NULL_SLOT]
        lengths = walk.rng.integers(1, walk.setup.window + 1, len(slots))
        tokens, accepted = walk.tokens(lengths), walk.rng.integers(0, lengths + 1)
        for w in (walk, twin):
            w.machine.verify(slots, lengths, tokens)
        folded = slots[walk.machine.memory["is_flush"][slots] != 0]
        folds += len(folded)
        ring, recurrent = (w.machine.memory["checkpoint"][:, folded] for w in (walk, twin))

        assert ring.tobytes() == recurrent.tobytes()

        for w in (walk, twin):
            w.machine.commit(slots, accepted, w.setup.window)

    assert folds > STEPS


@pytest.mark.parametrize("arithmetic", [EXACT, EMULATED], ids=lambda a: a.name)
@pytest.mark.parametrize("dialect", ["ring", "snapshots"])
def test_the_rest_of_a_batch_does_not_change_a_row(dialect: str, arithmetic: Arithmetic) -> None:
    """A batch at once and its rows one by one leave the same bits everywhere."""
    whole, parts = (Walk(setup_of(dialect), arithmetic, seed=5) for _ in range(2))
    for walk in (whole, parts):
        walk.fill()
    for _ in range(STEPS):
        slots = whole.rng.permutation(whole.seated)
        lengths = whole.rng.integers(1, 3, len(slots))
        tokens, accepted = whole.tokens(lengths), whole.rng.integers(0, lengths + 1)
        together = whole.machine.verify(slots, lengths, tokens)
        whole.machine.commit(slots, accepted, 2)
        for i in range(len(slots)):
            one = slice(i, i + 1)
            alone = Tokens(*(x[:, one, : lengths[i]] for x in tokens))
            outputs = parts.machine.verify(slots[one], lengths[one], alone)
            parts.machine.commit(slots[one], accepted[one], 2)

            assert outputs.tobytes() == together[:, one, : lengths[i]].tobytes()

    for name, pool in whole.machine.memory.items():
        assert pool.tobytes() == parts.machine.memory[name].tobytes()


@pytest.mark.parametrize("dialect", ["ring", "snapshots"])
def test_what_is_not_in_the_batch_is_not_touched(dialect: str) -> None:
    """Padding rows, other requests' slots and free slots keep every bit."""
    walk = Walk(setup_of(dialect), EMULATED, seed=9)
    walk.live_some(STEPS)
    at = walk.seated[0]
    slots, lengths = np.array([-1, at, 0]), np.array([2, 1, 1])
    tokens = walk.tokens(np.array([0, 1, 0]))
    before = {name: pool.copy() for name, pool in walk.machine.memory.items()}
    outputs = walk.machine.verify(slots, lengths, tokens)
    walk.machine.commit(slots, [2, 1, 1], 2)

    assert not outputs[:, [0, 2]].any()
    for name, pool in walk.machine.memory.items():
        axis = 0 if pool.ndim == 1 else 1
        others = np.delete(np.arange(walk.setup.slots), at)
        assert pool.take(others, axis).tobytes() == before[name].take(others, axis).tobytes()


@pytest.mark.parametrize("dialect", ["ring", "snapshots"])
def test_a_fork_goes_on_like_its_source(dialect: str) -> None:
    """A copied checkpoint answers the same window alike, and the source is not changed."""
    walk = Walk(setup_of(dialect), EMULATED, seed=1)
    walk.admit()
    source, fork = walk.seated[0], walk.pool.take()
    walk.machine.copy(source, fork)
    lengths = np.array([2])
    tokens = walk.tokens(lengths)
    first = walk.machine.verify([source], lengths, tokens)
    walk.machine.commit([source], [2], 2)

    assert walk.machine.verify([fork], lengths, tokens).tobytes() == first.tobytes()


def test_a_slot_with_waiting_records_cannot_be_forked() -> None:
    """Its checkpoint is not its committed state."""
    walk = Walk(setup_of("ring"), EXACT, seed=1)
    walk.admit()
    lengths = np.array([2])
    walk.machine.verify(walk.seated, lengths, walk.tokens(lengths))
    walk.machine.commit(walk.seated, lengths, 2)

    with pytest.raises(MachineError, match="slot 1 holds 2 records that its checkpoint lacks"):
        walk.machine.copy(1, 2)


class ForgetsToReset(Ring):
    """A slot reused without a reset."""

    def reset(self, slots: Any) -> None:
        """Leave the cursors of the previous owner."""


class FoldsFromRowZero(Ring):
    """A fold that knows no base."""

    def fold_rows(self, cursors: Cursors) -> Ints:
        """Rows as if the base were 0."""
        return super().fold_rows(cursors._replace(cache_base=0 * cursors.cache_base))


@pytest.mark.parametrize("bug", [ForgetsToReset, FoldsFromRowZero])
def test_one_wrong_method_is_far_outside_every_tolerance(bug: type[Ring]) -> None:
    """The comparisons above can fail: a machine with one rule broken shows at once."""
    walk = Walk(setup_of("ring"), EXACT, seed=0, kind=bug)
    with pytest.raises(AssertionError):  # dead memory is NaN, and these read it
        walk.live_some(STEPS)

    sound = Walk(setup_of("ring"), EXACT, seed=0)
    sound.live_some(STEPS)

    assert sound.output_error < EXACT_TOL


@pytest.mark.parametrize(
    ("slots", "lengths", "message"),
    [
        ([1], [3], r"row 0 \(slot 1\): 3 tokens, but a window holds 0..2"),
        ([-1, 2], [1, -1], r"row 1 \(slot 2\): -1 tokens, but a window holds 0..2"),
        ([7], [1], r"slots are \[7\], but must be in 1..6"),
        ([3, 3], [1, 1], r"slots are \[3, 3\]: each may stand in one row"),
        ([3], [2], r"windows of 2 tokens, but only 1 were passed"),
    ],
)
def test_an_impossible_batch_is_refused(slots: list[int], lengths: list[int], message: str) -> None:
    """The error names the row, the limit and the way out."""
    walk = Walk(setup_of("ring"), EXACT, seed=0)
    tokens = walk.tokens(np.ones(len(slots), np.int64))

    with pytest.raises(MachineError, match=message):
        walk.machine.verify(slots, lengths, tokens)


def test_a_bound_beyond_the_setup_is_refused() -> None:
    """The ring was sized for the setup's window."""
    walk = Walk(setup_of("ring"), EXACT, seed=0)
    walk.admit()

    with pytest.raises(MachineError, match=r"bound is 3, but must be in 1..2"):
        walk.machine.commit([1], [0], 3)


def test_a_machine_follows_one_dialect() -> None:
    """A setup of another dialect is refused, with the way out."""
    with pytest.raises(MachineError, match="Ring follows the dialect 'ring', but the setup"):
        Ring(setup_of("snapshots"), np.zeros(4), np.zeros(4))
