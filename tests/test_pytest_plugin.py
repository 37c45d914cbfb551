"""The plugin, in pytest runs of their own.

What a run must show follows from the target: a planted bug has to fail the test, on a history that
the command line replays with the same verdict, and the right machine has to pass. That nothing
heavy is loaded for others is read from `sys.modules` inside such a run.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from ringfold import __version__

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
PLUGIN = "ringfold.pytest_plugin"
INSTALLED = any(found.value == PLUGIN for found in entry_points(group="pytest11"))
BUG = "sim:fold-newest-first"
THREE_LINES = f"""
def test_my_kernel(ringfold):
    ringfold({BUG!r})
"""


def run(pytester: pytest.Pytester, *options: str, seconds: float = 20) -> pytest.RunResult:
    """Run pytest in the folder of `pytester`, with the plugin as an installation has it."""
    plugin = () if INSTALLED else ("-p", PLUGIN)
    return pytester.runpytest_subprocess(*plugin, "--ringfold-max-time", str(seconds), *options)


def test_the_entry_point_names_the_plugin() -> None:
    """Where ringfold is installed, pytest loads it by itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"ringfold": PLUGIN}


def test_a_test_that_does_not_ask_for_it_loads_nothing(pytester: pytest.Pytester) -> None:
    """Neither the tester nor NumPy, torch, Triton, msgspec or rich."""
    pytester.makepyfile("""
        import sys

        def test_nothing():
            heavy = {"numpy", "torch", "triton", "msgspec", "rich", "typer", "ringfold.fuzz"}
            assert "ringfold.pytest_plugin" in sys.modules
            assert not heavy & set(sys.modules)
    """)
    # Hypothesis' own plugin is allowed what ours is not.
    run(pytester, "-p", "no:hypothesispytest").assert_outcomes(passed=1)


