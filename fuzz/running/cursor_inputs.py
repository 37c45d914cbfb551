"""The cursors alone: every input of a commit, reachable or not, on the real target.

A kernel of cursors is small enough for that, in a few launches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.histories.payload import Payload
from ringfold.fuzz.judging import arrays
from ringfold.fuzz.judging.frame import Region, index
from ringfold.fuzz.running.crew import target_of
from ringfold.fuzz.running.tours import PROFILE, Plan
from ringfold.fuzz.target import RefusedError, Request, Target, refusal
from ringfold.sim.cursors import Cursors
from ringfold.sim.dialects import DIALECTS, protocol_of
from ringfold.sim.setup import Setup

CURSOR_ROWS_MAX: Final = 4096


class CursorInputs(NamedTuple):
    """Commits as cursors see them, arrays [input]."""

    before: Cursors
    accepted: NDArray[np.int64]
    bound: NDArray[np.int64]


def cursor_inputs(setup: Setup) -> CursorInputs:
    """Every input for which there is room in the ring: a superset of what is reachable."""
    L, T, protocol = setup.ring, setup.window, protocol_of(setup)
    at_verify = protocol.folds_at == "verify"
    flags = (0, 1) if at_verify else (0,)
    grid = itertools.product(range(L + 1), range(L), flags, range(T + 1), range(1, T + 1))
    write_pos, base, flag, accepted, bound = np.array(list(grid), np.int64).T
    fits = (write_pos + accepted <= L) | (flag != 0)
    return CursorInputs(
        Cursors(write_pos[fits], base[fits], flag[fits]), accepted[fits], bound[fits]
    )


class CursorsWalked(msgspec.Struct):
    """What came of all inputs."""

    inputs: int = 0
    wrong: int = 0
    example: str = ""
    """The first that is wrong."""
    refused: str = ""
    """Why they could not be tried."""
    left: int = 0
    """Inputs for which there was no time."""


def walk_cursors(plan: Plan, out_of_time: Callable[[], bool] = lambda: False) -> CursorsWalked:
    """Commit every input on the target, without a verify before: the rings hold nothing.

    Each batch has a padding row at either end. Only cursors are looked at. `out_of_time` is asked
    before every batch. Raises `RefusedError` for a setup that the target can't run.
    """
    setup, target = plan.setup, target_of(plan.target, plan.device)
    walked = CursorsWalked()
    dialect = DIALECTS[setup.dialect]
    if not dialect.has_ring or not dialect.verifies:  # a decode step has no commit of its own
        return walked
    if because := refusal(target, setup):
        raise RefusedError(f"target {target.name}: {because}")
    inputs = cursor_inputs(setup)
    g = setup.geometry
    state = np.zeros((setup.layers, g.value_heads, g.value_dim, g.key_dim), np.float32)
    rows = min(CURSOR_ROWS_MAX, inputs.accepted.size)
    target.open(
        msgspec.structs.replace(setup, slots=rows + 1), Payload(setup, 0, PROFILE).parameters()
    )
    requests = list(range(rows))
    if hasattr(target, "admit_all"):
        target.admit_all(
            requests, np.broadcast_to(state[:, None], (len(state), rows, *state.shape[1:]))
        )
    else:
        for request in requests:
            target.admit(request, state)
    seats = [target.seat(request) for request in requests]
    places = {axis: np.array([seat[axis] for seat in seats]) for axis in ("slot", "request")}
    for bound in range(1, setup.window + 1):
        at = np.flatnonzero(inputs.bound == bound)
        for start in range(0, at.size, rows):
            if out_of_time():
                walked.left = inputs.accepted.size - walked.inputs
                return walked
            some = at[start : start + rows]
            before = Cursors(*(c[some] for c in inputs.before))
            accepted = inputs.accepted[some]
            sits = {axis: sit[: some.size] for axis, sit in places.items()}
            try:
                got = _committed(target, requests[: some.size], sits, before, accepted, bound)
            except Exception as error:  # noqa: BLE001 - a target may insist on a verify
                walked.refused = f"a commit without a verify raised {error!r}"
                return walked
            right = protocol_of(setup).commit(before, accepted, setup.ring, bound)
            differs = np.any(np.array(got) != np.array(right), axis=0)
            walked.inputs += some.size
            walked.wrong += int(differs.sum())
            if differs.any() and not walked.example:
                i = int(np.flatnonzero(differs)[0])
                walked.example = (
                    f"commit of {accepted[i]} with bound {bound} at {_shown(before, i)}: "
                    f"expected {_shown(right, i)}, got {_shown(got, i)}"
                )
    return walked


def _committed(
    target: Target,
    requests: Sequence[Request],
    sits: Region,
    before: Cursors,
    accepted: NDArray[np.int64],
    bound: int,
) -> Cursors:
    """What the target makes of `before`."""
    views = target.views()
    cursors = {
        name: (views[name].array, index(views[name].buffer, sits)) for name in before._fields
    }
    for name, values in before._asdict().items():
        arrays.put(*cursors[name], values)
    target.commit([None, *requests, None], [0, *map(int, accepted), 0], bound)
    return Cursors(*(arrays.take(*cursor).astype(np.int64) for cursor in cursors.values()))


def _shown(cursors: Cursors, i: int) -> str:
    return f"({', '.join(f'{name} {int(c[i])}' for name, c in cursors._asdict().items())})"
