"""Imports point one way: oracle <- sim <- fuzz -> kernels.

The imports of every module are read from its syntax tree, wherever they stand, and held against a
table of what each room may import. The reader of imports is itself tested on offending snippets:
a checker that cannot fail proves nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("oracle", "sim", "kernels", "fuzz")
MAY_IMPORT = {
    "oracle": {"oracle"},
    "sim": {"oracle", "sim"},
    "kernels": {"kernels"},
    "fuzz": {"oracle", "sim", "kernels", "fuzz"},
    "__init__": set[str](),
    "__main__": {"fuzz"},
    "pytest_plugin": {"fuzz"},
}
WITHOUT_A_GPU_STACK = {"oracle", "sim"}


def imported(module: str, source: str) -> Iterator[str]:
    """Full names of all that `source`, the text of `module`, imports at any depth."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                package = module.split(".")[: -node.level] if node.level else []
                base = ".".join([*package, *filter(None, [node.module])])
                yield from (f"{base}.{alias.name}" for alias in node.names)
            case ast.Call(
                func=ast.Attribute(attr="import_module")
                | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name


def offences(module: str, source: str) -> list[str]:
    """What `source` imports although `module`, such as ringfold.sim.machine, must not."""
    room = module.split(".")[1]
    found = []
    for name in imported(module, source):
        first, *rest = name.split(".")
        if first in ROOMS:
            found.append(f"{module} imports {name} by its bare name")
        elif first == "ringfold" and rest and rest[0] in ROOMS and rest[0] not in MAY_IMPORT[room]:
            found.append(f"{module} imports {name}, but {room} may not import {rest[0]}")
        elif first in {"torch", "triton"} and room in WITHOUT_A_GPU_STACK:
            found.append(f"{module} imports {name}, but {room} runs on NumPy alone")
    return found


def modules() -> list[tuple[str, Path]]:
    """Every module of ours, with its file."""
    files = [(ROOT / "src/ringfold", path) for path in (ROOT / "src/ringfold").glob("*.py")]
    for room in ROOMS:
        files += [(ROOT, path) for path in sorted((ROOT / room).rglob("*.py"))]
    return [
        (".".join(["ringfold", *path.relative_to(base).with_suffix("").parts]), path)
        for base, path in files
    ]


@pytest.mark.parametrize(("module", "path"), modules(), ids=str)
def test_a_module_imports_only_what_its_room_may(module: str, path: Path) -> None:
    """No module reaches against the arrows, by a bare name, or for torch from a NumPy room."""
    assert offences(module, path.read_text(encoding="utf-8")) == []


def test_every_room_is_looked_at() -> None:
    """The list of modules covers the four rooms and the package itself."""
    assert {module.split(".")[1] for module, _ in modules()} >= {
        "oracle",
        "sim",
        "fuzz",
        "__main__",
        "pytest_plugin",
    }


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ringfold.oracle.gdn", "from ringfold.sim import cursors"),
        ("ringfold.oracle.gdn", "from ringfold import sim"),
        ("ringfold.oracle.gdn", "from ..sim.cursors import Cursors"),
        ("ringfold.oracle.gdn", "def late():\n    import torch"),
        ("ringfold.sim.machine", "import ringfold.fuzz.judging.walk as walk"),
        ("ringfold.sim.machine", "from ringfold.kernels import fold"),
        ("ringfold.sim.machine", "if TYPE_CHECKING:\n    import triton.language as tl"),
        ("ringfold.sim.machine", "import importlib\nimportlib.import_module('ringfold.fuzz')"),
        ("ringfold.kernels.fold", "import ringfold.oracle"),
        ("ringfold.kernels.fold", "from ringfold.fuzz.target import Target"),
        ("ringfold.fuzz.judging.walk", "import sim"),
        ("ringfold.fuzz.judging.walk", "from kernels.fold import fold"),
        ("ringfold.__init__", "from ringfold.oracle import gdn"),
        ("ringfold.__main__", "from ringfold.sim import cursors"),
        ("ringfold.pytest_plugin", "def late():\n    from ringfold.sim import cursors"),
    ],
)
def test_the_checker_sees_an_offence(module: str, source: str) -> None:
    """Each way to break the rule is found."""
    assert len(offences(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ringfold.oracle.gdn", "import numpy\nfrom ringfold.oracle import units"),
        ("ringfold.sim.machine", "from ringfold.oracle.gdn import step\nfrom . import cursors"),
        ("ringfold.kernels.fold", "import torch\nimport triton"),
        ("ringfold.fuzz.target", "from ringfold.kernels import fold\nimport torch, simplejson"),
        ("ringfold.__main__", "from ringfold.fuzz.cli import main"),
    ],
)
def test_the_checker_lets_the_arrows_pass(module: str, source: str) -> None:
    """What the rooms are there for is no offence."""
    assert offences(module, source) == []
