"""Commit and reset move the cursors as the `ring` protocol says.

The expectation is a few lines of Python that follow the protocol's text, checked over every
reachable cursor and every acceptance; the simulator's own table is tested elsewhere.
"""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


def committed(wp: int, base: int, flag: int, n: int, L: int, T: int) -> tuple[int, int, int]:
    """The protocol's rule for one row."""
    if flag:
        base = (base + wp) % L if n else base
        wp = n
    else:
        wp += n
    return wp, base, int(wp + 2 * T > L)


@pytest.mark.parametrize(("L", "T"), [(8, 2), (16, 4), (4, 1)])
def test_commit_follows_the_protocol(device: str, L: int, T: int) -> None:
    """For every fill, base and acceptance, in rows of any order, one of them padding."""
    from ringfold.kernels.cursors import commit_gdn_replayssm_spec

    cases = [
        (wp, base, int(wp + 2 * T > L), n)
        for wp, base, n in itertools.product(range(L - T + 1), (0, 1, L - 1), range(T + 1))
    ]
    wp, base, flag, n = (torch.tensor([0, *x], device=device) for x in zip(*cases, strict=True))
    write_pos, cache_base, is_flush = wp.int(), base.int(), flag.to(torch.int8)
    order = torch.randperm(len(cases) + 1, generator=torch.Generator().manual_seed(0)).to(device)

    commit_gdn_replayssm_spec(
        write_pos, cache_base, is_flush, n.int()[order], order.int(), L, T, null_block_id=0
    )

    got = list(zip(write_pos.tolist(), cache_base.tolist(), is_flush.tolist(), strict=True))
    assert got[0] == (0, 0, 0)
    assert got[1:] == [committed(*case, L, T) for case in cases]


@pytest.mark.parametrize(("T", "flag"), [(2, 0), (4, 0)])
def test_reset_empties_the_marked_rows(device: str, T: int, flag: int) -> None:
    """Unmarked rows, padding rows and slots that no row names keep their cursors."""
    from ringfold.kernels.cursors import reset_gdn_replayssm_spec_cursors

    write_pos, cache_base = torch.full((2, 5), 3, dtype=torch.int32, device=device)
    is_flush = torch.ones(5, dtype=torch.int8, device=device)
    marks = torch.tensor([True, False, True], device=device)
    slots = torch.tensor([2, 1, 0], dtype=torch.int32, device=device)

    reset_gdn_replayssm_spec_cursors(
        write_pos, cache_base, is_flush, marks, slots, 8, T, null_block_id=0
    )

    assert write_pos.tolist() == cache_base.tolist() == [3, 3, 0, 3, 3]
    assert is_flush.tolist() == [1, 1, flag, 1, 1]
