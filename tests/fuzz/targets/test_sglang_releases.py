"""A release is known by what its files contain, and each is driven and judged by its own dialect.

Detection is tested on folders made for it: files with the signatures of each dialect and no bodies,
which is all that detection may look at. The real releases run where their wheels are in the cache,
a few windows each through Triton's interpreter, against the recurrence; what they are known to get
wrong must be found, by the check and with the cause that `docs/findings.md` gives.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from ringfold.fuzz.histories.configurations import configurations, rows
from ringfold.fuzz.histories.generate import history
from ringfold.fuzz.histories.story import Plan
from ringfold.fuzz.histories.trace import Admit, Commit, Verify, load
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.target import HeadParameters, RefusedError, Request, Target, refusal
from ringfold.fuzz.targets import wheels
from ringfold.fuzz.targets.registry import UnknownTargetError, listed, resolve
from ringfold.fuzz.targets.sglang_fold import SglangFold
from ringfold.fuzz.targets.sglang_release import (
    DIALECTS_BY_SIGN,
    Release,
    UnknownReleaseError,
    steps,
)
from ringfold.fuzz.targets.wheels import WheelError
from ringfold.sim.setup import SetupError

FLA = "sglang/kernels/ops/attention/fla/"
LINEAR = "sglang/kernels/ops/attention/linear/"
FINDINGS = Path(__file__).parents[3] / "docs" / "findings"

SIGNS = dict(DIALECTS_BY_SIGN)
DIALECT_OF = {
    "sglang==0.5.16": "ring",
    **dict.fromkeys((f"sglang==0.5.{p}" for p in (17, 18, 19)), "fold-every-commit"),
    **dict.fromkeys((f"sglang==0.5.{p}" for p in (20, 21, 22, 23)), "compact"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for the wheel of sglang==9.9.9."""
    monkeypatch.setenv("RINGFOLD_WHEELS", str(tmp_path))
    return tmp_path / "sglang-9.9.9"


def write(folder: Path, path: str, text: str) -> None:
    """A file of the stand-in wheel."""
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)


def write_signs(folder: Path, dialect: str, where: str = FLA) -> None:
    """The signatures that a dialect is known by, one file after the other."""
    texts: dict[str, str] = {}
    for sign in SIGNS[dialect]:
        text = f"def {sign.function}(*, {', '.join(sorted(sign.parameters))}):\n    ...\n"
        texts[sign.file] = texts.get(sign.file, "") + text
    for file, text in texts.items():
        write(folder, where + file, text)


class TestDetection:
    """What decides is what the files contain."""

    @pytest.mark.parametrize("dialect", SIGNS)
    @pytest.mark.parametrize("where", [FLA, LINEAR])
    def test_a_dialect_is_read_off_signatures(self, folder: Path, dialect: str, where: str) -> None:
        """Whatever the version says, and in whichever folder the files lie."""
        write_signs(folder, dialect, where)

        assert Release("sglang==9.9.9").dialect == dialect

    def test_the_newest_protocol_is_meant(self, folder: Path) -> None:
        """A release keeps the fold file of an older protocol beside the one that it uses."""
        for dialect in ("ring", "fold-every-commit", "compact"):
            write_signs(folder, dialect)

        assert Release("sglang==9.9.9").dialect == "compact"

    def test_a_release_that_fits_none_is_refused_with_what_was_found(self, folder: Path) -> None:
        """One missing parameter, and the message says which, for each dialect."""
        text = "def gdn_replayssm_spec_decode(q, write_pos, launch_mode): ...\n"
        write(folder, FLA + "gdn_replayssm_spec_decode.py", text)

        with pytest.raises(UnknownReleaseError) as caught:
            _ = Release("sglang==9.9.9").dialect

        message = str(caught.value)
        assert all(f"for {dialect} it lacks" in message for dialect in SIGNS)
        assert f"found were {FLA}gdn_replayssm_spec_decode.py" in message

    def test_an_empty_release_is_refused(self, folder: Path) -> None:
        """With nothing found at all."""
        folder.mkdir()

        with pytest.raises(UnknownReleaseError, match="none of its kernel files"):
            _ = Release("sglang==9.9.9").dialect

    def test_a_name_without_a_stand_in_is_named(self, folder: Path) -> None:
        """A file that takes an unknown name from its package can't be loaded alone."""
        file = "gdn_replayssm_spec_decode.py"
        write(folder, FLA + file, "from sglang.srt.utils import is_hip, brand_new\n")

        with pytest.raises(WheelError, match=r"imports brand_new from sglang\.srt\.utils"):
            Release("sglang==9.9.9").module(file)

    def test_nothing_is_executed_to_know_a_dialect(self, folder: Path) -> None:
        """Files that raise when they are executed are as good."""
        write_signs(folder, "compact")
        file = folder / FLA / "gdn_replayssm_spec_decode.py"
        file.write_text(file.read_text() + "raise RuntimeError\n")

        assert Release("sglang==9.9.9").dialect == "compact"

    def test_a_counter_can_be_cast(self) -> None:
        """As a compiled kernel's can; it stays the same number."""
        assert [t.to("int64") + 0 for t in steps(2, 5)] == [2, 3, 4]


def present(release: str) -> None:
    """Skip the test where the wheel is not in the cache."""
    if wheels.find(release) is None:
        pytest.skip(f"{release} is not here: ringfold targets add {release}")
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        os.environ["TRITON_INTERPRET"] = "1"


def plans(target: Target, worst: Any = "garbage") -> list[Plan]:
    """Its configurations, the plainest first; random histories of few steps."""
    refuses = getattr(target, "refuses", lambda setup: "")
    setups = configurations(target.dialect.name, "cpu", refuses=refuses)
    return [
        Plan(s, target.name, target.operations, rows(s, "cpu"), 4, False, worst) for s in setups
    ]


