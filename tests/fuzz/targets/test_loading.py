"""A module loaded out of a wheel is that file, executed alone.

Small made-up files are loaded from a folder that stands in for a wheel, and must leave no trace in
`sys.modules` but their own private name. Where SGLang's wheel is cached, its ring kernels are
loaded in a process of their own, and nothing else of the package may come with them.
"""

from __future__ import annotations

import hashlib
import inspect
import linecache
import subprocess
import sys
import traceback
from pathlib import Path
from types import ModuleType

import pytest

from ringfold.fuzz.targets import wheels
from ringfold.fuzz.targets.loading import load_module, rewriting
from ringfold.fuzz.targets.wheels import Wheel, WheelError

SOURCE = '''"""A file."""


def answer():
    """Say it."""
    return 41 + 1
'''


@pytest.fixture
def wheel(tmp_path: Path) -> Wheel:
    """A release of which `write` makes the files."""
    return Wheel("tinyfold==1.0", tmp_path, None)


def write(wheel: Wheel, path: str, source: str | bytes) -> None:
    file = wheel.path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(source.encode() if isinstance(source, str) else source)


def test_the_module_is_the_file_and_knows_its_digest(wheel: Wheel) -> None:
    """It works, names release and path as its file, and carries the digest of its bytes."""
    write(wheel, "tinyfold/kernel.py", SOURCE)

    module = load_module(wheel, "tinyfold/kernel.py", "kernel")

    assert module.answer() == 42
    assert module.__file__ == "tinyfold==1.0/tinyfold/kernel.py"
    assert module.__ringfold_sha256__ == hashlib.sha256(SOURCE.encode()).hexdigest()


def test_its_source_stays_readable(wheel: Wheel) -> None:
    """`inspect`, and with it Triton, finds the source, also after linecache was told to look."""
    write(wheel, "tinyfold/kernel.py", SOURCE)
    module = load_module(wheel, "tinyfold/kernel.py", "kernel")

    linecache.checkcache()

    assert inspect.getsource(module.answer) == SOURCE[SOURCE.index("def") :]
    assert inspect.getmodule(module.answer) is module


def test_a_rewrite_changes_what_runs_and_not_what_it_is(wheel: Wheel) -> None:
    """A mutant runs and shows the rewritten text, under the digest of the released file."""
    write(wheel, "tinyfold/kernel.py", SOURCE)

    with rewriting(lambda name, s: s.replace("+ 1", "- 1") if "tinyfold" in name else s):
        mutant = load_module(wheel, "tinyfold/kernel.py", "kernel")

    assert mutant.answer() == 40
    assert "41 - 1" in inspect.getsource(mutant.answer)
    assert mutant.__ringfold_sha256__ == hashlib.sha256(SOURCE.encode()).hexdigest()


def test_a_traceback_shows_release_and_line(wheel: Wheel) -> None:
    """An error inside a loaded file reads like one in a file on disk."""
    write(wheel, "tinyfold/kernel.py", "def fail():\n    return [][7]  # here\n")
    module = load_module(wheel, "tinyfold/kernel.py", "kernel")

    with pytest.raises(IndexError) as caught:
        module.fail()

    shown = "".join(traceback.format_exception(caught.value))
    assert 'File "tinyfold==1.0/tinyfold/kernel.py", line 2, in fail' in shown
    assert "return [][7]  # here" in shown


def test_stand_ins_are_there_only_while_it_executes(wheel: Wheel) -> None:
    """They hide what has their name, and what they hid comes back."""
    stand_in = ModuleType("tinyfold.helper")
    stand_in.__dict__["VALUE"] = "from the stand-in"
    fake_json = ModuleType("json")
    write(
        wheel,
        "tinyfold/kernel.py",
        "from tinyfold.helper import VALUE\nimport json, sys\nSEEN = sorted(sys.modules)\n",
    )
    before = dict(sys.modules)

    module = load_module(
        wheel,
        "tinyfold/kernel.py",
        "kernel",
        stand_ins={
            "tinyfold": ModuleType("tinyfold"),
            "tinyfold.helper": stand_in,
            "json": fake_json,
        },
    )

    assert module.VALUE == "from the stand-in"
    assert module.json is fake_json
    assert "tinyfold.helper" in module.SEEN
    left = {name: m for name, m in sys.modules.items() if before.get(name) is not m}
    assert left == {"_ringfold_loaded.kernel": module}


@pytest.mark.parametrize("source", ["raise KeyError('no')", "import tinyfold.nothing_there"])
def test_a_file_that_fails_leaves_nothing(wheel: Wheel, source: str) -> None:
    """An exception passes through, and `sys.modules` is as before."""
    write(wheel, "tinyfold/kernel.py", source)
    before = dict(sys.modules)

    with pytest.raises((KeyError, ImportError)):
        load_module(
            wheel, "tinyfold/kernel.py", "broken", stand_ins={"tinyfold": ModuleType("tinyfold")}
        )

    assert sys.modules == before


@pytest.mark.parametrize("source", [b"def f(:\n", b"\xff\xfe", b"\x00"])
def test_a_file_that_is_no_python_is_named(wheel: Wheel, source: bytes) -> None:
    """What cannot be compiled is an error of the wheel."""
    write(wheel, "tinyfold/kernel.py", source)

    with pytest.raises(WheelError, match=r"tinyfold==1\.0/tinyfold/kernel\.py is not Python"):
        load_module(wheel, "tinyfold/kernel.py", "kernel")


def test_sglang_comes_alone() -> None:
    """The released ring kernels need torch, Triton and nothing of the package around them."""
    release = "sglang==0.5.16"
    if wheels.find(release) is None:
        pytest.skip(f"{release} is not cached; type: ringfold targets add {release}")
    script = f"""
import sys
from ringfold.fuzz.targets import wheels
from ringfold.fuzz.targets.loading import load_module
path = "sglang/kernels/ops/attention/fla/gdn_replayssm_spec_decode.py"
module = load_module(wheels.find("{release}"), path, "ring")
print(callable(module.gdn_replayssm_spec_decode), [m for m in sys.modules if "sglang" in m])
"""

    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )

    assert result.stdout == "True []\n", result.stderr
