"""A crew: worker processes that walk histories for one report, as campaigns and explorations do.

Its clock starts at the first window of any worker. It writes the report so far, and keeps the
history that a target does not come back from, and those that may have killed a worker.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Final

from ringfold.fuzz.findings import failures
from ringfold.fuzz.histories.trace import Trace
from ringfold.fuzz.judging.mismatch import Mismatch
from ringfold.fuzz.running.watch import Hang, HangingError
from ringfold.fuzz.running.workers import Workers
from ringfold.fuzz.target import Device, Target
from ringfold.fuzz.targets.registry import resolve

POLL_SECONDS: Final = 0.2
REPORT: Final = "report.json"


class Clock:
    """Time and windows, shared by all workers: it starts at the first window of any."""

    def __init__(self, seconds_max: float | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self.seconds_max = seconds_max
        self.started = context.Value("d", 0.0)
        self.windows = context.Value("q", 0)
        self.stopped = context.Value("b", 0)
        self.enough = context.Value("b", 0)
        """Whether no more is to be walked; what was found may still be shrunk."""

    def count(self, windows: int) -> None:
        """Add to the windows verified so far."""
        with self.windows.get_lock():
            self.windows.value += windows
            if not self.started.value:
                self.started.value = time.monotonic()

    def elapsed(self) -> float:
        """Seconds since the first window; 0 before it."""
        return time.monotonic() - self.started.value if self.started.value else 0.0

    def stop(self) -> None:
        """Let every worker finish the operation that it is at, and return what it has."""
        self.stopped.value = 1

    def out_of_time(self) -> bool:
        """Whether the budget of time is spent, or somebody stopped the run, or it has enough."""
        late = self.seconds_max is not None and self.elapsed() > self.seconds_max
        return late or bool(self.stopped.value or self.enough.value)


@functools.cache
def target_of(name: str, device: Device) -> Target:
    """One instance a process, since its modules and compiled kernels are worth keeping."""
    return resolve(name, device)


class Crew:
    """Workers, each of which begins with `start(watch, clock, *arguments)`.

    A subclass does the work, and says what becomes of the report when it is cut short.
    """

    def __init__(
        self,
        count: int,
        start: Callable[..., None],
        *arguments: Any,
        device: Device,
        run_dir: Path | None,
        seconds_max: float | None,
    ) -> None:
        """`run_dir`: where failures go, and the report; without it failures go here."""
        self.device = device
        self.run_dir = run_dir or Path()
        self.report_path = run_dir / REPORT if run_dir else None
        self.written = 0.0
        self.clock = Clock(seconds_max)
        visible = gpus() if device == "cuda" else ()
        self.workers = Workers(count, start, self.clock, *arguments, visible=visible)

    def work(self, *parts: Callable[[], None]) -> None:
        """Do one part after the other, unless somebody stops it or a target hangs or dies."""
        with self.workers:
            try:
                for part in parts:
                    part()
            except HangingError as hanging:
                self.hangs(hanging.hang)
            except BrokenProcessPool:
                self.died()
            except KeyboardInterrupt:
                self.interrupted()
            except BaseException:
                self.stop_workers()
                raise

    def hangs(self, hang: Hang) -> None:
        """A worker did not come back, and was killed."""
        raise NotImplementedError

    def died(self) -> None:
        """A worker is gone."""
        raise NotImplementedError

    def interrupted(self) -> None:
        """Somebody pressed Ctrl-C."""
        raise NotImplementedError

    def write(self, report: Any, every: float = 0.0) -> None:
        """Write the report so far, if that is so many seconds ago."""
        if time.monotonic() - self.written >= every:
            self.written = time.monotonic()
            if self.report_path is not None:
                failures.write_json(self.report_path, report)

    def stop_workers(self) -> None:
        """Wait until each has returned what it has; whoever presses Ctrl-C again does not wait."""
        self.clock.stop()
        try:
            self.workers.pool.shutdown(cancel_futures=True)
        except KeyboardInterrupt:
            self.workers.end()
            raise

    def hanging(self, hang: Hang, trace: Trace) -> tuple[Trace, Mismatch]:
        """The history that does not end as a failure, and what is said of it."""
        mismatch = hang.mismatch(trace, self.workers.hang_max)
        return failures.as_failure(trace, [mismatch], {}), mismatch

    def suspects(self, traces: Iterable[Trace] = ()) -> list[str]:
        """Keep histories that may have killed a worker; returns the lines that replay them.

        Without any they are those that workers left when they began to walk them.
        """
        watch = self.workers.watch
        left = [trace for trace in map(watch.told, watch.walking()) if trace is not None]
        paths = [failures.write_suspect(trace, self.run_dir) for trace in traces or left]
        return [failures.reproduce(path, None, self.device) for path in paths]


def raise_to(largest: dict[str, float], seen: dict[str, float]) -> None:
    """Keep the largest error of each check."""
    for check, ratio in seen.items():
        largest[check] = max(largest.get(check, 0.0), ratio)


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> tuple[str, ...]:
    """The GPUs that this process may use, by the names that `CUDA_VISIBLE_DEVICES` has for them."""
    import torch

    if named := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return tuple(named.split(","))
    return tuple(map(str, range(torch.cuda.device_count())))
