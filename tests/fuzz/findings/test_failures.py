"""A failure on disk is a folder whose name follows from its content.

It holds the history up to the operation that failed, what a replay must find, and the line that
replays it. The same failure is written twice, to two places, and compared byte for byte.
"""

from __future__ import annotations

import platform
import shlex
from pathlib import Path

import msgspec
import pytest

from ringfold.fuzz.findings import failures
from ringfold.fuzz.histories.trace import (
    Admit,
    Commit,
    PayloadSpec,
    Repeat,
    Symptom,
    Trace,
    Verify,
    digest,
    load,
)
from ringfold.fuzz.judging.mismatch import Mismatch
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.targets.registry import resolve
from ringfold.sim.setup import Geometry, Setup

STEPS = tuple(
    operation
    for tag in range(2, 12)
    for operation in (
        Verify(tag=tag, rows=(0,), lengths=(2,)),
        Commit(tag=tag, accepted=(2,)),
    )
)
HISTORY = Trace(
    setup=Setup("ring", Geometry(1, 2, 16, 8), ring=8, window=2, slots=3),
    payload=PayloadSpec(3, "slow-decay"),
    target="sim:fold-reads-from-row-zero",
    operations=(Admit(request=0, tag=1), *STEPS),
)


@pytest.fixture(scope="module")
def found() -> list[Mismatch]:
    return walk(HISTORY, resolve("sim:fold-reads-from-row-zero")).mismatches


@pytest.fixture
def failure(found: list[Mismatch]) -> Trace:
    return failures.as_failure(HISTORY, found, {"machine": "FoldReadsFromRowZero"})


def test_the_history_ends_where_it_failed(failure: Trace, found: list[Mismatch]) -> None:
    """What comes after shows nothing; what it must show, and did, is recorded."""
    end = max(m.operation for m in found)

    assert failure.operations == HISTORY.operations[: end + 1]
    assert len(failure.operations) < len(HISTORY.operations)
    assert failure.expected == tuple(Symptom(m.check, m.symptom) for m in found)
    assert [seen["operation"] for seen in failure.seen] == [m.operation for m in found]
    assert failure.identity == {"machine": "FoldReadsFromRowZero"}


def test_a_repeat_is_kept_whole(found: list[Mismatch]) -> None:
    """Inside of it, operations of the walk are not those of the trace."""
    repeated = msgspec.structs.replace(
        HISTORY, operations=(Admit(request=0, tag=1), Repeat(times=9, operations=STEPS[:2]))
    )
    inside = [msgspec.structs.replace(m, iteration=4) for m in found]

    assert failures.as_failure(repeated, inside, {}).operations == repeated.operations


def test_it_is_written_the_same_everywhere(
    failure: Trace, found: list[Mismatch], tmp_path: Path
) -> None:
    """Folder and trace by content; the account has the sentences and the line that replays it."""
    first = failures.write(failure, found, tmp_path / "a")
    second = failures.write(failure, found, tmp_path / "b")

    assert first.relative_to(tmp_path / "a") == second.relative_to(tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    assert load(first) == failure
    assert first.parent.parent.name == "failures"
    assert first.parent.name.endswith(f"-{digest(failure)}")
    account = (first.parent / "mismatch.txt").read_text(encoding="utf-8").splitlines()
    assert account[: len(found)] == [m.sentence() for m in found]
    assert account[-1] == failures.reproduce(first, failure.target, "cpu")
    assert sorted(p.name for p in first.parent.iterdir()) == ["mismatch.txt", "trace.json"]


def test_another_history_is_another_folder(
    failure: Trace, found: list[Mismatch], tmp_path: Path
) -> None:
    """Whatever decides a run is part of the name, down to the payload's seed."""
    other = msgspec.structs.replace(failure, payload=PayloadSpec(4, "slow-decay"))

    paths = {failures.write(trace, found, tmp_path) for trace in (failure, other, failure)}

    assert len(paths) == 2


@pytest.mark.parametrize(
    ("symptom", "name"),
    [
        ("an output is not the recurrence's", "outputs-an-output-is-not-the-recurrence-s"),
        ("../../etc/passwd", "outputs-etc-passwd"),
        ("x" * 200, "outputs-" + "x" * 52),
        ("the target raised OSError: '/a b'", "outputs-the-target-raised-oserror-a-b"),
    ],
)
def test_a_symptom_is_a_file_name(symptom: str, name: str) -> None:
    """Short, in lower case, of letters, digits and dashes alone."""
    mismatch = Mismatch(check="outputs", operation=0, kind="verify", symptom=symptom)

    assert failures.slug(mismatch) == name


def test_the_line_can_be_pasted_into_a_shell() -> None:
    """With a path that has a space, for the device that the failure was found on."""
    path = Path("my runs/failures/x/trace.json")

    line = failures.reproduce(path, "sim:a-bug", "cuda")

    assert line.startswith("reproduce: ")
    assert shlex.split(line.removeprefix("reproduce: ")) == [
        *("ringfold", "replay", str(path), "--target", "sim:a-bug", "--device", "cuda")
    ]
    assert failures.reproduce(path, None, "cpu").endswith("trace.json'")


def test_files_appear_whole(tmp_path: Path) -> None:
    """Over an older one, readable by others, with nothing left beside it, and where it was made."""
    path = tmp_path / "deep" / "report.json"
    for value in ({"windows": 1}, {"windows": 2}):
        failures.write_json(path, value)

    written = msgspec.json.decode(path.read_bytes())
    assert written.pop("machine")["python"] == platform.python_version()
    assert written == {"windows": 2}
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == [path]
