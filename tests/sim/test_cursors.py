"""The cursor table, enumerated: which states there are, and what holds in all of them.

The counts come from the design, where another enumerator found them. The invariants are what the
protocol promises: no window overflows the ring, no record is overwritten while it is needed. A
plain-Python retelling of the rules, written from the prose and not from the table, checks each
transition.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from ringfold.sim.cursors import COMMIT, Cursors, commit, due, reachable, reset

SIZES = [(2, 1), (8, 2), (8, 4), (16, 4), (64, 8)]


@pytest.mark.parametrize(
    ("L", "T", "states", "transitions"),
    [(8, 2, 56, 280), (16, 4, 208, 2_912), (64, 8, 3_648, 160_512)],
)
def test_there_are_as_many_states_as_the_design_counts(
    L: int, T: int, states: int, transitions: int
) -> None:
    """Ragged windows and any acceptance reach exactly these."""
    protocol = reachable(L, T)

    assert len(protocol.states) == len(set(protocol.states)) == states
    assert len(protocol.transitions) == len(set(protocol.transitions)) == transitions


@pytest.mark.parametrize(("L", "T"), SIZES)
def test_no_window_overflows_the_ring(L: int, T: int) -> None:
    """At every reachable verify, history and window fit into the ring together."""
    for before, length, accepted, after in reachable(L, T).transitions:
        assert before.write_pos + length <= L
        assert 0 <= accepted <= length
        assert 0 <= after.write_pos <= L - T
        assert 0 <= after.cache_base < L


@pytest.mark.parametrize(("L", "T"), SIZES)
def test_a_row_folds_exactly_when_one_more_window_could_not_be_appended(L: int, T: int) -> None:
    """Unflagged, two windows fit behind the history; flagged, they do not, and it is not empty."""
    for state in reachable(L, T).states:
        if state.is_flush:
            assert state.write_pos > max(0, L - 2 * T)
        else:
            assert state.write_pos + 2 * T <= L


@pytest.mark.parametrize(("L", "T"), [(8, 2), (16, 4)])
def test_the_table_says_what_the_prose_says(L: int, T: int) -> None:
    """Each transition, retold: a fold drops the history, then the accepted tokens are kept."""
    for before, _, accepted, after in reachable(L, T).transitions:
        write_pos, base, flagged = before
        if flagged and accepted > 0:
            base = (base + write_pos) % L
        write_pos = accepted if flagged else write_pos + accepted

        assert after == (write_pos, base, int(write_pos + 2 * T > L))


@pytest.mark.parametrize("flag", [0, 1])
@pytest.mark.parametrize("accepted", [0, 1, 3])
def test_one_rule_applies(flag: int, accepted: int) -> None:
    """The rows of the table exclude each other and leave no case out."""
    state = Cursors(5, 7, flag)

    assert sum(bool(rule.when(state, np.array(accepted))) for rule in COMMIT) == 1


def test_arrays_commit_like_ints() -> None:
    """Elementwise on all of (8, 2) at once."""
    transitions = reachable(8, 2).transitions
    before = Cursors(*np.array([t.before for t in transitions]).T)
    after = commit(before, [t.accepted for t in transitions], 8, 2)

    assert np.array_equal(np.array([t.after for t in transitions]).T, np.array(after))


def test_the_bound_of_the_commit_decides_the_flag() -> None:
    """A shorter next window lets the same history grow on."""
    assert commit(Cursors(3, 0, 0), 2, L=8, T=2).is_flush == 1
    assert commit(Cursors(3, 0, 0), 2, L=8, T=1).is_flush == 0


def test_a_reset_slot_folds_only_when_two_windows_do_not_fit() -> None:
    """With `L >= 2 T`, as a setup demands, never."""
    assert reset(8, 4) == (0, 0, 0)
    assert reset(8, 5) == (0, 0, 1)
    assert due(4, 8, 2) == 0
    assert due(5, 8, 2) == 1


def test_a_path_is_a_shortest_run_from_a_reset() -> None:
    """Its steps follow each other, the last one is the goal, and no shorter run reaches it."""
    protocol = reachable(8, 2)
    path = protocol.path(lambda t: t.before.cache_base == 4)
    steps_from_reset = {protocol.states[0]: 0}
    for t in protocol.transitions:  # breadth first, so the first arrival counts
        steps_from_reset.setdefault(t.after, steps_from_reset[t.before] + 1)
    fewest = min(n for state, n in steps_from_reset.items() if state.cache_base == 4)

    assert path[0].before == reset(8, 2)
    assert all(a.after == b.before for a, b in pairwise(path))
    assert path[-1].before.cache_base == 4
    assert len(path) == fewest + 1


def test_there_is_no_path_to_what_cannot_happen() -> None:
    """An empty run says so."""
    assert reachable(8, 2).path(lambda t: t.before.write_pos == 8) == []
