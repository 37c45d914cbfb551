"""The convolution in front of a machine equals the oracle's, and its window is rolled back.

The oracle convolves all committed projections in one go, in float64; the front gets them window by
window, drafts and all, in float32. Outputs must agree to float32's rounding, and what is remembered
must be the last committed projections, bit for bit, whatever was drafted, saved or forked.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from ringfold.oracle.convolution import convolve
from ringfold.oracle.gdn import Tokens
from ringfold.sim.convolution import Convolution, Front, projections, replaced
from ringfold.sim.setup import Dtypes, Geometry, Setup, SetupError

SETUP: Final = Setup(
    "ring", Geometry(1, 2, 3, 2), ring=8, window=2, slots=4, layers=2, convolution=4
)
OUTPUT_TOL: Final = 1e-6  # seen 2.4e-7, for sums of four products of order one

random = np.random.default_rng(5)
WEIGHT: Final = random.uniform(-1, 1, (2, SETUP.channels, 4)).astype(np.float32)
PAST: Final = random.uniform(-1, 1, (2, SETUP.channels, 3)).astype(np.float32)


def tokens(rows: int, seed: int) -> Tokens:
    """Windows of two tokens, [layer, row, 2, ...] float32."""
    numbers = np.random.default_rng(seed)
    shapes = (1, 3), (1, 3), (2, 2), (2,), (2,)
    return Tokens(*(numbers.normal(size=(2, rows, 2, *s)).astype(np.float32) for s in shapes))


def test_projections_lie_side_by_side() -> None:
    """Query, key and value, head after head; taking them apart gives the tokens again."""
    made = tokens(3, 1)

    channels = projections(made)

    assert channels.shape == (2, 3, 2, SETUP.channels)
    assert np.array_equal(channels[0, 1, 1, 3:6], made.k[0, 1, 1, 0])
    for x, y in zip(replaced(made, channels), made, strict=True):
        assert np.array_equal(x, y)


def test_outputs_are_the_oracles_whatever_was_accepted() -> None:
    """Of each window the first tokens are kept, and the next one starts behind those."""
    front = Convolution(SETUP, WEIGHT)
    front.admit(2, PAST)
    committed = np.zeros((2, 0, SETUP.channels))
    for seed, accepted in enumerate((2, 0, 1, 2, 1, 0, 2)):
        window = tokens(2, seed)  # row 0 is padding
        made = projections(front.verify([0, 2], [2, 2], window))

        drafted = projections(window)[:, 1]
        history = np.concatenate([committed, drafted], axis=1)
        for layer in range(2):
            expected = convolve(PAST[layer], history[layer], WEIGHT[layer])[0][-2:]
            assert np.allclose(made[layer, 1], expected, rtol=0, atol=OUTPUT_TOL)
        assert np.array_equal(made[:, 0], projections(window)[:, 0])
        front.commit([0, 2], [1, accepted])
        committed = np.concatenate([committed, drafted[:, :accepted]], axis=1)

        last = np.concatenate([PAST.swapaxes(1, 2), committed], axis=1)[:, -3:]
        assert np.array_equal(front.memory[:, 2], last.swapaxes(1, 2))
    assert not front.memory[:, [0, 1, 3]].any()


def test_a_short_window_reads_nothing_behind_its_end() -> None:
    """What stands there may be NaN."""
    front = Convolution(SETUP, WEIGHT)
    front.admit(1, PAST)
    window = tokens(1, 1)
    one = front.verify([1], [1], window)
    for x in window[:3]:
        x[:, :, 1] = np.nan

    again = front.verify([1], [1], window)
    front.commit([1], [1])

    assert np.array_equal(one.k[:, :, 0], again.k[:, :, 0])
    assert np.isfinite(front.memory).all()


def test_the_window_goes_where_the_request_goes() -> None:
    """Copied, saved and restored, or taken back by some tokens."""
    front = Convolution(SETUP, WEIGHT)
    front.admit(1, PAST)
    for seed in range(3):
        front.verify([1], [2], tokens(1, seed))
        front.commit([1], [2])
    now = front.memory[:, 1].copy()
    front.copy(1, 2)
    saved = front.save(1)
    front.admit(1, 0 * PAST)
    front.restore(3, saved)

    assert np.array_equal(front.memory[:, 2], now)
    assert np.array_equal(front.memory[:, 3], now)
    front.rewind(3, 2)
    assert np.array_equal(front.memory[..., 3, :, 2], now[..., 0])
    front.rewind(2, 6)
    assert np.array_equal(front.memory[:, 2], PAST)


def test_nothing_in_front_changes_nothing() -> None:
    """Without a convolution tokens pass as they are."""
    window = tokens(1, 1)

    assert Front().verify([1], [2], window) is window
    assert Front().memory is None


def test_results_have_the_activations_dtype() -> None:
    """In a 16-bit dtype they are rounded to it, and projections are kept as they came."""
    setup = Setup(
        "ring", SETUP.geometry, 8, 2, 4, layers=2, dtypes=Dtypes("bfloat16"), convolution=4
    )
    front = Convolution(setup, WEIGHT)
    front.admit(1, PAST)

    made = front.verify([1], [2], tokens(1, 1))

    assert made.k.dtype == np.float32
    assert np.array_equal(made.k, made.k.astype(front.memory.dtype).astype(np.float32))


@pytest.mark.parametrize("width", [-1, 1, 9])
def test_a_width_that_means_nothing_is_refused(width: int) -> None:
    """One tap remembers nothing; nobody has nine."""
    with pytest.raises(SetupError, match=rf"convolution is {width}, but must be 0 or in 2\.\.8"):
        Setup("ring", SETUP.geometry, 8, 2, 4, convolution=width)
