"""Pages: keys and values lie in pages of so many tokens, and a prefix cache keeps whole ones alone.

A release has one length of pages a process, so each length has a worker of its own.
"""

from __future__ import annotations

import math
import os

PAGE = int(os.environ.get("RINGFOLD_POOL_PAGE", "1"))
"""Tokens of a page in this process (`--page-size`)."""
KERNEL_CHUNK = 64
"""Tokens that a prefill's kernels work on at a time."""
CHUNK = max(KERNEL_CHUNK, PAGE)
"""Of a prompt as many are tracked as fill chunks of so many tokens: a page, if that is longer."""


def whole(count: int, unit: int = PAGE) -> int:
    """The next length that fills such units."""
    return math.ceil(count / unit) * unit
