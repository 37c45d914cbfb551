"""Times on a GPU: steps captured in graphs, peers replayed in turn, round after round.

A round gives each peer one sample, so that whatever the card does meanwhile meets all of them.
Kernels are compiled beforehand, in processes of their own.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ringfold.fuzz.bench.case import Case
from ringfold.fuzz.bench.report import Bandwidth
from ringfold.fuzz.bench.steady import Steady, Work, seat
from ringfold.fuzz.running.watch import Watch
from ringfold.fuzz.running.workers import Workers
from ringfold.fuzz.target import Device, RefusedError, Target
from ringfold.fuzz.targets.registry import resolve

if TYPE_CHECKING:
    import torch

SAMPLE_SECONDS: Final = 0.004
"""How long a sample lasts at least: thousands of times the resolution of a device's events."""

POLL_SECONDS: Final = 0.2

SETTLING: Final = 2
"""Replays before the first sample: rows that were seated together drift apart."""


def compile_all(
    jobs: Sequence[tuple[str, Case]],
    workers: int,
    device: Device = "cuda",
    on_compiled: Callable[[int], Any] = lambda count: None,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[tuple[str, Case], str]:
    """Compile what each (target, case) launches into Triton's cache; returns what went wrong.

    `on_compiled` hears how many are done, often; once `stopped`, what is under way is dropped.
    """
    if not jobs:
        return {}
    with Workers(min(workers, len(jobs)), _begin) as crew:
        futures = {job: crew.submit(_compile, *job, device) for job in jobs}
        while pending := [one for one in futures.values() if not one.done()]:
            if stopped():
                crew.end()
                return {}
            on_compiled(len(futures) - len(pending))
            wait(pending, POLL_SECONDS)
        return {job: problem for job, one in futures.items() if (problem := one.result())}


def _begin(watch: Watch) -> None:
    """There is nothing that a process needs for all it compiles."""


def _compile(name: str, case: Case, device: Device) -> str:
    try:
        seat(resolve(name, device), Work(case, device, 1, 0)).step(0)
        release(device)
    except RefusedError as error:
        return f"refused: {error}"
    except Exception as error:  # noqa: BLE001 - whatever a kernel raises is told beside its peers
        return f"does not run: {type(error).__name__}: {error}"
    return ""


def release(device: Device) -> None:
    """Wait for the device, and give the memory of what is forgotten back to it."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        torch.cuda.empty_cache()


class Memory(NamedTuple):
    """Bytes of device memory."""

    held: int
    peak: int


def seat_and_weigh(target: Target, work: Work) -> tuple[Steady, Memory]:
    """Seat a target and verify once; what it holds, and what it takes at most."""
    import torch

    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    steady = seat(target, work)
    held = torch.cuda.memory_allocated() - before
    torch.cuda.reset_peak_memory_stats()
    steady.verify(0)  # not committed, so the rows are where they were
    torch.cuda.synchronize()
    return steady, Memory(held, torch.cuda.max_memory_allocated() - before)


def capture(steady: Steady) -> torch.cuda.CUDAGraph:
    """All steps of the work in one graph."""
    import torch

    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(steady.work.steps):
            steady.step(i)
    return graph


def interleave(graphs: Mapping[str, torch.cuda.CUDAGraph], rounds: int) -> dict[str, list[float]]:
    """Seconds a replay of each graph, one sample a round, each round beginning with another."""
    names = list(graphs)
    replays = {}
    for name, graph in graphs.items():
        for _ in range(SETTLING):
            graph.replay()
        replays[name] = 1 + int(SAMPLE_SECONDS / _sample(graph, 1))
    samples: dict[str, list[float]] = {name: [] for name in names}
    for i in range(rounds):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(_sample(graphs[name], replays[name]))
    return samples


def _sample(graph: torch.cuda.CUDAGraph, replays: int) -> float:
    """Seconds a replay; the first is not counted, since it waits for the host."""
    import torch

    event: Callable[..., torch.cuda.Event] = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    graph.replay()
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / replays


def bandwidth(size: int = 2**31, device: Device = "cuda") -> Bandwidth:
    """What the memory gives: an elementwise copy of `size` bytes of random numbers, and a sum."""
    import torch

    source = torch.randn(size // 2**17, 2**15, device=device)
    target = torch.empty_like(source)
    sums = torch.empty(len(source), device=device)

    def rate(launch: Callable[[], object], moved: int) -> float:
        launch()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            launch()
        return moved / statistics.median(_sample(graph, 4) for _ in range(9))

    copy = rate(lambda: torch.mul(source, 1.5, out=target), 2 * size)
    read = rate(lambda: torch.sum(source, 1, out=sums), size)
    return Bandwidth(copy, read)
