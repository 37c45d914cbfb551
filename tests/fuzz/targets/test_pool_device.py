"""What a pool on a GPU needs beside the release: memory in two places, graphs, absent packages.

There is no GPU here. Memory of a second kind stands in for its memory, and for its graphs something
that notes what was called while it was captured and calls that again, so that order and arithmetic
are those of the code under test. That releases really run like this is measured on a GPU
(docs/results/pool-h200.json).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ringfold.fuzz.targets.pool import absent, arena, graphs  # noqa: E402 - they import torch


@pytest.fixture
def device_arena(monkeypatch: pytest.MonkeyPatch) -> arena.DeviceArena:
    """One whose tensors lie on the CPU, apart from the file."""
    zeros = torch.zeros

    def anywhere(*shape: Any, device: str, **named: Any) -> Any:
        assert device == "cuda"
        return zeros(*shape, **named)

    monkeypatch.setattr(torch, "zeros", anywhere)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return arena.DeviceArena()


class TestADeviceArena:
    """Tensors on a GPU and their places in the file."""

    def test_the_file_holds_what_they_held_and_they_get_what_was_written_there(
        self, device_arena: arena.DeviceArena
    ) -> None:
        """As the other process would read and write it, by the place it was told."""
        other = device_arena.take((3,), torch.float32)
        tensor = device_arena.take((2, 4), torch.bfloat16)
        part = tensor[1:, 2:]
        where = device_arena.where(part)
        assert (where["shape"], where["strides"]) == ([1, 2], [8, 2])
        mapped = np.ndarray(
            where["shape"], np.int16, device_arena.memory, where["offset"], where["strides"]
        )
        tensor.copy_(torch.arange(8.0).reshape(2, 4))

        device_arena.store()
        assert mapped.tolist() == part.view(torch.int16).tolist()
        assert not other.any()

        mapped[0, 1] = torch.tensor(-3.0, dtype=torch.bfloat16).view(torch.int16).item()
        assert tensor[1, 3] == 7.0
        device_arena.load()
        assert tensor[1, 3] == -3.0
        assert tensor[1, 2] == 6.0
        assert not other.any()

    def test_a_tensor_of_somebody_else_has_no_place(self, device_arena: arena.DeviceArena) -> None:
        """A release that exchanges a tensor of its pool is not followed in silence."""
        device_arena.take((4,), torch.float32)

        with pytest.raises(ValueError, match=r"a tensor of shape \[5\] is not of this pool"):
            device_arena.where(torch.empty(5))


class Recorder:
    """In place of torch's graph: what was called while it was captured is called by a replay."""

    capturing: Recorder | None = None

    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []

    def replay(self) -> None:
        """All of it again."""
        for step in self.steps:
            step()


class Adder:
    """Work on a memory: `total += values`, returned in a buffer that keeps its place."""

    def __init__(self, refuses: str = "") -> None:
        self.total = torch.zeros(2)
        self.out = torch.zeros(2)
        self.launched = 0
        self.refuses = refuses

    def __call__(self, values: Any) -> Any:
        """At once, or noted."""

        def step() -> None:
            self.total += values
            self.out.copy_(self.total)

        if Recorder.capturing is None:
            self.launched += 1
            step()
        elif self.refuses:
            raise RuntimeError(f"{self.refuses}\nmore lines")
        else:
            Recorder.capturing.steps.append(step)
        return self.out


@pytest.fixture
def adder(monkeypatch: pytest.MonkeyPatch) -> Adder:
    """Work, and no GPU."""

    @contextmanager
    def capture(graph: Recorder) -> Iterator[None]:
        Recorder.capturing = graph
        try:
            yield
        finally:
            Recorder.capturing = None

    for name, stand_in in {
        "CUDAGraph": Recorder,
        "graph": capture,
        "Stream": type("Stream", (), {"wait_stream": lambda self, other: None}),
        "current_stream": lambda: None,
        "stream": lambda stream: nullcontext(),
        "synchronize": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return Adder()


class TestGraphs:
    """Captured once, replayed from then on."""

    def test_a_first_run_is_taken_back_and_each_replay_reads_new_inputs(self, adder: Adder) -> None:
        """The sums are those of one call after the other, though the work ran once more."""
        memory = graphs.Graphs(adder.total.zero_)
        sums = []
        for values in ([1.0, 2.0], [10.0, 20.0], [100.0, 200.0]):
            out = memory.run("add", 2, adder, [torch.tensor(values)])
            assert out is not None
            sums.append(out.tolist())

        assert sums == [[1.0, 2.0], [11.0, 22.0], [111.0, 222.0]]
        assert adder.launched == 1
        assert memory.replays == {"add": 3}

    def test_another_size_is_another_graph(self, adder: Adder) -> None:
        """Each with a first run of its own."""
        memory = graphs.Graphs(lambda: None)
        for size in (1, 2, 1):
            memory.run("add", size, adder, [torch.ones(2)])

        assert adder.launched == 2
        assert len(memory.captured) == 2

    def test_what_cannot_be_captured_is_launched_and_says_why(self, adder: Adder) -> None:
        """Once and for all: the same sums, no replay."""
        adder.refuses = "operation not permitted when stream is capturing"
        memory = graphs.Graphs(adder.total.zero_)
        for _ in range(3):
            out = memory.run("add", 2, adder, [torch.ones(2)])

        assert out is not None
        assert out.tolist() == [3.0, 3.0]
        assert memory.refused == {"add": adder.refuses}
        assert memory.replays == {}


@pytest.fixture
def finder(monkeypatch: pytest.MonkeyPatch) -> Iterator[absent.Finder]:
    """One that is asked last; what it made is forgotten."""
    finder = absent.Finder()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    yield finder
    for name in [n for n in sys.modules if n.partition(".")[0] in absent.PACKAGES]:
        del sys.modules[name]


class TestAbsentPackages:
    """Imports succeed, calls do not."""

    def test_what_is_not_installed_can_be_imported_and_not_called(
        self, finder: absent.Finder
    ) -> None:
        """Its classes can be derived from, which a release does at import."""
        module = importlib.import_module("flashinfer.comm.mapping")
        derived = type("Derived", (module.Mapping,), {})

        assert issubclass(derived, module.Mapping)
        with pytest.raises(RuntimeError, match=r"mapping\.reduce\.fast was called, and its packag"):
            module.reduce.fast(1)
        assert finder.answered == {"flashinfer", "flashinfer.comm", "flashinfer.comm.mapping"}

    def test_other_packages_are_missing_as_ever(self, finder: absent.Finder) -> None:
        """Else a release would take ways that nobody has."""
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("deep_gemm_that_nobody_has")
        assert finder.answered == set()

    def test_one_that_is_installed_is_itself(
        self, finder: absent.Finder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With the parts it has, and without the parts that it has not."""
        (tmp_path / "sgl_kernel").mkdir()
        (tmp_path / "sgl_kernel" / "__init__.py").write_text("NAME = 'real'\n")
        monkeypatch.syspath_prepend(tmp_path)
        real: Any = importlib.import_module("sgl_kernel")

        assert real.NAME == "real"
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("sgl_kernel.quantization")
        assert finder.answered == set()
