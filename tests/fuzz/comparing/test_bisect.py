"""Each release is asked, and the first that says something else than the one before it is named.

Releases are stand-ins here: folders that are found like wheels, and a registry that gives a machine
of the simulator for each version, sound or with a bug, so that the answer is known. What a release
may be unable to say (not here, refused, lacking an operation) is told from what it says. Two real
findings are then bisected, where the wheels are in the cache.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from typer.testing import CliRunner

from ringfold.fuzz.cli import app
from ringfold.fuzz.comparing import bisect as module
from ringfold.fuzz.comparing.bisect import RangeError, bisect, range_of
from ringfold.fuzz.histories.trace import Admit, Commit, PayloadSpec, Trace, Verify, load
from ringfold.fuzz.planted import PLANTED
from ringfold.fuzz.target import RefusedError, Target
from ringfold.fuzz.targets import registry, wheels
from ringfold.fuzz.targets.registry import MissingTargetError
from ringfold.fuzz.targets.simulated import SimulatedTarget
from ringfold.sim.ring import Ring
from ringfold.sim.setup import Geometry, Setup

FINDINGS = Path(__file__).parents[3] / "docs" / "findings"
BUG = PLANTED["fold-one-short"].machine


def history() -> Trace:
    """Long enough for a fold."""
    setup = Setup("ring", Geometry(1, 1, 4, 4), ring=8, window=2, slots=2)
    operations: list[Any] = [Admit(request=0, tag=0)]
    for tag in range(1, 6):
        operations += [Verify(tag=tag, rows=(0,), lengths=(2,)), Commit(tag=tag, accepted=(2,))]
    return Trace(
        setup=setup,
        payload=PayloadSpec(seed=3, profile="slow-decay"),
        operations=tuple(operations),
    )


class Refusing(SimulatedTarget):
    """Takes no setup."""

    def refuses(self, setup: Setup) -> str:
        """Whatever it is."""
        return "K is too small"


def target_of(kind: str, name: str) -> Target:
    """What stands for a release."""
    match kind:
        case "sound":
            return SimulatedTarget(name)
        case "bug":
            return SimulatedTarget(name, BUG)
        case "refuses":
            return Refusing(name)
        case "lacks":
            made = SimulatedTarget(name, Ring)
            made.operations = frozenset({"admit", "free"})
            return made
    raise MissingTargetError(f"{name} is not here: type more")


@pytest.fixture
def releases(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make versions 1.0, 1.1 and so on what is asked for."""

    def made(*kinds: str) -> str:
        by_name = {f"sglang==1.{i}": kind for i, kind in enumerate(kinds)}
        monkeypatch.setattr(module, "KNOWN_RELEASES", tuple(by_name))
        monkeypatch.setattr(
            registry, "resolve", lambda name, device: target_of(by_name[name], name)
        )
        return f"sglang==1.0..1.{len(kinds) - 1}"

    return made


@pytest.mark.parametrize(
    ("kinds", "first", "changed"),
    [
        (("sound", "sound", "bug", "bug"), "sglang==1.2", [2]),
        (("bug", "sound"), "sglang==1.1", [1]),
        (("sound", "bug", "sound"), "sglang==1.1", [1, 2]),
        (("sound", "missing", "bug"), "sglang==1.2", [2]),
        (("sound", "refuses", "lacks", "sound"), None, []),
        (("bug", "bug"), None, []),
    ],
)
def test_the_first_change_is_named(
    releases: Any, kinds: tuple[str, ...], first: str | None, changed: list[int]
) -> None:
    """And every other one is marked; who says nothing changes nothing."""
    report = bisect(history(), range_of(releases(*kinds)))

    assert report.first == first
    assert [i for i, one in enumerate(report.releases) if one.changed] == changed
    assert report.inconclusive == ""


def test_who_says_nothing_says_why(releases: Any) -> None:
    """A wheel that is not here, a setup that is refused, an operation that is not owned."""
    kinds = ("missing", "refuses", "lacks", "bug")
    report = bisect(history(), range_of(releases(*kinds)))
    accounts = [one.account for one in report.releases]

    assert [one.verdict is None for one in report.releases] == [True, True, True, False]
    assert "type more" in accounts[0]
    assert "K is too small" in accounts[1]
    assert "does not own what the trace does: verify (5)" in accounts[2].replace("commit (5), ", "")
    assert "fewer than two" in report.inconclusive


