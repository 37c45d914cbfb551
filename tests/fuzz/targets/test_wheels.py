"""A release is fetched once, and what is read from it is known to the byte.

pip itself runs here, against a folder of tiny wheels made on the spot in place of a package index.
Each way in which a wheel can be absent, altered or wrong must end in an error that says which file
it is and what to type; a wheel that is right must be used without pip, and so without a network.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import shutil
import zipfile
from pathlib import Path

import pytest

from ringfold.fuzz.targets import wheels
from ringfold.fuzz.targets.wheels import ReleaseError, Wheel, WheelError

KERNEL = b"ANSWER = 42\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no stand-in folder."""
    monkeypatch.setenv("RINGFOLD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RINGFOLD_WHEELS", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that pip can see: a folder with the wheel of tinyfold 1.0."""
    folder = tmp_path / "index"
    folder.mkdir()
    make_wheel(folder, KERNEL)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache into which pip has fetched it."""
    folder = tmp_path_factory.mktemp("fetched")
    (folder / "index").mkdir()
    make_wheel(folder / "index", KERNEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(folder / "index"))
        patch.setenv("RINGFOLD_CACHE", str(folder / "cache"))
        patch.delenv("RINGFOLD_WHEELS", raising=False)
        wheels.add("tinyfold==1.0")
    return folder / "cache"


@pytest.fixture
def wheel(cache: Path, fetched: Path) -> Wheel:
    """Version 1.0, fetched into this test's cache."""
    shutil.copytree(fetched, cache)
    found = wheels.find("tinyfold==1.0")
    assert found is not None
    return found


def make_wheel(folder: Path, content: bytes) -> Path:
    """The same bytes at any time of day."""
    path, info = folder / "tinyfold-1.0-py3-none-any.whl", "tinyfold-1.0.dist-info"
    files = {
        "tinyfold/kernel.py": content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tinyfold\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for name, written in files.items():
            wheel.writestr(zipfile.ZipInfo(name), written)
    return path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    "release",
    ["", "tinyfold", "tinyfold=1.0", "tinyfold==", "==1.0", "tinyfold==one", "tinyfold==1.*",
     "tinyfold>=1.0", "-r==1.0", "tiny fold==1.0", "../tinyfold==1.0", "tinyfold[extra]==1.0"],
)  # fmt: skip
def test_a_malformed_release_is_refused(release: str, cache: Path) -> None:
    """What is not name==version is refused before pip or the disk see it."""
    for verb in (wheels.add, wheels.find):
        with pytest.raises(ReleaseError, match=r"name==version, such as sglang==0\.5\.16"):
            verb(release)

    assert not cache.exists()


class TestAdd:
    """Fetching a release into the cache."""

    def test_fetches_once_and_installs_nothing(
        self, cache: Path, index: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second time pip is not asked, so it works where there is no network."""
        first = wheels.add("tinyfold==1.0")
        monkeypatch.setattr(wheels, "_fetch", lambda *_: pytest.fail("pip was asked again"))
        second = wheels.add("TinyFold==1.0")

        assert first == second == wheels.find("tinyfold==1.0")
        assert wheels.installed() == [first]
        assert first.sha256 == sha256((index / first.path.name).read_bytes())
        with pytest.raises(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version("tinyfold")
        assert {p.name for p in (cache / "wheels").rglob("*")} == {
            "tinyfold-1.0", first.path.name, "wheel.json",
        }  # fmt: skip

    def test_of_a_version_that_is_not_there_names_those_that_are(
        self, cache: Path, index: Path
    ) -> None:
        """A wrong version is answered with the newest right ones."""
        with pytest.raises(WheelError, match=r"tinyfold==2\.0: there is no such version .*1\.0$"):
            wheels.add("tinyfold==2.0")

    def test_of_a_name_that_is_not_there(self, cache: Path, index: Path) -> None:
        """An unknown name is not mistaken for a missing network."""
        with pytest.raises(WheelError, match=r"otherfold==1\.0: the package index has no wheel"):
            wheels.add("otherfold==1.0")

    def test_without_a_network_says_so(
        self, cache: Path, index: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where no index answers, the error says that, and what to do instead."""
        monkeypatch.setenv("PIP_NO_INDEX", "0")
        monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")

        with pytest.raises(WheelError, match=r"no package index .*RINGFOLD_WHEELS/otherfold-1\.0/"):
            wheels.add("otherfold==1.0")

    def test_mends_a_corrupt_wheel(self, index: Path, wheel: Wheel) -> None:
        """Adding again is the way out that the error of a corrupt wheel names."""
        whole = wheel.path.read_bytes()
        wheel.path.write_bytes(whole[:-1])

        assert wheels.add("tinyfold==1.0") == wheel
        assert wheel.path.read_bytes() == whole

    def test_refuses_a_release_that_changed(self, index: Path, wheel: Wheel) -> None:
        """A wheel fetched again must be the one that was recorded the first time."""
        wheel.path.unlink()
        make_wheel(index, b"ANSWER = 43\n")

        with pytest.raises(WheelError, match=f"recorded the first time.*{wheel.path.parent}"):
            wheels.add("tinyfold==1.0")


class TestRead:
    """Reading a file out of a cached wheel."""

    def test_records_the_file(self, wheel: Wheel) -> None:
        """The digests of the wheel and of each file read stand beside the wheel."""
        assert wheel.read("tinyfold/kernel.py") == KERNEL

        record = json.loads((wheel.path.parent / "wheel.json").read_text())
        assert record == {
            "wheel": wheel.path.name,
            "sha256": wheel.sha256,
            "files": {"tinyfold/kernel.py": sha256(KERNEL)},
        }

    def test_of_a_file_that_is_not_there(self, wheel: Wheel) -> None:
        """The error names the wheel and the file."""
        with pytest.raises(WheelError, match=r"tinyfold-1\.0.*whl has no file tinyfold/other\.py"):
            wheel.read("tinyfold/other.py")

    def test_refuses_a_corrupt_wheel(self, wheel: Wheel) -> None:
        """A wheel that changed on disk is refused wherever it is used, with the line to type."""
        content = bytearray(wheel.path.read_bytes())
        content[content.index(b"42")] ^= 1
        wheel.path.write_bytes(content)

        expected = "is corrupt: .*type: ringfold targets add tinyfold==1.0"
        with pytest.raises(WheelError, match=expected):
            wheel.read("tinyfold/kernel.py")
        with pytest.raises(WheelError, match=expected):
            wheels.find("tinyfold==1.0")

    def test_refuses_a_file_that_is_not_the_recorded_one(self, wheel: Wheel) -> None:
        """A record that speaks of another file is not passed over."""
        wheel.read("tinyfold/kernel.py")
        record = wheel.path.parent / "wheel.json"
        record.write_text(record.read_text().replace(sha256(KERNEL), sha256(b"other")))

        with pytest.raises(WheelError, match=f"{sha256(KERNEL)}, but {sha256(b'other')}"):
            wheel.read("tinyfold/kernel.py")

    def test_of_a_wheel_that_is_gone(self, wheel: Wheel) -> None:
        """A wheel removed from the cache is an error, not an absence."""
        wheel.path.unlink()

        with pytest.raises(WheelError, match=re.escape(f"cannot read {wheel.path}")):
            wheels.find("tinyfold==1.0")

    def test_a_broken_record_is_as_if_never_fetched(self, index: Path, wheel: Wheel) -> None:
        """Without its digest a wheel cannot be trusted, and is fetched anew."""
        (wheel.path.parent / "wheel.json").write_text('{"wheel": 3}')

        assert wheels.find("tinyfold==1.0") is None
        assert wheels.add("tinyfold==1.0") == wheel


class TestStandInFolder:
    """$RINGFOLD_WHEELS, for machines without a network."""

    @pytest.fixture
    def folder(self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A folder that holds one file of tinyfold 1.0, and something else."""
        file = tmp_path / "carried/tinyfold-1.0/tinyfold/kernel.py"
        file.parent.mkdir(parents=True)
        file.write_bytes(KERNEL)
        (tmp_path / "carried/not-a-release").mkdir()
        monkeypatch.setenv("RINGFOLD_WHEELS", str(tmp_path / "carried"))
        return tmp_path / "carried"

    def test_is_found_without_fetching(self, folder: Path) -> None:
        """The folder is the release; nothing is recorded in it."""
        wheel = wheels.add("tinyfold==1.0")

        assert wheels.installed() == [wheel]
        assert wheel.sha256 is None
        assert wheel.read("tinyfold/kernel.py") == KERNEL
        assert [p.name for p in (folder / "tinyfold-1.0").iterdir()] == ["tinyfold"]

    def test_says_which_file_is_missing(self, folder: Path) -> None:
        """A file that was not carried along is named, with where to put it."""
        wheel = wheels.add("tinyfold==1.0")

        with pytest.raises(WheelError, match=r"cannot read tinyfold/other\.py in .*tinyfold-1\.0"):
            wheel.read("tinyfold/other.py")

    def test_comes_before_the_cache(self, folder: Path, index: Path) -> None:
        """Who sets the folder wants it used."""
        (folder / "tinyfold-1.0").rename(folder / "set-aside")
        cached = wheels.add("tinyfold==1.0")
        (folder / "set-aside").rename(folder / "tinyfold-1.0")

        found = wheels.find("tinyfold==1.0")

        assert cached.sha256 is not None
        assert found is not None
        assert found.sha256 is None


def test_nothing_is_there_at_first(cache: Path) -> None:
    """An empty cache has no releases and is not created by looking."""
    assert wheels.find("tinyfold==1.0") is None
    assert wheels.installed() == []
    assert not cache.exists()
