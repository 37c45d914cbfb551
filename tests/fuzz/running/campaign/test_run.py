"""A campaign: the same histories whoever walks them, and nothing that was found is lost.

Targets with a planted bug are fuzzed by one worker and by two, and all that is written compared
byte for byte. Then things go wrong: a target fails only now and then, kills its process, prints,
or somebody presses Ctrl-C; what was found by then must be on disk, and the exit code must say what
it is worth. The faulty targets are classes in a temporary folder, as a user would write them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringfold.fuzz.histories.generate import history
from ringfold.fuzz.histories.story import Plan
from ringfold.fuzz.histories.trace import Verify, load
from ringfold.fuzz.running.campaign import Campaign, Report
from ringfold.fuzz.running.course import Budget
from ringfold.fuzz.running.hunt import plans
from ringfold.fuzz.targets.registry import resolve

BUG = "sim:fold-reads-from-row-zero"
SECONDS_MAX = 60.0

TARGETS = '''
import os
import time
from pathlib import Path

from ringfold.fuzz.targets.simulated import SimulatedTarget


class Sound(SimulatedTarget):
    def __init__(self, device):
        super().__init__("mine")


class Flaky(Sound):
    """Wrong in every other history, and right when that is walked again."""

    opened = 0
    period = 2

    def open(self, setup, parameters):
        Flaky.opened += 1
        super().open(setup, parameters)

    def verify(self, rows, lengths, inputs):
        outputs = super().verify(rows, lengths, inputs)
        if Flaky.opened % self.period == 0:
            outputs[...] += 1000
        return outputs


class FlakyAndWrong(Flaky):
    """Wrong outputs in every third walk, and a wrong base in all of them."""

    period = 3

    def commit(self, rows, accepted, bound):
        super().commit(rows, accepted, bound)
        self.machine.memory["cache_base"][1] += self.machine.setup.ring


class Remembers(Sound):
    """Wrong in every history but the first of its process."""

    opened = 0

    def open(self, setup, parameters):
        Remembers.opened += 1
        super().open(setup, parameters)

    def verify(self, rows, lengths, inputs):
        outputs = super().verify(rows, lengths, inputs)
        return outputs if Remembers.opened == 1 else outputs + 1000


class Dies(Sound):
    """Kills its process at the first fold."""

    def verify(self, rows, lengths, inputs):
        if self.machine.memory["is_flush"].any():
            os._exit(9)
        return super().verify(rows, lengths, inputs)


class Slow(Sound):
    """Takes long to build, as a kernel takes long to compile."""

    built = False

    def open(self, setup, parameters):
        if not Slow.built:
            time.sleep(2.5)
            Slow.built = True
        super().open(setup, parameters)


class Hangs(Sound):
    """Comes back from four verifies of a history, and no more."""

    def open(self, setup, parameters):
        self.left = 4
        super().open(setup, parameters)

    def verify(self, rows, lengths, inputs):
        if not self.left:
            Path(os.environ["HANGS"], str(os.getpid())).touch()
            time.sleep(10_000)
        self.left -= 1
        return super().verify(rows, lengths, inputs)


class Prints(Sound):
    def open(self, setup, parameters):
        print("printed by a target")
        os.system("echo printed by its child")
        super().open(setup, parameters)
'''


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the targets above, to put on PYTHONPATH."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mine.py").write_text(TARGETS)
    return folder


def quiet(report: Report, windows: int, elapsed: float) -> None:
    pass


def campaign(
    run_dir: Path, workers: int, *, name: str = BUG, windows_max: int = 300, shrink: float = 0.0
) -> Report:
    budget = Budget(windows_max, None)
    made = plans(resolve(name), "cpu")[:4]
    return Campaign(made, "cpu", 11, budget, run_dir, workers, shrink).run(quiet)


def test_with_the_first_failure_it_stops(tmp_path: Path) -> None:
    """It is the same one by any number of workers, it is shrunk, and nothing more is owed."""

    def found(workers: int) -> Report:
        made = plans(resolve("sim:fork-copies-the-first-layer"), "cpu")[:4]
        made = [plan._replace(quota=5000) for plan in made]
        run_dir = tmp_path / str(workers)
        budget = Budget(None, None, first=True)
        return Campaign(made, "cpu", 11, budget, run_dir, workers, 60.0).run(quiet)

    one, three = found(1), found(3)

    assert one.histories > 1
    assert one.mismatches == len(one.findings) == 1
    assert one.findings[0].digest
    assert not one.inconclusive
    assert [tally.windows for tally in one.configurations] == [
        tally.windows for tally in three.configurations
    ]
    assert one.findings[0].digest == three.findings[0].digest


def test_who_stops_it_early_hears_how_far_it_was(tmp_path: Path) -> None:
    """On a GPU by then some configurations were compiled; nothing had been walked."""
    made = plans(resolve("sim"), "cpu")[:2]
    early = Campaign(made, "cpu", 0, Budget(None, None), tmp_path, 1)
    early.report.device = "cuda"
    early.report.configurations[0].compile_seconds = 3.5
    with early.workers:
        early.interrupted()

    assert early.report.inconclusive == [
        "stopped by hand before the first window (1 of 2 configurations compiled)"
    ]


STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    """A test that fails while it waits for a command takes it along."""
    yield
    while STARTED:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(STARTED.pop().pid, signal.SIGKILL)


def command(mine: Path, *arguments: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(mine), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-m", "ringfold", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        cwd=mine,
        start_new_session=True,
        # A shell that runs the tests in the background has them ignore Ctrl-C.
        preexec_fn=functools.partial(  # noqa: PLW1509 - these tests start no threads
            signal.signal, signal.SIGINT, signal.SIG_DFL
        ),
    )
    STARTED.append(process)
    return process


def ran(mine: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the object on standard output, and standard error."""
    process = command(mine, *arguments, "--json")
    out, err = process.communicate(timeout=SECONDS_MAX)
    return process.returncode, json.loads(out), err


