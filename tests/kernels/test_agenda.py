"""The agenda is a permutation of the rows in which no flushing row comes late.

Its kernel is launched alone, over batches whose flags and padding are drawn, one program a row.
What it writes is compared with the same order made by plain sorting and counting.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

# Only now has Triton's mode been chosen.
import torch
import triton
import triton.language as tl

from ringfold.kernels.window import put_on_agenda


@triton.jit
def agenda_kernel(
    agenda, starts, slots, write_pos, cache_base, is_flush, rows, at_once, TOGETHER: tl.constexpr
):  # fmt: skip
    """One row a program."""
    put_on_agenda(
        agenda, starts, slots, write_pos, cache_base, is_flush, rows, at_once, tl.program_id(0),
        1, 1, TOGETHER, 0, 4,
    )  # fmt: skip


@pytest.mark.parametrize("at_once", [0, 5])
@pytest.mark.parametrize("together", [0, 32])
@pytest.mark.parametrize(
    ("rows", "due", "padding"), [(1, 0.5, 0.0), (9, 0.3, 0.2), (17, 0.2, 0.1), (8, 1.0, 0.0)]
)
def test_flushing_rows_come_first_or_spread_and_padding_last(
    together: int, at_once: int, rows: int, due: float, padding: float, device: str
) -> None:
    """Every row once, with its own slot, window and cursors; the first ones where they were."""
    at_once = min(at_once, rows)
    random = np.random.default_rng(rows)
    slots = np.where(random.random(rows) < padding, 0, 1 + random.permutation(rows))
    is_flush = (random.random(rows + 1) < due).astype(np.int8)
    is_flush[0] = 1  # the null slot's flag is nobody's
    write_pos, cache_base = random.integers(0, 99, (2, rows + 1))
    starts = np.concatenate([[0], random.integers(0, 5, rows).cumsum()])

    def ints(values: Any, dtype: Any = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    agenda = ints(np.full((rows, 8), -7))
    agenda_kernel[(rows,)](
        agenda, ints(starts), ints(slots), ints(write_pos), ints(cache_base),
        ints(is_flush, torch.int8), rows, at_once, together,
    )  # fmt: skip

    got = agenda.cpu().numpy()
    order = got[:, 0].tolist()
    assert sorted(order) == list(range(rows))
    live = slots[order] > 0
    for column, values in enumerate((slots, starts[:-1], np.diff(starts)), start=1):
        assert (got[:, column] == values[order]).all()
    for column, values in enumerate((write_pos, cache_base, is_flush), start=4):
        assert (got[live, column] == values[slots[order]][live]).all()
    assert order[:at_once] == list(range(at_once))
    order, live = order[at_once:], live[at_once:]
    turns = np.where(live, np.where(is_flush[slots[order]] != 0, 0, 1), 2)
    n, n_due = int(live.sum()), int((turns == 0).sum())
    assert (turns[n:] == 2).all()
    apart = max((n - n // 8) // max(n_due, 1), 1) if rows > together else 1
    assert np.flatnonzero(turns == 0).tolist() == [j * apart for j in range(n_due)]
    for turn in range(3):  # otherwise as they come
        same = np.array(order)[turns == turn]
        assert (np.diff(same) > 0).all()
