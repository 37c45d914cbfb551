"""Each check compares two arrays and names its worst element, in units of what is allowed.

Arrays are made up here, so that what is off, by how much and where is known. An element that is off
by half of the limit passes and one that is off by twice as much fails; NaN fails always; what the
mask leaves out never does. The limits themselves are the oracle's and are tested with it.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from ringfold.fuzz.judging import checks
from ringfold.fuzz.judging.arrays import DTYPES
from ringfold.fuzz.judging.checks import Finding, Judged
from ringfold.oracle.gdn import Updates
from ringfold.oracle.units import Trail, Units, Walked, sizes

LAYERS, ROWS, T, H, HV, K, V = 1, 2, 3, 1, 2, 8, 4
LIVE = np.array([[True, True, True], [True, False, False]])
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def numbers(*shape: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).uniform(0.5, 1.0, shape)


UPDATES = Updates(
    q=numbers(LAYERS, ROWS, T, HV, K),
    k=numbers(LAYERS, ROWS, T, HV, K),
    v=numbers(LAYERS, ROWS, T, HV, V),
    log_decay=-numbers(LAYERS, ROWS, T, HV),
    beta=numbers(LAYERS, ROWS, T, HV),
)
VALUES = numbers(LAYERS, ROWS, T, HV, V, seed=1)
NONE = np.zeros_like(VALUES)
STATE = numbers(LAYERS, ROWS, HV, V, K)
WALKED = Walked(UPDATES, None, NONE[..., :1], NONE[..., :1], NONE)
TRAIL = Trail(VALUES, NONE, 2.0 + NONE, STATE, Units(NONE[:, :, 0], NONE[:, :, 0]), WALKED)


def found(judged: Judged) -> Finding:
    assert judged.finding is not None
    assert judged.seen > 1 or np.isnan(judged.seen)
    return judged.finding


def outputs(got: NDArray[Any], eps_dot: float = 2.0**-10, trail: Trail = TRAIL) -> Judged:
    query = sizes(UPDATES.q)[..., None]
    limit = checks.outputs_limit(got.dtype.name, trail, query, eps_dot, 0 * query)
    (judged,) = checks.outputs(got, trail.outputs, [limit], LIVE)
    return judged


class TestOutputs:
    """What a verify returned."""

    @pytest.mark.parametrize("dtype", [np.dtype("f4"), np.dtype("f2"), BFLOAT16], ids=str)
    def test_rounding_to_the_outputs_dtype_is_allowed(self, dtype: np.dtype[Any]) -> None:
        """Even where dots are exact; the same error in a wider dtype is not."""
        rounded = VALUES.astype(dtype)

        assert outputs(rounded, eps_dot=0.0).seen <= 1
        assert outputs(rounded, eps_dot=0.0).seen > 0.1
        if dtype.itemsize == 2:
            found(outputs(rounded.astype(np.float32), eps_dot=0.0))

    def test_the_worst_element_is_named(self) -> None:
        """Of two that are off, the one that is further off in units of its own limit."""
        got = VALUES.astype(np.float32)
        got[0, 0, 1, 1, 2] += 0.5
        got[0, 0, 2, 0, 3] += 5.0

        finding = found(outputs(got))

        assert finding.where == (0, 0, 2, 0, 3)
        assert finding.elements == 2
        assert finding.error == pytest.approx(5.0, rel=1e-5)
        assert finding.got - finding.expected == pytest.approx(5.0, rel=1e-5)
        assert finding.units == pytest.approx(finding.error / finding.allowed)

    def test_what_is_no_token_is_not_judged(self) -> None:
        """Behind a row's length anything may stand."""
        got = VALUES.astype(np.float32)
        got[0, 1, 1:] = np.nan
        assert outputs(got).finding is None

        got[0, 1, 0, 1, 1] = np.nan
        assert found(outputs(got)).where == (0, 1, 0, 1, 1)

    def test_nan_is_worse_than_any_number(self) -> None:
        """And is called by its name."""
        got = VALUES.astype(np.float32)
        got[0, 0, 0, 0, 0] = 1e30
        got[0, 0, 2, 1, 3] = np.nan

        finding = found(outputs(got))

        assert finding.where == (0, 0, 2, 1, 3)
        assert finding.symptom == "an output is NaN, not the recurrence's"
        assert finding.elements == 2

    def test_infinity_is_right_only_where_the_dtype_ends(self) -> None:
        """With the right sign, and where the truth is past the largest number."""
        large = VALUES.copy()
        large[0, 0, 0, 0, 0] = 1e6
        trail = TRAIL._replace(outputs=large)
        with np.errstate(over="ignore"):
            got = large.astype(np.float16)
        assert np.isinf(got[0, 0, 0, 0, 0])
        assert outputs(got, trail=trail).finding is None

        got[0, 0, 0, 0, 0] = -np.inf
        assert found(outputs(got, trail=trail)).where == (0, 0, 0, 0, 0)
        got[0, 0, 0, 0, 0] = np.inf
        assert found(outputs(got)).got == np.inf  # where the truth is no such number

    def test_padding_is_zero_and_nothing_else(self) -> None:
        """Negative zero is zero."""
        zeros = np.zeros((1, 2, HV, V), np.float32)
        assert checks.padding(-zeros) == Judged(0.0, None)
        assert checks.padding(zeros[:, :0]) == Judged(0.0, None)

        zeros[0, 1, 1, 0] = 1e-45
        assert found(checks.padding(zeros)).where == (0, 1, 1, 0)
        zeros[0, 0, 0, 0] = np.nan
        assert found(checks.padding(zeros)).symptom == "a padding row's output is NaN, not zero"


