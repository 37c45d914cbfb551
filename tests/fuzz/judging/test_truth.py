"""The truth is the float64 recurrence, carried twice for every request.

It is compared with `ringfold.oracle.gdn.scan` over all committed tokens at once, though it is fed
window by window with rejections and in batches. The global state starts at the admission and the
local one at the target's own checkpoint: after a restart the two differ by what the target was off.
"""

from __future__ import annotations

import numpy as np
import pytest

from ringfold.fuzz.histories.payload import Payload, tokens_of
from ringfold.fuzz.judging.truth import GLOBAL, LOCAL, Truth, Window
from ringfold.oracle.gdn import Parameters, Tokens, Updates, prepare, scan
from ringfold.sim.setup import Geometry, Setup

SETUP = Setup("ring", Geometry(1, 2, 8, 4), ring=8, window=3, slots=4, layers=2)
SAME_TOL = 1e-14  # seen 4.5e-16: the same operations, in other batches


@pytest.fixture
def payload() -> Payload:
    return Payload(SETUP, 11, "ordinary")


@pytest.fixture
def truth(payload: Payload) -> Truth:
    made = Truth(SETUP, payload.parameters(), state_eps=2.0**-24)
    for request in (0, 5):
        made.admit(request, payload.state(request, 1).astype(np.float64))
    return made


def window(payload: Payload, requests: list[int], lengths: list[int], tag: int) -> Window:
    inputs = payload.window(np.array(requests), np.array(lengths), tag)
    A_log, dt_bias = (x[:, None, None, :] for x in payload.parameters()[:2])
    tokens = Tokens(*tokens_of(inputs, np.array(lengths)))
    return Window(
        requests,
        list(range(len(requests))),
        np.array(lengths),
        prepare(tokens, Parameters(A_log, dt_bias)),
    )


def test_window_by_window_is_all_at_once(payload: Payload, truth: Truth) -> None:
    """Rejected tokens leave no trace; batches and their order make no difference."""
    kept: list[Updates] = []
    for tag, (requests, lengths, accepted) in enumerate(
        [
            ([0, 5], [3, 2], [2, 0]),
            ([5, 0], [1, 3], [1, 3]),
            ([0], [2], [0]),
            ([0, 5], [1, 1], [1, 1]),
        ]
    ):
        made = window(payload, requests, lengths, tag)
        truth.commit(made, np.array(accepted))
        row = requests.index(0)
        kept.append(Updates(*(x[:, row, : accepted[row]] for x in made.updates)))
    together = Updates(*(np.concatenate(parts, 1) for parts in zip(*kept, strict=True)))
    start = payload.state(0, 1).astype(np.float64)

    expected = scan(start, together)[1]
    got = truth.expected([0])[0]

    assert together.v.shape[1] == 6
    assert np.allclose(got[GLOBAL][:, 0], expected, rtol=0, atol=SAME_TOL)
    assert len(got) == 1  # nothing was stored yet, so both states are one
    assert not np.allclose(truth.expected([5])[0][GLOBAL][:, 0], expected, atol=1e-3)


def test_outputs_are_the_recurrences_and_commit_nothing(payload: Payload, truth: Truth) -> None:
    """A verify can be asked for any number of times; its outputs are those of `scan`."""
    made = window(payload, [5, 0], [2, 3], tag=9)
    start = np.stack([payload.state(r, 1).astype(np.float64) for r in (5, 0)], 1)
    expected = scan(start, made.updates, made.lengths)[0]

    for _ in range(2):
        trail = truth.outputs(made)

        assert np.allclose(trail.outputs, expected, rtol=0, atol=SAME_TOL)
    assert np.array_equal(truth.expected([5])[0][GLOBAL][:, 0], start[:, 0])


def test_the_local_state_starts_over_and_its_units_with_it(payload: Payload, truth: Truth) -> None:
    """After a restart the local truth goes on from the target's own state, owing nothing."""
    truth.commit(window(payload, [0], [3], tag=2), np.array([3]))
    own = truth.expected([0])[0][GLOBAL] + 0.5
    before = truth.expected([0])[1]

    truth.stored([0])
    truth.restart([0], own)
    states, units = truth.expected([0])

    assert np.array_equal(states[LOCAL], own)
    assert not units[LOCAL].any()
    assert (units[GLOBAL] > before[GLOBAL]).all()  # storing rounds once more
    truth.commit(window(payload, [0], [2], tag=3), np.array([2]))
    states, units = truth.expected([0])
    assert (units[LOCAL] < units[GLOBAL]).all()
    assert (np.abs(states[LOCAL] - states[GLOBAL]) > 1e-3).any()


def test_a_fork_goes_on_by_itself(payload: Payload, truth: Truth) -> None:
    """It starts where its source is; from then on the two are apart."""
    truth.commit(window(payload, [5], [2], tag=2), np.array([2]))
    truth.seat(8, truth.take(5))
    source, fork = truth.expected([5])[0], truth.expected([8])[0]
    assert np.array_equal(source, fork)

    truth.commit(window(payload, [8], [1], tag=3), np.array([1]))
    assert np.array_equal(truth.expected([5])[0], source)
    assert not np.allclose(truth.expected([8])[0], fork)


