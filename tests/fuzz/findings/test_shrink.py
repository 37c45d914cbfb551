"""Is what the shrinker returns small, still failing, and independent of where it started?

The judge of a shrunk trace is the walk itself: each is walked again, and must fail for the cause
that it began with. What counts as small is written down by hand for bugs whose smallest history a
person can tell from the bug's one line. Starting points are histories with everything in them that
is not needed: other requests, padding, poison, bounds, long rings and odd payload.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file
from typer.testing import CliRunner

from ringfold.fuzz import cli
from ringfold.fuzz.commands.options import MISMATCH
from ringfold.fuzz.findings.shrink import NoFailureError, Shrunk, cause, shrink, write
from ringfold.fuzz.findings.simpler import QUICK, THOROUGH
from ringfold.fuzz.findings.simpler.order import size, steps
from ringfold.fuzz.findings.simpler.requests import renamed
from ringfold.fuzz.findings.simpler.seats import placed
from ringfold.fuzz.histories.trace import (
    Admit,
    Commit,
    Decode,
    Free,
    Operation,
    PayloadSpec,
    Place,
    Repeat,
    Trace,
    Verify,
    load,
    save,
    validate,
)
from ringfold.fuzz.judging.mismatch import Mismatch
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.running.hunt import hunt
from ringfold.fuzz.target import Inputs, Request
from ringfold.fuzz.targets.registry import resolve
from ringfold.fuzz.targets.simulated import SimulatedTarget
from ringfold.sim.setup import Dtypes, Geometry, Setup

SEEDS = range(4)


def trace_of(*operations: Operation, target: str = "sim", **changes: Any) -> Trace:
    """A history on a ring of 8 with windows of 2, two layers and float16."""
    setup = Setup(
        "ring", Geometry(1, 2, 8, 4), 8, 2, 5, layers=2, dtypes=Dtypes("float16", "float16")
    )
    return Trace(
        setup=msgspec.structs.replace(setup, **changes),
        payload=PayloadSpec(seed=7, profile="mixture"),
        target=target,
        operations=operations,
    )


NOISY = (
    Admit(request=4, tag=10, dead="nan"),
    Admit(request=9, tag=11),
    Verify(tag=12, rows=(9, None, 4), lengths=(2, 1, 2), dead="garbage"),
    Commit(tag=12, accepted=(1, None, 2)),
    Decode(tag=13, rows=(4,)),
    Verify(tag=14, rows=(4, 9), lengths=(2, 1), profile="ordinary", dead="nan"),
    Commit(tag=14, accepted=(2, 1), bound=1),
    Free(request=9),
    Verify(tag=15, rows=(4,), lengths=(1,)),
    Commit(tag=15, accepted=(1,)),
    Verify(tag=16, rows=(4, None), lengths=(2, 2)),
    Commit(tag=16, accepted=(2, None)),
    Verify(tag=17, rows=(4,), lengths=(2,)),
    Commit(tag=17, accepted=(2,)),
    Verify(tag=18, rows=(4,), lengths=(2,)),
    Commit(tag=18, accepted=(2,)),
    Verify(tag=19, rows=(4,), lengths=(2,)),
    Commit(tag=19, accepted=(2,)),
)
"""Appends, folds and wraps, with much that no bug needs."""


@functools.cache
def from_hunt(bug: str, seed: int) -> tuple[Trace, Shrunk]:
    """A failure of a planted bug as it was found, and as it was shrunk."""
    target = resolve(f"sim:{bug}")
    failure = hunt(target, seed, seconds_max=30).failure
    assert failure is not None
    return failure, shrink(failure, target)


# ------------------------------------------------------------------ what comes out


BY_HAND: dict[str, tuple[Operation, ...]] = {
    # One record in ring row 1, and a fold that looks for it in row 0.
    "fold-reads-from-row-zero": (
        Place(request=0, tag=1, base=1, records=1, flush=True),
        Verify(tag=2, rows=(0,), lengths=(1,)),
    ),
    # The next window would fit, the one behind it would not.
    "flush-one-window-late": (
        Admit(request=0, tag=1),
        Verify(tag=2, rows=(0,), lengths=(1,)),
        Commit(tag=2, accepted=(1,)),
    ),
    "bonus-token-ignored": (
        Admit(request=0, tag=1),
        Verify(tag=2, rows=(0,), lengths=(1,)),
        Commit(tag=2, accepted=(1,)),
    ),
    # An owner leaves a record behind, and the next one inherits it.
    "slot-reused-without-reset": (
        Place(request=0, tag=1, base=0, records=1, flush=True),
        Free(request=0),
        Admit(request=1, tag=2),
    ),
    # A placed record proves nothing about bits, so the history makes its own: one step, one fold.
    "fold-uses-stored-keys": (
        Admit(request=0, tag=1),
        Verify(tag=2, rows=(0,), lengths=(1,)),
        Commit(tag=2, accepted=(1,)),
        Verify(tag=3, rows=(0,), lengths=(1,)),
    ),
}


@pytest.mark.parametrize("bug", BY_HAND)
def test_the_smallest_history_is_what_a_person_would_write(bug: str) -> None:
    """In the smallest ring, one head of one element, from seed 0, with nothing poisoned."""
    shrunk = from_hunt(bug, 0)[1].trace

    assert shrunk.operations == BY_HAND[bug]
    assert (shrunk.setup.ring, shrunk.setup.window) == (2, 1)
    assert shrunk.setup.geometry == Geometry(1, 1, 1, 1)
    assert (shrunk.setup.layers, shrunk.setup.dtypes) == (1, Dtypes())
    assert shrunk.payload == PayloadSpec(seed=0, profile="slow-decay")


@pytest.mark.parametrize("bug", BY_HAND)
def test_the_same_comes_out_wherever_it_starts(bug: str) -> None:
    """Failures from different seeds, hence of other setups, lengths and payload, are one."""
    assert len({from_hunt(bug, seed)[1].digest for seed in SEEDS}) == 1


@pytest.mark.parametrize("bug", BY_HAND)
def test_a_shrunk_trace_fails_for_its_cause_and_is_simpler(bug: str) -> None:
    """Walked again, it shows what was written down; nothing in it is illegal."""
    found, shrunk = from_hunt(bug, 0)

    again = walk(shrunk.trace, resolve(f"sim:{bug}")).mismatches

    validate(shrunk.trace)
    assert again == shrunk.mismatches
    assert cause(again) == shrunk.cause == cause(walk(found, resolve(f"sim:{bug}")).mismatches)
    assert size(shrunk.trace) < size(found)
    assert shrunk.complete


def test_what_a_history_does_not_need_goes() -> None:
    """Other requests, padding, poison, profiles, bounds, layers and long windows."""
    target = resolve("sim:fold-reads-from-row-zero")

    shrunk = shrink(trace_of(*NOISY), target)

    assert shrunk.trace.operations == BY_HAND["fold-reads-from-row-zero"]


# ------------------------------------------------------------------ targets of other kinds


class FailsLate(SimulatedTarget):
    """Right for six verifies."""

    def verify(
        self, rows: Sequence[Request | None], lengths: Sequence[int], inputs: Inputs
    ) -> NDArray[Any]:
        """Off by one from the seventh on."""
        outputs: NDArray[Any] = super().verify(rows, lengths, inputs)
        self.verified = getattr(self, "verified", 0) + 1
        return outputs + (self.verified > 6)

    def open(self, *arguments: Any) -> None:
        """Count from the start."""
        super().open(*arguments)
        self.verified = 0


def test_a_repeat_shrinks_to_the_turns_that_it_takes() -> None:
    """A fault that needs seven verifies keeps seven, however often they were repeated."""
    turn = (Verify(tag=2, rows=(3,), lengths=(2,)), Commit(tag=2, accepted=(1,)))
    trace = trace_of(Admit(request=3, tag=1), Repeat(times=90, operations=turn))

    shrunk = shrink(trace, FailsLate())

    assert steps(trace) == 90
    assert steps(shrunk.trace) == 7


class NeedsEight(SimulatedTarget):
    """Off by one; refuses heads narrower than eight elements."""

    def open(self, setup: Setup, *arguments: Any) -> None:
        """As a kernel asserts what it is compiled for."""
        if setup.geometry.key_dim < 8:
            raise ValueError("K must be 8 or more")
        super().open(setup, *arguments)

    def verify(
        self, rows: Sequence[Request | None], lengths: Sequence[int], inputs: Inputs
    ) -> NDArray[Any]:
        """Wrong throughout."""
        outputs: NDArray[Any] = super().verify(rows, lengths, inputs)
        return outputs + 1


def test_a_setup_that_the_target_refuses_is_no_candidate() -> None:
    """The head shrinks as far as the target goes along."""
    trace = trace_of(*NOISY[:3], geometry=Geometry(1, 2, 32, 4))

    shrunk = shrink(trace, NeedsEight())

    assert shrunk.trace.setup.geometry == Geometry(1, 1, 8, 1)


def test_a_history_that_agrees_is_refused() -> None:
    """There is nothing to shrink."""
    with pytest.raises(NoFailureError, match="shows no mismatch"):
        shrink(trace_of(*NOISY), resolve("sim"))


def test_the_best_so_far_survives_the_time_limit() -> None:
    """Without any time the result is the trace itself, cut behind its failure."""
    target = resolve("sim:bonus-token-ignored")

    shrunk = shrink(trace_of(*NOISY), target, seconds_max=0.0)

    assert not shrunk.complete
    assert shrunk.trace.operations == NOISY[:4]
    assert cause(walk(shrunk.trace, target).mismatches) == shrunk.cause


def test_the_best_so_far_survives_the_limit_of_walks() -> None:
    """It strikes at the same place every time: the same trace, however fast the machine is."""
    target = resolve("sim:bonus-token-ignored")

    one, again = (shrink(trace_of(*NOISY), target, walks_max=9) for _ in range(2))

    assert not one.complete
    assert one.trace == again.trace
    assert one.walks == again.walks == 10  # the last one is of the result
    assert shrink(trace_of(*NOISY), target).walks > 10


class NeedsTensors(SimulatedTarget):
    """Wrong where a query holds the number 3, which no payload has."""

    def verify(
        self, rows: Sequence[Request | None], lengths: Sequence[int], inputs: Inputs
    ) -> NDArray[Any]:
        """Off by one for all tokens of such a batch."""
        outputs: NDArray[Any] = super().verify(rows, lengths, inputs)
        return outputs + bool((inputs.q == 3).any())


@pytest.mark.parametrize(
    ("target", "kept"), [(NeedsTensors, True), (NeedsEight, False)], ids=["needed", "not needed"]
)
def test_explicit_tensors_stay_only_where_they_are_needed(
    target: Callable[[], SimulatedTarget], kept: bool, tmp_path: Path
) -> None:
    """And go along with the trace when it is written."""
    q = np.full((2, 2, 1, 8), 3, np.float32)
    save_file({"q/4/12": q}, tmp_path / "query.safetensors")
    trace = trace_of(*NOISY[:3])
    trace = msgspec.structs.replace(
        trace, payload=msgspec.structs.replace(trace.payload, tensors="query.safetensors")
    )

    shrunk = shrink(trace, target(), folder=tmp_path)
    written = Path(write(trace, shrunk, tmp_path, tmp_path, "cpu").trace)

    assert (shrunk.trace.payload.tensors is not None) == kept
    assert (written.parent / "query.safetensors").exists() == kept
    assert steps(shrunk.trace) == 1


# ------------------------------------------------------------------ cause, order, neighbours


def mismatch(check: Any, symptom: str = "s", operation: int = 3) -> Mismatch:
    """One of a walk's findings."""
    return Mismatch(check=check, symptom=symptom, operation=operation, kind="verify")


