"""Drift: how far a machine's state and outputs have wandered after many thousand tokens.

One *text* is decoded greedily by the float64 recurrence: a toy head reads each output and names the
next word, whose embedding, with noise that stands for the rest of a model, is the next input. Every
machine then verifies this text window by window, and at each token three things are compared: the
state that its memory stands for, its output, and the word that the same head reads from it. The
first word that differs is where greedy decoding would have parted.

Rows are configurations too: gate strengths lie along the layer axis, key similarities and seeds
along the row axis of one batch, so a case walks them all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ringfold.oracle import gdn, units
from ringfold.oracle.gdn import Parameters, Tokens
from ringfold.sim.cursors import Cursors
from ringfold.sim.dialects import DIALECTS, Dialect
from ringfold.sim.precision import EMULATED, EMULATED_TF32, Arithmetic, rounded
from ringfold.sim.protocols import machine
from ringfold.sim.ring import Ring
from ringfold.sim.setup import Dtypes, Geometry, Setup, require

Array = NDArray[np.float64]

TOKENS_MAX: Final = 1_000_000
CHUNK: Final = 1000
"""Tokens of text that are decoded, then walked by every machine, before the next ones."""
INPUTS: Final = "bfloat16"
"""What all inputs are exact in, so that raw records of any dtype in use are exact too."""
NOISE: Final = 0.6
"""Of an input's unit variance 0.36 is noise; without any a greedy text would run in circles."""
OPERANDS: Final = 4
"""Operands that are rounded between a stored number and an output (`units.output_limit`)."""


class Study(msgspec.Struct, frozen=True):
    """The texts of a study: one for each gate strength, key similarity and seed."""

    geometry: Geometry = Geometry(1, 2, 32, 32)
    window: int = 4
    tokens: int = 100_000
    gates: tuple[float, ...] = (-1.0, -4.0, -7.0, -10.0)
    """A_log; a token keeps about exp(-0.8 exp(A_log)) of the state."""
    similarities: tuple[float, ...] = (0.0, 0.5, 0.9)
    """Mean cosine of two raw keys: the share of their variance that is common to all."""
    seeds: int = 2
    vocabulary: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        limits = (("tokens", 1, TOKENS_MAX), ("seeds", 1, 64), ("vocabulary", 2, 2**16))
        for what, low, limit in limits:
            value = getattr(self, what)
            require(low <= value <= limit, what, value, f"in {low}..{limit}", "choose one of these")
        for value in self.gates:
            require(-20 <= value <= 5, "gate", value, "an A_log in -20..5", "choose one of these")
        for value in self.similarities:
            require(0 <= value <= 1, "similarity", value, "in 0..1", "it is a cosine")

    @property
    def rows(self) -> int:
        """Rows of a batch: similarities, and within each the seeds."""
        return len(self.similarities) * self.seeds


class Precision(NamedTuple):
    """How a machine computes and stores."""

    arithmetic: Arithmetic
    dtypes: Dtypes
    about: str


PRECISIONS: Final = {
    "fp32": Precision(EMULATED, Dtypes(), "everything float32"),
    "tf32": Precision(EMULATED_TF32, Dtypes(), "dot products of outputs take tf32 operands"),
    "bf16-records": Precision(EMULATED, Dtypes(record="bfloat16"), "records bfloat16"),
    "fp16-records": Precision(EMULATED, Dtypes(record="float16"), "records float16"),
    "bf16-state": Precision(
        EMULATED, Dtypes(record="bfloat16", state="bfloat16"), "records and states bfloat16"
    ),
    "fp16-state": Precision(
        EMULATED, Dtypes(record="float16", state="float16"), "records and states float16"
    ),
    "kernel": Precision(
        EMULATED_TF32,
        Dtypes("bfloat16", "bfloat16"),
        "as deployed: tf32 dot products, bfloat16 outputs and records, float32 states",
    ),
}


