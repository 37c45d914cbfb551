"""A worker process: started when first asked, one request at a time, never waited for for ever.

Whatever it prints goes to a file, whose last lines are told when it dies or must be stopped. It
ends with this process: its standard input closes, and the kernel kills it (see `worker.main`).
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from ringfold.fuzz.targets.pool import protocol

START_SECONDS_MAX: Final = 600.0
"""For the first answer, before which a release is imported."""
CALL_SECONDS_MAX: Final = 180.0
LINES: Final = 6
"""Of what it printed, shown when it dies."""


class WorkerError(RuntimeError):
    """A worker died, hung or answered nonsense; the message has its last lines."""


class ReleasedError(RuntimeError):
    """Something was raised inside of a worker, by the code that it runs."""

    @staticmethod
    def of(kind: str, text: str, where: str) -> ReleasedError:
        """An error whose class has the name of the one that was raised there."""
        named = type(kind, (ReleasedError,), {"__module__": "worker"})
        error: ReleasedError = named(f"{text or 'no message'} (at {where})")
        return error


class WorkerProcess:
    """One process that serves requests over its standard input and output."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        variables: Mapping[str, str],
        *,
        start_seconds_max: float = START_SECONDS_MAX,
        call_seconds_max: float = CALL_SECONDS_MAX,
    ) -> None:
        self.name, self.command, self.variables = name, list(command), dict(variables)
        self.start_seconds_max, self.call_seconds_max = start_seconds_max, call_seconds_max
        self.running: subprocess.Popen[bytes] | None = None
        self.starts = 0
        """How often it was started: what it held before the last of them is gone."""

    @property
    def pid(self) -> int:
        """Of the running process.

        Raises:
            WorkerError: none is running.
        """
        if self.running is None:
            raise WorkerError(f"{self.name}: its worker is not running")
        return self.running.pid

    def call(
        self,
        verb: str,
        fields: Mapping[str, Any] | None = None,
        arrays: Sequence[NDArray[Any]] = (),
    ) -> protocol.Message:
        """Ask and wait for the answer, starting the process where none runs.

        Raises:
            ReleasedError: what it runs raised; it goes on serving.
            WorkerError: it died or did not answer in time; the next call starts it anew.
        """
        fresh = self.running is None
        running = self._start() if self.running is None else self.running
        limit = self.start_seconds_max if fresh else self.call_seconds_max
        late = threading.Event()

        def stop() -> None:
            late.set()
            running.kill()

        timer = threading.Timer(limit, stop)
        timer.daemon = True
        timer.start()
        try:
            assert running.stdin is not None
            assert running.stdout is not None
            protocol.send(running.stdin, verb, fields, arrays)
            reply = protocol.receive(running.stdout)
            problem = "" if reply else "closed"
        except (OSError, EOFError) as error:
            reply, problem = None, str(error)
        except ValueError as error:
            reply, problem = None, f"nonsense: {error}"
        finally:
            timer.cancel()
        if reply is None:
            raise self._account(verb, problem, limit if late.is_set() else None)
        if reply.verb == "failed":
            raise ReleasedError.of(**reply.fields)
        return reply

    def close(self) -> None:
        """End the process; a later call starts another."""
        if self.running is None:
            return
        self.running.kill()
        self.running.wait()
        for stream in (self.running.stdin, self.running.stdout):
            if stream is not None:
                stream.close()
        self.running = None
        self.log.close()

    def _start(self) -> subprocess.Popen[bytes]:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.running = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=self.variables,
            # Ctrl-C is for this process to decide on.
            start_new_session=True,
        )
        self.starts += 1
        return self.running

    def _account(self, verb: str, problem: str, limit: float | None) -> WorkerError:
        """Why there is no answer; whatever is left of the process is ended."""
        assert self.running is not None
        if limit is not None:
            what = f"did not answer `{verb}` within {limit:g} s and was stopped"
        elif problem.startswith("nonsense"):
            what = f"answered `{verb}` with {problem}, and was stopped"
        else:
            try:
                code = self.running.wait(timeout=5.0)
            except subprocess.TimeoutExpired:
                what = f"closed its pipes on `{verb}` and was stopped"
            else:
                how = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
                what = f"died on `{verb}` ({how})"
        last = self._last_lines()
        self.close()
        return WorkerError(f"{self.name}: its worker {what}; its last lines: {last}")

    def _last_lines(self) -> str:
        self.log.seek(0)
        lines = [line.strip() for line in self.log.read().decode(errors="replace").splitlines()]
        return " / ".join([line for line in lines if line][-LINES:]) or "none"


TARGETS: Final = "ringfold.fuzz.targets"
"""The package whose modules a worker sees, by the names that they have here."""


def command(python: Path, module: str, *arguments: str) -> list[str]:
    """How to run the `main` of a module of `TARGETS` as a program.

    The packages around it are empty there, so that neither it nor what it imports can meet another
    file of ringfold, or need one.
    """
    start = (
        "import importlib, sys, types\n"
        f"parts = {TARGETS.split('.')}\n"
        "for i in range(len(parts)):\n"
        "    package = types.ModuleType('.'.join(parts[: i + 1]))\n"
        "    package.__path__ = []\n"
        "    sys.modules[package.__name__] = package\n"
        "package.__path__ = [sys.argv.pop(1)]\n"
        f"importlib.import_module('{TARGETS}.{module}').main()\n"
    )
    return [str(python), "-P", "-c", start, str(Path(__file__).parents[1]), *arguments]
