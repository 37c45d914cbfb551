"""The text: a float64 recurrence that decodes greedily, through a toy head and toy embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ringfold.oracle import gdn, units
from ringfold.oracle.gdn import Parameters, Tokens
from ringfold.sim.drift.study import Study
from ringfold.sim.precision import rounded

Array: TypeAlias = NDArray[np.float64]

INPUTS: Final = "bfloat16"
"""What all inputs are exact in, so that raw records of any dtype in use are exact too."""
NOISE: Final = 0.6
"""Of an input's unit variance 0.36 is noise; without any a greedy text would run in circles."""
OPERANDS: Final = 4
"""Operands that are rounded between a stored number and an output (`units.output_limit`)."""


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
