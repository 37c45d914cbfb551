"""For tests of your own kernels: the fixture `ringfold` hunts for a history that a target fails.

    def test_my_kernel(ringfold):
        ringfold("my_kernels:MyRing")

pytest loads every plugin that is installed, in everybody's runs. So nothing is imported here until
a test asks for it, but pytest and the standard library.
"""

from __future__ import annotations

import io
import secrets
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from ringfold import __version__

if TYPE_CHECKING:
    from ringfold.fuzz.histories.trace import Trace
    from ringfold.fuzz.judging.mismatch import Mismatch
    from ringfold.fuzz.running.hunt import Hunt
    from ringfold.fuzz.target import Device, Target

Ringfold: TypeAlias = "Callable[[str | type[Target]], None]"
"""What the fixture is: call it with a target's name, or with its class."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, all of them under one prefix."""
    group = parser.getgroup("ringfold", "ringfold: tests of ReplaySSM implementations")
    group.addoption(
        "--ringfold-target",
        action="append",
        default=[],
        metavar="TARGET",
        help="what the fixture ringfold_target stands for; may be given again and again",
    )
    group.addoption(
        "--ringfold-device",
        choices=("cpu", "cuda"),
        help="where kernels run: in Triton's interpreter (default), or compiled on a GPU",
    )
    group.addoption(
        "--ringfold-seed",
        type=int,
        metavar="N",
        help="decides every history and every number (default: drawn, and shown in the header)",
    )
    group.addoption(
        "--ringfold-max-time",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="for each target (default: 30); once it fails, shrinking may take as long again",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed; and tell Triton the device before any test module imports it."""
    option = config.option
    if hasattr(config, "workerinput"):
        option.ringfold_seed = config.workerinput["ringfold_seed"]
    if option.ringfold_seed is None:
        option.ringfold_seed = secrets.randbelow(2**32)
    if not 0 <= option.ringfold_seed < 2**32:
        raise pytest.UsageError(
            f"--ringfold-seed {option.ringfold_seed} is out of range: give one from 0 to 2^32 - 1"
        )
    if not option.ringfold_max_time > 0:
        raise pytest.UsageError(
            f"--ringfold-max-time {option.ringfold_max_time} is no time: give more than 0 seconds"
        )
    if option.ringfold_device is not None:
        from ringfold.fuzz.targets.interpreter import ModeError, set_device_mode

        try:
            set_device_mode(option.ringfold_device)
        except ModeError as error:
            raise pytest.UsageError(f"--ringfold-device: {error}") from error


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell each worker of pytest-xdist the seed that the header shows."""
    node.workerinput["ringfold_seed"] = node.config.option.ringfold_seed


def pytest_report_header(config: pytest.Config) -> str:
    """What a run depends on."""
    versions = [f"ringfold {__version__}"]
    for package in ("numpy", "torch", "triton"):
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            versions.append(f"no {package}")
    return f"{', '.join(versions)}; device {_device(config)}; {_seed_option(config)}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each `--ringfold-target`."""
    if "ringfold_target" in metafunc.fixturenames:
        none = pytest.param(None, marks=pytest.mark.skip("name one: --ringfold-target TARGET"))
        targets = metafunc.config.getoption("--ringfold-target") or [none]
        metafunc.parametrize("ringfold_target", targets, indirect=True)


@pytest.fixture
def ringfold_target(request: pytest.FixtureRequest) -> str:
    """A target named on the command line: `ringfold(ringfold_target)` tests it."""
    return str(request.param)


@pytest.fixture(scope="session")
def ringfold_seed(
    pytestconfig: pytest.Config, record_testsuite_property: Callable[[str, object], None]
) -> int:
    """The seed of this run, kept in a JUnit report too."""
    seed = int(pytestconfig.option.ringfold_seed)
    record_testsuite_property("ringfold_seed", seed)
    return seed


@pytest.fixture
def ringfold(pytestconfig: pytest.Config, ringfold_seed: int) -> Ringfold:
    """Call it with a target, by name or by class: the test fails if any history does.

    Histories are walked in this process. The first that fails is shrunk, written under failures/
    where pytest was started, and shown with the line that replays it.
    """

    def test(target: str | type[Target]) -> None:
        from ringfold.fuzz.running.hunt import hunt

        device, seconds = _device(pytestconfig), pytestconfig.option.ringfold_max_time
        built, name = _build(target, device)
        found = hunt(built, ringfold_seed, seconds_max=seconds, device=device)
        if found.failure is not None:
            pytest.fail(_account(found, built, name, pytestconfig), pytrace=False)
        if not found.windows:
            pytest.fail(
                f"{name}: nothing was tested in {seconds:g} s: raise --ringfold-max-time",
                pytrace=False,
            )

    return test


def _build(target: str | type[Target], device: Device) -> tuple[Target, str]:
    """The target, not yet opened, and the name that the command line has for it."""
    from ringfold.fuzz.targets import registry, wheels

    name = target if isinstance(target, str) else f"{target.__module__}:{target.__qualname__}"
    try:
        registry.require(device)
        if isinstance(target, str):
            return registry.resolve(name, device), name
        return registry.build(target, name, device), name
    except (registry.UnknownTargetError, registry.MissingTargetError, wheels.WheelError) as error:
        pytest.fail(str(error), pytrace=False)


def _account(found: Hunt, target: Target, name: str, config: pytest.Config) -> str:
    """What fails, on how short a history, and how to see it again."""
    import msgspec
    from rich.console import Console

    from ringfold.fuzz.findings import explain, failures, shrink

    assert found.failure is not None
    as_found = msgspec.structs.replace(found.failure, target=name), found.mismatches
    seconds = min(config.option.ringfold_max_time, shrink.SECONDS_MAX)
    device, note = _device(config), ""
    try:
        shrunk = shrink.shrink(as_found[0], target, seconds_max=seconds)
        trace, mismatches = shrunk.trace, shrunk.mismatches
    except shrink.NoFailureError:
        trace, mismatches = as_found
        note = "It did not fail again: the target's results depend on more than the history.\n"
    else:
        if said := _alone(trace, mismatches, name, device):
            if _alone(*as_found, name, device):
                note = said
            else:
                trace, mismatches = as_found
                note = "It is not shrunk: shorter ones fail only where others were walked before.\n"
    path = failures.write(trace, mismatches, config.invocation_params.dir, device)
    picture = io.StringIO()
    console = Console(file=picture, width=200, color_system=None)
    console.print(explain.table(explain.explain(trace)))
    drawn = "\n".join(line.rstrip() for line in picture.getvalue().splitlines())
    sentences = "\n".join(mismatch.sentence() for mismatch in mismatches)
    return (
        f"{name}: {sentences}\n{note}\n{trace.setup}\n{drawn}\n\n"
        f"{failures.reproduce(path, name, device)}\n"
        f"found after {found.windows} row-windows with {_seed_option(config)}"
    )


def _alone(trace: Trace, mismatches: list[Mismatch], name: str, device: Device) -> str:
    """What is odd about a replay in a process that has walked nothing before; empty if it fails."""
    from ringfold.fuzz.findings import failures
    from ringfold.fuzz.findings.replay import Outcome, replay_all

    with tempfile.TemporaryDirectory(prefix="ringfold-") as folder:
        (again,) = replay_all([failures.write(trace, mismatches, Path(folder))], name, device)
    if again.mismatches:
        return ""
    if again.outcome is not Outcome.FIXED:
        return f"It can't be replayed: {again.account}.\n"
    return (
        "It does not fail in a process of its own: the target remembers something of the histories "
        "before it, such as a cache by shape.\n"
    )


def _device(config: pytest.Config) -> Device:
    device: Device = config.option.ringfold_device or "cpu"
    return device


def _seed_option(config: pytest.Config) -> str:
    return f"--ringfold-seed {config.option.ringfold_seed}"
