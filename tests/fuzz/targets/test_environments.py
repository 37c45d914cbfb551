"""The environment of released packages is built once, whole or not at all, or it is the user's.

pip runs here as it does for a user, against a folder with one tiny wheel in place of a package
index and a file of requirements that names it alone; what must import at the end is that package.
So it is pip and the interpreter that say whether an environment is there, and the file system
whether anything is left of one that failed.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from ringfold.fuzz.targets import environments, wheels
from ringfold.fuzz.targets.environments import BuildError
from ringfold.fuzz.targets.sglang_sources import AbsentError
from ringfold.fuzz.targets.wheels import WheelError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, requirements of one tiny package, and an index that has it."""
    index = tmp_path / "index"
    index.mkdir()
    with zipfile.ZipFile(index / "tinyfold-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tinyfold/__init__.py", "ANSWER = 42\n" + "#" * 5000)
        info = "tinyfold-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinyfold\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("tinyfold==1.0\n")
    monkeypatch.setattr(environments, "REQUIREMENTS", requirements)
    monkeypatch.setattr(environments, "PYTHON", "{}.{}".format(*sys.version_info[:2]))
    monkeypatch.setattr(environments, "IMPORTS", "import tinyfold")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("RINGFOLD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RINGFOLD_WHEELS", raising=False)
    monkeypatch.delenv("RINGFOLD_POOL_PYTHON", raising=False)
    return tmp_path / "cache"


def left_in(cache: Path) -> list[str]:
    folder = cache / "environments"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


