"""One option for all tests: which device the kernels run on, chosen before Triton is imported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import Phase, settings

from ringfold.fuzz.targets.interpreter import fast_interpreter, set_device_mode

# Failures are kept as traces of our own, and a shared machine is no place for deadlines.
settings.register_profile(
    "ringfold", database=None, deadline=None, phases=(Phase.generate, Phase.target, Phase.shrink)
)
settings.load_profile("ringfold")


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
    set_device_mode(config.getoption("--device"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, by name and reason, what this device cannot run."""
    if config.getoption("--device") == "cpu":
        skip = pytest.mark.skip(reason="needs a GPU: pytest --device cuda")
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(skip)


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
