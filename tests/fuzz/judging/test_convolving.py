"""A convolution in front of the recurrence: its window, its rounding, and what both may do.

The oracle convolves in float64 with the window that was committed; a target in float32, rounding to
the activations' dtype. Right machines of every dialect agree in three dtypes, and come close enough
to the limits that these are not idle: half an ulp of the activations is used up whole. Single
faults in the window, its commit and its owner are found by the check that they belong to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pytest

from ringfold.fuzz.histories.payload import Payload
from ringfold.fuzz.histories.profiles import PROFILES
from ringfold.fuzz.histories.trace import (
    Admit,
    Commit,
    Decode,
    Donate,
    Evict,
    Fork,
    Free,
    Hit,
    Operation,
    PayloadSpec,
    Place,
    Restore,
    Save,
    Trace,
    Verify,
)
from ringfold.fuzz.judging.convolving import advanced, convolved
from ringfold.fuzz.judging.walk import Verdict, walk
from ringfold.fuzz.target import Inputs, RefusedError, Request, View
from ringfold.fuzz.targets.simulated import SimulatedTarget
from ringfold.oracle.gdn import Tokens
from ringfold.sim.dialects import DIALECTS
from ringfold.sim.protocols import MACHINES
from ringfold.sim.ring import Ring
from ringfold.sim.setup import Dtypes, Geometry, Setup

NARROW: Final = ("float16", "bfloat16")
SETUP: Final = Setup("ring", Geometry(1, 2, 16, 8), 8, 2, slots=5, convolution=4)


def told(dialect: str, profile: str = "slow-decay", **changes: Any) -> Trace:
    """Windows of two or three of which one is kept; saved, donated with records waiting, hit."""
    dead = changes.pop("dead", "leave")

    def run(request: Request, tag: int, count: int) -> Iterator[Operation]:
        for t in range(tag, tag + count):
            if DIALECTS[dialect].verifies:
                yield Verify(tag=t, rows=(None, request), lengths=(1, 2))
                yield Commit(tag=t, accepted=(None, 1))
            else:
                yield Decode(tag=t, rows=(request, None))

    operations = (
        Admit(request=0, tag=1),
        *run(0, 10, 6),  # a fold, and one record behind it
        Save(request=0),
        Admit(request=1, tag=2),
        *run(1, 20, 1),
        Restore(request=0),
        *run(0, 30, 2),
        Donate(request=0, prefix=0),
        Hit(request=2, prefix=0),
        *run(2, 40, 1),
        Free(request=2),
        Evict(prefix=0),
        Admit(request=3, tag=3),
        Fork(request=4, source=3),
        *run(4, 50, 1),
    )
    setup = msgspec.structs.replace(SETUP, dialect=dialect, **changes)
    made = tuple(msgspec.structs.replace(o, dead=dead) for o in operations)
    return Trace(setup=setup, payload=PayloadSpec(3, profile), operations=made)


def walked(made: Trace, target: SimulatedTarget | None = None) -> Verdict:
    return walk(made, target or SimulatedTarget(machine=MACHINES[made.setup.dialect]))


class TestARightTarget:
    """Agrees, and is asked."""

    @pytest.mark.parametrize("dtype", ["float32", *NARROW])
    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_agrees_on_every_dialect(self, dialect: str, dtype: str) -> None:
        """Saved, donated and hit: the window comes along, back to the last fold where it must."""
        verdict = walked(told(dialect, dtypes=Dtypes(dtype, dtype), dead="nan"))

        assert verdict.mismatches == []
        assert verdict.skipped == {}
        assert verdict.compared["convolution"] > 10

    @pytest.mark.parametrize("l2norm", [True, False])
    @pytest.mark.parametrize("profile", PROFILES)
    def test_agrees_for_every_profile(self, profile: str, l2norm: bool) -> None:
        """Zeros, subnormals and large numbers among them."""
        for dtype in ("float32", "float16"):
            made = told("ring", profile=profile, l2norm=l2norm, dtypes=Dtypes(dtype, dtype))

            assert walked(made).mismatches == []

    @pytest.mark.parametrize("width", [2, 3])
    def test_agrees_for_other_widths(self, width: int) -> None:
        """A window of one projection, and of two."""
        made = told("compact")
        narrower = msgspec.structs.replace(made.setup, convolution=width)

        assert walked(msgspec.structs.replace(made, setup=narrower)).mismatches == []

    def test_records_narrower_than_activations_are_rounded_once_more(self) -> None:
        """There is no claim of bits then, and the limit says by how much."""
        made = told("ring", dtypes=Dtypes("float32", "bfloat16"))

        assert walked(made).mismatches == []

    @pytest.mark.parametrize("dtype", NARROW)
    def test_the_limit_is_used(self, dtype: str) -> None:
        """A correctly rounded record is off by up to half an ulp, and no more is allowed."""
        verdict = walked(told("ring", dtypes=Dtypes(dtype, dtype)))

        assert 0.9 < verdict.largest["records"] <= 1.0

    def test_a_place_is_skipped(self) -> None:
        """Which projections its records were made of nobody knows."""
        made = Trace(
            setup=SETUP,
            payload=PayloadSpec(3, "slow-decay"),
            operations=(Place(request=0, tag=1, base=0, records=1, flush=False),),
        )

        assert walked(made).skipped == {"place": 1}


def test_a_target_without_one_is_refused_by_name() -> None:
    """A kernel target never sees a setup with a convolution."""

    class Kernels(SimulatedTarget):
        convolves = False

    with pytest.raises(RefusedError, match=r"sim: owns no convolution, .* of width 4: set it to 0"):
        walk(told("ring"), Kernels())


class _Nudged(SimulatedTarget):
    """A right target, but for what one of its verbs does to the windows."""

    def __init__(self, fault: str) -> None:
        super().__init__(machine=Ring)
        self.fault = fault

    def commit(self, rows: Sequence[Request | None], accepted: Sequence[int], bound: int) -> None:
        if self.fault == "commits all that was drafted":
            slots = self._slots(rows)
            self.front.commit(slots, np.full(len(rows), 2))
            self.machine.commit(slots, np.array(accepted), bound)
            return
        super().commit(rows, accepted, bound)
        if self.fault == "writes another's window":
            self.views()["convolution"].array[0, 4, 0, 0] += 1

    def verify(self, rows: Sequence[Request | None], lengths: Sequence[int], inputs: Inputs) -> Any:
        outputs = super().verify(rows, lengths, inputs)
        if self.fault == "verify commits":
            self.front.commit(self._slots(rows), np.ones(len(rows), np.int64))
        return outputs

    def restore(self, request: Request) -> None:
        super().restore(request)
        if self.fault == "restore forgets the window":
            self.views()["convolution"].array[:, self.seats[request]] = 0

    def donate(self, request: Request, prefix: int) -> Mapping[str, int]:
        front = self.front
        if self.fault == "a prefix keeps the newest window":
            front.rewind = lambda slot, tokens: None  # type: ignore[method-assign]
        return super().donate(request, prefix)


@pytest.mark.parametrize(
    ("fault", "check", "kind"),
    [
        ("commits all that was drafted", "convolution", "commit"),
        ("writes another's window", "frame", "commit"),
        ("verify commits", "frame", "verify"),
        ("restore forgets the window", "convolution", "restore"),
        ("a prefix keeps the newest window", "convolution", "hit"),
    ],
)
def test_a_fault_is_found_where_it_happens(fault: str, check: str, kind: str) -> None:
    """By the check that it belongs to, the first of all."""
    first = walked(told("ring", dtypes=Dtypes()), _Nudged(fault)).mismatches[0]

    assert (first.check, first.kind) == (check, kind)


@pytest.mark.parametrize("dtype", ["float32", *NARROW])
def test_a_window_that_is_not_shown_is_judged_by_what_comes_of_it(dtype: str) -> None:
    """Records and states are far off when the convolution starts from a wrong window."""

    class Hides(_Nudged):
        def views(self) -> Mapping[str, View]:
            return {name: view for name, view in super().views().items() if name != "convolution"}

    made = told("ring", dtypes=Dtypes(dtype, dtype))
    right = msgspec.structs.replace(made, operations=made.operations[:9])

    assert walked(right, Hides("")).mismatches == []
    first = walked(right, Hides("commits all that was drafted")).mismatches[0]
    assert first.check in ("outputs", "records")
    assert (first.units or 0) > 10


class TestSlack:
    """What a right convolution may be off by."""

    @pytest.mark.parametrize("dtype", ["float32", *NARROW])
    @pytest.mark.parametrize("profile", PROFILES)
    def test_float32_stays_within_it(self, profile: str, dtype: str) -> None:
        """The front's numbers, for every profile, element by element."""
        setup = msgspec.structs.replace(SETUP, dtypes=Dtypes(dtype, dtype))
        payload = Payload(setup, 11, profile)
        target = SimulatedTarget()
        target.open(setup, payload.parameters())
        past = payload.past(0, 1)
        target.admit(0, payload.state(0, 1), past)
        packed = payload.window(np.array([0]), np.array([2]), 2)
        tokens = Tokens(*(x[:, None] for x in packed))
        weight = np.asarray(payload.parameters().convolution, np.float64)

        made = target.front.verify([1], [2], tokens)
        _, right = convolved(setup, weight, past[:, None].astype(np.float64), tokens, np.array([2]))

        assert (np.abs(made.k - right.k) <= right.k_slack).all()
        assert (np.abs(made.v - right.v) <= right.v_slack).all()
        assert (right.key <= 2.01).all()

    def test_windows_advance_by_what_was_accepted(self) -> None:
        """None, one or two of two."""
        random = np.random.default_rng(1)
        past, x = random.normal(size=(1, 3, 5, 3)), random.normal(size=(1, 3, 2, 5))
        weight = np.ones((1, 5, 4))

        after = advanced(weight, past, x, np.array([0, 1, 2]))

        assert np.array_equal(after[0, 0], past[0, 0])
        assert np.array_equal(after[0, 1], np.c_[past[0, 1][:, 1:], x[0, 1, 0]])
        assert np.array_equal(after[0, 2], np.c_[past[0, 2][:, 2:], x[0, 2].T])


def test_numbers_belong_to_their_tokens() -> None:
    """Weights to the layer and channel, a prefill's last projections to request and tag."""
    payload = Payload(msgspec.structs.replace(SETUP, layers=2), 7, "ordinary")
    weight = payload.parameters().convolution

    assert weight is not None
    assert weight.shape == (2, SETUP.channels, 4)
    assert payload.past(0, 1).shape == (2, SETUP.channels, 3)
    assert len(np.unique(weight)) == weight.size
    assert np.array_equal(payload.past(0, 1), payload.past(0, 1))
    assert not np.array_equal(payload.past(0, 1), payload.past(0, 2))
    assert not np.array_equal(payload.past(0, 1), payload.past(1, 1))
    many = payload.pasts(np.array([1, 0, 9]), np.array([1, 2, 1]))
    assert all(
        np.array_equal(many[:, row], payload.past(*key))
        for row, key in enumerate([(1, 1), (0, 2), (9, 1)])
    )
    assert Payload(Setup("ring", SETUP.geometry, 8, 2, 4), 7, "ordinary").parameters()[2] is None
