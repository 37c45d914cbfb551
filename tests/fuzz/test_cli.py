"""The command line: exit codes, what goes to which stream, and messages that say what to do.

Commands that work are run as a user runs them, in a process of their own; what is wrong with a line
is told by the same `main` in this one. With `--json`, standard output must be one JSON object and
nothing else, whatever happens; without, an error leaves it empty. The exit codes are those of the
README: 0 agree, 1 mismatch, 2 usage, 3 inconclusive, 70 internal error.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from ringfold import __main__ as entry
from ringfold.fuzz import cli
from ringfold.fuzz.comparing import compare
from ringfold.fuzz.findings import failures, shrink
from ringfold.fuzz.histories.trace import Admit, Commit, PayloadSpec, Trace, Verify, save
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.running import workers
from ringfold.fuzz.targets.registry import resolve
from ringfold.sim.setup import Geometry, Setup

BUG = "sim:fold-reads-from-row-zero"
HISTORY = Trace(
    setup=Setup("ring", Geometry(1, 2, 16, 8), ring=8, window=2, slots=3),
    payload=PayloadSpec(3, "slow-decay"),
    operations=(
        Admit(request=0, tag=1),
        *(
            operation
            for tag in range(2, 12)
            for operation in (
                Verify(tag=tag, rows=(0,), lengths=(2,)),
                Commit(tag=tag, accepted=(2,)),
            )
        ),
    ),
)


class Told(NamedTuple):
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def object(self) -> dict[str, Any]:
        """The one object on standard output."""
        assert self.out.count("\n") == 1
        value: dict[str, Any] = json.loads(self.out)
        assert isinstance(value, dict)
        return value


def ran(*arguments: str, cwd: Path, **environment: str) -> Told:
    """The command in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-m", "ringfold", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | environment,
    )
    return Told(run.returncode, run.stdout, run.stderr)


