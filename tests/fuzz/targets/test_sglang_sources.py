"""Which SGLang a name means: a wheel in the cache, the installed package, or a checkout.

Checkouts are made here: folders with the signatures of a dialect and no bodies, in a repository of
git or in none, and one that is unpacked from a real wheel and then decodes as the wheel does. An
installed package is a folder on `sys.path`; nothing of it may be imported.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from ringfold.fuzz.histories.configurations import configurations
from ringfold.fuzz.histories.generate import history
from ringfold.fuzz.histories.story import Plan
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.targets import wheels
from ringfold.fuzz.targets.registry import (
    MissingTargetError,
    UnknownTargetError,
    listed,
    resolve,
)
from ringfold.fuzz.targets.sglang_release import DIALECTS_BY_SIGN, Release, UnknownReleaseError
from ringfold.fuzz.targets.sglang_sources import CheckoutError, files_of, provenance
from ringfold.fuzz.targets.wheels import WheelError

FLA = "sglang/kernels/ops/attention/fla/"
FAMILIES = ("sglang", "sglang-snapshots", "sglang-decode", "sglang-packed")


def write_signs(root: Path, dialect: str = "compact") -> None:
    """Files that are known for a dialect, under `root`/sglang."""
    texts: dict[str, str] = {}
    for sign in dict(DIALECTS_BY_SIGN)[dialect]:
        text = f"def {sign.function}(*, {', '.join(sorted(sign.parameters))}):\n    ...\n"
        texts[sign.file] = texts.get(sign.file, "") + text
    (root / FLA).mkdir(parents=True)
    (root / "sglang" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    for file, text in texts.items():
        (root / FLA / file).write_text(text)


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    run = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return run.stdout.strip()


class TestCheckout:
    """`sglang@DIR`."""

    @pytest.mark.parametrize("inside", ["", "python"])
    def test_its_root_or_its_python_folder_is_named(self, tmp_path: Path, inside: str) -> None:
        """Either leads to the same files, known by what they contain."""
        write_signs(tmp_path / "python")

        found = Release(f"sglang@{tmp_path / inside}")

        assert found.dialect == "compact"
        assert found.wheel.path == tmp_path / "python"

    def test_an_unpacked_wheel_is_one(self, tmp_path: Path) -> None:
        """There the package lies in the root."""
        write_signs(tmp_path, "ring")

        assert Release(f"sglang@{tmp_path}").dialect == "ring"

    def test_a_relative_folder_will_do(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """From where the command is typed."""
        write_signs(tmp_path / "branch" / "python")
        monkeypatch.chdir(tmp_path)

        assert Release("sglang@branch").dialect == "compact"

    def test_the_commit_is_part_of_its_identity(self, tmp_path: Path) -> None:
        """And so is that something was changed since, or that a new file is there."""
        write_signs(tmp_path / "python")
        git(tmp_path, "init", "-q")
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-q", "-m", "all")
        head = git(tmp_path, "rev-parse", "HEAD")
        name = f"sglang@{tmp_path}"

        assert provenance(files_of(name)) == {"commit": head}
        (tmp_path / "unrelated.txt").write_text("x")
        assert provenance(files_of(name)) == {"commit": head}
        (tmp_path / "python" / FLA / "new.py").write_text("x")
        assert provenance(files_of(name)) == {"commit": f"{head}+changes"}

    def test_a_folder_in_another_repository_has_no_commit(self, tmp_path: Path) -> None:
        """Whoever unpacks a wheel somewhere under a project of his own."""
        git(tmp_path, "init", "-q")
        (tmp_path / "a").write_text("x")
        git(tmp_path, "add", "a")
        git(tmp_path, "commit", "-q", "-m", "a")
        write_signs(tmp_path / "deep" / "python")

        assert provenance(files_of(f"sglang@{tmp_path / 'deep'}")) == {}

    @pytest.mark.parametrize("family", FAMILIES)
    def test_a_folder_that_is_none_is_the_callers_mistake(
        self, tmp_path: Path, family: str
    ) -> None:
        """It says what was looked for."""
        pytest.importorskip("triton")
        for directory, said in (
            (tmp_path / "nowhere", "there is no such folder"),
            (tmp_path, "holds a package sglang: name the root of a checkout"),
        ):
            with pytest.raises(CheckoutError, match=said):
                files_of(f"sglang@{directory}")
            with pytest.raises(UnknownTargetError, match=said):
                resolve(f"{family}@{directory}")
        with pytest.raises(UnknownTargetError, match="names no folder"):
            resolve(f"{family}@")

    def test_an_alien_checkout_is_refused_with_what_was_found(self, tmp_path: Path) -> None:
        """A package of that name with kernels that fit no dialect."""
        pytest.importorskip("triton")
        (tmp_path / FLA).mkdir(parents=True)
        (tmp_path / FLA / "fused_recurrent.py").write_text("def other(): ...\n")

        with pytest.raises(UnknownReleaseError, match="speaks no dialect") as caught:
            resolve(f"sglang@{tmp_path}")
        assert f"found were {FLA}fused_recurrent.py" in str(caught.value)
        with pytest.raises(UnknownReleaseError, match="has no fused_recurrent_linear_replayssm"):
            resolve(f"sglang-decode@{tmp_path}")

    @pytest.mark.parametrize(("alien", "code"), [(False, 2), (True, 3)])
    def test_exit_codes_are_those_of_other_targets(
        self, tmp_path: Path, alien: bool, code: int
    ) -> None:
        """A folder that is none is a usage error, kernels that fit no dialect are inconclusive."""
        pytest.importorskip("triton")
        if alien:
            (tmp_path / "sglang").mkdir()
        command = [sys.executable, "-m", "ringfold", "fuzz", f"sglang@{tmp_path}"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)

        assert run.returncode == code
        assert run.stderr.splitlines()[-1].startswith("ringfold: ")

    def test_an_unpacked_release_agrees_with_its_wheel(self, tmp_path: Path) -> None:
        """Bit for bit the same outputs, and the same digests."""
        wheel = wheels.find("sglang==0.5.23")
        if wheel is None or wheel.sha256 is None:
            pytest.skip("sglang==0.5.23 is not here: ringfold targets add sglang==0.5.23")
        pytest.importorskip("triton")
        os.environ.setdefault("TRITON_INTERPRET", "1")
        with zipfile.ZipFile(wheel.path) as archive:
            for name in archive.namelist():
                if name.startswith("sglang/kernels/ops/attention/linear/"):
                    archive.extract(name, tmp_path / "python")
        released, unpacked = resolve("sglang-decode==0.5.23"), resolve(f"sglang-decode@{tmp_path}")
        setup = configurations("decode-ring", "cpu", ring=1)[0]
        plan = Plan(setup, "sim", released.operations, 2, 3, directed=False)
        trace = history(plan, 1, 0)
        verdicts = [walk(trace, target) for target in (released, unpacked)]

        assert [v.mismatches for v in verdicts] == [[], []]
        assert verdicts[0].largest == verdicts[1].largest
        mine, theirs = dict(unpacked.identity()), dict(released.identity())
        assert mine.pop("release") == f"sglang@{tmp_path}"
        assert theirs.pop("release") == "sglang==0.5.23"
        assert mine == theirs


class TestInstalled:
    """`sglang`."""

    def test_it_is_found_and_not_imported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its version is part of the identity; it raises when it is imported."""
        pytest.importorskip("triton")
        if "sglang" in sys.modules:
            pytest.skip("something imported SGLang already")
        write_signs(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        real = metadata.version

        def version(name: str) -> str:
            return "9.9.9" if name == "sglang" else real(name)

        monkeypatch.setattr(metadata, "version", version)

        found = Release("sglang")

        assert found.dialect == "compact"
        assert found.identity() == {"release": "sglang", "version": "9.9.9"}
        assert "sglang" not in sys.modules
        about = {row.name: row.about for row in listed()}
        assert about["sglang"].startswith("compact")
        assert "sglang-snapshots" in about
        assert "sglang-decode" not in about  # these files have no such kernel

    def test_without_it_the_list_and_the_error_say_what_to_type(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The extra of that name."""
        pytest.importorskip("triton")
        find = importlib.util.find_spec
        monkeypatch.setattr(
            "importlib.util.find_spec", lambda name: None if name == "sglang" else find(name)
        )

        with pytest.raises(MissingTargetError, match=r"type pip install 'ringfold\[sglang\]'"):
            resolve("sglang")
        rows = {row.name: row for row in listed()}
        assert rows["sglang"].remedy == "pip install 'ringfold[sglang]'"
        assert rows["sglang@DIR"].remedy == ""

    def test_a_module_that_is_no_package_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A stray sglang.py."""
        spec = SimpleNamespace(submodule_search_locations=None)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)

        with pytest.raises(WheelError, match="is not installed"):
            files_of("sglang")


def test_a_release_is_one_of_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing more is known of it than its name and its files."""
    monkeypatch.setenv("RINGFOLD_WHEELS", str(tmp_path))
    write_signs(tmp_path / "sglang-9.9.9")

    assert provenance(files_of("sglang==9.9.9")) == {}
    with pytest.raises(WheelError, match=r"targets add sglang==9\.9\.8`"):
        files_of("sglang==9.9.8")
    with pytest.raises(wheels.ReleaseError):
        files_of("sglang>=9")
