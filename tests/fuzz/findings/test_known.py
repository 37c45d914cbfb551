"""Known failures: an expected mismatch is no news, and one that is gone is an error.

The rule is tested on the simulator, whose planted bug and whose right machine decide what a trace
must show. The corpus is then replayed whole, on every target that this machine has: each trace is
an agreeing history or a finding that was confirmed by other means (docs/findings.md).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from ringfold.fuzz.cli import app
from ringfold.fuzz.findings import known, replay
from ringfold.fuzz.findings.known import KnownFailure, KnownFailuresError
from ringfold.fuzz.findings.replay import Outcome
from ringfold.fuzz.histories.trace import load

CORPUS = Path(__file__).parents[2] / "corpus"
PLANTED = CORPUS / "planted_fold_start.json"
KNOWN = known.load(CORPUS / known.FILE)
(BUG,) = (one for one in KNOWN if one.trace == PLANTED.name)


def changed(**fields: Any) -> KnownFailure:
    """What is known of the planted bug, but for some fields."""
    return msgspec.structs.replace(BUG, **fields)


def again(expected: KnownFailure, target: str | None = None) -> replay.Replayed:
    return replay.replay(PLANTED, target, "cpu", [expected])


class TestRule:
    """What a known failure excuses."""

    def test_an_expected_mismatch_is_known(self) -> None:
        """It is named with its reference; without the entry it has failed."""
        assert again(BUG).outcome == Outcome.KNOWN
        assert again(BUG).account.endswith("Known: docs/planted.md.")
        assert replay.replay(PLANTED, None, "cpu").outcome == Outcome.FAILED

    @pytest.mark.parametrize(
        "other",
        [
            changed(checks=("outputs", "state-local")),
            changed(trace="another.json"),
            changed(target="sim:fold-newest-first"),
            changed(versions="1..2"),
        ],
        ids=["a check that is not listed", "another trace", "another target", "another version"],
    )
    def test_anything_else_has_failed(self, other: KnownFailure) -> None:
        """An entry excuses its own trace on its own target, and no check beside those listed."""
        assert again(other).outcome == Outcome.FAILED

    def test_a_symptom_that_the_trace_does_not_expect_has_failed(self, tmp_path: Path) -> None:
        """Even in a check that is listed."""
        path = tmp_path / PLANTED.name
        path.write_text(PLANTED.read_text().replace("is not the committed one", "is another"))

        assert replay.replay(path, None, "cpu", [BUG]).outcome == Outcome.FAILED

    def test_a_failure_that_is_gone_is_an_error(self) -> None:
        """On the right machine the trace agrees, although an entry says that it fails there."""
        gone = again(changed(target="sim"), "sim")

        assert gone.outcome == Outcome.GONE
        assert "row-windows agree, but it is known to fail: outputs, state-local" in gone.account
        assert again(BUG, "sim").outcome == Outcome.FIXED  # nothing is known of this target

    @pytest.mark.parametrize(
        ("versions", "target", "covered"),
        [
            ("0.5.9..0.5.20", "sglang==0.5.9", True),
            ("0.5.9..0.5.20", "sglang==0.5.10", True),
            ("0.5.9..0.5.20", "sglang==0.5.20", True),
            ("0.5.9..0.5.20", "sglang==0.5.20+split", True),
            ("0.5.9..0.5.20", "sglang==0.5.8", False),
            ("0.5.9..0.5.20", "sglang==0.5.21", False),
            ("0.5.9..0.5.20", "sglang-decode==0.5.16", False),
            ("0.5.16", "sglang==0.5.16", True),
            ("0.5.16", "sglang==0.5.17", False),
            ("", "sglang==0.5.16", False),
            ("", "sglang", True),
        ],
    )
    def test_versions_are_compared_as_versions(
        self, versions: str, target: str, covered: bool
    ) -> None:
        """Number by number, with both ends, whichever way the release is driven."""
        entry = changed(target="sglang", versions=versions)
        assert entry.concerns(PLANTED, target, "cpu") == covered

    def test_what_shows_on_a_gpu_alone_is_nothing_to_the_interpreter(self) -> None:
        """There the trace that agrees is no excuse gone; without a device the entry covers all."""
        entry = changed(target="sim", device="cuda")

        assert entry.concerns(PLANTED, "sim", "cuda")
        assert not entry.concerns(PLANTED, "sim", "cpu")
        assert again(entry, "sim").outcome == Outcome.FIXED
        assert "on sim on cuda" in str(entry)
        assert BUG.concerns(PLANTED, BUG.target, "cuda")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"versions": "0.5.20..0.5.16"}, "is empty: write first..last"),
        ({"versions": "new"}, "Invalid version: 'new'"),
        ({"checks": []}, "name those that fail"),
        ({"checks": ["speed"]}, "Invalid enum value 'speed'"),
        ({"version": "1"}, "unknown field `version`"),
        ({"device": "tpu"}, "Invalid enum value 'tpu'"),
    ],
)
def test_what_is_no_known_failure(entry: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Is refused, with the file, the place and the reason."""
    file = tmp_path / known.FILE
    file.write_text(json.dumps([msgspec.to_builtins(BUG) | entry]))

    with pytest.raises(KnownFailuresError) as refused:
        known.load(file)

    assert str(file) in str(refused.value)
    assert message in str(refused.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of one trace, that of the planted bug."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / PLANTED.name).write_bytes(PLANTED.read_bytes())
    return tmp_path / "kept"


def write(file: Path, *entries: KnownFailure) -> Path:
    file.write_bytes(msgspec.json.encode(entries))
    return file


def ran(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and standard output of `ringfold replay`."""
    done = CliRunner().invoke(app, ["replay", *map(str, arguments)])
    return done.exit_code, done.stdout


class TestCommand:
    """`ringfold replay`, in this process."""

    def test_the_file_in_the_folder_is_used(self, folder: Path) -> None:
        """1 without it, 0 with it; it is not taken for a trace."""
        assert ran(folder)[0] == 1
        write(folder / known.FILE, BUG)
        code, said = ran(folder)
        assert code == 0
        assert said.startswith("KNOWN")
        assert "ERROR" not in said

    def test_a_named_file_takes_its_place(self, folder: Path) -> None:
        """`--known FILE` is what counts then, for single traces as well."""
        write(folder / known.FILE, BUG)
        file = write(folder.parent / "mine.json", BUG)
        nothing = write(folder.parent / "nothing.json")

        assert ran(folder / PLANTED.name, "--known", file)[0] == 0
        assert ran(folder, "--known", nothing)[0] == 1

    def test_an_unexpected_pass_is_1(self, folder: Path) -> None:
        """And says which entry has to go."""
        write(folder / known.FILE, changed(target="sim"))
        code, said = ran(folder, "--target", "sim")
        assert code == 1
        assert said.startswith("GONE")
        assert "Take sim out of what is known" in said


class TestCorpus:
    """tests/corpus, trace by trace."""

    @pytest.mark.parametrize("path", sorted(CORPUS.glob("*.json")), ids=lambda path: path.stem)
    def test_a_kept_trace_shows_what_it_must(self, path: Path, device: str) -> None:
        """It agrees, or fails as it is known to, on its own target; or shows on a GPU alone."""
        if path.name == known.FILE:
            assert len(KNOWN) == len(json.loads(path.read_text()))
            return
        if device == "cuda":
            pytest.skip("the corpus is what the CPU shows: pytest --device cpu")
        replayed = replay.replay(path, None, "cpu", KNOWN)
        if replayed.outcome == Outcome.MISSING:
            pytest.skip(replayed.account)
        trace = load(path)
        devices = {entry.device for entry in KNOWN if entry.trace == path.name}
        fails = Outcome.FIXED if devices == {"cuda"} else Outcome.KNOWN
        expected = Outcome.AGREES if trace.expected == "agree" else fails
        assert replayed.outcome == expected, replayed.account

    @pytest.mark.parametrize("entry", KNOWN, ids=lambda entry: entry.trace)
    def test_a_known_failure_is_there_from_the_first_version_on(
        self, entry: KnownFailure, device: str
    ) -> None:
        """Its trace is kept, and both ends of its range of versions show it."""
        on = entry.device or "cpu"
        if device != on:
            pytest.skip(f"the {on} shows it: pytest --device {on}")
        ends = entry.versions.split("..") if entry.versions else [""]
        _, driven, how = (load(CORPUS / entry.trace).target or "").partition("+")
        for version in ends:
            target = f"{entry.target}=={version}" if version else entry.target
            target += driven + how
            replayed = replay.replay(CORPUS / entry.trace, target, on, KNOWN)
            if replayed.outcome == Outcome.MISSING:
                pytest.skip(replayed.account)
            assert replayed.outcome == Outcome.KNOWN, replayed.account