def test_a_wrong_kernel_fails_with_its_smallest_history(pytester: pytest.Pytester) -> None:
    """Sentence, picture, replay line and seed; the line gives the same verdict."""
    pytester.makepyfile(THREE_LINES)

    result = run(pytester)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            f"ringfold {__version__}, numpy *; device cpu; --ringfold-seed *",
            f"{BUG}: *: expected *, got *",
            "   operation * request * ring",
            "0  place 0 *",
            "   ^ here: *",
            f"reproduce: ringfold replay *failures*trace.json --target {BUG}",
            "found after * row-windows with --ringfold-seed *",
        ]
    )
    assert_one_seed(result)
    line = re.search(r"reproduce: ringfold (.*)", result.stdout.str())
    assert line is not None
    replayed = subprocess.run(
        [sys.executable, "-m", "ringfold", *shlex.split(line[1])],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert replayed.returncode == 1
    assert replayed.stdout.startswith("FAILED")


def assert_one_seed(result: pytest.RunResult) -> None:
    """The header's is that of the failure, which pytest tells twice where `CI` is set."""
    header, *failure = re.findall(r"--ringfold-seed (\d+)", result.stdout.str())
    assert failure
    assert {header} == set(failure)


@pytest.mark.skipif(find_spec("xdist") is None, reason="needs pytest-xdist")
def test_a_target_that_remembers_is_told_apart(pytester: pytest.Pytester) -> None:
    """What fails only after other histories does not fail where its line replays it."""
    pytester.makepyfile(
        remembering="""
        from ringfold.fuzz.targets.simulated import SimulatedTarget


        class Remembering(SimulatedTarget):
            opened = 0

            def __init__(self, device="cpu"):
                super().__init__("remembering")

            def open(self, *arguments):
                type(self).opened += 1
                super().open(*arguments)

            def verify(self, *arguments):
                return super().verify(*arguments) * (1 if self.opened == 1 else 2)
        """
    )
    pytester.makepyfile("""
        def test_it(ringfold):
            ringfold("remembering:Remembering")
    """)
    done = run(pytester, "--ringfold-seed", "1")

    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*does not fail in a process of its own*"])


def test_workers_take_the_seed_of_the_header(pytester: pytest.Pytester) -> None:
    """With pytest-xdist, whose workers would draw one each."""
    pytester.makepyfile(THREE_LINES)
    result = run(pytester, "-n", "1")
    result.assert_outcomes(failed=1)
    assert_one_seed(result)


def test_the_same_seed_finds_the_same(pytester: pytest.Pytester) -> None:
    """Down to the name of the folder, which derives from the content."""
    pytester.makepyfile(THREE_LINES)
    found = set()
    for _ in range(2):
        told = run(pytester, "--ringfold-seed", "5").stdout.str()
        found.update(re.findall(r"reproduce: .*|found after .*", told))

    assert len(found) == 2


def test_a_right_kernel_passes(pytester: pytest.Pytester) -> None:
    """A class is taken as well as a name; JUnit's report bears the seed."""
    pytester.makepyfile("""
        from ringfold.fuzz.targets.simulated import SimulatedTarget

        class Mine(SimulatedTarget):
            def __init__(self, device):
                super().__init__()

        def test_my_kernel(ringfold):
            ringfold(Mine)
    """)

    run(pytester, "--ringfold-seed", "7", "--junitxml=j.xml", seconds=2).assert_outcomes(passed=1)

    report = ET.parse(pytester.path / "j.xml")  # noqa: S314 - pytest has just written it
    (seed,) = report.iter("property")
    assert seed.attrib == {"name": "ringfold_seed", "value": "7"}


def test_junit_tells_the_failure(pytester: pytest.Pytester) -> None:
    """With the line that replays it."""
    pytester.makepyfile(THREE_LINES)

    run(pytester, "--junitxml=j.xml").assert_outcomes(failed=1)

    assert "reproduce: ringfold replay" in (pytester.path / "j.xml").read_text(encoding="utf-8")


def test_targets_are_named_on_the_command_line(pytester: pytest.Pytester) -> None:
    """One test for each; without any, a skip says what to type."""
    pytester.makepyfile("""
        def test_each(ringfold, ringfold_target):
            ringfold(ringfold_target)
    """)

    options = [f"--ringfold-target={name}" for name in ("sim", BUG)]
    run(pytester, *options, seconds=2).assert_outcomes(passed=1, failed=1)

    result = run(pytester, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED *name one: --ringfold-target TARGET"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ringfold-target", "nobody"], "target 'nobody' is unknown: type `ringfold targets`"),
        (["--ringfold-target", "sim", "--ringfold-max-time", "1e-9"], "nothing was tested in"),
        (["--ringfold-max-time", "0"], "is no time: give more than 0 seconds"),
        (["--ringfold-seed", "-1"], "is out of range: give one from 0 to"),
    ],
)
def test_what_cannot_be_tested_does_not_pass(
    options: list[str], said: str, pytester: pytest.Pytester
) -> None:
    """It is said why, in a sentence."""
    pytester.makepyfile("""
        def test_each(ringfold, ringfold_target):
            ringfold(ringfold_target)
    """)

    result = run(pytester, *options)

    assert result.ret != 0
    assert said in result.stdout.str() + result.stderr.str()


# Imported in such a test it would be thrown out again, and not every module survives that.
@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
def test_kernels_of_ones_own(pytester: pytest.Pytester) -> None:
    """The README's class, its commit broken, is interpreted, found wrong and named in the line."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    code = re.search(r"<!-- test: my_kernels.py -->\n```python\n(.*?)```", readme, re.DOTALL)
    assert code is not None
    right, wrong = "accepted, slots, self.setup.ring", "accepted * 0, slots, self.setup.ring"
    assert right in code[1]
    pytester.makepyfile(my_kernels=code[1].replace(right, wrong))
    pytester.makepyfile("""
        def test_my_kernel(ringfold):
            ringfold("my_kernels:MyRing")
    """)

    result = run(pytester, "--ringfold-device", "cpu")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["my_kernels:MyRing: cursors: *", "reproduce: *--target my_kernels:MyRing"]
    )
