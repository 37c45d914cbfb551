"""A sample is fair, its figures are those of its results, and no mutant can do any harm.

Samples and reports are made of mutants that were never run. Four faults of our kernels are run for
real, each by a process of its own: one that is seen at the first window, one that reads where
nothing is, one that hangs and one that takes all memory there is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from ringfold.fuzz.mutation import argued, campaign, worker
from ringfold.fuzz.mutation.argued import ArgumentError
from ringfold.fuzz.mutation.campaign import Report, found, sample
from ringfold.fuzz.mutation.operators import Mutant
from ringfold.fuzz.mutation.worker import Order, Outcome, Probed

ORDER: Final = Order("triton", "cpu", 0, 30.0)


def mutant(file: str = "a.py", line: int = 1, operator: str = "bound") -> Mutant:
    """A mutant that is only counted."""
    return Mutant(file, line, 0, operator, 0, 0, 0, "", line, line)


class TestSample:
    """Which mutants are drawn."""

    EVERY: Final = [
        mutant(file, line, operator)
        for file, operator, count in (
            ("a.py", "bound", 60),
            ("a.py", "dtype", 3),
            ("b.py", "x", 37),
        )
        for line in range(count)
    ]

    def test_every_stratum_has_its_share(self) -> None:
        """In proportion, and at least one of each."""
        drawn = Counter((m.file, m.operator) for m in sample(self.EVERY, 20, seed=1))

        assert drawn == {("a.py", "bound"): 12, ("a.py", "dtype"): 1, ("b.py", "x"): 7}

    def test_a_seed_decides_it(self) -> None:
        """The same again, and another with another seed."""
        assert sample(self.EVERY, 20, 1) == sample(self.EVERY, 20, 1) != sample(self.EVERY, 20, 2)

    def test_there_are_no_more_than_there_are(self) -> None:
        """Nothing is drawn twice."""
        drawn = sample(self.EVERY, 1000, 1)

        assert sorted(drawn, key=self.EVERY.index) == self.EVERY


def test_only_what_runs_is_mutated() -> None:
    """A line that no situation reached has mutants, which are counted apart."""
    source = "import triton\n@triton.jit\ndef f(n):\n    x = n + 1\n    y = n + 2\n"
    probed = Probed(sources={"f.py": source}, reached={"f.py": [1, 2, 3, 4]})

    reached, others = found(probed)

    assert {m.line for m in reached} == {4}
    assert others == {"f.py": 3}


def test_scores_are_those_of_the_results() -> None:
    """A hang is noticed, a survivor is not, and what is argued is left out of the second score."""
    report = Report("t", "cpu", 0, 5, 1.0, 1)

    for outcome in ("killed", "killed", "timed out", "survived", "argued"):
        campaign._add(report, mutant(), Outcome(outcome, seconds=2.0, by="outputs"))

    assert (report.killed, report.timed_out, report.survived, report.argued) == (2, 1, 1, 1)
    assert (report.score, report.score_without_argued) == (0.6, 0.75)
    assert report.kill_seconds.median == 2.0
    assert report.killed_by == {"outputs": 2}
    assert report.operators == {"bound": [3, 5]}


class TestArguments:
    """The file that people write."""

    def test_an_argument_is_about_one_text(self, tmp_path: Path) -> None:
        """It lapses with the text's digest."""
        path = tmp_path / "argued.json"
        path.write_text(
            '[{"file": "a.py", "sha256": "12", "mutants": [[1, 0, "bound", 0]], "because": "so"}]'
        )

        assert argued.load(path) == {argued.key("12", mutant()): "so"}
        assert argued.key("34", mutant()) not in argued.load(path)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[{}]", "is no list of arguments"),
            ('[{"file": "a", "sha256": "1", "mutants": [], "because": " "}]', "says nothing"),
        ],
    )
    def test_an_argument_says_something(self, text: str, message: str, tmp_path: Path) -> None:
        """Or the file is refused."""
        path = tmp_path / "argued.json"
        path.write_text(text)

        with pytest.raises(ArgumentError, match=message):
            argued.load(path)

    def test_those_we_make_are_read(self) -> None:
        """The file in docs/ is one."""
        assert all(why.strip() for why in argued.load().values())


def planted(file: str, before: str, after: str) -> Mutant:
    """A mutant of our kernels that replaces this text."""
    root = argued.PAGES.parent
    source = (root / "kernels" / file).read_text("utf-8")
    assert source.count(before) == 1
    start = len(source[: source.index(before)].encode())
    end = start + len(before.encode())
    return Mutant(f"ringfold/kernels/{file}", 1, 0, "by hand", 0, start, end, after, 1, 1)


NOW: Final = "wp = tl.where(folded, n, wp + n)"  # every commit comes by


