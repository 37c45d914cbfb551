"""How a release's answer is judged, with answers that are given in place of a release.

A stand-in for the worker says what it is told to. So each outcome is reached on purpose, and each
surprise: a rule that the table does not have, a hazard that does not show, a difference that was
not predicted. The last test asks a real release, where there is an environment to import one in.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from ringfold.fuzz.configure import compare
from ringfold.fuzz.configure.asking import Answer, Difference, Failure, Worker
from ringfold.fuzz.configure.compare import Row
from ringfold.fuzz.targets import environments, wheels
from ringfold.sim.configuration.flags import BASE, Configuration

REFUSED = Failure("ValueError", "no", "srt/server_args.py:check")
TREE = Configuration(algorithm="NGRAM", ring=32)


class Said:
    """Answers as they were given, with replay, without, and for a run."""

    def __init__(
        self,
        with_replay: Answer,
        without: Answer | None = None,
        run: Answer | None = None,
        release: str = "0.5.23",
    ) -> None:
        self.release = release
        self.with_replay, self.run = with_replay, run
        self.without = without or Answer("validation")

    def ask(self, flags: Configuration, exercise: bool = False) -> Answer:
        """What it was told to say."""
        return self.run if exercise and self.run else self.with_replay

    def ask_without_replay(self, flags: Configuration) -> Answer:
        """The same."""
        return self.without


def judged(flags: Configuration, **said: Any) -> Row:
    """The row of one configuration, run where it is accepted."""
    worker = cast(Worker, Said(**said))
    row = compare._validated(flags, worker)
    if row.refused is None:
        compare._exercise(row, worker)
    return row


ACCEPTED = Answer("validation")
AGREED = Answer("windows", events=[("windows", 1e-7)])


def test_accepted_and_safe_runs() -> None:
    """Nothing is predicted, nothing shows."""
    row = judged(BASE, with_replay=ACCEPTED, run=AGREED)

    assert row.outcome == "runs"
    assert not list(compare._surprises(row))


def test_accepted_but_unsafe_shows() -> None:
    """A tree is taken, and the release disagrees with itself."""
    differs = Answer("tree", differs=Difference("tree", "off by 0.5"))
    row = judged(TREE, with_replay=ACCEPTED, run=differs)

    assert row.outcome == "accepted but unsafe"
    assert row.differs == Difference("tree", "off by 0.5")
    assert not list(compare._surprises(row))


def test_refused_though_safe_is_told_from_refused_either_way() -> None:
    """The release is asked without the flag, too."""
    flags = msgspec.structs.replace(BASE, state="float16")
    refused = Answer("validation", refused=REFUSED)
    ours = judged(flags, with_replay=refused, release="0.5.16")
    theirs = judged(flags, with_replay=refused, without=refused, release="0.5.16")

    assert ours.outcome == "refused though safe"
    assert ours.rules == ["float32 state"]
    assert theirs.outcome == "refused either way"


def test_a_crash_after_validation_is_late() -> None:
    """What validation takes and the first window dies of, predicted here."""
    crashed = Answer("windows", crashed=Failure("AssertionError", "power of two", "kernels:x"))
    row = judged(msgspec.structs.replace(BASE, ring=12), with_replay=ACCEPTED, run=crashed)

    assert row.outcome == "crashes late"
    assert not list(compare._surprises(row))


def test_what_was_not_predicted_is_a_surprise() -> None:
    """A rule that the table lacks, a hazard that does not show, a difference from nowhere."""
    refused = judged(BASE, with_replay=Answer("validation", refused=REFUSED))
    quiet = judged(TREE, with_replay=ACCEPTED, run=AGREED)
    nowhere = Answer("windows", differs=Difference("windows", "off by 2"))
    odd = judged(BASE, with_replay=ACCEPTED, run=nowhere)

    assert "the table says accepted, but ValueError: no" in next(compare._surprises(refused))
    assert "is predicted, and nothing shows" in next(compare._surprises(quiet))
    assert "nothing is predicted, but" in next(compare._surprises(odd))


def test_what_shows_in_compiled_kernels_alone_may_not_show() -> None:
    """A short ring dies on a GPU, and the interpreter goes on; a wrong state is a surprise."""
    short = msgspec.structs.replace(BASE, ring=8)
    quiet = judged(short, with_replay=ACCEPTED, run=AGREED)
    nowhere = Answer("windows", differs=Difference("windows", "off by 2"))
    odd = judged(short, with_replay=ACCEPTED, run=nowhere)

    assert quiet.hazards == ["a ring that no fold can be compiled for"]
    assert quiet.outcome == "crashes late"
    assert not list(compare._surprises(quiet))
    assert "nothing is predicted, but" in next(compare._surprises(odd))


def test_what_needs_a_compiled_kernel_is_not_run_and_no_surprise() -> None:
    """Stand-ins for compiled packages fail when called; that says nothing of a configuration."""
    missing = Failure("RuntimeError", "flashinfer.x is a compiled kernel that is not here", "a:b")
    flags = msgspec.structs.replace(BASE, backend="flashinfer")
    row = judged(flags, with_replay=ACCEPTED, run=Answer("windows", crashed=missing))

    assert not row.exercised
    assert "compiled kernel" in row.not_run
    assert not list(compare._surprises(row))


def test_bfloat16_is_stood_in_for_where_something_behaves_alike() -> None:
    """Never run as it is: the interpreter gets it wrong."""
    for pair, stand_in in compare.STAND_INS.items():
        assert "bfloat16" in pair
        assert "bfloat16" not in stand_in
    flags = msgspec.structs.replace(BASE, record="float16")
    assert "nothing stands in" in judged(flags, with_replay=ACCEPTED, run=AGREED).not_run


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.16", "0.5.23"])
def test_a_release_is_asked_and_shows_its_tree(version: str) -> None:
    """The base runs, a tree is accepted and comes out wrong, on the release's own backend."""
    if environments.find() is None or wheels.find(f"sglang=={version}") is None:
        pytest.skip("no environment to import SGLang in, or no wheel")
    found = compare.compare(f"sglang=={version}", [BASE, TREE])

    assert found.outcomes == {"runs": 1, "accepted but unsafe": 1}
    assert not found.surprises
    assert found.shown["a tree is verified as a chain"]["shown"]["as"]["event"] == "tree"
    assert found.rows[0].pool is not None
    assert found.rows[0].pool["snapshots"] is False
