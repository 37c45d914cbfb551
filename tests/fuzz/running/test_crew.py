"""A crew's clock starts with the first window and stops when it is told to; its GPUs are dealt out.

Whoever cannot wait for its workers has them killed, and no other process: asked of processes.
What a crew keeps of targets that hang or die is tested where it works: in campaigns and
explorations.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from ringfold.fuzz.running.crew import Clock, Crew, gpus
from ringfold.fuzz.running.watch import Watch
from ringfold.fuzz.running.workers import _start as start_worker


def test_the_clock_starts_at_the_first_window() -> None:
    """Before it no time is spent, however long compiling takes; then the limit counts."""
    clock = Clock(seconds_max=0.0)
    assert clock.elapsed() == 0.0
    assert not clock.out_of_time()

    clock.count(3)

    assert clock.windows.value == 3
    assert clock.out_of_time()


def test_a_clock_that_is_stopped_is_out_of_time() -> None:
    """Without any limit, and before the first window."""
    clock = Clock()
    assert not clock.out_of_time()

    clock.stop()

    assert clock.out_of_time()


@pytest.mark.parametrize(("named", "dealt"), [("3,5", ["3", "5", "3"]), ("1", ["1", "1", "1"])])
def test_workers_are_dealt_out_to_the_gpus(
    monkeypatch: pytest.MonkeyPatch, named: str, dealt: list[str]
) -> None:
    """Each sees one of those that this process may use."""
    pytest.importorskip("torch")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    context = multiprocessing.get_context("spawn")
    watch, visible = Watch(context, 3), gpus()
    seen = []
    for _ in range(3):
        start_worker(watch, visible, lambda watch: None, ())
        seen.append(os.environ["CUDA_VISIBLE_DEVICES"])

    assert seen == dealt


def begin(watch: Watch, clock: Clock) -> None:
    """Nothing to set up."""


def wait() -> None:
    """For ever."""
    threading.Event().wait()


def test_who_presses_ctrl_c_again_ends_the_crew_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process that somebody else in this one started, such as a pool of their own, goes on."""
    crew = Crew(1, begin, device="cpu", run_dir=tmp_path, seconds_max=None)
    others = multiprocessing.get_context("spawn").Process(target=wait, daemon=True)
    others.start()

    def pressed(**options: Any) -> None:
        raise KeyboardInterrupt

    with crew.workers:
        crew.workers.submit(wait)
        with monkeypatch.context() as patch:
            patch.setattr(crew.workers.pool, "shutdown", pressed)
            with pytest.raises(KeyboardInterrupt):
                crew.stop_workers()

        assert not any(worker.is_alive() for worker in crew.workers.context.started)
        assert others.is_alive()
    assert others.is_alive()
    others.kill()
    others.join()