class Case(msgspec.Struct, frozen=True):
    """One machine: its protocol, precision, ring length and how likely a draft is accepted."""

    dialect: str
    precision: str
    ring: int = 16
    acceptance: float = 0.7
    target: str = ""
    """An implementation that is walked instead; its dot products are what they are."""

    def __post_init__(self) -> None:
        _dtypes(self.precision)
        require(0 <= self.acceptance <= 1, "acceptance", self.acceptance, "in 0..1", "it is a rate")

    @property
    def who(self) -> str:
        """The target, or the dialect of a machine of the simulator."""
        return self.target or self.dialect

    def __str__(self) -> str:
        return f"{self.who} {self.precision} L={self.ring} acceptance={self.acceptance:g}"


class Point(msgspec.Struct, frozen=True):
    """What was seen from the last point up to `tokens`; arrays are [gate][similarity].

    The worst of all seeds and heads.
    """

    tokens: int
    state: list[list[float]]
    """Error of the state at the point, Frobenius norm over that of the state."""
    state_units: list[list[float]]
    """The same a row, over the limit of `units.state_limit`; under 1 is a right fp32 machine."""
    output: list[list[float]]
    """Error of the outputs since the last point, root mean square over that of the outputs."""
    flips: list[list[int]]
    """Words since the last point that differ from the text's, of all seeds."""


class Bound(msgspec.Struct, frozen=True):
    """The theoretical bound at a point, relative as the errors are, [gate][similarity]."""

    tokens: int
    state: list[list[float]]
    output: list[list[float]]
    """Of outputs whose dot products are float32."""


class Track(msgspec.Struct):
    """All that was seen of one case."""

    case: Case
    points: list[Point]
    first_flip: list[list[list[int | None]]]
    """Token of the first flip, [gate][similarity][seed]; None if there was none."""


def cut(track: Track, tokens: int) -> Track:
    """What was seen until `tokens`, as a shorter study of the same texts would have found it.

    A text's beginning does not depend on its length. No points if there was none at `tokens`.
    """
    points = [point for point in track.points if point.tokens <= tokens]
    if not points or points[-1].tokens != tokens:
        points = []
    first = [
        [[t if t is not None and t < tokens else None for t in seeds] for seeds in gate]
        for gate in track.first_flip
    ]
    return Track(track.case, points, first)


def points_until(tokens: int) -> list[int]:
    """10, 20, 50, 100, 200, ... and `tokens`."""
    grid = [m * 10**e for e in range(1, 7) for m in (1, 2, 5)]
    return [p for p in grid if p < tokens] + [tokens]


# ------------------------------------------------------------------ the text


class Chunk(NamedTuple):
    """A stretch of text; n tokens."""

    tokens: Tokens  # [gate, row, n, ...]
    outputs: Array  # [gate, row, n, HV, V]
    words: NDArray[np.int64]  # [gate, row, n]   what the head reads from each output
    output_limit: Array  # [gate, row, n, HV, V]


