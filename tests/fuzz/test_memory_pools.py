"""What `ringfold.sim.memory` counts is what each release's own pool allocates, to the byte.

`docs/results/memory-pools.json` keeps what small pools of every release from 0.5.16 to 0.5.23 took
when they were built, buffer by buffer, by the releases' own constructors; whatever a pool holds is
in it, so that a buffer we do not know of would show. Every axis has a length of its own. Where the
releases' environment is, pools are built anew and must take the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ringfold.fuzz.targets import environments, wheels

DOCS = Path(__file__).parents[2] / "docs"
KEPT: dict[str, Any] = json.loads((DOCS / "results" / "memory-pools.json").read_text())


@pytest.fixture(scope="module")
def pools(docs_script: Callable[[str], ModuleType]) -> ModuleType:
    """The script that measures."""
    return docs_script("findings/memory_pools.py")


@pytest.mark.parametrize("release", KEPT["releases"])
def test_every_buffer_is_counted_as_it_is_allocated(pools: ModuleType, release: str) -> None:
    """The same buffers, each with the same bytes, in pools that verify, replay and decode."""
    found = KEPT["releases"][release]

    assert len(found["pools"]) == len(KEPT["pools"]) == 12
    for pool, sizes in zip(KEPT["pools"], found["pools"], strict=True):
        assert pools.named(release, pool, sizes) == pools.counted(release, pool)


@pytest.mark.parametrize("release", KEPT["releases"])
def test_a_ring_is_in_the_budget_where_the_release_charges_it(
    pools: ModuleType, release: str
) -> None:
    """Its own formula, called; 0.5.16 has none, and none charges the ring of plain decoding."""
    charges = KEPT["releases"][release]["charged"]

    assert [pools.charged(release, pool) for pool in KEPT["pools"]] == charges
    assert any(charges) == (release != "0.5.16")


def test_a_buffer_that_is_not_counted_would_show(pools: ModuleType) -> None:
    """As would one of another size."""
    pool, sizes = KEPT["pools"][0], KEPT["releases"]["0.5.16"]["pools"][0]
    counted = pools.counted("0.5.16", pool)

    assert pools.named("0.5.16", pool, sizes | {"forgotten": 1}) != counted
    assert pools.named("0.5.16", pool, sizes | {"temporal": sizes["temporal"] - 1}) != counted


@pytest.fixture(scope="module")
def built(pools: ModuleType) -> dict[str, Any]:
    """What the releases that are here allocate now."""
    if environments.find() is None:
        pytest.skip(f"no environment of releases: {environments.REMEDY}")
    here = [name for name in KEPT["releases"] if wheels.find(f"sglang=={name}") is not None]
    found: dict[str, Any] = pools.measured(here) if here else {}
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)  # seen 46 of processor time
@pytest.mark.parametrize("release", KEPT["releases"])
def test_a_release_allocates_what_it_did(
    pools: ModuleType, built: dict[str, Any], release: str
) -> None:
    """Built anew, where its environment and its wheel are."""
    if release not in built:
        pytest.skip(f"no wheel: ringfold targets add sglang=={release}")

    assert KEPT["pools"] == pools.POOLS
    assert built[release] == KEPT["releases"][release]
