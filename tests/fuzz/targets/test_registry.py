"""From a name to a target, or to a sentence that says what to type.

Each kind of name is resolved and asked who it is. What can't be resolved must be told apart: a name
that means nothing is the caller's mistake, a wheel or a package that is not here is not.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from ringfold.fuzz.planted import PLANTED
from ringfold.fuzz.targets import registry, wheels
from ringfold.fuzz.targets.registry import MissingTargetError, UnknownTargetError, resolve
from ringfold.sim.protocols import MACHINES


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No wheel is here."""
    monkeypatch.setenv("RINGFOLD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RINGFOLD_WHEELS", raising=False)
    return tmp_path


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a module of the user's; it is forgotten afterwards."""
    written: list[str] = []

    def write(code: str) -> str:
        name = f"users_{len(written)}_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(code)
        written.append(name)
        return name

    monkeypatch.syspath_prepend(tmp_path)
    yield write
    for name in written:
        sys.modules.pop(name, None)


def test_the_simulator_and_its_bugs() -> None:
    """Each planted bug is a target, and so is every protocol."""
    assert resolve("sim").dialect.name == "ring"
    for name, bug in PLANTED.items():
        target = resolve(f"sim:{name}")
        assert target.name == f"sim:{name}"
        assert target.identity()["machine"] == bug.machine.__qualname__
    assert [resolve(f"sim@{dialect}").dialect.name for dialect in MACHINES] == list(MACHINES)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nobody", "type `ringfold targets`"),
        ("", "type `ringfold targets`"),
        ("simulator", "is unknown"),
        ("sim:", "no bug named ''"),
        ("sim:typo", "there are wrap-mask-off-by-one"),
        ("sim@typo", "no dialect is named 'typo'; there are snapshots"),
        ("nobody.here:Kernel", "No module named 'nobody'"),
        ("ringfold.fuzz:Kernel", "has no attribute 'Kernel'"),
        (":", "must be package.module:Class"),
    ],
)
def test_a_name_that_means_nothing(name: str, said: str) -> None:
    """Is unknown, and the message says what there is."""
    with pytest.raises(UnknownTargetError, match=said.replace("(", r"\(")):
        resolve(name)


def test_what_a_user_may_get_wrong(mine: Any) -> None:
    """A module that does not import, a class that can't be built or is no target."""
    broken = mine("1 / 0")
    picky = mine("class Kernel:\n    def __init__(self, device, more): pass")
    bare = mine("class Kernel:\n    name = 'bare'\n    def __init__(self, device): pass")

    with pytest.raises(UnknownTargetError, match=r"can't be imported .*ZeroDivisionError"):
        resolve(f"{broken}:Kernel")
    with pytest.raises(UnknownTargetError, match="called with the device, here 'cpu'"):
        resolve(f"{picky}:Kernel")
    with pytest.raises(UnknownTargetError, match="lacks admit, commit, decode, device, dialect"):
        resolve(f"{bare}:Kernel")


def test_a_users_class_is_called_with_the_device(mine: Any) -> None:
    """And may say itself that something is missing."""
    right = mine(
        "from ringfold.fuzz.targets.simulated import SimulatedTarget\n"
        "class Kernel(SimulatedTarget):\n"
        "    def __init__(self, device):\n"
        "        super().__init__(f'mine on {device}')\n"
    )
    lacking = mine(
        "from ringfold.fuzz.targets.registry import MissingTargetError\n"
        "def Kernel(device):\n"
        "    raise MissingTargetError('type: make kernels')\n"
    )

    assert resolve(f"{right}:Kernel", "cuda").name == "mine on cuda"
    with pytest.raises(MissingTargetError, match="type: make kernels"):
        resolve(f"{lacking}:Kernel")


@pytest.mark.parametrize("name", ["sglang==0.5.16", "sglang==0.5.16+split", "sglang==9.9.9"])
@pytest.mark.usefixtures("nothing")
def test_a_wheel_that_is_not_here(name: str) -> None:
    """Is missing, and one command away."""
    pytest.importorskip("triton")
    release = name.removesuffix("+split")

    with pytest.raises(MissingTargetError, match=f"type `ringfold targets add {release}`"):
        resolve(name)


@pytest.mark.parametrize("name", ["triton", "sglang==0.5.16"])
@pytest.mark.usefixtures("nothing")
def test_packages_that_are_not_here(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels need torch and triton; the simulator does not."""
    find = importlib.util.find_spec

    def without(package: str, *more: Any) -> Any:
        return None if package in ("torch", "triton") else find(package, *more)

    monkeypatch.setattr(importlib.util, "find_spec", without)

    with pytest.raises(MissingTargetError, match=r"pip install 'ringfold\[kernels\]'"):
        resolve(name)
    assert resolve("sim").name == "sim"
    listed = {row.name: row.remedy for row in registry.listed()}
    assert listed["triton"] == "pip install 'ringfold[kernels]'"
    assert listed["sim"] == ""


def test_the_list_says_what_to_type(nothing: Path) -> None:
    """For every release that is known and not here; what is broken does not hide the rest."""
    broken = nothing / "cache" / "wheels" / "sglang-0.5.16"
    broken.mkdir(parents=True)
    (broken / "x.whl").write_bytes(b"no wheel")
    (broken / "wheel.json").write_text('{"wheel": "x.whl", "sha256": "00", "files": {}}')

    listed = {row.name: row for row in registry.listed()}

    assert all(listed[r].remedy for r in registry.KNOWN_RELEASES)
    assert listed["sglang==0.5.16"].remedy == "ringfold targets add sglang==0.5.16"
    assert "corrupt" in listed["sglang==0.5.16"].about
    assert listed["sglang==0.5.17"].about == "SGLang's kernels"
    assert listed["sim"].remedy == ""
    with pytest.raises(wheels.WheelError, match="corrupt"):
        wheels.find("sglang==0.5.16")


def test_a_release_without_kernels_is_listed_in_a_line(
    nothing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is here, and to fetch it once more is no remedy."""
    (nothing / "sglang-0.5.9").mkdir()
    monkeypatch.setenv("RINGFOLD_WHEELS", str(nothing))

    listed = {row.name: row for row in registry.listed()}

    assert listed["sglang==0.5.9"].remedy == ""
    assert listed["sglang==0.5.9"].about == (
        "speaks no dialect that is known: `ringfold fuzz sglang==0.5.9` says what it lacks"
    )