class Text:
    """The float64 recurrence, decoding greedily."""

    def __init__(self, study: Study) -> None:
        g = study.geometry
        self.study = study
        self.rng = np.random.default_rng(study.seed)
        self.A_log = np.repeat(np.array(study.gates)[:, None], g.value_heads, 1)  # [gate, HV]
        self.parameters = Parameters(self.A_log[:, None, None], np.zeros(g.value_heads))
        shapes = ((g.heads, g.key_dim),) * 2 + ((g.value_heads, g.value_dim),)
        self.shapes = (*shapes, (g.value_heads,), (g.value_heads,))
        self.tables = [
            self.rng.standard_normal((study.vocabulary, *shape)) for shape in self.shapes
        ]
        self.head = self.rng.standard_normal((study.vocabulary, g.value_heads * g.value_dim))
        self.common = self.rng.standard_normal((g.heads, g.key_dim))
        similarity = np.repeat(np.array(study.similarities), study.seeds)[:, None, None]
        self.shared, self.own = np.sqrt(similarity), np.sqrt(1 - similarity)  # [row, 1, 1]
        batch = (len(study.gates), study.rows)
        self.word = self.rng.integers(study.vocabulary, size=batch)
        self.state = np.zeros((*batch, g.value_heads, g.value_dim, g.key_dim))
        self.units = units.zero(self.state)

    def decode(self, count: int) -> Chunk:
        """The next `count` tokens."""
        start, noise = self.state.copy(), self.noise(count)
        drawn: list[list[Array]] = [[] for _ in self.shapes]
        outputs, words = [], []
        for t in range(count):
            tokens = self.embedded([part[t] for part in noise])
            for part, x in zip(drawn, tokens, strict=True):
                part.append(x)
            updates = gdn.prepare(Tokens(*(x[:, :, None] for x in tokens)), self.parameters)
            output, _ = gdn.advance(self.state, *gdn.token(updates, 0))
            self.word = self.read(output)
            outputs.append(output)
            words.append(self.word)
        text = Tokens(*(np.stack(part, axis=2) for part in drawn))
        trail = units.scan_units(
            start, self.units, gdn.prepare(text, self.parameters), np.exp(self.parameters.A_log)
        )
        self.units = trail.units
        return Chunk(text, np.stack(outputs, 2), np.stack(words, 2), self.limit(trail, text))

    def noise(self, count: int) -> list[Array]:
        """Noise of q, k, v, a and b, [n, gate, row, ...]; the same however a text is cut."""
        shapes = [(*self.state.shape[:2], *shape) for shape in self.shapes]
        ends = np.cumsum([prod(shape) for shape in shapes])
        drawn = NOISE * self.rng.standard_normal((count, ends[-1]))
        parts = np.split(drawn, ends[:-1], axis=1)
        return [part.reshape(count, *shape) for part, shape in zip(parts, shapes, strict=True)]

    def embedded(self, noise: Sequence[Array]) -> list[Array]:
        """Inputs of the last word, [gate, row, ...]: q, k, v, a and b."""
        mixed = [
            np.sqrt(1 - NOISE**2) * table[self.word] + extra
            for table, extra in zip(self.tables, noise, strict=True)
        ]
        mixed[1] = self.shared * self.common + self.own * mixed[1]
        return [rounded(x, INPUTS) for x in mixed]

    def read(self, outputs: Array) -> NDArray[np.int64]:
        """The words that the head reads from outputs [..., HV, V]."""
        flat = outputs.reshape(*outputs.shape[:-2], -1)
        return np.asarray((flat @ self.head.T).argmax(-1), np.int64)

    def limit(self, trail: units.Trail, text: Tokens) -> Array:
        """What a float32 output may be off by."""
        q: Array = gdn.prepare(text, self.parameters).q
        return units.output_limit(
            units.sizes(q),
            trail.errors,
            trail.masses,
            trail.outputs,
            OPERANDS * units.UNIT,
            units.UNIT,
        )


# ------------------------------------------------------------------ a machine on the text


