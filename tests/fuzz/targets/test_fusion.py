"""`+no-fusion` reaches every kernel of a release, and the compiled code shows it.

A small kernel multiplies and adds, in a file that stands in for a released one. It is launched
through Triton's own path up to the GPU, once as released and once without fusion, and the FMAs in
the PTX are counted; a released wheel, where one is here, must have no kernel that was left out.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ringfold.fuzz.targets import wheels
from ringfold.fuzz.targets.fusion import without_fusion
from ringfold.fuzz.targets.registry import MissingTargetError, resolve

pytest.importorskip("torch")
pytest.importorskip("triton")

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def step(x, y):
    return x * y + x

@triton.jit
def plain(X, Y, OUT, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(OUT + at, step(tl.load(X + at), tl.load(Y + at)))

@triton.heuristics({"N": lambda arguments: 32})
@triton.jit
def wrapped(X, Y, OUT, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(OUT + at, step(tl.load(X + at), tl.load(Y + at)))
"""
NEWEST = "sglang==0.5.23"
FOLDER = "sglang-9.9.9/sglang/kernels/ops/attention/fla"


def test_no_multiply_and_add_becomes_one_instruction(tmp_path: Path) -> None:
    """Even where the caller asks for it, and behind heuristics; as released, they do."""
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / FOLDER / "gdn_replayssm_spec_decode.py").write_text(KERNEL)
    script = str(Path(__file__).with_name("contracted.py"))
    environment = {**os.environ, "RINGFOLD_WHEELS": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)

    done = subprocess.run(
        [sys.executable, script, "sglang==9.9.9"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout)
    assert counted["fused"] > 0
    assert counted["unfused"] == counted["forced"] == 0
    assert counted["kernels"] == ["plain", "step", "wrapped"]


def test_no_launch_of_a_release_is_left_out() -> None:
    """Whatever the files of the newest release launch is among the kernels that were changed."""
    if wheels.find(NEWEST) is None:
        pytest.skip(f"{NEWEST} is not here: ringfold targets add {NEWEST}")
    from ringfold.fuzz.targets.sglang_release import Release

    release, launched = Release(NEWEST), set[str]()
    for file, (path, _) in release.sources.items():
        found = set(re.findall(r"(\w+)\[(?:grid|\()", release.wheel.read(path).decode("utf-8")))
        launched |= found & set(without_fusion(release.module(file)))
        assert not {name for name in found - launched if name.endswith("_kernel")}
    assert len(launched) > len(release.sources)


def test_it_is_no_target_of_the_cpu() -> None:
    """The interpreter contracts nothing, so the name would promise what is not tested."""
    with pytest.raises(
        MissingTargetError, match=r"needs --device cuda.*CPU it is sglang==0\.5\.16$"
    ):
        resolve("sglang==0.5.16+no-fusion")


def test_what_is_imported_is_left_alone() -> None:
    """Kernels of other modules that a file imports are nobody's to change."""
    from triton.language import standard

    module = ModuleType("a_file_of_ours")
    module.__dict__["zeros"] = standard.zeros

    assert without_fusion(module) == []
