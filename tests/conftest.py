"""One option for all tests: which device the kernels run on, chosen before Triton is imported."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest
from hypothesis import Phase, settings

from ringfold.fuzz.targets.interpreter import fast_interpreter, set_device_mode

# Failures are kept as traces of our own, and a shared machine is no place for deadlines.
settings.register_profile(
    "ringfold", database=None, deadline=None, phases=(Phase.generate, Phase.target, Phase.shrink)
)
settings.load_profile("ringfold")

LONG: Final = (
    "fuzz/targets/test_sglang_pool.py",
    "fuzz/commands/test_mutate.py",
    "kernels/test_layouts.py",
    "quality/test_planted_bugs.py",
    "fuzz/targets/test_sglang_pool_planted.py",
    "fuzz/comparing/test_metamorphic.py",
    "fuzz/test_cli.py",
    "quality/test_exploring.py",
    "fuzz/test_memory_pools.py",
    "fuzz/running/test_explore.py",
    "fuzz/findings/test_shrink.py",
    "fuzz/running/campaign/test_run.py",
    "fuzz/configure/test_compare.py",
    "test_pytest_plugin.py",
    "fuzz/mutation/test_campaign.py",
    "test_readme.py",
)
"""Files that take longest, from 100 to 10 s: were one of them begun last, a core would idle."""

OF_A_TERMINAL: Final = (
    *("COLUMNS", "LINES", "TERMINAL_WIDTH"),
    *("FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE"),
    "TTY_INTERACTIVE",
)
"""What rich and typer take for a wish: widths and colours."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--device``."""
    parser.addoption(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where Triton kernels run: in its interpreter (default), or compiled on a GPU",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Tell Triton before any test module imports it."""
    # Behind `nohup` a process is born deaf to Ctrl-C, and so are its children: some tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    set_device_mode(config.getoption("--device"))


def pytest_sessionstart() -> None:
    """What is printed is compared, and must not have the colours of somebody's terminal."""
    for name in OF_A_TERMINAL:
        os.environ.pop(name, None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, by name and reason, what this device cannot run; of several processes each sorts."""
    if config.getoption("--device") == "cpu":
        skip = pytest.mark.skip(reason="needs a GPU: pytest --device cuda")
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(skip)
    if hasattr(config, "workerinput"):
        here = Path(__file__).parent
        places = {(here / name).resolve(strict=True): place for place, name in enumerate(LONG)}
        items.sort(key=lambda item: places.get(item.path, len(LONG)))


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> str:
    """The device that tests of kernels put their tensors on."""
    return str(pytestconfig.getoption("--device"))


@pytest.fixture(scope="session")
def docs_script() -> Callable[[str], ModuleType]:
    """Executes a script of `docs/`, named by its path there, as a module."""

    def load(name: str) -> ModuleType:
        path = Path(__file__).parents[1] / "docs" / name
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="module", autouse=True)
def fast_kernels() -> Iterator[None]:
    """Interpret kernels faster in every module of tests but the one that compares the two."""
    with fast_interpreter() if "triton" in sys.modules else nullcontext():
        yield
