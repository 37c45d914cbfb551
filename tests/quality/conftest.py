"""Which planted bugs are hunted today, with which seed, and what the hunts came to."""

from __future__ import annotations

import datetime as dt
import secrets
import statistics
from typing import Final

import pytest

from ringfold.fuzz.planted import PLANTED
from ringfold.fuzz.planted_kernels import KERNEL_BUGS
from ringfold.fuzz.running.hunt import Hunt

SHARES: Final = 3
"""A run without `--all-planted` hunts one in three, another third each day."""

KERNEL_BUGS_A_DAY: Final = 2
"""They take longer: a run without `--all-planted` hunts so many, others each day."""

SEED: Final = pytest.StashKey[int]()
HUNTS: Final = pytest.StashKey[dict[tuple[str, int], Hunt]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--all-planted` and `--quality-seed`."""
    parser.addoption(
        "--all-planted", action="store_true", help="hunt every planted bug, not today's third"
    )
    parser.addoption(
        "--quality-seed", type=int, default=None, help="seed of the hunts [drawn when tests run]"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed."""
    given = config.getoption("--quality-seed", default=None)
    config.stash[SEED] = secrets.randbits(32) if given is None else given
    config.stash[HUNTS] = {}


def todays_share() -> int:
    """Which third it is: the day's number, so that three days in a row hunt all."""
    return dt.datetime.now(dt.UTC).date().toordinal() % SHARES


def todays_kernel_bugs() -> list[str]:
    """Some of the bugs in our kernels: all of them have had their turn after some weeks."""
    day, bugs = dt.datetime.now(dt.UTC).date().toordinal(), list(KERNEL_BUGS)
    return [bugs[(KERNEL_BUGS_A_DAY * day + i) % len(bugs)] for i in range(KERNEL_BUGS_A_DAY)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that asks for a `bug` each one that is hunted today."""
    if "bug" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--all-planted", default=False)
        share = slice(None) if everything else slice(todays_share(), None, SHARES)
        metafunc.parametrize("bug", list(PLANTED)[share])
    if "kernel_bug" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--all-planted", default=False)
        metafunc.parametrize(
            "kernel_bug", list(KERNEL_BUGS) if everything else todays_kernel_bugs()
        )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how long the hunts took, and how to repeat them, be it that other processes hunted."""
    reports = [r for rs in terminalreporter.stats.values() for r in rs if hasattr(r, "when")]
    told = [dict(r.user_properties) for r in reports if r.when == "call"]
    hunts = {one["bug"]: one for one in told if "bug" in one}
    if not hunts:
        return
    write = terminalreporter.write_line
    terminalreporter.section("planted bugs")
    which = f"all {len(PLANTED)}" if len(hunts) == len(PLANTED) else f"third {todays_share()}"
    seeds = " or ".join(sorted({str(one["seed"]) for one in hunts.values()}))
    write(f"{len(hunts)} hunts ({which}); to repeat: --quality-seed {seeds}")
    for unit in ("row-windows", "seconds"):
        values = sorted(float(one[unit]) for one in hunts.values())
        tenth = values[-1 - len(values) // 10]
        write(
            f"{unit} until found: median {statistics.median(values):.3g}, "
            f"nine in ten within {tenth:.3g}, at most {values[-1]:.3g}"
        )
    slowest = sorted(hunts, key=lambda bug: hunts[bug]["row-windows"])[-3:]
    latest = (f"{bug} ({hunts[bug]['row-windows']})" for bug in reversed(slowest))
    write(f"latest: {', '.join(latest)}")


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """Drawn once a session; the summary prints it."""
    return pytestconfig.stash[SEED]


@pytest.fixture(scope="session")
def hunts(pytestconfig: pytest.Config) -> dict[tuple[str, int], Hunt]:
    """What the hunts of this session came to, by bug and seed."""
    return pytestconfig.stash[HUNTS]
