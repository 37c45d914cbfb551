"""One mutant in a process of its own, with limits on its time and its memory.

A process is a fork of a server that has imported torch, Triton and the tester, and no kernel of
the target: so it starts in milliseconds, and loads the kernels itself, with the fault in them.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple, Self

import msgspec

from ringfold.fuzz.mutation.gauntlet import TWIN, Found, Stage, first_steps, gauntlet
from ringfold.fuzz.mutation.layouts import Layout, laid_out
from ringfold.fuzz.mutation.operators import Mutant
from ringfold.fuzz.running.workers import deaf
from ringfold.fuzz.target import Device, Target
from ringfold.fuzz.targets import interpreter
from ringfold.fuzz.targets.loading import rewriting
from ringfold.fuzz.targets.registry import resolve

MEMORY_BYTES_MAX: Final = 6 * 2**30
"""What a process may allocate, beside the shared mappings of `layouts`; not on a GPU, whose driver
maps all of its memory."""
GRACE_SECONDS: Final = 30.0
"""A process that is so much over its time hangs inside a single operation."""
PATIENCE: Final = 20.0
"""So many times as long may it take by the clock, on a machine that others use too."""

STOPPING: Final = (signal.SIGINT, signal.SIGTERM)
"""What ends the parent, which then ends all processes: none of them may seem killed by a fault."""
INTERPRET: Final = "TRITON_INTERPRET"
PRELOADED: Final = ("ringfold.fuzz.mutation.preload",)


class Order(NamedTuple):
    """What a process is to do."""

    target: str
    device: Device
    seed: int
    seconds_max: float
    """Of processor time: how busy a machine is decides nothing."""
    left_out: frozenset[str] = frozenset()
    """Stages that the target fails without a fault."""
    grace: float = GRACE_SECONDS


class Outcome(msgspec.Struct):
    """What came of one mutant."""

    outcome: str
    """killed, survived, or timed out: it hung, which is noticed too."""
    by: str = ""
    """The check that failed, the signal that ended the process, or what could not be loaded."""
    sentence: str = ""
    """What was seen: to be shown, and not kept, since it may quote the kernel."""
    stage: str = ""
    windows: int = 0
    seconds: float = 0.0
    """By the clock."""


class Probed(msgspec.Struct):
    """The target without a fault."""

    sources: dict[str, str] = {}
    """Text of each file with kernels that was loaded, by name."""
    reached: dict[str, list[int]] = {}
    """Lines that ran."""
    identity: dict[str, str] = {}
    failing: dict[str, str] = {}
    """Stages that fail all the same, and how."""
    windows: int = 0
    seconds: float = 0.0


# ------------------------------------------------------------------ in the parent


class Server:
    """Starts processes that have everything imported but the target, one for each question."""

    def __init__(self, device: Device) -> None:
        # Whoever forks may have no threads; and the interpreter gains nothing from them.
        for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[variable] = "1"
        interpreter.set_device_mode(device)
        self.running: set[multiprocessing.process.BaseProcess] = set()
        self.ended = False
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(list(PRELOADED))
        with deaf(*STOPPING):
            forkserver.ensure_running()
        # Importing takes seconds, in which a Ctrl-C should find nobody who goes on without us.
        first = self.context.Process(target=_nothing)
        first.start()
        first.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill every process that is still at something, and any that starts from now on."""
        self.ended = True
        for process in tuple(self.running):
            process.kill()

    def ask(
        self,
        work: Callable[[Order, Mutant | None], msgspec.Struct],
        order: Order,
        mutant: Mutant | None = None,
        *,
        seconds_max: float | None = None,
        anew: bool = False,
    ) -> tuple[str, str]:
        """What a process says: ("answer", JSON), ("died", how), or ("hung", "").

        `anew`: it has nothing imported, and is in this process's environment as it is now.
        """
        context: Any = multiprocessing.get_context("spawn") if anew else self.context
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_serve, args=(theirs, work, order, mutant), daemon=True)
        with deaf(*STOPPING):
            process.start()
        self.running.add(process)
        try:
            theirs.close()
            if self.ended:
                process.kill()
            if not ours.poll(seconds_max):
                return "hung", ""
            return "answer", ours.recv_bytes().decode()
        except EOFError:
            process.join()
            code = process.exitcode
            return "died", signal.Signals(-code).name if code and code < 0 else f"exit code {code}"
        finally:
            process.kill()
            process.join()
            self.running.discard(process)
            ours.close()


def probe(server: Server, order: Order) -> Probed:
    """Walk the gauntlet without a fault, traced; raises `RuntimeError` if that can't be done.

    Lines of a kernel run in the interpreter alone, so that is where they are traced for any device.
    """
    start = time.monotonic()
    patient = order._replace(seconds_max=math.inf, device="cpu")
    if order.device == "cpu":
        kind, answer = server.ask(_probe, patient)
    else:
        with _interpreting():
            kind, answer = server.ask(_probe, patient, anew=True)
    if kind != "answer":
        raise RuntimeError(f"{order.target} could not be walked at all: {answer}")
    probed = msgspec.json.decode(answer, type=Probed)
    probed.seconds = round(time.monotonic() - start, 3)
    return probed