@pytest.mark.slow
@pytest.mark.parametrize(
    ("after", "wanted", "by"),
    [
        ("wp = n + 1", "killed", "cursors"),
        ("import ctypes; ctypes.string_at(0)", "killed", "SIGSEGV"),
        ("wp = [0] * 10**10", "killed", "crash"),
        ("exec('while True: pass')", "timed out", "a single operation hung"),
    ],
)
def test_a_mutant_can_do_no_harm(after: str, wanted: str, by: str) -> None:
    """Whatever it does, it is noticed, and the next one runs."""
    pytest.importorskip("triton")
    order = ORDER._replace(seconds_max=5.0, grace=1.0) if wanted == "timed out" else ORDER

    with worker.Server("cpu") as server:
        outcome = worker.run(server, order, planted("cursors.py", NOW, after))

    assert (outcome.outcome, outcome.by) == (wanted, by), outcome


def for_ever(order: Order, mutant: Mutant | None) -> Any:
    """A mutant that tells its parent that it runs, and does not come back."""
    Path(order.target).touch()
    threading.Event().wait()


class TestStopping:
    """Ctrl-C, and whatever else ends a campaign."""

    SOURCE: Final = "import triton\n@triton.jit\ndef f(n):\n    return n + 1 + 2 + 3 + 4\n"

    def test_a_server_that_still_starts_says_nothing(self, tmp_path: Path) -> None:
        """A terminal sends Ctrl-C to it too, while it imports: here it is who sends it."""
        (tmp_path / "pressing.py").write_text(
            "import os, signal\nos.killpg(os.getpgrp(), signal.SIGINT)\n"
        )
        program = (
            "import sys\n"
            "from ringfold.fuzz import cli\n"
            "from ringfold.fuzz.mutation import worker\n"
            "worker.PRELOADED = ('pressing',)\n"
            "sys.argv = ['ringfold', 'mutate', 'sim', '--json']\n"
            "cli.main()\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
        )

        assert "Traceback" not in done.stderr
        assert done.stderr.strip() == "ringfold: stopped"
        assert (done.returncode, json.loads(done.stdout)["error"]) == (130, "stopped")

    def test_a_process_that_does_not_come_back_is_ended(self, tmp_path: Path) -> None:
        """With its server, and so is one that is only asked for after that."""
        started = tmp_path / "started"
        order = ORDER._replace(target=str(started))
        with ThreadPoolExecutor(1) as pool, worker.Server("cpu") as server:
            asked = pool.submit(server.ask, for_ever, order)
            while not started.exists():
                assert not asked.done(), asked.result()
            server.end()

            assert asked.result() == ("died", "SIGKILL")
            assert server.ask(for_ever, order) == ("died", "SIGKILL")

    @pytest.fixture
    def campaign_of(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
        """Run a campaign whose mutants survive at once; `on_progress` hears of them."""
        probed = Probed(
            sources={"f.py": self.SOURCE},
            reached={"f.py": [1, 2, 3, 4]},
            identity={"f.py": "12"},
        )
        monkeypatch.setattr(worker, "probe", lambda *arguments: probed)
        monkeypatch.setattr(worker, "run", lambda *arguments: Outcome("survived"))

        def run(on_progress: Any) -> Report:
            return campaign.mutate(
                "t", count=8, seed=1, seconds_max=1.0, run_dir=tmp_path, on_progress=on_progress
            )

        return run

    def test_what_was_run_until_then_is_told(self, campaign_of: Any, tmp_path: Path) -> None:
        """And that it was stopped: inconclusive, on disk too. Before a result there is nothing."""

        def stopping(after: int, report: Report, line: str) -> None:
            if len(report.results) == after and line.startswith("survived" if after else "walking"):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            campaign_of(lambda *heard: stopping(0, *heard))
        assert not list(tmp_path.iterdir())

        report = campaign_of(lambda *heard: stopping(2, *heard))

        assert report.inconclusive == ["stopped by hand: 2 of 8 mutants were run"]
        assert len(report.results) == report.survived == 2
        written = json.loads((tmp_path / "mutation.json").read_text("utf-8"))
        assert written["inconclusive"] == report.inconclusive

    def test_an_error_does_not_wait_for_the_rest(
        self, campaign_of: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As of a disk that is full: mutants that wait are not run any more."""
        ran = list[Mutant]()
        failed = threading.Event()

        def run(server: worker.Server, order: Order, one: Mutant | None) -> Outcome:
            if one is not None:
                ran.append(one)
            if len(ran) == 2:
                assert failed.wait(timeout=300)
            return Outcome("survived")

        def full(server: worker.Server) -> None:
            end(server)
            failed.set()

        def no_space(path: Path, report: Report) -> None:
            raise OSError(28, "No space left on device")

        end = worker.Server.end
        monkeypatch.setattr(worker, "run", run)
        monkeypatch.setattr(worker.Server, "end", full)
        monkeypatch.setattr(campaign, "write_json", no_space)

        with pytest.raises(OSError, match="No space"):
            campaign_of(lambda report, line: None)
        assert len(ran) <= 2