def test_a_cause_is_the_sharpest_finding_of_the_first_operation_that_failed() -> None:
    """Whatever comes later, and whatever a wrong state brings with it, does not count."""
    found = [mismatch("outputs"), mismatch("state-global"), mismatch("cursors", operation=4)]

    assert cause(found).check == "state-local"
    assert cause([mismatch("exactness"), mismatch("outputs")]).check == "outputs"
    assert cause([mismatch("frame"), mismatch("records")]).check == "records"


def test_nan_and_a_wrong_number_are_one_cause() -> None:
    """Which of them shows depends on what dead memory held."""
    nan = mismatch("outputs", "an output is NaN, not the recurrence's")

    assert cause([nan]) == cause([mismatch("outputs", "an output is not the recurrence's")])


def test_renaming_twice_changes_nothing() -> None:
    """Requests count from 0 and tags from 1 in the order of their appearance."""
    once = renamed(trace_of(*NOISY))

    assert once.operations[0] == Admit(request=0, tag=1, dead="nan")
    assert renamed(once) == once
    validate(once)


def test_a_place_takes_the_cursors_of_the_prefix() -> None:
    """Before its last window request 4 has six records from ring row 6 on, and must fold."""
    found = trace_of(*NOISY)

    # A window that flies at the cut has no verify left: no scheduler could commit it.
    first = next(candidate for candidate in placed(found) if len(candidate.operations) == 3)

    place = Place(request=4, tag=20, base=6, records=6, flush=True)
    assert first.operations == (place, *NOISY[-2:])
    assert walk(found, resolve("sim")).mismatches == []
    assert walk(first, resolve("sim")).mismatches == []


