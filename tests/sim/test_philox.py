"""Our Philox4x32-10 over arrays is the generator that its authors published.

Two things are compared with it. The first is Random123's own table of known answers, the three
lines of its `tests/kat_vectors` for ten rounds of four 32-bit words. The second is the algorithm
written down once more, in plain Python integers and one counter at a time, at many random counters;
it is itself checked against the table, and shares no line with the array version.
"""

from __future__ import annotations

import numpy as np
import pytest

from ringfold.sim.philox import CACHED, Words, philox4x32

KNOWN_ANSWERS = """
00000000 00000000 00000000 00000000 00000000 00000000  6627e8d5 e169c58d bc57ac4c 9b00dbd8
ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff  408f276d 41c83b0e a20bc7c6 6d5451fd
243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0  d16cfe09 94fdcceb 5001e420 24126ea1
"""  # counter, key, answer: https://github.com/DEShawResearch/random123, tests/kat_vectors

KNOWN = [[int(word, 16) for word in line.split()] for line in KNOWN_ANSWERS.strip().splitlines()]


def literal(counter: list[int], key: list[int]) -> list[int]:
    """Section 3.3 of Salmon et al. (2011) with Python's integers, one counter at a time."""
    left1, right1, left2, right2 = counter
    key1, key2 = key
    for _ in range(10):
        high1, low1 = divmod(0xD2511F53 * left1, 2**32)
        high2, low2 = divmod(0xCD9E8D57 * left2, 2**32)
        left1, right1, left2, right2 = high2 ^ right1 ^ key1, low2, high1 ^ right2 ^ key2, low1
        key1 = (key1 + 0x9E3779B9) % 2**32
        key2 = (key2 + 0xBB67AE85) % 2**32
    return [left1, right1, left2, right2]


def arrays(counters: list[list[int]]) -> tuple[Words, Words, Words, Words]:
    a, b, c, d = np.array(counters, np.uint32).T
    return a, b, c, d


@pytest.mark.parametrize("line", KNOWN, ids=["zeros", "ones", "pi"])
def test_known_answers(line: list[int]) -> None:
    """Both versions give the published words."""
    counter, key, answer = line[:4], line[4:6], line[6:]

    assert literal(counter, key) == answer
    assert philox4x32(arrays([counter]), (key[0], key[1])).tolist() == [answer]


def test_every_counter_of_an_array_is_the_literal_one() -> None:
    """More counters than are worked on at a time, so that a seam lies among them."""
    draw = np.random.default_rng(5)
    counters = draw.integers(2**32, size=(CACHED + 100, 4)).tolist()
    key = draw.integers(2**32, size=2).tolist()

    words = philox4x32(arrays(counters), (key[0], key[1]))

    assert words.dtype == np.uint32
    assert words.tolist() == [literal(counter, key) for counter in counters]


def test_counters_broadcast() -> None:
    """Words of shapes [3, 1], [4], scalar and [1, 4] give [3, 4] counters."""
    a, b = np.arange(3, dtype=np.uint32)[:, None], np.arange(4, dtype=np.uint32)

    words = philox4x32((a, b, np.asarray(7, np.uint32), b[None]), (1, 2))

    assert words.shape == (3, 4, 4)
    assert words[2, 3].tolist() == literal([2, 3, 7, 3], [1, 2])


def test_no_counters_give_no_words() -> None:
    """An empty batch is no special case for the caller."""
    empty = np.empty(0, np.uint32)

    assert philox4x32((empty, empty, empty, empty), (1, 2)).shape == (0, 4)