@pytest.fixture
def here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Told]]:
    """The same in this process, whose standard output stays what it is."""
    monkeypatch.setattr(cli, "json_only", lambda: None)
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: str) -> Told:
        monkeypatch.setattr(sys, "argv", ["ringfold", *arguments])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return Told(int(left.value.code or 0), *capsys.readouterr())

    yield run
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder with a trace that agrees, one of a failure, and one that is no trace."""
    found = walk(HISTORY, resolve(BUG)).mismatches
    failure = failures.as_failure(msgspec.structs.replace(HISTORY, target=BUG), found, {})
    save(failure, tmp_path / "failing.json")
    save(HISTORY, tmp_path / "agreeing.json")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "trace.json").write_text('{"ringfold_trace": 1, "setup": ' + "[" * 9999)
    return tmp_path


HAS_CUDA = importlib.util.find_spec("torch") is not None and Path("/dev/nvidiactl").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("fuzz nobody", 2, "is unknown: type `ringfold targets`"),
        ("fuzz nobody.here:Kernel", 2, "can't be imported"),
        ("fuzz sim:no-bug", 2, "no bug named 'no-bug' is planted"),
        ("fuzz sim --geometry 1,2,3", 2, "is not four integers H,HV,K,V such as 1,2,32,32"),
        ("fuzz sim --geometry 2,3,8,8", 2, "value_heads is 3, but must be a multiple of heads = 2"),
        ("fuzz sim --ring 6", 2, "ring is 6, but must be a power of two"),
        ("fuzz sim --ring 8 --window 5", 2, "lengthen the ring to 16 or shorten the window to 4"),
        ("fuzz sim --dtype float64", 2, "is not one of float32, bfloat16, float16"),
        ("fuzz sim --dead zombie", 2, "is not leave, garbage or nan"),
        ("fuzz sim --device tpu", 2, "is neither cpu nor cuda"),
        ("fuzz sim --max-windows 0", 2, "('0' was typed): see `ringfold fuzz --help`"),
        ("fuzz sim --seed=-1", 2, "('-1' was typed): see `ringfold fuzz --help`"),
        ("fuzz sim --quux", 2, "No such option: --quux: see `ringfold fuzz --help`"),
        ("explore sim --ring 8", 2, "Missing option '--window': see `ringfold explore --help`"),
        ("fuzz sim --run-dir agreeing.json", 2, "nothing can be written to the folder"),
        ("fuzz sim --run-dir agreeing.json/a", 2, "(Not a directory): name one that is yours"),
        ("explore sim --ring 8 --window 2 --run-dir agreeing.json", 2, "nothing can be written"),
        ("compare sim sim --run-dir agreeing.json", 2, "nothing can be written"),
        ("vary sim --run-dir agreeing.json", 2, "nothing can be written"),
        ("shrink failing.json --run-dir agreeing.json", 2, "nothing can be written"),
        ("mutate triton --run-dir agreeing.json", 2, "nothing can be written"),
        ("drift --save broken", 2, "broken is a folder: name a file in it"),
        ("bench --dry-run --save agreeing.json/x.json", 2, "nothing can be written"),
        ("simulate --trace broken", 2, "broken is a folder: name a file in it"),
        ("mutate triton --argued no.json", 2, "no.json is no list of arguments: [Errno 2]"),
        ("fuzz sglang==0.5.16", 3, "type `ringfold targets add sglang==0.5.16`"),
        ("explain nowhere.json", 2, "nowhere.json: does not exist: check the path"),
        ("explain broken/trace.json", 2, "broken/trace.json: "),
        ("replay empty", 2, "empty: holds no trace (*.json): name a trace or a folder of them"),
        ("replay x.json --known no.json", 2, "no.json: not a list of known failures: [Errno 2]"),
        ("targets add sglang", 2, "is not written name==version, such as sglang==0.5.16"),
        ("nonsense", 2, "No such command 'nonsense': see `ringfold --help`"),
        ("fuzz sim --engine hypothesis --each 5", 2, "with --max-windows or --max-time"),
        ("compare sim sim --trace x --ring 8 --seed 0", 2, "as it is: leave out --ring, --seed"),
        ("simulate --dialect ring", 2, "the trace that it writes: leave out --dialect"),
        ("simulate --trace x --tp 2", 2, "nothing predicted: leave out --tp"),
        ("simulate --trace x --ring 8 --ring 16", 2, "a trace has one: --ring once"),
        ("simulate --measured x --requests 5", 2, "no workload: leave out --requests"),
        ("simulate --bandwidth inf", 2, "must be above 0, and finite"),
        ("configuration check --disable-radix-cache=no", 2, "is a switch, and takes no value"),
        ("memory --preset qwen3.5-4b --conv-width 4", 2, "its own: leave out --conv-width"),
        (f"simulate --trace {'x' * 250}", 2, "File name too long"),
        pytest.param(
            "fuzz triton --dtype bfloat16",
            2,
            "use float16 or float32, or --device cuda",
            marks=[
                pytest.mark.slow,  # a worker imports torch before it can refuse
                pytest.mark.skipif(
                    importlib.util.find_spec("triton") is None, reason="needs triton"
                ),
            ],
        ),
        pytest.param(
            "fuzz sim --device cuda",
            3,
            "--device cuda",
            marks=pytest.mark.skipif(HAS_CUDA, reason="there is a GPU"),
        ),
    ],
)
def test_an_error_is_one_sentence(
    arguments: str,
    code: int,
    said: str,
    traces: Path,
    here: Callable[..., Told],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On standard error in a line of its own; with `--json` also as the object."""
    (traces / "empty").mkdir()
    monkeypatch.chdir(traces)
    monkeypatch.setenv("RINGFOLD_CACHE", str(traces / "cache"))
    monkeypatch.delenv("RINGFOLD_WHEELS", raising=False)

    told = here(*arguments.split(), "--json")

    assert told.code == code
    assert told.object["exit"] == code
    assert said in told.object["error"]
    assert f"ringfold: {told.object['error']}" in told.err.splitlines()
    assert "Traceback" not in told.err
    plain = here(*arguments.split())
    assert (plain.code, plain.out) == (code, "")
    assert told.object["error"] in plain.err