class TestState:
    """What the memory represents."""

    UNITS = np.full((LAYERS, ROWS, HV, V), 16.0)

    def _judged(self, got: NDArray[np.float64]) -> Judged:
        return checks.state("state-local", got, STATE, self.UNITS, "float32")

    def test_rows_are_judged_in_2_norm(self) -> None:
        """An error that is spread over a row counts as much as one that sits in an element."""
        limit = 16.0 * 2.0**-24
        spread, single = STATE.copy(), STATE.copy()
        spread[0, 1, 0, 2] += 1.2 * limit / np.sqrt(K)
        single[0, 1, 0, 2, 5] += 1.2 * limit

        for got in (spread, single):
            finding = found(self._judged(got))

            assert finding.where[:4] == (0, 1, 0, 2)
            assert finding.error == pytest.approx(1.2 * limit, rel=1e-6)
            assert finding.allowed == pytest.approx(limit, rel=1e-6)
            assert finding.elements == 1  # rows
        assert self._judged(STATE + (spread - STATE) / 2).finding is None
        assert found(self._judged(single)).where == (0, 1, 0, 2, 5)

    def test_nan_is_found_and_named(self) -> None:
        """In one element of one row."""
        got = STATE.copy()
        got[0, 0, 1, 3, 7] = np.nan

        finding = found(self._judged(got))

        assert finding.where == (0, 0, 1, 3, 7)
        assert finding.symptom == "the state is NaN, not the committed one"


class TestRecords:
    """What a verify stored."""

    @pytest.mark.parametrize(("name", "right"), [("g", UPDATES.log_decay), ("beta", UPDATES.beta)])
    def test_a_gate_is_within_rounding(self, name: str, right: NDArray[np.float64]) -> None:
        """Float32's own rounding passes, a hundred times as much does not."""
        exp_A = np.ones((LAYERS, 1, 1, HV))
        stored = right.astype(np.float32)
        assert checks.gate(name, stored, UPDATES, exp_A, LIVE).seen < 0.5

        stored[0, 0, 1, 0] *= np.float32(1 + 1e-4)
        stored[0, 1, 2, 0] = np.nan  # behind the row's length
        finding = found(checks.gate(name, stored, UPDATES, exp_A, LIVE))
        assert finding.where == (0, 0, 1, 0)
        assert finding.symptom == f"a stored {name} is not the gate"

    def test_a_key_is_within_rounding_of_its_dtype(self) -> None:
        """And with its low part within rounding twice as fine."""
        right = UPDATES.k[..., ::HV, :]
        stored = right.astype(np.float16)
        low = (right - stored).astype(np.float16)
        assert checks.keys(stored, None, right, LIVE).seen < 1
        assert checks.keys(stored, low, right, LIVE).seen < 1

        assert found(checks.keys(stored, 0 * low, right, LIVE)).check == "records"
        stored[0, 0, 2, 0, 3] *= np.float16(1.01)
        assert found(checks.keys(stored, None, right, LIVE)).where == (0, 0, 2, 0, 3)

    def test_a_raw_record_is_the_input_to_the_bit(self) -> None:
        """A NaN that was given is right; a zero of the other sign is not."""
        given = numbers(LAYERS, ROWS, T, H, K).astype(np.float32)
        given[0, 0, 0, 0, :2] = (np.nan, 0.0)
        stored = given.copy()
        stored[0, 1, 1:] = 7.0  # behind the row's length
        assert checks.raw("rawk", stored, given, LIVE) is None

        stored[0, 0, 0, 0, 1] = -0.0
        finding = checks.raw("rawk", stored, given, LIVE)
        assert finding is not None
        assert (finding.where, finding.elements) == ((0, 0, 0, 0, 1), 1)
        assert finding.symptom == "a record in rawk is not the input"


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_bits_are_compared_in_any_dtype(dtype: str) -> None:
    """One unit in the last place is found with its size; NaN beats it."""
    values = numbers(3, 4).astype(DTYPES[dtype])
    other = values.copy()
    assert checks.same_bits("exactness", "differs", other, values) is None

    other.view(f"i{other.dtype.itemsize}")[2, 1] += 1
    finding = checks.same_bits("exactness", "differs", other, values)
    assert finding is not None
    assert (finding.where, finding.ulp, finding.elements) == ((2, 1), 1, 1)
    other[0, 0] = np.nan
    finding = checks.same_bits("exactness", "differs", other, values)
    assert finding is not None
    assert (finding.where, finding.elements) == ((0, 0), 2)


def test_the_roundings_of_the_dtypes() -> None:
    """Half the spacing above 1, the smallest and the largest number."""
    assert [checks.eps(d) for d in ("float32", "float16", "bfloat16")] == [
        2.0**-24,
        2.0**-11,
        2.0**-8,
    ]
    assert [checks.tiny(d) for d in ("float32", "float16")] == [2.0**-149, 2.0**-24]
    assert [checks.largest(d) for d in ("float16", "bfloat16")] == [65504.0, 2.0**127 * (2 - 2**-7)]
