"""What is safe follows from the cursors, so it is held against cursors that are counted by hand.

`overflows` walks the protocol's own table. Here the same question is answered a second way, by the
inequality that the protocol was designed around, for every ring and window of a range. The verdicts
on whole configurations are then checked at their edges: the base is safe everywhere, and where a
dialect leaves nothing waiting, nothing that waits can be lost.
"""

from __future__ import annotations

import msgspec
import pytest

from ringfold.sim.configuration.flags import AXES, BASE, Configuration, Drafts, neighbours
from ringfold.sim.configuration.safety import HAZARDS, judge, lags, loses_bits, overflows
from ringfold.sim.configuration.serving import RELEASES, Release, release_of, serve
from ringfold.sim.cursors import COMPACT, COMPACT_NARROW, NO_RING, RING

VERSIONS = [row.first for row in RELEASES]


def changed(**changes: object) -> Configuration:
    """The base with these flags."""
    return msgspec.structs.replace(BASE, **changes)


def names(flags: Configuration, version: str) -> list[str]:
    """Hazards by name."""
    return [hazard.name for hazard in judge(flags, release_of(version)).hazards]


@pytest.mark.parametrize("ring", range(1, 18))
@pytest.mark.parametrize("count", range(1, 10))
def test_one_draft_count_fits_just_where_the_inequality_says(ring: int, count: int) -> None:
    """A fold at the next verify needs room for two windows, a fold at the commit for one."""
    assert (overflows(RING, ring, (count,)) is None) == (ring >= 2 * count)
    assert (overflows(COMPACT, ring, (count,)) is None) == (ring >= count)
    assert (overflows(COMPACT_NARROW, ring, (count,)) is None) == (ring >= count)
    assert overflows(NO_RING, ring, (count,)) is None


@pytest.mark.parametrize("protocol", [RING, COMPACT])
def test_a_bound_that_grows_finds_no_room(protocol: object) -> None:
    """Windows of 2 leave 12 records of 16, and one of 8 needs 20; no single count does that."""
    assert overflows(RING, 16, (2, 8)) is not None
    assert overflows(COMPACT, 16, (2, 8)) is not None
    assert overflows(COMPACT, 16, (2,)) is overflows(COMPACT, 16, (8,)) is None


def test_how_far_a_bound_may_grow_depends_on_who_folds() -> None:
    """A commit that folds leaves room for twice its own bound, a verify that folds for no more.

    The latter writes its window behind the very records that it folds.
    """
    assert overflows(COMPACT, 16, (2, 4)) is None
    assert overflows(COMPACT, 16, (2, 5)) is not None
    assert overflows(RING, 16, (2, 3)) is not None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("ring", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("hardware", AXES["hardware"])
def test_a_dot_wants_sixteen_rows_of_a_compact_ring(version: str, ring: int, hardware: str) -> None:
    """On NVIDIA's machines, where the commit adds up over the ring, and of GDN alone."""
    short = ring < 16 and hardware in ("h200", "b200") and release_of(version).dialect == "compact"
    flags = changed(ring=ring, hardware=hardware, drafts=Drafts(0, 1, 1))
    name = "a ring that no fold can be compiled for"

    assert (name in names(flags, version)) == short
    assert name not in names(msgspec.structs.replace(flags, model="kda"), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_base_is_safe(version: str) -> None:
    """Linear drafts of one length, no prefix cache, one kind of step: nothing can be lost."""
    verdict = judge(BASE, release_of(version))

    assert verdict.safe
    assert verdict.serving.replays


@pytest.mark.parametrize("version", VERSIONS)
def test_without_the_flag_nothing_is_unsafe(version: str) -> None:
    """Snapshots owe nothing to a ring, whatever else is changed."""
    off = [c for c in neighbours(2) if c.replay == "off"]

    assert len(off) > 30
    assert all(judge(c, release_of(version)).safe for c in off)


def test_what_waits_is_lost_only_where_something_waits() -> None:
    """Mixed batches, retraction and donation are safe where every commit folds."""
    for flags in (
        changed(mixed=True),
        changed(disaggregation="decode"),
        changed(radix="no_buffer", overlap=False),
    ):
        assert not names(flags, "0.5.19")
        assert len(names(flags, "0.5.23")) == 1
        assert not names(msgspec.structs.replace(flags, state="float16"), "0.5.23")


def test_each_hazard_can_be_met_alone() -> None:
    """No row of the table hides behind another one."""
    alone = {
        found[0]
        for version in VERSIONS
        for flags in neighbours(2)
        if len(found := names(flags, version)) == 1
    }

    assert alone >= {hazard.name for hazard in HAZARDS}


def test_the_default_launch_line_of_the_first_release_is_not_safe() -> None:
    """`auto` becomes an extra buffer, and its commit stores nothing there."""
    assert names(changed(radix="auto"), "0.5.16") == [
        "a prefix is kept with a state that nobody stored"
    ]
    assert not names(changed(radix="auto"), "0.5.23")


def test_a_tree_is_a_tree_however_it_came_about() -> None:
    """By topk or by the breadth of n-grams; one child, or two tokens in all, make a chain."""
    tree = "a tree is verified as a chain"
    assert tree in names(changed(drafts=Drafts(3, 4, 8)), "0.5.23")
    assert tree in names(changed(algorithm="NGRAM"), "0.5.17")
    assert tree not in names(changed(algorithm="NGRAM", breadth=1), "0.5.17")
    assert tree not in names(changed(algorithm="NGRAM", drafts=Drafts(1, 1, 2)), "0.5.17")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("model", AXES["model"])
def test_who_does_not_replay_says_why(version: str, model: str) -> None:
    """Every configuration that falls back to the recurrent verify names its reason."""
    serving = serve(changed(model=model), release_of(version))

    assert serving.replays != bool(serving.fallback)


def test_dtypes_lose_bits_by_significand_or_exponent() -> None:
    """Neither 16-bit type holds the other's numbers."""
    assert loses_bits("float16", "bfloat16")
    assert loses_bits("bfloat16", "float16")
    assert not loses_bits("bfloat16", "float32")


def test_a_release_that_is_not_known_is_named() -> None:
    """The error says which are."""
    for version in ("0.5.24", "0.4", "newest"):
        with pytest.raises(ValueError, match=r"'.*' is not known: choose one of 0.5.16 to 0.5.23"):
            release_of(version)


def test_a_ring_that_always_folds_at_its_commit_never_lags() -> None:
    """Where a window fills half the compact ring and more, nothing waits between two steps."""
    row: Release = release_of("0.5.23")

    assert lags(serve(changed(ring=16), row))
    assert not lags(serve(changed(ring=4), row))