@pytest.mark.parametrize("simplify", [*QUICK, *THOROUGH], ids=lambda p: p.__name__)
def test_no_simpler_neighbour_fails_on_a_right_target(
    simplify: Callable[[Trace], Any],
) -> None:
    """Shrinking invents no failure: each legal candidate agrees with the oracle."""
    for candidate in list(simplify(trace_of(*NOISY)))[:20]:
        try:
            validate(candidate)
        except ValueError:
            continue
        assert walk(candidate, resolve("sim")).mismatches == []


# ------------------------------------------------------------------ the command


def test_the_command_writes_the_smallest_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under its own name, with the line that replays it."""
    monkeypatch.chdir(tmp_path)
    save(trace_of(*NOISY, target="sim:fold-reads-from-row-zero"), tmp_path / "found.json")

    result = CliRunner().invoke(cli.app, ["shrink", "found.json", "--json"])

    written = msgspec.json.decode(result.stdout)
    assert result.exit_code == MISMATCH
    assert load(written["trace"]).operations == BY_HAND["fold-reads-from-row-zero"]
    assert written["reproduce"].endswith(
        f"{written['trace']} --target sim:fold-reads-from-row-zero"
    )
    assert written["steps"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("shrinks", [True, False], ids=["shrunk", "as found"])
def test_a_campaign_shrinks_the_first_finding_of_a_kind(shrinks: bool, tmp_path: Path) -> None:
    """NaN here and a wrong number there become one finding; what was found is kept beside it."""
    options = ["--max-windows", "1000", "--workers", "2", "--run-dir", str(tmp_path), "--json"]
    if not shrinks:
        options.append("--no-shrink")

    result = CliRunner().invoke(cli.app, ["fuzz", "sim:fold-reads-from-row-zero", *options])

    report = msgspec.json.decode(result.stdout)
    first = report["findings"][0]
    assert result.exit_code == MISMATCH
    assert sum(finding["histories"] for finding in report["findings"]) == report["mismatches"]
    if shrinks:
        assert len(report["findings"]) == 1
        assert load(first["trace"]).operations == BY_HAND["fold-reads-from-row-zero"]
        assert steps(load(first["found"])) > first["steps"] == 1
    else:
        assert len(report["findings"]) > 1
        assert first["found"] == ""