@pytest.mark.parametrize(("release", "dialect"), DIALECT_OF.items())
def test_a_release_speaks_its_dialect(release: str, dialect: str) -> None:
    """Those that were tried, by their files."""
    present(release)

    assert Release(release).dialect == dialect
    assert resolve(release).dialect.name == dialect


@pytest.mark.parametrize("release", [r for r, d in DIALECT_OF.items() if d != "ring"])
def test_a_release_agrees_with_the_recurrence(release: str) -> None:
    """Two short histories, float32 and float16, with states tracked on the way."""
    present(release)
    target = resolve(release)
    for plan in plans(target)[:2]:
        verdict = walk(history(plan, seed=3, number=1), target)

        assert not verdict.mismatches, [m.sentence() for m in verdict.mismatches]
        assert verdict.windows >= 4


def test_snapshots_scatter_and_decode_agree_with_the_recurrence() -> None:
    """SGLang's own scatter commits, its recurrent kernel decodes in place."""
    present("sglang==0.5.23")
    target = resolve("sglang-snapshots==0.5.23")
    verdict = walk(history(plans(target)[1], seed=3, number=1), target)

    assert not verdict.mismatches
    assert target.dialect.name == "snapshots"


def test_a_fold_of_one_token_too_few_is_found() -> None:
    """The real kernels, told to accept one less: state and bits are wrong at once."""
    present("sglang==0.5.18")

    class OneShort(SglangFold):
        """Loses the bonus token."""

        def commit(
            self, rows: Sequence[Request | None], accepted: Sequence[int], bound: int
        ) -> None:
            """One less, where there is one."""
            super().commit(rows, [max(n - 1, 0) for n in accepted], bound)

    target = OneShort(Release("sglang==0.5.18"), "one short")
    verdict = walk(history(plans(target)[0], seed=3, number=1), target)

    assert {"exactness", "state-local"} <= {m.check for m in verdict.mismatches}


def test_a_state_tracked_at_the_wrong_token_is_found() -> None:
    """The step after the one that was asked for."""
    present("sglang==0.5.18")

    class OneLate(SglangFold):
        """Tracks the window's next token where there is one."""

        def track(
            self, rows: Sequence[Request | None], accepted: Sequence[int], bound: int, tokens: int
        ) -> None:
            """One more, if all rows keep so many."""
            kept = [n for row, n in zip(rows, accepted, strict=True) if row is not None]
            late = tokens + 1 if min(kept) > tokens else tokens
            super().track(rows, accepted, bound, late)

    target = OneLate(Release("sglang==0.5.18"), "one late")
    told = msgspec.structs.replace(
        history(plans(target)[0], seed=3, number=0),
        operations=(
            Admit(request=0, tag=2),
            Verify(tag=1, rows=(0,), lengths=(2,)),
            Commit(tag=1, accepted=(2,), track=1),
        ),
    )

    assert any("tracked" in mismatch.symptom for mismatch in walk(told, target).mismatches)
    right = SglangFold(Release("sglang==0.5.18"), "on time")
    assert not walk(told, right).mismatches


@pytest.mark.parametrize(
    ("trace", "family", "symptom"),
    [
        ("compact_dead_records.json", "sglang", "the state is NaN, not the committed one"),
        ("decode_beta.json", "sglang-packed", "the state is not the committed one"),
    ],
)
@pytest.mark.parametrize("version", ["0.5.20", "0.5.23"])
def test_a_known_finding_is_found(trace: str, family: str, symptom: str, version: str) -> None:
    """By its kept trace, since and until the releases that the page names."""
    present(f"sglang=={version}")
    verdict = walk(load(FINDINGS / trace), resolve(f"{family}=={version}"))

    assert ("state-local", symptom) in {m.key for m in verdict.mismatches}


@pytest.mark.parametrize("release", [r for r, d in DIALECT_OF.items() if d == "compact"])
def test_a_ring_that_does_not_compile_is_refused_on_a_gpu(release: str) -> None:
    """With the reason, before anything is allocated; the interpreter takes it."""
    present(release)
    target = resolve(release)
    short = msgspec.structs.replace(plans(target)[0].setup, ring=8)
    parameters = HeadParameters(np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32))
    assert not refusal(target, short)

    target.device = "cuda"

    assert not refusal(target, msgspec.structs.replace(short, ring=16))
    with pytest.raises(RefusedError, match="takes 16 rows at least on a GPU, not 8"):
        target.open(short, parameters)
    of_a_gpu = configurations("compact", "cuda", refuses=partial(refusal, target))
    assert min(setup.ring for setup in of_a_gpu) == 16
    with pytest.raises(SetupError, match="the target refuses: its commit adds up over the ring"):
        configurations("compact", "cuda", ring=8, refuses=partial(refusal, target))


def test_nothing_to_split_is_said() -> None:
    """Only a verify that folds has two launches."""
    present("sglang==0.5.18")

    with pytest.raises(UnknownTargetError, match="speaks fold-every-commit"):
        resolve("sglang==0.5.18+split")


def test_the_list_shows_what_is_in_the_cache_and_what_to_add(folder: Path) -> None:
    """A release in the cache by its dialect, one that fits none by what was found."""
    write_signs(folder, "compact")
    write(folder.parent / "sglang-9.9.8", FLA + "gdn_replayssm_spec_decode.py", "")
    rows_by_name = {row.name: row for row in listed()}

    assert "compact" in rows_by_name["sglang==9.9.9"].about
    assert "speaks no dialect" in rows_by_name["sglang==9.9.8"].about
    for release in DIALECT_OF:
        if wheels.find(release) is None:
            assert rows_by_name[release].remedy == f"ringfold targets add {release}"
