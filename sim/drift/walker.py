"""A machine of the simulator on its way through the text, window by window."""

from __future__ import annotations

import numpy as np

from ringfold.oracle.gdn import Tokens
from ringfold.sim.cursors import Cursors
from ringfold.sim.drift.study import PRECISIONS, Case
from ringfold.sim.drift.text import Array, Chunk, Text
from ringfold.sim.protocols import machine
from ringfold.sim.ring import Ring
from ringfold.sim.setup import Setup


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
