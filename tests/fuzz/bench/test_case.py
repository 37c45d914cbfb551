"""Cases, acceptance, and the floor: arithmetic that is done here a second time, by other means.

How often rows fold is counted by running the ring's cursors; where acceptance is constant it is
also plain arithmetic. The floor's bytes are those of the buffers that the simulator's `Setup`
describes, and its figures at the production geometry are the ones that docs/kernels.md had before
this code.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from ringfold.fuzz.bench.case import STANDARD, SWEEPS, Case, Cycle, accepted, cases, cycle, swept
from ringfold.fuzz.bench.floor import traffic
from ringfold.sim.setup import Geometry, SetupError


class TestAcceptance:
    """How many tokens of each window are kept."""

    def test_uniform_is_every_count_equally_often(self) -> None:
        """From one, for the bonus token is always kept, to the whole window."""
        counts = accepted("uniform", 4, 1000, 8, seed=1)

        assert counts.shape == (8, 1000)
        shares = np.bincount(counts.ravel(), minlength=5) / counts.size
        assert shares == pytest.approx([0, 0.25, 0.25, 0.25, 0.25], abs=0.02)  # 8,000 draws

    def test_a_rate_is_that_of_each_draft(self) -> None:
        """A draft counts only if all before it do: 1 + p + p^2 + p^3 tokens on average."""
        counts = accepted("0.5", 4, 1000, 8, seed=1)

        assert counts.mean() == pytest.approx(1.875, abs=0.05)
        assert (accepted("0", 4, 9, 9, 0) == 1).all()
        assert (accepted("1", 4, 9, 9, 0) == 4).all()

    @pytest.mark.parametrize("text", ["most", "1.5", "-0.1", "nan"])
    def test_what_is_no_rate_is_refused(self, text: str) -> None:
        """When the case is made, so before anything is compiled."""
        with pytest.raises(SetupError, match="uniform or a number in"):
            Case(acceptance=text)


class TestCycle:
    """How often the ring folds."""

    def test_constant_acceptance_is_plain_arithmetic(self) -> None:
        """L=16, T=4: with all accepted, a history of 4 and 8 stays, one of 12 is folded."""
        for n, wanted in ((4, (1 / 3, 6.0, 12.0)), (1, (1 / 9, 4.5, 9.0))):
            seen = cycle(np.full((8, 3), n), 16, 4)

            # Steps need not be whole rounds: seen 7e-3 off.
            assert msgspec.structs.astuple(seen) == pytest.approx(wanted, rel=1e-2)

    def test_uniform_acceptance_folds_a_quarter_of_the_rows(self) -> None:
        """The share that docs/kernels.md speaks of."""
        seen = cycle(accepted("uniform", 4, 400, 32, seed=0), 16, 4)

        assert seen.flushing == pytest.approx(0.25, abs=0.01)  # seen 0.249
        assert 9 <= seen.folded <= 12

    def test_a_ring_of_two_windows_folds_almost_always(self) -> None:
        """Whatever is accepted makes it due."""
        assert cycle(np.full((4, 2), 2), 4, 2).flushing == 1.0


class TestFloor:
    """Bytes that must move."""

    def test_a_sum_made_by_hand(self) -> None:
        """Bytes at B=64 if a quarter flushes and no history is read."""
        must = traffic(Case(batch=64), Cycle(0.25, 0.0, 0.0))

        assert must.bytes == 180_453_376
        assert must.records_read == 0

    def test_parts_are_what_the_buffers_hold(self) -> None:
        """A state, a window's inputs and outputs, and records by the ring dialect's own buffers."""
        from ringfold.sim.dialects import RINGS

        case = Case(Geometry(2, 4, 32, 16), batch=3, ring=8, window=2, dtype="float16")
        setup = case.setup("ring")
        width = {"record": 2, "gate": 4}
        a_record = sum(
            np.prod(b.shape(setup)) * width[b.role] / (setup.slots * setup.ring) for b in RINGS
        )
        must = traffic(case, Cycle(0.5, 0.0, 6.0))

        assert must.records_written == 3 * 2 * a_record
        assert must.states_read == 3 * 4 * 16 * 32 * 4
        assert must.states_written == must.states_read / 2
        assert must.inputs == 3 * 2 * 2 * (2 * 2 * 32 + 4 * 16 + 2 * 4)
        assert must.outputs == 3 * 2 * 2 * 4 * 16
        assert must.records_read == 3 * 0.5 * 6 * (2 * (2 * 32 + 4 * 16) + 2 * 4 * 4)
        assert must.bytes == sum(msgspec.structs.astuple(must))


class TestSweeps:
    """Lists of cases."""

    @pytest.mark.parametrize("name", SWEEPS)
    def test_a_sweep_changes_what_it_is_named_after(self, name: str) -> None:
        """And nothing else, from one case to the next; each case is one that a ring can be."""
        found = swept([name], "bfloat16")
        varying = [
            f for f in Case.__struct_fields__ if len({getattr(case, f) for case in found}) > 1
        ]

        assert varying == [name]
        assert all(case.setup("ring").ring == case.ring for case in found)

    def test_a_case_of_two_sweeps_is_measured_once(self) -> None:
        """The standard case is in several."""
        found = swept(["batch", "ring"], "bfloat16")

        assert found.count(STANDARD) == 1

    def test_lists_are_combined(self) -> None:
        """Every combination, and the dtype is that of all."""
        found = cases([STANDARD.geometry], [1, 2], [16], [2, 4], ["1"], [1], "float16")

        assert [(c.batch, c.window) for c in found] == [(1, 2), (1, 4), (2, 2), (2, 4)]
        assert {c.dtype for c in found} == {"float16"}

    def test_an_unknown_sweep_is_named(self) -> None:
        """With those there are."""
        with pytest.raises(SetupError, match="no sweep is named 'heads'; there are batch, ring"):
            swept(["heads"], "bfloat16")