def on_disk(run_dir: Path) -> dict[str, bytes]:
    files = sorted(path for path in run_dir.rglob("*") if path.is_file())
    here = str(run_dir).encode()
    return {
        str(path.relative_to(run_dir)): path.read_bytes().replace(here, b"")
        for path in files
        if path.name != "report.json"
    }


def lasting(report: Report, run_dir: Path) -> str:
    """A report without what depends on time and on the number of workers."""
    from msgspec.json import decode, encode

    kept: dict[str, Any] = decode(encode(report).replace(str(run_dir).encode(), b""))
    for name in ("seconds", "elapsed", "rate", "workers"):
        del kept[name]
    for tally in kept["configurations"]:
        del tally["compile_seconds"]
    return json.dumps(kept)


# ------------------------------------------------------------------ the same again


@pytest.mark.parametrize(
    ("shrink", "workers"),
    [(0.0, (1, 2, 2)), pytest.param(60.0, (1, 2), marks=pytest.mark.slow)],
    ids=["as found", "shrunk"],
)
def test_the_same_seed_gives_the_same_bytes(
    shrink: float, workers: tuple[int, ...], tmp_path: Path
) -> None:
    """Traces, accounts and report, with one worker and with two."""
    runs = [tmp_path / str(i) for i in range(len(workers))]

    reports = [
        campaign(run, count, shrink=shrink) for run, count in zip(runs, workers, strict=True)
    ]

    assert len(on_disk(runs[0])) >= 4
    assert all(on_disk(run) == on_disk(runs[0]) for run in runs)
    assert len({lasting(report, run) for report, run in zip(reports, runs, strict=True)}) == 1
    assert reports[0].mismatches > 0


# ------------------------------------------------------------------ what is kept