class Walker:
    """One case on its way through the text, on a machine of the simulator.

    A subclass may walk something else: it overrides all that is said of the machine.
    """

    def __init__(self, case: Case, text: Text) -> None:
        self.case, self.study = case, text.study
        # A stream of its own, so that leaving a case out changes no other.
        self.rng = np.random.default_rng([self.study.seed, 1])
        self.slots = np.arange(1, self.study.rows + 1)
        self.open(text)

    def walk(self, chunk: Chunk) -> Array:
        """Verify and commit all of `chunk`; returns the outputs [gate, row, n, HV, V]."""
        outputs = np.zeros_like(chunk.outputs)
        position, count = 0, chunk.outputs.shape[2]
        while position < count:
            length = min(self.study.window, count - position) if self.verifies else 1
            window = Tokens(*(x[:, :, position : position + length] for x in chunk.tokens))
            accepted = min(self.accepted(), length) if self.verifies else 1
            got = self.step(window, accepted) if self.verifies else self.decode(window)
            outputs[:, :, position : position + accepted] = got[:, :, :accepted]
            position += accepted
        return outputs

    def accepted(self) -> int:
        """Drafts up to the first that is rejected, and the bonus token."""
        drafts = self.rng.random(self.study.window - 1) < self.case.acceptance
        return 1 + int(drafts.cumprod().sum())

    def setup(self) -> Setup:
        """What the case's dialect is opened with: gate strengths lie along the layers."""
        return Setup(
            self.case.dialect,
            self.study.geometry,
            ring=self.case.ring,
            window=self.study.window,
            slots=self.study.rows + 1,
            layers=len(self.study.gates),
            dtypes=PRECISIONS[self.case.precision].dtypes,
        )

    # ------------------------------------------------------------------ the machine

    def open(self, text: Text) -> None:
        """Seat every row on the state that the text begins with."""
        setup, arithmetic = self.setup(), PRECISIONS[self.case.precision].arithmetic
        self.machine = machine(setup, text.A_log, np.zeros_like(text.A_log), arithmetic)
        self.machine.admit(self.slots, text.state)

    @property
    def verifies(self) -> bool:
        """Whether it verifies drafts; else it decodes."""
        return self.machine.dialect.verifies

    def step(self, window: Tokens, accepted: int) -> Array:
        """Verify a window of every row and commit `accepted` tokens; outputs as `Machine`'s."""
        rows = len(self.slots)
        length = window.q.shape[2]
        outputs = self.machine.verify(self.slots, np.full(rows, length), window)
        self.machine.commit(self.slots, np.full(rows, accepted), self.study.window)
        return outputs

    def decode(self, token: Tokens) -> Array:
        """Decode one token of every row."""
        return self.machine.decode(self.slots, token)

    def represented(self) -> Array:
        """The committed state that the memory stands for, [gate, row, HV, V, K]."""
        walked, dialect = self.machine, self.machine.dialect
        at = {"slot": self.slots, "request": walked.places(self.slots)}
        gathered = {
            b.name: walked.memory[b.name][:, at[b.axes[1]]]
            for b in dialect.kept(walked.setup)
            if b.name in dialect.represents
        }
        cursors = walked.cursors(self.slots) if isinstance(walked, Ring) else Cursors(0, 0, 0)
        return dialect.represented(gathered, cursors, walked.setup)


class Tally:
    """Sums over the chunks between two points, [gate, row]."""

    def __init__(self, study: Study) -> None:
        batch = (len(study.gates), study.rows)
        self.square, self.signal, self.limit = np.zeros((3, *batch))
        self.flips = np.zeros(batch, np.int64)

    def add(self, chunk: Chunk, outputs: Array, text: Text) -> NDArray[np.bool_]:
        """Count a chunk in; returns which words differ, [gate, row, n]."""
        each = (2, 3, 4)
        self.square += ((outputs - chunk.outputs) ** 2).sum(each)
        self.signal += (chunk.outputs**2).sum(each)
        self.limit += (chunk.output_limit**2).sum(each)
        flipped = text.read(outputs) != chunk.words
        self.flips += flipped.sum(-1)
        return np.asarray(flipped)


def worst(study: Study, values: NDArray[Any]) -> list[list[Any]]:
    """The largest of the seeds: [gate, row] to [gate][similarity], four digits."""
    shape = (len(study.gates), len(study.similarities), study.seeds)
    largest = values.reshape(shape).max(-1)
    return [[float(f"{x:.4g}") for x in row] for row in largest]


def relative(square: Array, signal: Array) -> Array:
    """Root of a quotient, zero over zero being zero."""
    return np.asarray(np.sqrt(square / np.maximum(signal, np.finfo(np.float64).tiny)))


# ------------------------------------------------------------------ the study


def cases_of(
    dialects: Sequence[str],
    precisions: Sequence[str],
    rings: Sequence[int],
    acceptances: Sequence[float],
) -> list[Case]:
    """Every protocol in every precision on the first ring and at the first acceptance rate.

    Then the other rings, and the other rates, each alone and in the first precision that rounds
    what the protocol keeps from step to step (or in the first). A case that could differ from
    another one in nothing is left out: dot products are tf32 only where there is a ring, records
    of a dtype of their own matter where they outlive a commit or make the state, and a protocol
    without drafts has no acceptance rate.
    """
    chosen: list[Case] = []
    for dialect in map(DIALECTS.__getitem__, dialects):
        names: dict[object, str] = {}
        for name in precisions:
            kept, activation = _kept(dialect, name), _dtypes(name).activation
            computed = PRECISIONS[name].arithmetic.name if dialect.has_ring else None
            names.setdefault((computed, activation, kept), name)
        first, *others = names.values()
        swept = next((p for p in names.values() if set(_kept(dialect, p)) > {"float32"}), first)
        base = Case(dialect.name, first, rings[0], acceptances[0])
        chosen += [msgspec.structs.replace(base, precision=p) for p in (first, *others)]
        base = msgspec.structs.replace(base, precision=swept)
        if dialect.has_ring:
            chosen += [msgspec.structs.replace(base, ring=length) for length in rings[1:]]
        if dialect.verifies:
            chosen += [msgspec.structs.replace(base, acceptance=rate) for rate in acceptances[1:]]
    return chosen


