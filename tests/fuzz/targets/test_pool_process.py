"""A worker process may answer, raise, print, hang or die, and each of these has one outcome here.

A stand-in does all of it on request, in an interpreter of its own, through the protocol and the
loop that the real worker has. What is claimed is what a walk depends on: an answer is bit for bit
what was sent, an exception has its name and the worker lives on, and whatever else happens is an
error with the worker's last words, never a wait for ever.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ringfold.fuzz.targets.pool import protocol
from ringfold.fuzz.targets.pool.process import ReleasedError, WorkerError, WorkerProcess, command

STAND_IN = Path(__file__).parent / "stand_in_worker.py"
SOURCES = Path(protocol.__file__).parents[4]
"""Where `ringfold` is imported from."""


def worker_with(call_seconds_max: float = 60.0) -> WorkerProcess:
    variables = {**os.environ, "PYTHONPATH": str(SOURCES)}
    return WorkerProcess(
        "stand-in", [sys.executable, str(STAND_IN)], variables, call_seconds_max=call_seconds_max
    )


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    """A stand-in that ends with the test."""
    started = worker_with()
    yield started
    started.close()


class TestMessages:
    """What goes over the pipes."""

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int8"])
    def test_arrays_arrive_bit_for_bit(self, dtype: str) -> None:
        """Of any shape, empty and transposed ones too."""
        values = np.arange(24, dtype=dtype).reshape(2, 3, 4)
        sent = [values, values.T, values[:0], np.array(7, dtype)]
        stream = io.BytesIO()

        protocol.send(stream, "verb", {"rows": [1, 2], "name": "x"}, sent)
        stream.seek(0)
        message = protocol.receive(stream)

        assert message is not None
        assert (message.verb, message.fields) == ("verb", {"rows": [1, 2], "name": "x"})
        for got, was in zip(message.arrays, sent, strict=True):
            assert got.dtype == was.dtype
            assert got.shape == was.shape
            assert got.tobytes() == was.tobytes()

    def test_an_end_between_messages_is_none_and_inside_one_an_error(self) -> None:
        """So that an orderly end and a death are told apart."""
        stream = io.BytesIO()
        protocol.send(stream, "verb", {}, [np.zeros(5)])
        whole = stream.getvalue()

        assert protocol.receive(io.BytesIO()) is None
        for length in (1, 4, 10, len(whole) - 1):
            with pytest.raises(EOFError, match="closed after"):
                protocol.receive(io.BytesIO(whole[:length]))

    def test_what_is_no_message_is_refused(self) -> None:
        """Text in between would else be taken for a length."""
        for content, why in (
            (b"Loading weights...", "a header of"),
            (b"\x03\0\0\0abc", "not a header"),
        ):
            with pytest.raises(ValueError, match=why):
                protocol.receive(io.BytesIO(content))


class TestAWorker:
    """What happens to one call."""

    def test_it_starts_at_the_first_call_and_serves_the_next(self, worker: WorkerProcess) -> None:
        """One process for all calls."""
        assert worker.starts == 0

        first = worker.call("doubled", {"layers": 2}, [np.array([1.5, -2.0], np.float32)])
        second = worker.call("pid").fields["pid"]

        assert first.fields == {"layers": 2}
        assert first.arrays[0].tolist() == [3.0, -4.0]
        assert (worker.starts, second) == (1, worker.pid)
        assert worker.call("silent").fields == {}

    def test_an_exception_has_its_name_and_the_worker_lives_on(self, worker: WorkerProcess) -> None:
        """A finding is known by what was raised, so the class must have that name."""
        with pytest.raises(ReleasedError, match=r"the slot is taken \(at .*stand_in_worker") as e:
            worker.call("raising")

        assert type(e.value).__name__ == "AssertionError"
        assert worker.call("pid").fields["pid"] == worker.pid
        assert worker.starts == 1

    def test_what_it_prints_is_no_answer(self, worker: WorkerProcess) -> None:
        """A release prints as it pleases, also behind Python's back."""
        assert worker.call("printing").arrays[0].tolist() == [0.0, 1.0, 2.0]

    def test_one_that_dies_is_an_error_with_its_last_words(self, worker: WorkerProcess) -> None:
        """And the next call starts another."""
        before = worker.call("pid").fields["pid"]

        with pytest.raises(WorkerError, match=r"died on `dying` \(killed by signal 6\).*to die"):
            worker.call("dying")

        assert worker.call("pid").fields["pid"] != before
        assert worker.starts == 2

    def test_one_that_hangs_is_stopped(self) -> None:
        """After the limit of a call, not of a start."""
        worker = worker_with(call_seconds_max=1.0)
        pid = worker.call("pid").fields["pid"]
        start = time.monotonic()

        with pytest.raises(WorkerError, match=r"not answer `hanging` within 1 s.*about to hang"):
            worker.call("hanging")

        assert time.monotonic() - start < 30
        assert not Path(f"/proc/{pid}").exists()
        worker.close()

    def test_one_that_answers_nonsense_is_stopped(self, worker: WorkerProcess) -> None:
        """Whatever follows on that stream can't be trusted."""
        worker.call("pid")

        with pytest.raises(WorkerError, match="answered `nonsense` with nonsense: a header of"):
            worker.call("nonsense")

        assert worker.running is None

    def test_one_that_cannot_start_is_an_error(self) -> None:
        """Such as an interpreter without the packages."""
        worker = WorkerProcess("broken", [sys.executable, "-c", "import nothing_such"], os.environ)

        with pytest.raises(WorkerError, match=r"exit status 1.*No module named 'nothing_such'"):
            worker.call("pid")


def test_a_worker_ends_with_whoever_started_it() -> None:
    """Also if that one is killed while the worker is busy."""
    program = (
        "import os, sys, threading, time\n"
        "from ringfold.fuzz.targets.pool.process import WorkerProcess\n"
        f"w = WorkerProcess('x', [sys.executable, {str(STAND_IN)!r}], dict(os.environ))\n"
        "print(w.call('pid').fields['pid'], flush=True)\n"
        "w.call('hanging')\n"
    )
    variables = {**os.environ, "PYTHONPATH": str(SOURCES)}
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=variables, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert Path(f"/proc/{child}").exists()

    parent.kill()
    parent.wait()

    deadline = time.monotonic() + 20
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(child)
    parent.stdout.close()


def test_a_program_sees_nothing_of_ringfold_but_its_own_files(tmp_path: Path) -> None:
    """The packages around it are empty, wherever this one comes from."""
    start = command(Path(sys.executable), "pool.worker")
    program = start[3].replace(".main()", "") + (
        "from ringfold.fuzz.targets.pool import protocol\n"
        "print(sorted(n for n in sys.modules if n.startswith('ringfold')))\n"
        "try:\n"
        "    import ringfold.fuzz.judging.walk\n"
        "except ImportError:\n"
        "    print('alone')\n"
    )

    run = subprocess.run(
        [*start[:3], program, start[4]],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )

    names, alone = run.stdout.splitlines()
    assert alone == "alone"
    assert "ringfold.oracle" not in names
    assert "ringfold.fuzz.targets.pool.protocol" in names


def _runs(pid: int) -> bool:
    """Whether it is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
