"""The real code lies in top-level folders and is imported as ringfold.<folder>.

Two things could go wrong unseen. A checkout on `sys.path` could hide the distribution `kernels`
(Hugging Face's, which SGLang needs): a stand-in for it is installed and must win, and a folder that
does hide it shows that the test can fail. And the links under src/ could end up as links, or as
nothing, in a built wheel: one is built, and its files are compared with the real ones.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("oracle", "sim", "kernels", "fuzz")
NOT_SOURCE = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", "failures", "runs"
)


def run(*command: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python with `command` in `cwd`, `path` in front of everything installed."""
    environment = {**os.environ, "PYTHONPATH": str(path or "")}
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.mark.parametrize("room", ROOMS)
def test_a_top_level_folder_is_imported_under_ringfold(room: str) -> None:
    """Python finds `ringfold.<folder>` in the folder of that name at the top."""
    found = run(
        "-c", f"import ringfold.{room} as room; print(*room.__path__)", cwd=ROOT.parent
    )  # fmt: skip

    assert found.returncode == 0, found.stderr
    assert Path(found.stdout.strip()).resolve() == ROOT / room


def test_kernels_is_no_package_of_its_own() -> None:
    """With an __init__.py the folder would be `kernels` for whoever starts Python here."""
    assert not (ROOT / "kernels/__init__.py").exists()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which a stand-in distribution `kernels` is installed."""
    wheels = tmp_path_factory.mktemp("wheels")
    with zipfile.ZipFile(wheels / "kernels-9.9-py3-none-any.whl", "w") as wheel:
        wheel.writestr("kernels/__init__.py", "WHO = 'the stand-in'\n")
        info = "kernels-9.9.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: kernels\nVersion: 9.9\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    site = tmp_path_factory.mktemp("site")
    installed = run(
        *("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site)),
        *map(str, wheels.iterdir()),
        cwd=ROOT,
    )
    assert installed.returncode == 0, installed.stderr
    return site


@pytest.fixture
def tiny_test(tmp_path: Path) -> Path:
    """A test that wants the distribution, and ours beside it."""
    file = tmp_path / "test_tiny.py"
    file.write_text(
        "import importlib.metadata, kernels, ringfold.kernels\n"
        "def test_who():\n"
        "    assert kernels.WHO == 'the stand-in'\n"
        "    assert importlib.metadata.version('kernels') == '9.9'\n"
        "    assert ringfold.kernels is not kernels\n"
    )
    return file


class TestHuggingFaceKernels:
    """A distribution named `kernels` is importable where pytest runs in the checkout."""

    def test_stays_importable_under_pytest_in_the_checkout(
        self, site: Path, tiny_test: Path
    ) -> None:
        """`python -m pytest` puts the checkout on sys.path, and the distribution still wins."""
        result = run(
            *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "pyproject.toml"),
            str(tiny_test),
            cwd=ROOT,
            path=site,
        )

        assert result.returncode == 0, result.stdout
        assert "1 passed" in result.stdout

    def test_would_be_hidden_by_a_package_there(
        self, site: Path, tiny_test: Path, tmp_path: Path
    ) -> None:
        """The test above fails where the folder `kernels` is a package."""
        checkout = tmp_path / "checkout"
        (checkout / "kernels").mkdir(parents=True)
        (checkout / "kernels/__init__.py").write_text("WHO = 'the checkout'\n")
        shutil.copy(ROOT / "pyproject.toml", checkout)

        result = run(
            *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "pyproject.toml"),
            str(tiny_test),
            cwd=checkout,
            path=site,
        )

        assert result.returncode == 1, result.stdout
        assert "the checkout" in result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without fetching a build backend."""
    pytest.importorskip("setuptools", reason="building a wheel needs setuptools (extra: dev)")
    copy = tmp_path_factory.mktemp("copy") / "ringfold"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=NOT_SOURCE)
    out = tmp_path_factory.mktemp("out")
    built = run(
        *("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"),
        *("--wheel-dir", str(out), "."),
        cwd=copy,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = out.iterdir()
    return wheel


class TestBuiltWheel:
    """A wheel built from a copy of the checkout."""

    def test_holds_every_module_as_a_real_file(self, wheel: Path) -> None:
        """Each module of the four folders is there, byte for byte, and nothing beside ringfold."""
        expected = {
            f"ringfold/{path.relative_to(ROOT)}": path.read_bytes()
            for room in ROOMS
            for path in (ROOT / room).rglob("*.py")
        }
        with zipfile.ZipFile(wheel) as archive:
            files = {i.filename: archive.read(i) for i in archive.infolist() if not i.is_dir()}

        assert expected.items() <= files.items()
        assert "ringfold/py.typed" in files
        assert {name.split("/")[0] for name in files} == {
            "ringfold",
            wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info",
        }

    def test_is_imported_from_where_it_is_installed(self, wheel: Path, tmp_path: Path) -> None:
        """Unpacked elsewhere, every room is imported from there and not from the checkout."""
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tmp_path)
        imports = ", ".join(f"ringfold.{room} as {room}" for room in ROOMS)

        found = run(
            *("-c", f"import {imports}; print(*oracle.__path__, *sim.__path__, *fuzz.__path__)"),
            cwd=tmp_path.parent,
            path=tmp_path,
        )

        assert found.returncode == 0, found.stderr
        assert found.stdout.split() == [
            str(tmp_path / "ringfold" / r) for r in ("oracle", "sim", "fuzz")
        ]