@pytest.mark.usefixtures("known_to_hang")
def test_a_target_that_hangs_is_given_up(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker is killed, the finding says so, and what did not come back is on disk."""
    monkeypatch.syspath_prepend(str(mine))
    made = plans(resolve("mine:Hangs"), "cpu", name="mine:Hangs")[:1]

    report = Campaign(made, "cpu", 1, Budget(500, None), tmp_path, workers=2).run(quiet)

    [finding] = report.findings
    assert (finding.check, finding.symptom) == ("crash", "the target hangs")
    failure = load(finding.trace)
    assert failure.seen[0]["kind"] == "verify"
    assert isinstance(failure.operations[-1], Verify)
    assert any("does not come back" in reason for reason in report.inconclusive)


@pytest.mark.usefixtures("known_to_hang")
@pytest.mark.parametrize(("ill", "kept"), [("Hangs", "crash-*"), ("Dies", "worker-died-*")])
def test_what_hypothesis_told_is_kept(
    ill: str, kept: str, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a target does not come back from it: nobody else knows the history."""
    monkeypatch.syspath_prepend(str(mine))
    name = f"mine:{ill}"
    made = plans(resolve(name), "cpu", name=name)[:1]
    told = Campaign(made, "cpu", 1, Budget(500, None), tmp_path, 1, engine="hypothesis")

    report = told.run(quiet)

    (path,) = tmp_path.glob(f"failures/{kept}/trace.json")
    assert load(path).operations
    assert len(report.findings) == (ill == "Hangs")
    assert any("does not come back" in why or str(path) in why for why in report.inconclusive)


def test_every_failure_is_counted_and_a_few_of_a_kind_are_kept(tmp_path: Path) -> None:
    """With traces that load, and a line that replays them to the same mismatch."""
    name = "sim:flush-one-window-late"
    report = campaign(tmp_path, 2, name=name, windows_max=400)

    kept = [load(path) for path in tmp_path.glob("failures/*/trace.json")]
    (finding,) = report.findings
    assert report.mismatches == finding.histories > 5
    assert len(kept) == 5
    assert all(trace.target == name and trace.seen for trace in kept)
    assert finding.symptom == "is_flush is not the protocol's"
    assert not finding.flaky
    line = shlex.split(finding.reproduce.removeprefix("reproduce: "))
    replayed = subprocess.run(
        [sys.executable, "-m", *line], capture_output=True, text=True, check=False, timeout=60
    )
    assert replayed.returncode == 1
    assert finding.sentence in replayed.stdout


def test_each_configuration_has_its_account(tmp_path: Path) -> None:
    """What it compared and what failed there, adding up to the whole; if it is short, that too."""
    made = [plan._replace(quota=60) for plan in plans(resolve(BUG), "cpu")[:3]]
    report = Campaign(made, "cpu", 11, Budget(100, None), tmp_path, 1).run(quiet)

    compared = Counter[str]()
    for tally in report.configurations:
        compared.update(tally.compared)
        assert sum(tally.failed.values()) >= tally.mismatches
    assert compared == report.compared
    assert report.mismatches > 0
    short = [tally for tally in report.configurations if tally.windows < tally.quota]
    assert short
    said = next(s for s in report.inconclusive if "short of their row-windows" in s)
    assert said.startswith(f"{len(short)} of 3 configurations")
    assert all(f"{t.setup}: {t.windows} of 60" in said for t in short)


def test_the_report_is_written_beside_the_failures(tmp_path: Path) -> None:
    """The same object as is returned; without a folder to write to there is none."""
    from msgspec.json import decode

    report = campaign(tmp_path, 1, windows_max=20)

    assert decode((tmp_path / "report.json").read_bytes(), type=Report) == report
    assert set(report.identities) == {BUG}
    assert report.identities[BUG]["machine"] == "FoldReadsFromRowZero"


def test_compiling_does_not_count(mine: Path, tmp_path: Path) -> None:
    """The limit of time starts at the first window, and is kept to within a history."""
    code, report, _ = ran(
        mine, "fuzz", "mine:Slow", "--max-time", "1", "--workers", "1", "--run-dir", str(tmp_path)
    )

    assert code == 0
    assert report["configurations"][0]["compile_seconds"] > 2.4
    assert 1.0 <= report["elapsed"] < 10  # seen 1.01
    assert report["windows"] > 0


# ------------------------------------------------------------------ when things go wrong


def test_it_can_be_stopped_while_targets_are_built(tmp_path: Path) -> None:
    """What was not built is given up, and nothing is walked."""
    stopped = Campaign(plans(resolve("sim"), "cpu")[:1], "cpu", 1, Budget(None, None), tmp_path, 1)
    stopped.clock.stop()  # before that: a quick machine would have built them by the first report

    report = stopped.run(lambda *_: None)

    assert report.windows == report.histories == 0
    assert "give it more time" in " ".join(report.inconclusive)


def test_a_failure_that_does_not_repeat_is_inconclusive(mine: Path, tmp_path: Path) -> None:
    """It is reported and kept, and the exit code is 3."""
    code, report, _ = ran(
        mine,
        "fuzz",
        "mine:Flaky",
        "--max-windows",
        "40",
        "--workers",
        "1",
        "--run-dir",
        str(tmp_path),
    )

    assert code == 3
    assert report["mismatches"] > 0
    assert [finding["flaky"] for finding in report["findings"]] == [True]
    assert any("did not repeat" in reason for reason in report["inconclusive"])
    assert list(tmp_path.glob("failures/*/trace.json"))


def test_a_failure_that_wants_others_before_it_is_inconclusive(mine: Path, tmp_path: Path) -> None:
    """It repeats in its worker, and not where its line replays it."""
    code, report, _ = ran(
        mine,
        *("fuzz", "mine:Remembers", "--max-windows", "40", "--workers", "1"),
        *("--run-dir", str(tmp_path)),
    )

    assert code == 3
    assert {finding["flaky"] for finding in report["findings"]} == {True}
    assert any("did not repeat" in reason for reason in report["inconclusive"])


def test_a_mismatch_stays_one_whatever_else_is_inconclusive(mine: Path, tmp_path: Path) -> None:
    """Beside a failure that repeats, one that does not changes nothing: 1."""
    code, report, _ = ran(
        mine,
        *("fuzz", "mine:FlakyAndWrong", "--max-windows", "400", "--workers", "1"),
        *("--no-shrink", "--run-dir", str(tmp_path)),
    )

    assert code == 1
    flaky = {finding["check"]: finding["flaky"] for finding in report["findings"]}
    assert flaky["outputs"]
    assert not flaky["cursors"]
    assert report["inconclusive"]


def test_a_worker_that_dies(mine: Path, tmp_path: Path) -> None:
    """The run ends with 3, and the history that did it is among those that are kept."""
    code, report, _ = ran(
        mine,
        "fuzz",
        "mine:Dies",
        "--max-windows",
        "200",
        "--workers",
        "2",
        "--run-dir",
        str(tmp_path),
    )

    assert code == 3
    (reason,) = [why for why in report["inconclusive"] if "worker process died" in why]
    suspects = sorted(tmp_path.glob("failures/worker-died-*/trace.json"))
    assert 1 <= len(suspects) <= 2
    assert all(str(suspect) in reason for suspect in suspects)
    codes = []
    for suspect in suspects:
        process = command(mine, "replay", str(suspect))
        process.communicate(timeout=SECONDS_MAX)
        codes.append(process.returncode)
    assert 1 in codes  # it died again, which a replay survives
    assert (tmp_path / "report.json").exists()


@pytest.mark.parametrize(
    ("name", "stop", "code"), [(BUG, signal.SIGINT, 1), ("sim", signal.SIGTERM, 3)]
)
def test_what_was_found_is_kept_when_somebody_stops_it(
    name: str, stop: signal.Signals, code: int, mine: Path, tmp_path: Path
) -> None:
    """Ctrl-C reaches every process of a terminal, SIGTERM the first one; both end it soon."""
    process = command(
        mine,
        "fuzz",
        name,
        "--max-time",
        "300",
        "--workers",
        "2",
        "--run-dir",
        str(tmp_path),
        "--json",
    )
    deadline = time.monotonic() + SECONDS_MAX
    while not (tmp_path / "report.json").exists() and time.monotonic() < deadline:
        time.sleep(0.1)

    started = time.monotonic()
    if stop == signal.SIGINT:
        os.killpg(process.pid, stop)
    else:
        process.send_signal(stop)
    out, err = process.communicate(timeout=SECONDS_MAX)

    assert time.monotonic() - started < 20  # seen 0.4
    report = json.loads(out)
    assert process.returncode == code
    assert "stopped by hand" in report["inconclusive"]
    assert report["windows"] > 0
    assert "Traceback" not in err
    assert json.loads((tmp_path / "report.json").read_text()) == report
    assert bool(list(tmp_path.glob("failures/*/trace.json"))) == (name == BUG)


def test_standard_output_is_the_objects_alone(mine: Path, tmp_path: Path) -> None:
    """Whatever a target prints goes to standard error, from workers and from a replay."""
    code, report, err = ran(
        mine,
        "fuzz",
        "mine:Prints",
        "--max-windows",
        "100",
        "--workers",
        "1",
        "--run-dir",
        str(tmp_path),
    )

    assert code == 0
    assert report["targets"] == ["mine:Prints", "mine:Prints+twin"]
    assert "printed by a target" in err
    assert "printed by its child" in err


def test_a_plan_needs_no_directed_history() -> None:
    """Where there is none, history 0 is random like the others."""
    plan = plans(resolve("sim"), "cpu")[0]
    assert isinstance(plan, Plan)

    assert history(plan, 1, 0) != history(plan._replace(directed=False), 1, 0)


def test_workers_end_with_the_campaign(mine: Path, tmp_path: Path) -> None:
    """A campaign that is killed outright leaves no worker behind that walks for nobody."""
    process = command(
        mine, "fuzz", "sim", "--max-time", "300", "--workers", "2", "--run-dir", str(tmp_path)
    )
    deadline = time.monotonic() + SECONDS_MAX
    while not (tmp_path / "report.json").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert running(process.pid)

    process.kill()
    process.communicate(timeout=SECONDS_MAX)

    while running(process.pid) and time.monotonic() < deadline + SECONDS_MAX:
        time.sleep(0.1)
    assert not running(process.pid)


def running(group: int) -> bool:
    """Whether some process of the group is there, and no zombie that nobody has waited for."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # one that has just ended
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                return True
    return False