class TestAdd:
    """Building."""

    def test_builds_once_and_says_how_large_it_is(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second time pip is not asked."""
        assert environments.find() is None

        built = environments.add()

        run = subprocess.run(
            [built.python, "-c", "import tinyfold; print(tinyfold.ANSWER)"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert run.stdout == "42\n"
        assert built.record.largest[0].name == "tinyfold"
        assert built.record.bytes >= built.record.largest[0].bytes > 5000
        assert len(left_in(cache)) == 1
        monkeypatch.setattr(subprocess, "run", None)
        assert environments.add() == built == environments.find()

    def test_what_fails_leaves_nothing(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither an environment nor a part of one, whichever step it is."""
        environments.REQUIREMENTS.write_text("nothing-such==1.0\n")
        with pytest.raises(BuildError, match=r"installing failed: .*nothing-such"):
            environments.add()
        environments.REQUIREMENTS.write_text("tinyfold==1.0\n")
        monkeypatch.setattr(environments, "IMPORTS", "import nothing_such")
        with pytest.raises(BuildError, match=r"must be a build for the CPU.*nothing_such"):
            environments.add()

        assert environments.find() is None
        assert left_in(cache) == []

    def test_an_interrupted_build_is_none(self, cache: Path) -> None:
        """A folder without its record, which is written last, does not count."""
        built = environments.add()
        (built.path / "environment.json").unlink()

        assert environments.find() is None

    def test_other_requirements_are_another_environment(self, cache: Path) -> None:
        """So one that was built for an earlier ringfold is not taken."""
        environments.add()
        environments.REQUIREMENTS.write_text("tinyfold==1.0  # and a word\n")

        assert environments.find() is None

    def test_without_the_right_python_it_says_which(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Wheels are compiled for one version."""
        monkeypatch.setattr(environments, "PYTHON", "3.99")

        with pytest.raises(BuildError, match=r"needs Python 3\.99.*no python3\.99 on the path"):
            environments.add()


class TestUnpacked:
    """A release as a folder for `sys.path`."""

    @pytest.fixture
    def release(self, cache: Path, tmp_path: Path) -> str:
        """A wheel in the cache."""
        folder = cache / "wheels" / "tinyfold-1.0"
        folder.mkdir(parents=True)
        content = (tmp_path / "index" / "tinyfold-1.0-py3-none-any.whl").read_bytes()
        (folder / "tinyfold.whl").write_bytes(content)
        record = {
            "wheel": "tinyfold.whl",
            "sha256": hashlib.sha256(content).hexdigest(),
            "files": {},
        }
        (folder / "wheel.json").write_bytes(msgspec.json.encode(record))
        return "tinyfold==1.0"

    def test_a_wheel_is_unpacked_once(self, release: str, cache: Path) -> None:
        """Under a name that has its digest, with nothing beside it."""
        folder = environments.unpacked(release)
        marked = folder / "tinyfold" / "__init__.py"
        marked.write_text("ANSWER = 43\n")

        assert environments.unpacked(release) == folder
        assert marked.read_text() == "ANSWER = 43\n"
        assert [p.name for p in folder.parent.iterdir()] == [folder.name]
        assert folder.name.startswith("tinyfold-1.0-")

    def test_a_wheel_that_changed_is_refused(self, release: str, cache: Path) -> None:
        """What runs must be what was fetched."""
        (cache / "wheels" / "tinyfold-1.0" / "tinyfold.whl").write_bytes(b"other")

        with pytest.raises(WheelError, match="is corrupt"):
            environments.unpacked(release)

    def test_a_wheel_that_is_not_here_says_what_to_type(self, cache: Path) -> None:
        """With the line to paste."""
        with pytest.raises(WheelError, match=r"type `ringfold targets add sglang==0\.5\.16`"):
            environments.unpacked("sglang==0.5.16")

    def test_a_process_gets_these_variables_and_no_others(
        self, release: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What this process was started with must not change what a release does."""
        monkeypatch.setenv("SGLANG_DEBUG_MEMORY_POOL", "1")
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

        variables = environments.variables(release, tmp_path)

        assert variables["PYTHONPATH"] == f"{environments.unpacked(release)}:{tmp_path}"
        assert variables["TRITON_INTERPRET"] == "1"
        assert not {"SGLANG_DEBUG_MEMORY_POOL", "PYTHONDONTWRITEBYTECODE"} & variables.keys()

    def test_on_a_gpu_kernels_are_compiled(
        self, release: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """For the card that the user chose."""
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")

        variables = environments.variables(release, device="cuda")

        assert "TRITON_INTERPRET" not in variables
        assert variables["CUDA_VISIBLE_DEVICES"] == "1"
        assert variables["RINGFOLD_POOL_DEVICE"] == "cuda"
        assert "CUDA_VISIBLE_DEVICES" not in environments.variables(release)


class TestAPythonOfTheUsers:
    """In place of an environment that is built here."""

    def test_it_comes_before_what_was_built(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And is the only one where there is a GPU, for torch was built for the CPU here."""
        assert environments.interpreter() is None
        built = environments.add()
        assert environments.interpreter() == built.python
        assert environments.interpreter("cuda") is None

        monkeypatch.setenv("RINGFOLD_POOL_PYTHON", sys.executable)
        for device in ("cpu", "cuda"):
            assert environments.interpreter(device) == Path(sys.executable)

        monkeypatch.setenv("RINGFOLD_POOL_PYTHON", "/opt/nobody/bin/python")
        assert environments.interpreter() is None
        assert "names /opt/nobody/bin/python, and there" in environments.lacking("sglang==0.5.16")

    def test_its_own_release_is_found_and_not_imported(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where it lies is its name; what is on this process's path is nobody's."""
        elsewhere = tmp_path / "elsewhere"
        (elsewhere / "sglang").mkdir(parents=True)
        (elsewhere / "sglang" / "__init__.py").write_text("")
        monkeypatch.setenv("PYTHONPATH", str(elsewhere))
        python = tmp_path / "own" / "bin" / "python"
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", tmp_path / "own"], check=True
        )
        with pytest.raises(AbsentError, match=r"own/bin/python has no SGLang of its own.*install"):
            environments.installed(python)

        (packages,) = (tmp_path / "own").glob("lib/python*/site-packages")
        (packages / "sglang").mkdir()
        (packages / "sglang" / "__init__.py").write_text("raise RuntimeError('imported')")

        assert environments.installed(python) == f"sglang@{packages}"
        assert environments.unpacked(f"sglang@{packages}") == packages

    def test_one_that_is_none_says_so(self, cache: Path, tmp_path: Path) -> None:
        """Such as a path with a slip in it."""
        with pytest.raises(AbsentError, match=r"no SGLang of its own.*FileNotFoundError"):
            environments.installed(tmp_path / "python")


def test_every_requirement_is_pinned() -> None:
    """A name without a version would be another package tomorrow."""
    lines = [
        line
        for line in environments.REQUIREMENTS.read_text().splitlines()
        if line and not line.startswith("#")
    ]

    assert len(lines) > 50
    assert all(line.count("==") == 1 and "+" not in line for line in lines)
    assert wheels.TAGS[0] == f"--python-version={environments.PYTHON}"
