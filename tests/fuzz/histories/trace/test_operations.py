"""Repeats are unrolled and rewritten as if they were written out.

What each yields is compared with a list typed by hand: iterations count through nested repeats,
since they enter the payload's key, and a change reaches operations however deep they lie.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ringfold.fuzz.histories.trace import Idle, Operation, Repeat, rewritten, unroll


class TestUnroll:
    """Repeats, lazily."""

    def test_iterations_count_through_nested_repeats(self) -> None:
        """The iteration is 0 outside, and distinct for every turn of an inner repeat."""
        inner = Repeat(times=3, operations=(Idle(rows=1),))
        operations = (Idle(rows=9), Repeat(times=2, operations=(Idle(rows=5), inner)))

        turns = [(op.rows, i) for op, i in unroll(operations) if isinstance(op, Idle)]

        outer_0 = [(5, 0), (1, 0), (1, 1), (1, 2)]
        outer_1 = [(5, 1), (1, 3), (1, 4), (1, 5)]
        assert turns == [(9, 0), *outer_0, *outer_1]

    def test_nothing_is_unrolled_before_it_is_asked_for(self) -> None:
        """The first of a million operations comes after one look at what is repeated."""
        looks = list[int]()

        class Watched(tuple[Operation, ...]):
            """Says when somebody looks."""

            def __iter__(self) -> Iterator[Operation]:
                looks.append(len(looks))
                return super().__iter__()

        body = Watched((Idle(rows=1),))
        operation, _ = next(unroll((Repeat(times=1_000_000, operations=body),)))

        assert operation == Idle(rows=1)
        assert len(looks) == 1


class TestRewritten:
    """Changes inside of repeats."""

    def test_a_change_reaches_every_depth(self) -> None:
        """An operation may become several, or none; a repeat of nothing goes with it."""

        def doubled(operation: Operation) -> list[Operation]:
            assert isinstance(operation, Idle)
            return [msgspec.structs.replace(operation, rows=7)] * (operation.rows - 1)

        lone = Repeat(times=2, operations=(Idle(rows=1),))
        operations = (Idle(rows=2), Repeat(times=3, operations=(lone, Idle(rows=3))), lone)

        seven = Idle(rows=7)
        assert rewritten(operations, doubled) == (
            seven,
            Repeat(times=3, operations=(seven, seven)),
        )