class TestFuzz:
    """`ringfold fuzz`."""

    def test_agreeing_is_0(self, tmp_path: Path) -> None:
        """And the object says what was done."""
        arguments = ("fuzz", "sim", "--max-windows", "150", "--seed", "7", "--workers", "1")

        told = ran(*arguments, "--json", cwd=tmp_path)

        report = told.object
        assert told.code == 0
        assert report["targets"] == ["sim", "sim+twin"]
        assert report["seed"] == 7
        assert report["windows"] >= 150
        assert report["mismatches"] == 0
        assert report["situations"]["fold straddles the wrap"] > 0
        assert report["missed"] == report["inconclusive"] == []
        assert list(tmp_path.iterdir()) == []  # no run folder was named, and nothing failed

    def test_a_mismatch_is_1_and_the_line_replays_it(self, tmp_path: Path) -> None:
        """Text for a person: situations, checks, the sentence, and the line to type."""
        told = ran("fuzz", BUG, "--max-windows", "100", "--workers", "1", cwd=tmp_path)

        assert told.code == 1
        assert "all accepted after a fold" in told.out
        assert f"{BUG}: " in told.out
        (line,) = [x for x in told.out.splitlines() if x.startswith("reproduce: ringfold replay ")][
            :1
        ]
        again = ran(*line.split()[2:], cwd=tmp_path)
        assert again.code == 1
        assert again.out.startswith("FAILED")

    def test_what_is_fixed_is_what_is_run(self, tmp_path: Path) -> None:
        """Geometry, ring, window and dtype, of the target and of its twin."""
        fixed = ("--geometry", "1,3,16,8", "--ring", "16", "--window", "3", "--dtype", "bfloat16")
        told = ran("fuzz", *fixed, "--max-windows", "5", "--workers", "1", "--json", cwd=tmp_path)

        setups = [tally["setup"] for tally in told.object["configurations"]]
        assert told.object["targets"] == ["sim", "sim+twin"]
        assert all(
            setup.partition(" ")[2].startswith("H=1 HV=3 K=16 V=8 L=16 T=3 bfloat16/bfloat16/")
            for setup in setups
        )
        assert [setup.partition(" ")[0] for setup in setups] == ["ring", "ring", "snapshots"]

    def test_every_configuration_gets_its_share(self, tmp_path: Path) -> None:
        """`--each` is the end, and needs no other; what is left short by another is said."""
        fixed = ("--geometry", "1,1,16,8", "--ring", "4", "--window", "1", "--workers", "1")
        told = ran("fuzz", *fixed, "--each", "150", "--json", cwd=tmp_path)
        cut = ran("fuzz", *fixed, "--each", "150", "--max-windows", "9", "--json", cwd=tmp_path)

        assert all(t["windows"] == 150 for t in told.object["configurations"])
        assert told.code == 0
        assert cut.code == 3
        assert "short of their row-windows" in " ".join(cut.object["inconclusive"])

    def test_too_little_is_3(self, tmp_path: Path) -> None:
        """A run that did not reach what can be reached proves less than it was asked to."""
        told = ran("fuzz", "sim", "--max-time", "0", "--workers", "1", "--json", cwd=tmp_path)

        assert told.code == 3
        assert "fold" in told.object["missed"]
        assert "give it more time or windows" in told.object["inconclusive"][0]


