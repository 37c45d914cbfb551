"""Worker processes end with the block that they were started in.

What a worker does is whatever a test asks for, here to wait for ever; what is claimed is about
processes, and asked of the operating system. Nothing depends on how quick a machine is: a worker
that would come back by itself does not.
"""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from ringfold.fuzz.running.watch import Watch
from ringfold.fuzz.running.workers import Workers


def begin(watch: Watch) -> None:
    """Nothing to set up."""


def wait() -> None:
    """For ever."""
    threading.Event().wait()


def answer() -> int:
    """At once."""
    return 42


def stopped(workers: Workers) -> None:
    """Somebody presses Ctrl-C while one waits."""
    with workers:
        workers.submit(wait)
        raise KeyboardInterrupt


def test_who_was_given_up_is_gone_behind_the_block() -> None:
    """A pool that does not wait leaves nobody who would wait in its place."""
    with Workers(2, begin) as workers:
        assert workers.submit(answer).result() == 42
        workers.submit(wait)
        workers.pool.shutdown(wait=False, cancel_futures=True)

    assert workers.context.started
    assert not any(worker.is_alive() for worker in workers.context.started)


def test_a_stopped_one_is_gone_without_waiting() -> None:
    """Ctrl-C, with a worker that does not come back."""
    workers = Workers(1, begin)

    with pytest.raises(KeyboardInterrupt):
        stopped(workers)

    assert not any(worker.is_alive() for worker in workers.context.started)


def test_a_worker_that_is_late_looks_for_nothing_that_is_gone() -> None:
    """One that still starts when its parent is through has nothing to tell on standard error."""
    program = (
        "import gc, os\n"
        "from ringfold.fuzz.running.workers import Workers\n"
        "with Workers(1, id) as workers:\n"
        "    workers.submit(os.getpid)\n"
        "    workers.pool.shutdown(wait=False, cancel_futures=True)\n"
        "del workers\n"
        "gc.collect()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stderr == ""