def run(server: Server, order: Order, mutant: Mutant | None) -> Outcome:
    """Walk the gauntlet with a fault, or without any."""
    start = time.monotonic()
    patience = PATIENCE * (order.seconds_max + order.grace)
    kind, answer = server.ask(_run, order, mutant, seconds_max=patience)
    seconds = round(time.monotonic() - start, 3)
    if kind == "answer":
        outcome = msgspec.json.decode(answer, type=Outcome)
    elif kind == "hung" or answer == signal.SIGXCPU.name:
        outcome = Outcome("timed out", "a single operation hung")
    else:
        outcome = Outcome("killed", answer)
    outcome.seconds = seconds
    return outcome


@contextmanager
def _interpreting() -> Iterator[None]:
    """Processes that start anew in this context interpret kernels."""
    os.environ[INTERPRET] = "1"
    try:
        yield
    finally:
        del os.environ[INTERPRET]


# ------------------------------------------------------------------ in the process


def _nothing() -> None:
    """Whoever is through with this shows that the server has imported everything."""


def _serve(
    answers: Connection,
    work: Callable[[Order, Mutant | None], msgspec.Struct],
    order: Order,
    mutant: Mutant | None,
) -> None:
    _limit(order)
    # What a broken kernel prints is nobody's business.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    answers.send_bytes(msgspec.json.encode(work(order, mutant)))
    answers.close()
    # A destructor might still trip over what the mutant left behind.
    os._exit(0)


def _limit(order: Order) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if math.isfinite(order.seconds_max):
        seconds = math.ceil(order.seconds_max + order.grace)
        # The second limit would be a SIGKILL, which tells no hang.
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    if order.device == "cpu":
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))


def _run(order: Order, mutant: Mutant | None) -> Outcome:
    start = _spent()

    def late() -> bool:
        return _spent() - start > order.seconds_max

    def mutated(name: str, source: str) -> str:
        return mutant.of(source) if mutant is not None and name == mutant.file else source

    windows, stage = 0, "loading"
    try:
        with rewriting(mutated):
            for stage, found in _walked(order, late):
                windows += found.windows
                if found.check:
                    return Outcome("killed", found.check, found.sentence, stage, windows)
    except Exception as error:  # noqa: BLE001 - whatever a mutant brings about
        return Outcome("killed", "crash", repr(error)[:500], stage, windows)
    return Outcome("survived", stage=stage, windows=windows)


def _spent() -> float:
    """Seconds of processor time, those of compilers included."""
    return sum(os.times()[:4])


def _walked(order: Order, late: Callable[[], bool]) -> Iterator[tuple[str, Found]]:
    """The stages of the gauntlet, and what each came to, until it is late."""
    targets: dict[Layout, Target] = {}
    target = resolve(order.target, order.device)
    for stage in gauntlet(target, order.target, order.device, order.seed):
        if late():
            return
        if str(stage) not in order.left_out:
            yield str(stage), _step(stage, targets, order, late)


def _step(
    stage: Stage, targets: dict[Layout, Target], order: Order, late: Callable[[], bool]
) -> Found:
    if stage.layout not in targets:
        targets[stage.layout] = laid_out(resolve(order.target, order.device), stage.layout)
    target: Target | None = targets[stage.layout]
    if stage.name == TWIN and target is not None:
        target = target.twin()
    assert target is not None
    return stage.run(target, late)


def _probe(order: Order, mutant: Mutant | None) -> Probed:
    """Every directed stage, and some steps of each configuration, traced."""
    probed = Probed()

    def note(name: str, source: str) -> str:
        probed.sources[name] = source
        return source

    targets: dict[Layout, Target] = {}
    with rewriting(note), _tracing(probed.sources) as reached:
        target = resolve(order.target, order.device)
        stages = gauntlet(target, order.target, order.device, order.seed)
        directed = itertools.takewhile(lambda stage: stage.name != "random", stages)
        for stage in (*directed, *first_steps(target, order.target, order.device, order.seed)):
            found = _step(stage, targets, order, lambda: False)
            probed.windows += found.windows
            if found.check:
                probed.failing[str(stage)] = f"{found.check}: {found.sentence}"
        probed.identity = dict(target.identity())
    for file, source in probed.sources.items():
        probed.identity[file] = hashlib.sha256(source.encode()).hexdigest()
    probed.reached = {file: sorted(reached.get(file, ())) for file in probed.sources}
    return probed


@contextmanager
def _tracing(files: dict[str, str]) -> Iterator[dict[str, set[int]]]:
    """Notes the lines of `files` that run; everything else runs untraced."""
    reached: dict[str, set[int]] = {}
    whole: set[CodeType] = set()  # every line of these has run

    def lines(frame: FrameType, event: str, argument: Any) -> Any:
        reached[frame.f_code.co_filename].add(frame.f_lineno)
        return lines

    def calls(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code in whole or code.co_filename not in files:
            return None
        seen = reached.setdefault(code.co_filename, set())
        if seen.issuperset(line for _, _, line in code.co_lines() if line is not None):
            whole.add(code)
            return None
        return lines(frame, event, argument)

    sys.settrace(calls)
    try:
        yield reached
    finally:
        sys.settrace(None)