def test_the_checkpoint_is_remembered(payload: Payload) -> None:
    """Where checkpoints are marked, a prefix is what was stored last, whatever came since."""
    truth = Truth(payload.setup, payload.parameters(), 0.0, marks_checkpoints=True)
    truth.admit(0, payload.state(0, 1).astype(np.float64))
    truth.commit(window(payload, [0], [3], tag=2), np.array([3]))
    truth.stored([0])
    truth.restart([0], truth.expected([0])[0][GLOBAL] + 0.5)
    stored = truth.expected([0])
    truth.commit(window(payload, [0], [2], tag=3), np.array([2]))
    now = truth.expected([0])

    truth.seat(7, truth.take_checkpoint(0))
    saved = truth.take(0)
    truth.free(0)
    truth.seat(0, saved)
    truth.seat(9, truth.take_checkpoint(0))

    for request, expected in ((7, stored), (0, now), (9, stored)):
        for got, right in zip(truth.expected([request]), expected, strict=True):
            assert np.array_equal(got, right)


def test_a_large_batch_is_its_requests(payload: Payload, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are sorted and walked a few at a time; each comes out as if it had walked alone.

    States, error units, running gates and what underflow may take: all that the truth carries.
    """
    setup = Setup("ring", SETUP.geometry, ring=8, window=3, slots=12, layers=2)
    requests, random = [*range(7, 18)], np.random.default_rng(3)
    states = np.stack([payload.state(r, r) for r in requests], 1).astype(np.float64)
    large, small = (Truth(setup, payload.parameters(), 2.0**-24) for _ in range(2))
    monkeypatch.setattr("ringfold.fuzz.judging.truth.BLOCK_ELEMENTS", 5 * large.elements)
    large.admit_all(requests, states)
    for row, request in enumerate(requests):
        small.admit(request, states[:, row])

    for tag in range(4):
        made = window(payload, requests, random.integers(1, 4, 11).tolist(), tag)
        accepted = random.integers(0, made.lengths + 1)
        large.commit(made, accepted)
        for row in range(11):
            alone = np.arange(11) == row
            small.commit(made.rows(alone), accepted[alone])
        if tag == 1:
            large.stored(requests[::2])
            small.stored(requests[::2])

    for request in requests:
        for one, other in zip(large.take(request), small.take(request), strict=True):
            assert np.allclose(one, other, rtol=SAME_TOL, atol=0)
    assert large.expected(requests)[1][GLOBAL].all()


def test_a_place_is_free_again(payload: Payload, truth: Truth) -> None:
    """As many requests as there are slots, over and over; a new one owes nothing."""
    truth.commit(window(payload, [0], [3], tag=2), np.array([3]))
    assert truth.expected([0])[1].any()

    truth.free(0)
    state = payload.state(9, 1).astype(np.float64)
    for request in (9, 10, 11):
        truth.admit(request, state)

    states, units = truth.expected([9])
    assert np.array_equal(states[GLOBAL][:, 0], state)
    assert not units.any()


def test_some_rows_of_a_window(payload: Payload) -> None:
    """Freed rows are left out of a commit, the others keep their tokens."""
    made = window(payload, [0, 5], [3, 1], tag=4)

    part = made.rows(np.array([False, True]))

    assert (part.requests, part.batch_rows, part.lengths.tolist()) == ([5], [1], [1])
    assert np.array_equal(part.updates.v, made.updates.v[:, 1:])
    assert made.live.tolist() == [[True, True, True], [True, False, False]]


def test_one_state_for_two_is_the_same_two(payload: Payload, truth: Truth) -> None:
    """Until a checkpoint is written, carrying the global state alone loses nothing, bit for bit."""
    other = Truth(SETUP, payload.parameters(), state_eps=2.0**-24)
    for request in (0, 5):
        other.admit(request, payload.state(request, 1).astype(np.float64))
    other.part(other.at([0]))  # of two rows in a batch one carries both

    for tag, accepted in enumerate(([2, 0], [1, 3])):
        for each in (truth, other):
            each.commit(window(payload, [0, 5], [3, 3], tag), np.array(accepted))
    assert [len(each.expected([0, 5])[0]) for each in (truth, other)] == [1, 2]
    for each in (truth, other):
        each.stored([0, 5])

    for got, right in zip(truth.expected([0, 5]), other.expected([0, 5]), strict=True):
        assert np.array_equal(got, right)
        assert np.array_equal(right[LOCAL], right[GLOBAL])


def test_a_16_bit_checkpoint_of_tiny_numbers_loses_them_whole(payload: Payload) -> None:
    """Stored, they are gone: the units of what follows allow for half the smallest number."""
    smallest = 2.0**-24  # of float16
    gone = smallest / 4 * np.sqrt(SETUP.geometry.key_dim)  # of each row, in 2-norm
    allowed = []
    for lost in (0.0, smallest / 2):
        truth = Truth(SETUP, payload.parameters(), 2.0**-11, state_smallest=lost)
        state = np.full(payload.state(0, 1).shape, smallest / 4)
        assert (state.astype(np.float16) == 0.0).all()
        truth.admit(0, state)
        truth.stored([0])
        allowed.append(truth.error[GLOBAL][:, truth.at([0])] * 2.0**-24)

    assert (allowed[0] < gone / 100).all()
    assert (allowed[1] >= gone).all()
    assert (allowed[1] < 3 * gone).all()