class TestReplay:
    """`ringfold replay`."""

    def _outcomes(self, told: Told) -> dict[str, str]:
        return {Path(one["trace"]).name: one["outcome"] for one in told.object["traces"]}

    def test_the_worst_outcome_decides(self, traces: Path) -> None:
        """FAILED before ERROR before MISSING before the rest; a folder is every trace in it."""
        everything = ran("replay", ".", "--json", cwd=traces)
        assert everything.code == 1
        assert self._outcomes(everything) == {
            "agreeing.json": "AGREES",
            "failing.json": "FAILED",
            "trace.json": "ERROR",
        }

        right = ran("replay", ".", "--target", "sim", "--json", cwd=traces)
        assert right.code == 2
        assert self._outcomes(right)["failing.json"] == "FIXED"

        fixed = ran("replay", "failing.json", "--target", "sim", "--json", cwd=traces)
        assert fixed.code == 0
        assert "agrees now" in fixed.object["traces"][0]["changed"]

        nowhere = {"RINGFOLD_CACHE": str(traces / "cache"), "RINGFOLD_WHEELS": ""}
        missing = ran(
            *("replay", "agreeing.json", "--target", "sglang==0.5.16", "--json"),
            cwd=traces,
            **nowhere,
        )
        assert missing.code == 3
        assert self._outcomes(missing) == {"agreeing.json": "MISSING"}

    def test_as_text(self, traces: Path) -> None:
        """A line a trace, and the mark where the outcome changed."""
        told = ran("replay", "failing.json", "agreeing.json", "--target", "sim", cwd=traces)

        first, mark, last = told.out.splitlines()
        assert told.code == 0
        assert first.startswith("FIXED   failing.json on sim: ")
        assert mark.startswith("      > operation ")
        assert last.startswith("AGREES  agreeing.json on sim: ")


class TestExplain:
    """`ringfold explain`."""

    def test_as_text(self, traces: Path) -> None:
        """A row an operation, the ring whole, and the place that failed."""
        told = ran("explain", "failing.json", cwd=traces, COLUMNS="40")

        lines = [line.rstrip() for line in told.out.splitlines()]
        assert told.code == 0
        assert lines[2].split() == ["operation", "request", "pos", "base", "flush", "ring"]
        assert lines[3].split() == ["0", "admit", "0", "0", "seated", "0", "0", "0", "........"]
        assert any(
            line.endswith("window of 2, folds  6    0     1      ffffffww") for line in lines
        )
        assert any("^ here: " in line for line in lines)

    def test_as_an_object(self, traces: Path) -> None:
        """The same as data."""
        told = ran("explain", "agreeing.json", "--json", cwd=traces).object

        assert told["trace"] == "agreeing.json"
        assert told["setup"]["ring"] == 8
        assert len(told["operations"]) == len(HISTORY.operations)
        assert told["operations"][2]["lanes"][0]["ring"] == "##......"


def test_a_release_that_is_of_no_use_is_told_when_it_is_added(tmp_path: Path) -> None:
    """It is here, and lacks what each dialect wants."""
    (tmp_path / "sglang-0.5.9").mkdir()

    told = ran("targets", "add", "sglang==0.5.9", cwd=tmp_path, RINGFOLD_WHEELS=str(tmp_path))

    assert told.code == 3
    assert "speaks no dialect that this version knows: for compact it lacks" in told.err


def test_targets(tmp_path: Path) -> None:
    """What is here, and for what is missing what to type."""
    nowhere = {"RINGFOLD_CACHE": str(tmp_path), "RINGFOLD_WHEELS": ""}

    listed = {
        row["name"]: row
        for row in ran("targets", "--json", cwd=tmp_path, **nowhere).object["targets"]
    }
    text = ran("targets", cwd=tmp_path, **nowhere).out

    assert listed["sim"]["remedy"] == ""
    assert listed["sglang==0.5.16"]["remedy"] == "ringfold targets add sglang==0.5.16"
    assert "missing: ringfold targets add sglang==0.5.16" in text
    assert all(name in text for name in listed)
    misplaced = ran("targets", "--json", "add", "sglang==0.5.16", cwd=tmp_path, **nowhere)
    assert misplaced.code == 2
    assert "behind `add` and its release" in misplaced.object["error"]


