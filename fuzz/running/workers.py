"""Worker processes that are watched, deaf to Ctrl-C, and gone when their parent is."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from ringfold.fuzz.running.watch import HANG_SECONDS, HangingError, Watch

Result = TypeVar("Result")

ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)
"""Of linear algebra: the workers are the parallelism."""
KEPT_MEMORY: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
}
"""For glibc: pages of arrays that come and go are kept, since each new page is a fault."""


@contextmanager
def deaf(*signals: signal.Signals) -> Iterator[None]:
    """Processes that start in this block, and those that they start, never hear these signals.

    A terminal sends Ctrl-C to every process; the parent decides what it means. It hears of it
    behind the block.
    """
    # Python's own helper, started when it is first needed, would unblock them amid the block.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Spawning(multiprocessing.context.SpawnContext):
    """Starts processes, and knows which."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[multiprocessing.context.SpawnProcess] = []

    def Process(self, *given: Any, **named: Any) -> Any:  # type: ignore[override]  # noqa: N802
        """One more, called by the pool."""
        process = super().Process(*given, **named)
        self.started.append(process)
        return process


class Workers:
    """A pool of processes, each of which begins with `start(watch, *arguments)`."""

    def __init__(
        self,
        count: int,
        start: Callable[..., None],
        *arguments: Any,
        hang_max: float = HANG_SECONDS,
        visible: tuple[str, ...] = (),
    ) -> None:
        """`hang_max`: seconds after which an operation is given up.

        `visible`: GPUs, as `CUDA_VISIBLE_DEVICES` names them; workers are dealt out to them.
        """
        for variable, value in (ONE_THREAD | KEPT_MEMORY).items():
            os.environ.setdefault(variable, value)
        self.hang_max = hang_max
        self.context = _Spawning()
        self.folder = tempfile.TemporaryDirectory(prefix="ringfold-")
        self.watch = Watch(self.context, count, Path(self.folder.name))
        about = (self.watch, visible, start, arguments)
        self.pool = ProcessPoolExecutor(count, self.context, _start, about)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is KeyboardInterrupt:  # whoever pressed Ctrl-C does not wait
            self.end()
        self.pool.shutdown(cancel_futures=True)
        # A pool that was once told not to wait does not wait any more. Whoever is still at
        # something then, or still starts, would look for a watch and a folder that are gone.
        self.end()
        self.folder.cleanup()

    def end(self) -> None:
        """Kill them all, whatever they are at; nobody else's process is touched."""
        for worker in self.context.started:
            worker.kill()
        for worker in self.context.started:
            worker.join()

    def submit(self, work: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Have a worker do it. A worker that starts for it is deaf to Ctrl-C."""
        with deaf(signal.SIGINT):
            return self.pool.submit(work, *arguments)

    def look(self) -> None:
        """Kill a worker that does not come back, and raise `HangingError`: all the others end."""
        if (hang := self.watch.hanging(self.hang_max)) is not None:
            for worker in self.context.started:
                if worker.pid == hang.worker:
                    worker.kill()
            raise HangingError(hang)


def _start(
    watch: Watch,
    visible: tuple[str, ...],
    start: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    watch.enlist()
    if visible:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[watch.mine % len(visible)]
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    start(watch, *arguments)


def _end_with_the_parent() -> None:
    """Leave when the parent is gone: nobody would hear of what is done after that.

    A pool's workers hold both ends of its queues, so they do not notice by themselves.
    """
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)