def test_a_setup_error_is_an_answer_too(releases: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised in the middle, it ends the release and not the search."""

    def walk(*arguments: Any, **keywords: Any) -> Any:
        raise RefusedError("no such dtype")

    text = releases("sound", "sound")
    monkeypatch.setattr(module, "walk", walk)

    assert [one.account for one in bisect(history(), range_of(text)).releases] == [
        "no such dtype"
    ] * 2


@pytest.mark.parametrize("fetch", [False, True])
def test_a_wheel_is_fetched_when_that_is_asked_for(
    releases: Any, monkeypatch: pytest.MonkeyPatch, fetch: bool
) -> None:
    """By the name of the release, whatever the family; and otherwise nothing is fetched."""
    fetched: list[str] = []
    monkeypatch.setattr(wheels, "add", fetched.append)

    bisect(history(), range_of(releases("sound", "sound")), fetch=fetch)

    assert fetched == (["sglang==1.0", "sglang==1.1"] if fetch else [])


class TestStopping:
    """Ctrl-C, which the release of a number meets while it is walked."""

    @pytest.fixture
    def stopped_at(self, releases: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
        """Run the command and press it there."""
        from ringfold.fuzz.histories.trace import save

        path = tmp_path / "trace.json"
        save(history(), path)

        def run(number: int, *kinds: str) -> Any:
            text = releases(*kinds)
            resolve = registry.resolve

            def pressing(name: str, device: Any) -> Target:
                if name == f"sglang==1.{number}":
                    os.kill(os.getpid(), signal.SIGINT)
                return resolve(name, device)

            monkeypatch.setattr(registry, "resolve", pressing)
            given = ["bisect", str(path), "--between", text, "--json"]
            return CliRunner().invoke(app, given)

        return run

    @pytest.mark.parametrize(
        ("number", "kinds", "first", "said"),
        [
            (2, ("sound",) * 4, None, "the verdict may change behind sglang==1.1, up to"),
            (1, ("missing",) * 4, None, "the verdict may change anywhere, up to sglang==1.3"),
            (3, ("sound", "bug", "bug", "bug"), "sglang==1.1", "sglang==1.1 says something else"),
            (2, ("sound", "bug", "missing", "bug"), "sglang==1.1", "from sglang==1.2 on"),
        ],
    )
    def test_what_was_walked_until_then_is_told(
        self, stopped_at: Any, number: int, kinds: tuple[str, ...], first: str | None, said: str
    ) -> None:
        """And where a change may still be. Whom it met says nothing, be it for that very reason."""
        found = stopped_at(number, *kinds)

        assert found.exit_code == 3
        report = json.loads(found.stdout.splitlines()[-1])
        assert report["first"] == first
        assert len(report["releases"]) == number
        assert report["left"] == [f"sglang==1.{i}" for i in range(number, 4)]
        assert said in report["inconclusive"]

    def test_before_the_first_there_is_nothing_to_tell(self, stopped_at: Any) -> None:
        """It just ends, as any command does."""
        found = stopped_at(0, "sound", "sound")

        assert (found.exit_code, found.stdout) == (130, "")


class TestRange:
    """`TARGET==A..B`."""

    def test_both_ends_belong_to_it(self) -> None:
        """And what ringfold knows of in between, oldest first."""
        found = range_of("sglang-packed==0.5.18..0.5.21")

        assert found.family == "sglang-packed"
        assert [str(v) for v in found.releases()] == ["0.5.18", "0.5.19", "0.5.20", "0.5.21"]

    @pytest.mark.parametrize("family", [*registry.FAMILIES, registry.POOL])
    def test_every_family_has_releases(self, family: str) -> None:
        """Kernels and pools alike."""
        assert range_of(f"{family}==0.5.16..0.5.23").family == family

    def test_ends_that_nobody_knows_of_are_asked_for(self) -> None:
        """They may be fetched."""
        assert Version("0.5.99") in range_of("sglang==0.5.22..0.5.99").releases()

    @pytest.mark.parametrize(
        "text",
        ["", "sglang", "sglang==1", "sglang==1..", "sglang==..2", "sim==1..2", "sglang==b..a"],
    )
    def test_what_is_none_is_refused(self, text: str) -> None:
        """With how to write one."""
        with pytest.raises(RangeError, match=r"write sglang==0\.5\.16\.\.0\.5\.23"):
            range_of(text)

    def test_an_empty_one_is_refused(self) -> None:
        """The older release stands first."""
        with pytest.raises(RangeError, match="write the older release first"):
            range_of("sglang==0.5.23..0.5.16")


@pytest.mark.parametrize(
    ("trace", "between", "first"),
    [
        ("compact_dead_records.json", "sglang==0.5.18..0.5.20", "sglang==0.5.20"),
        ("decode_beta.json", "sglang-packed==0.5.16..0.5.17", None),
    ],
)
def test_a_real_finding(trace: str, between: str, first: str | None) -> None:
    """Since the release that `docs/findings.md` names."""
    pytest.importorskip("triton")
    os.environ.setdefault("TRITON_INTERPRET", "1")
    chosen = range_of(between)
    if any(wheels.find(f"sglang=={version}") is None for version in chosen.releases()):
        pytest.skip(f"{between} is not here: ringfold bisect --fetch")

    report = bisect(load(FINDINGS / trace), chosen, path=FINDINGS / trace)

    assert report.first == first
    assert report.releases[-1].mismatches


def test_the_command_prints_a_table_or_an_object(releases: Any, tmp_path: Path) -> None:
    """Exit code 0 when releases answered, 3 when too few did, 2 for a range that is none."""
    from ringfold.fuzz.histories.trace import save

    path = tmp_path / "trace.json"
    save(history(), path)
    text = releases("sound", "missing", "bug")

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["bisect", str(path), "--between", *arguments])

    table, found = run(text), run(text, "--json")
    assert (table.exit_code, found.exit_code) == (0, 0)
    assert "sglang==1.2 is the first to say something else" in table.stdout.replace("\n", " ")
    assert "nothing: sglang==1.1 is not here" in table.stdout
    report = json.loads(found.stdout.splitlines()[-1])
    assert report["first"] == "sglang==1.2"
    assert [one["verdict"] is None for one in report["releases"]] == [False, True, False]
    assert run("sglang==1.0..1.1").exit_code == 3
    assert run("nonsense").exit_code == 2
