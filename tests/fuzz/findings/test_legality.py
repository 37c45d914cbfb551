"""Every operation of a trace has a class in every release, and a trace that of its worst part.

The kinds are read off the trace format, so an operation that somebody adds without a ruling fails
here. That chains name functions which exist is checked in `configure/test_rules.py`. Classification
is checked on traces a person can read, one for each thing that is ruled on.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from ringfold.fuzz.findings import legality
from ringfold.fuzz.findings.legality import KINDS, TABLE, Legality, classify, features, rank, ruling
from ringfold.fuzz.findings.replay import replay
from ringfold.fuzz.histories.trace import (
    Admit,
    Commit,
    Decode,
    Donate,
    Free,
    Operation,
    PayloadSpec,
    Prefill,
    Save,
    Trace,
    Verify,
    load,
)
from ringfold.fuzz.targets import wheels
from ringfold.sim.configuration.serving import ordered
from ringfold.sim.dialects import DIALECTS
from ringfold.sim.setup import Dtypes, Geometry, Setup

VERSIONS = [f"0.5.{minor}" for minor in range(16, 24)]
ROOT = Path(__file__).parents[3]
FEATURES = {row.feature for row in TABLE}


def trace(*operations: Operation, dialect: str = "ring", **setup: object) -> Trace:
    """A history on two requests."""
    geometry = Geometry(1, 2, 32, 32)
    full = msgspec.structs.replace(Setup(dialect, geometry, 8, 2, slots=4), **setup)
    return Trace(setup=full, payload=PayloadSpec(seed=0, profile="ordinary"), operations=operations)


def step(
    length: int = 2, accepted: int = 2, bound: int | None = None, track: int | None = None
) -> tuple[Operation, ...]:
    """One request admitted, verified, committed."""
    return (
        Admit(request=0, tag=0),
        Verify(tag=1, rows=(0,), lengths=(length,)),
        Commit(tag=1, accepted=(accepted,), bound=bound, track=track),
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_operation_has_a_class_in_every_release(kind: str, version: str) -> None:
    """With a reason, and with calls where it is reachable in a server."""
    found = ruling(kind, version)

    assert found.reason
    assert found.chain or found.legality is not Legality.SERVER or kind == "repeat"


@pytest.mark.parametrize("feature", sorted(FEATURES))
def test_a_feature_has_one_ruling_for_each_release(feature: str) -> None:
    """Ranges neither overlap nor leave a gap."""
    for version in VERSIONS:
        rows = [
            row
            for row in TABLE
            if row.feature == feature
            and ordered(row.first) <= ordered(version) <= ordered(row.last)
        ]

        assert len(rows) == 1, version


def test_every_dialect_is_classed() -> None:
    """A plain step of each, on the target that has it."""
    for dialect in DIALECTS:
        found = classify(trace(*step(), dialect=dialect), "sglang==0.5.20")

        assert found is not None
        research = dialect in legality.RESEARCH
        assert (found.legality == str(Legality.LIBRARY)) == research


@pytest.mark.parametrize(
    ("history", "feature", "word"),
    [
        (trace(*step()), "commit", Legality.SERVER),
        (trace(*step(accepted=0)), "commit: none accepted", Legality.LIBRARY),
        (trace(*step(length=1, accepted=1, bound=1)), "commit: other bound", Legality.SERVER),
        (trace(*step(track=1)), "commit: tracks", Legality.SERVER),
        (
            trace(Admit(request=0, tag=0), Prefill(tag=1, rows=(0,), lengths=(3,))),
            "prefill",
            Legality.SERVER,
        ),
        (
            trace(Admit(request=0, tag=0), Prefill(tag=1, rows=(0,), lengths=(65,), branch=64)),
            "prefill: branches",
            Legality.SERVER,
        ),
        (
            trace(Admit(request=0, tag=0), Decode(tag=1, rows=(0,), stores=(0,))),
            "decode: stores",
            Legality.SERVER,
        ),
        (trace(*step(), Donate(request=0, prefix=0, cut=1)), "donate: cut", Legality.SERVER),
        (
            trace(*step()[:2], Free(request=0), Commit(tag=1, accepted=(None,))),
            "commit: window lost",
            Legality.LIBRARY,
        ),
        (
            trace(
                Admit(request=0, tag=0),
                Admit(request=1, tag=1),
                Verify(tag=2, rows=(0, 1, None), lengths=(1, 2, 2)),
            ),
            "verify: lengths differ in a batch",
            Legality.LIBRARY,
        ),
        (
            trace(*step(), l2norm=False),
            "keys that are not normalised",
            Legality.LIBRARY,
        ),
        (
            trace(*step(), geometry=Geometry(1, 2, 96, 32)),
            "keys of a width that is no power of two",
            Legality.LIBRARY,
        ),
        (
            trace(*step(), dtypes=Dtypes("float32", "float32", "float64")),
            "a 64-bit checkpoint",
            Legality.OUTSIDE,
        ),
    ],
)  # fmt: skip
def test_a_trace_is_as_legal_as_the_least_legal_thing_in_it(
    history: Trace, feature: str, word: Legality
) -> None:
    """One thing at a time, on the release with the ring."""
    found = classify(history, "sglang==0.5.16")

    assert found is not None
    assert (found.feature, found.legality) == (feature, str(word))


def test_what_a_release_wired_is_reachable_from_there_on() -> None:
    """Replay came to servers that retract in 0.5.17."""
    history = trace(*step(), Save(request=0), dialect="fold-every-commit")
    before, after = (classify(history, f"sglang==0.5.{minor}") for minor in (16, 17))

    assert before is not None
    assert after is not None
    assert (rank(before), rank(after), rank(None)) == (1, 0, 3)


def test_a_pool_s_decoding_is_its_backend_s() -> None:
    """A kernel target's is a window of one, which a server verifies where it drafts nothing."""
    history = trace(*step(), Decode(tag=7, rows=(0,)))
    kernel, pool = (classify(history, f"{name}==0.5.18") for name in ("sglang", "sglang-pool"))

    assert kernel is not None
    assert pool is not None
    assert (kernel.feature, rank(kernel)) == ("decode", 0)
    assert (pool.feature, rank(pool)) == ("decode: beside verification", 1)


def test_only_releases_are_classed() -> None:
    """The simulator and kernels of somebody's own have no server."""
    history = trace(*step())

    assert classify(history, "sim") is None
    assert classify(history, "my_kernels:MyRing") is None
    assert classify(history, "sglang@/some/checkout") is not None
    assert classify(history, "sglang-pool==0.5.20") is not None
    assert classify(history, "sglang==9.9.9") is None


def test_features_are_told_in_the_order_of_their_last_use() -> None:
    """So that of equals the failing one is named."""
    assert list(features(trace(*step())))[-1] == "commit"


def test_a_replay_says_who_can_meet_it() -> None:
    """A kept finding, walked again on its release."""
    if wheels.find("sglang==0.5.23") is None:
        pytest.skip("the wheel of 0.5.23 is not in the cache")
    pytest.importorskip("triton")
    replayed = replay(ROOT / "docs" / "findings" / "compact_dead_records.json", None, "cpu")

    assert replayed.mismatches
    assert replayed.legality is not None
    assert replayed.legality.legality == "reachable in a server"
    assert replayed.legality.chain


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "findings").glob("*.json")), ids=str)
def test_every_kept_finding_has_a_class(path: Path) -> None:
    """Findings are on releases."""
    if not re.search(r'"ringfold_trace"', path.read_text()):
        pytest.skip("no trace")
    assert classify(load(path)) is not None