def commands() -> list[list[str]]:
    """Every command that the program has."""
    names = [
        [str(c.name or c.callback.__name__)] for c in cli.app.registered_commands if c.callback
    ]
    return [*names, ["targets"], ["targets", "add"]]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_has_help_and_takes_json(
    command: list[str], here: Callable[..., Told]
) -> None:
    """A sentence and its options, on standard output."""
    told = here(*command, "--help")

    assert told.code == 0
    assert f"Usage: ringfold {' '.join(command)}" in told.out
    assert "--json" in told.out
    assert told.err == ""


@pytest.mark.parametrize("line", ["", "configuration"])
def test_without_a_command_there_is_help(line: str, here: Callable[..., Told]) -> None:
    """As it stands, and still a usage error, on standard error."""
    told = here(*line.split())

    assert (told.code, told.out) == (2, "")
    assert told.err.startswith(f"Usage: ringfold {line}".rstrip())
    assert "Commands:" in told.err


def test_help_is_quick_to_come(tmp_path: Path) -> None:
    """It needs neither torch nor triton, whose import takes seconds."""
    script = (
        "import sys\n"
        "from ringfold.fuzz import cli\n"
        "sys.argv = ['ringfold', '--help']\n"
        "try:\n"
        "    cli.main()\n"
        "finally:\n"
        "    slow = {'torch', 'triton', 'matplotlib'} & set(sys.modules)\n"
        "    assert not slow, slow\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path
    )

    assert run.returncode == 0, run.stderr
    assert "Usage" in run.stdout


def test_version(tmp_path: Path) -> None:
    """One line."""
    from ringfold import __version__

    assert ran("--version", cwd=tmp_path).out == f"ringfold {__version__}\n"


def started(*arguments: str, cwd: Path, **streams: Any) -> subprocess.Popen[str]:
    """The command, which goes on by itself."""
    return subprocess.Popen(
        [sys.executable, "-m", "ringfold", *arguments],
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        **streams,
    )


def test_a_reader_that_is_gone_is_no_mismatch(traces: Path) -> None:
    """As in `ringfold explain TRACE | head`: the code is that of SIGPIPE, and nothing is said."""
    explain = ("explain", "failing.json")
    for line in (explain, (*explain, "--json"), ("fuzz", "--help"), ("--version",)):
        reads, writes = os.pipe()
        os.close(reads)
        run = started(*line, cwd=traces, stdout=writes, stderr=subprocess.PIPE)
        os.close(writes)

        assert run.communicate(timeout=120)[1] == ""
        assert run.returncode == 141


def test_letters_that_the_terminal_lacks_are_spelled_out(tmp_path: Path) -> None:
    """A file's name is no reason to break off."""
    told = ran("replay", "é.json", cwd=tmp_path, PYTHONIOENCODING="ascii")

    assert told.code == 2
    assert told.out.startswith("ERROR   \\xe9.json: \\xe9.json: does not exist")
    assert "Traceback" not in told.err


def test_an_object_goes_to_a_file_whatever_the_complaints_go_to(tmp_path: Path) -> None:
    """As in `ringfold memory --json > x.json 2>&1 | tee log`, a file here and a pipe there."""
    line = ("memory", "--preset", "qwen3.5-4b", "--json")
    with (tmp_path / "x.json").open("wb") as file:
        run = started(*line, cwd=tmp_path, stdout=file, stderr=subprocess.PIPE)
        assert run.communicate(timeout=120)[1] == ""

    assert run.returncode == 0
    assert json.loads((tmp_path / "x.json").read_text("utf-8"))["tp"] == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("line", "closed", "code"),
    [
        ("memory --preset qwen3.5-4b --json", ">&-", 0),
        ("memory --preset qwen3.5-4b --json", ">/dev/full", 2),
        ("memory --preset qwen3.5-4b", ">/dev/full", 2),
        ("--help", ">/dev/full", 2),
        ("fuzz nobody", "2>&-", 2),
        ("fuzz nobody", "2>/dev/full", 2),
    ],
)
def test_streams_that_take_nothing_change_no_verdict(
    line: str, closed: str, code: int, tmp_path: Path
) -> None:
    """The exit code is that of what happened, and 1 is for a mismatch alone."""
    run = subprocess.run(
        ["/bin/sh", "-c", f'exec "{sys.executable}" -m ringfold {line} {closed}'],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )

    assert run.returncode == code
    assert "Traceback" not in run.stderr
    if closed == ">/dev/full":
        assert "the output can't be written: No space left on device: make room" in run.stderr