def _kept(dialect: Dialect, precision: str) -> tuple[str, str]:
    """Dtypes of the states and of the records that a protocol keeps, float32 if it keeps none."""
    dtypes, roles = _dtypes(precision), {buffer.role for buffer in dialect.buffers}
    lasting = dialect.has_ring or dialect.state_from_deltas
    return dtypes.state, dtypes.record if "record" in roles and lasting else "float32"


def _dtypes(precision: str) -> Dtypes:
    require(
        precision in PRECISIONS,
        "precision",
        precision,
        f"one of {', '.join(PRECISIONS)}",
        "name one",
    )
    return PRECISIONS[precision].dtypes


def run(
    text: Text,
    walkers: Sequence[Walker],
    at_point: Callable[[list[Bound], list[Track]], object],
    at_step: Callable[[int, Case], None] = lambda tokens, case: None,
) -> tuple[list[Bound], list[Track]]:
    """Walk every case through the text, which must be at its beginning.

    Args:
        text: of a study, which says how long it is.
        walkers: the cases, each opened on this text.
        at_point: called with all that is known whenever a point was reached.
        at_step: called with tokens done and case before each case walks its next chunk.
    """
    study = text.study
    tracks = [Track(walker.case, [], _no_flips(study)) for walker in walkers]
    bounds: list[Bound] = []
    position = 0
    for point in points_until(study.tokens):
        tallies = [Tally(study) for _ in walkers]
        while position < point:
            chunk = text.decode(min(CHUNK, point - position))
            for walker, track, tally in zip(walkers, tracks, tallies, strict=True):
                at_step(position, walker.case)
                flipped = tally.add(chunk, walker.walk(chunk), text)
                _note_first(track, flipped, position, study)
            position += chunk.outputs.shape[2]
        bounds.append(_bound(study, text, point, tallies[0]))
        for walker, track, tally in zip(walkers, tracks, tallies, strict=True):
            track.points.append(_point(study, text, point, walker.represented(), tally))
        at_point(bounds, tracks)
    return bounds, tracks


def _no_flips(study: Study) -> list[list[list[int | None]]]:
    return [[[None] * study.seeds for _ in study.similarities] for _ in study.gates]


def _note_first(track: Track, flipped: NDArray[np.bool_], start: int, study: Study) -> None:
    for gate, row in zip(*np.nonzero(flipped.any(-1)), strict=True):
        similarity, seed = divmod(int(row), study.seeds)
        found = track.first_flip[gate][similarity]
        if found[seed] is None:
            found[seed] = start + int(flipped[gate, row].argmax())


def _bound(study: Study, text: Text, point: int, tally: Tally) -> Bound:
    limit, size = units.state_limit(text.units), units.sizes(text.state)
    heads = relative((limit**2).sum(-1), (size**2).sum(-1)).max(-1)
    outputs = relative(tally.limit, tally.signal)
    return Bound(point, worst(study, heads), worst(study, outputs))


def _point(study: Study, text: Text, point: int, state: Array, tally: Tally) -> Point:
    off, size = units.sizes(state - text.state), units.sizes(text.state)  # [gate, row, HV, V]
    heads = relative((off**2).sum(-1), (size**2).sum(-1)).max(-1)
    in_units = (off / units.state_limit(text.units)).max((-1, -2))
    shape = (len(study.gates), len(study.similarities), study.seeds)
    return Point(
        point,
        worst(study, heads),
        worst(study, in_units),
        worst(study, relative(tally.square, tally.signal)),
        tally.flips.reshape(shape).sum(-1).tolist(),
    )
