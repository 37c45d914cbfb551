"""What a server does, in order: each event is one thing that an implementation is driven with."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from ringfold.sim.cursors import Cursors
from ringfold.sim.engine.workload import Ints


class Prefill(NamedTuple):
    """A request is seated on the state after the first `tokens` of its prompt."""

    request: int
    tokens: int


class Verify(NamedTuple):
    """A window of drafts, or of prompt, for each row; `padding` rows fill the batch up."""

    rows: Ints
    lengths: Ints
    padding: int = 0


class Commit(NamedTuple):
    """`accepted` tokens of each row of the last verify are kept; -1 where a row has left since."""

    rows: Ints
    accepted: Ints
    before: Cursors
    """Of each row, at the verify."""
    after: Cursors
    prompt: bool = False
    """Whether these were tokens of prompts, whose windows no server would make."""


class Decode(NamedTuple):
    """One token a row, committed at once."""

    rows: Ints
    padding: int
    before: Cursors
    after: Cursors
    prompt: bool = False


class Idle(NamedTuple):
    """A batch of nothing but `padding` rows."""

    padding: int


class Fork(NamedTuple):
    """A request is seated on a copy of the checkpoint of `source`, which lags behind nothing."""

    request: int
    source: int


class Donate(NamedTuple):
    """A request has finished; its slot, and the state in it, are the prefix cache's."""

    request: int
    prefix: int


class Hit(NamedTuple):
    """A request is seated on a copy of what the prefix cache keeps."""

    request: int
    prefix: int


class Evict(NamedTuple):
    """The prefix cache gives a slot back."""

    prefix: int


class Save(NamedTuple):
    """A request is retracted: its state goes to host memory, its slot is free."""

    request: int


class Restore(NamedTuple):
    """A retracted request is seated again."""

    request: int


class Free(NamedTuple):
    """A request leaves."""

    request: int


Event: TypeAlias = (
    Prefill | Verify | Commit | Decode | Idle | Fork | Donate | Hit | Evict | Save | Restore | Free
)