def test_a_name_need_be_no_text(tmp_path: Path) -> None:
    """Files have bytes for names: they are spelled out, and kept in the lines to be pasted."""
    name = os.fsdecode(b"\xff.json")
    written = ran(
        *("simulate", "--requests", "1", "--tokens", "2", "--trace", name, "--json"), cwd=tmp_path
    )
    assert written.code == 0, written.err
    assert written.object["trace"] == "\\udcff.json"
    replayed = ran("replay", name, "--target", "sim", "--json", cwd=tmp_path)
    assert replayed.code == 0, replayed.err
    assert replayed.object["traces"][0]["trace"] == "\\udcff.json"

    line = ("fuzz", BUG, "--max-windows", "100", "--workers", "1", "--no-shrink")
    found = ran(*line, "--run-dir", os.fsdecode(b"\xff"), "--json", cwd=tmp_path)
    assert found.code == 1, found.err
    (account,) = tmp_path.glob("*/failures/*/mismatch.txt")
    assert b"ringfold replay '\xff/failures/" in account.read_bytes()


def test_a_name_is_no_markup(
    here: Callable[..., Told], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a file is called is printed as it is."""
    monkeypatch.chdir(tmp_path)
    for name in (":x:.json", "[red]x.json", "[/]"):
        assert here("replay", name).out.startswith(f"ERROR   {name}: {name}: does not exist")


@pytest.mark.parametrize(
    ("line", "limit", "said"),
    [
        ("fuzz sim --run-dir r", 0, "nothing can be written to the folder 'r' (File too large)"),
        ("simulate --requests 9 --trace x.json", 512, "the output can't be written: File too "),
        ("vary sim:fold-one-short --max-windows 9", 512, "the output can't be written: File "),
        ("replay agreeing.json", 0, "No usable temporary directory found in"),
    ],
)
def test_a_disk_that_is_full_is_no_error_of_ours(
    line: str, limit: int, said: str, traces: Path
) -> None:
    """Played by a limit on the size of files: a sentence that says what to do, and no traceback."""
    run = subprocess.run(
        [sys.executable, "-m", "ringfold", *line.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=traces,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )

    assert run.returncode == 2
    assert said in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_was_compared_until_ctrl_c_is_told(
    when: str, monkeypatch: pytest.MonkeyPatch, here: Callable[..., Told], tmp_path: Path
) -> None:
    """And that it was stopped: inconclusive. Where nothing waits for it, Ctrl-C just ends."""
    monkeypatch.chdir(tmp_path)
    if when == "before":
        interrupt = lambda *arguments: os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
        monkeypatch.setattr("ringfold.fuzz.targets.registry.resolve", interrupt)
        told = here("compare", "sim", "sim", "--json")
        assert (told.code, told.object["error"]) == (130, "stopped")
        return
    histories = compare.histories

    def stopping(*arguments: Any, **options: Any) -> Iterator[Trace]:
        for number, trace in enumerate(histories(*arguments, **options)):
            if number == 1:
                os.kill(os.getpid(), signal.SIGINT)
            yield trace

    monkeypatch.setattr("ringfold.fuzz.commands.compare.histories", stopping)
    told = here("compare", "sim", "sim", "--json")

    assert told.code == 3
    assert told.object["histories"] == 1
    assert told.object["inconclusive"][0] == "stopped by hand"


def test_what_was_replayed_until_ctrl_c_is_told(
    traces: Path, monkeypatch: pytest.MonkeyPatch, here: Callable[..., Told]
) -> None:
    """The outcomes so far, and how many traces are left."""
    monkeypatch.chdir(traces)
    submit = workers.Workers.submit
    handed = list[tuple[Any, ...]]()

    def stopping(self: workers.Workers, *arguments: Any) -> Any:
        if handed:
            raise KeyboardInterrupt
        handed.append(arguments)
        return submit(self, *arguments)

    monkeypatch.setattr(workers.Workers, "submit", stopping)
    told = here("replay", "agreeing.json", "failing.json", "--json")

    assert told.code == 3
    assert [one["outcome"] for one in told.object["traces"]] == ["AGREES"]
    assert told.object["left_out"] == 1


def test_shrinking_keeps_the_best_so_far(
    traces: Path, monkeypatch: pytest.MonkeyPatch, here: Callable[..., Told]
) -> None:
    """Ctrl-C ends the search, and what it has found by then is written."""
    monkeypatch.chdir(traces)
    walks = walk
    count = 0

    def stopping(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return walks(*arguments, **options)

    monkeypatch.setattr(shrink, "walk", stopping)
    told = here("shrink", "failing.json", "--json")

    assert told.code == 1
    assert count < 50  # left alone it takes some 300
    assert (traces / told.object["trace"]).is_file()


@pytest.mark.parametrize("command", ["fuzz sim", "explore sim --ring 32 --window 8"])
def test_ending_a_whole_group_of_processes_loses_nothing(command: str, tmp_path: Path) -> None:
    """A queue ends the workers with their parent: it tells what it has, and that it was stopped."""
    run = started(
        *command.split(),
        *("--workers", "1", "--run-dir", "r", "--max-time", "600", "--json"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    report, late = tmp_path / "r" / "report.json", time.monotonic() + 300
    while not report.is_file() and run.poll() is None and time.monotonic() < late:
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGTERM)
    out, err = run.communicate(timeout=120)

    assert "Traceback" not in err
    told = Told(run.returncode, out, err)
    assert told.code == 3
    assert told.object["inconclusive"][0] == "stopped by hand"
    assert json.loads(report.read_text(encoding="utf-8"))["windows"] == told.object["windows"]


def test_ctrl_c_while_it_is_imported_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 130, and no traceback."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupted)

    with pytest.raises(SystemExit, match="130"):
        entry.main()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device", "x.json"), "x.json: No space left on device"),
        (OSError(27, "File too large"), "the output can't be written: File too large: make room"),
        (OSError(24, "Too many open files"), "this machine gives no more (Too many open files)"),
        (MemoryError("250 GiB"), "too little memory here (250 GiB): choose fewer slots"),
    ],
    ids=["disk", "a file's size", "open files", "memory"],
)
def test_what_the_machine_lacks_is_no_error_of_ours(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, here: Callable[..., Told]
) -> None:
    """A sentence that says what to do, and no traceback."""

    def broken(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("ringfold.fuzz.targets.registry.resolve", broken)
    told = here("fuzz", "sim")

    assert (told.code, told.out) == (2, "")
    assert told.err.startswith(f"ringfold: {said}")


def test_an_error_of_ours_is_70(monkeypatch: pytest.MonkeyPatch, here: Callable[..., Told]) -> None:
    """With the traceback, and no claim about the target."""

    def broken(*arguments: object) -> None:
        raise LookupError("lost")

    monkeypatch.setattr("ringfold.fuzz.targets.registry.resolve", broken)
    told = here("fuzz", "sim")

    assert told.code == 70
    assert "internal error, please report it: LookupError('lost')" in told.err
    assert "Traceback" in told.err
    assert told.out == ""
