"""SGLang's buffered decoding agrees with the recurrence, flushes included; its cursor stays put.

The released kernel is driven as the backend drives it and judged by the oracle, which knows no
ring; told to forget a forced flush it must be caught. Its cursor is the caller's: at every value
and flag the kernel may not touch it. Last, a positive control: the microbenchmark that a release
ships is run as it stands and watched, and its steps are told as a history. It never flushes, and
that must come out as *inconclusive*, not as a pass.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ringfold.fuzz.comparing.compare import compare
from ringfold.fuzz.comparing.parting import divergence, record
from ringfold.fuzz.histories.trace import Admit, Decode, Free, PayloadSpec, Place, Trace, load
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.running.campaign import Campaign
from ringfold.fuzz.running.course import Budget
from ringfold.fuzz.running.hunt import plans
from ringfold.fuzz.target import Inputs
from ringfold.fuzz.targets import wheels
from ringfold.fuzz.targets.registry import resolve
from ringfold.fuzz.targets.sglang_decode import SglangDecodeRing
from ringfold.fuzz.targets.sglang_release import BUFFERED_DECODE, Release
from ringfold.sim.setup import Dtypes, Geometry, Setup
from ringfold.sim.situations import reachable_situations

FINDINGS = Path(__file__).parents[3] / "docs" / "findings"
BENCHMARK = "sglang/kernels/ops/attention/fla/bench_gdn_replayssm_decode.py"
RELEASES = [f"sglang==0.5.{patch}" for patch in range(16, 24)]


def present(release: str) -> None:
    """Skip the test where the wheel is not in the cache."""
    if wheels.find(release) is None:
        pytest.skip(f"{release} is not here: ringfold targets add {release}")
    pytest.importorskip("triton")
    os.environ.setdefault("TRITON_INTERPRET", "1")


def setup_of(L: int, dtype: str = "float32", slots: int = 4) -> Setup:
    return Setup(
        "decode-ring", Geometry(1, 2, 32, 16), L, 1, slots, dtypes=Dtypes(dtype, dtype, "float32")
    )


def placed(L: int, dtype: str = "float32") -> Trace:
    """Every state of a ring of L: placed, and decoded twice."""
    operations: list[Any] = []
    for number, (records, flush) in enumerate((n, f) for n in range(L) for f in (False, True)):
        tag = 3 * number
        operations += [
            Place(request=number, tag=tag, base=0, records=records, flush=flush, dead="nan"),
            Decode(tag=tag + 1, rows=(None, number), dead="nan"),
            Decode(tag=tag + 2, rows=(number,), dead="nan"),
            Free(request=number),
        ]
    return Trace(
        setup=setup_of(L, dtype),
        payload=PayloadSpec(seed=5, profile="slow-decay"),
        operations=tuple(operations),
    )


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_that_was_tried_has_one(release: str) -> None:
    """By its signature."""
    present(release)

    assert Release(release).has(BUFFERED_DECODE)


@pytest.mark.parametrize("L", [1, 2, 6])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_it_agrees_at_every_cursor_value(L: int, dtype: str) -> None:
    """Asked to flush or not, beside padding, dead memory NaN; and in every reachable situation."""
    present("sglang==0.5.23")
    verdict = walk(placed(L, dtype), resolve("sglang-decode==0.5.23"))

    assert [m.sentence() for m in verdict.mismatches] == []
    assert verdict.windows == 4 * L
    alone = reachable_situations(setup_of(L)) - {"mixed batch"}
    assert set(verdict.situations) >= alone - {"longest fold", "reused slot"}


def test_a_flush_that_is_forgotten_is_found() -> None:
    """The kernel is not told what was asked for: its checkpoint lags where it must not."""
    present("sglang==0.5.23")

    class Deaf(SglangDecodeRing):
        """Nobody is heard."""

        def decode(self, rows: Any, inputs: Inputs) -> Any:
            """As if nothing had been asked."""
            self.memory["is_flush"].zero_()
            return super().decode(rows, inputs)

    verdict = walk(placed(6), Deaf(Release("sglang==0.5.23"), "deaf"))

    assert {m.check for m in verdict.mismatches} & {"cursors", "state-local", "frame"}


@pytest.mark.parametrize("name", ["mixed_qkv", "a", "b"])
def test_a_kernel_that_takes_tokens_to_be_packed_is_found(name: str) -> None:
    """A server's tokens are views of its projections, further apart than they are wide."""
    present("sglang==0.5.23")

    class Packed(SglangDecodeRing):
        """Reads a batch's second token where the first one's neighbours lie."""

        def launch_decode(self, layer: int, **arguments: Any) -> None:
            """The stride that a packed input would have."""
            given = arguments[name]
            arguments[name] = given.as_strided(given.shape, (given.shape[1], 1))
            super().launch_decode(layer, **arguments)

    verdict = walk(placed(6), Packed(Release("sglang==0.5.23"), "packed"))

    assert verdict.mismatches[0].check == "outputs"


@pytest.mark.parametrize("L", [1, 6])
def test_the_kernel_leaves_the_cursor_to_its_caller(L: int) -> None:
    """At every value, asked to flush or not: one path's step can't move the other path's cursor."""
    present("sglang==0.5.16")

    class Watched(SglangDecodeRing):
        """Looks at what it handed over, after the launch."""

        launches = 0

        def launch_decode(self, layer: int, **arguments: Any) -> None:
            """The cursors of the pool and of the batch are as they were."""
            cursors = ("write_pos", "cache_base", "is_flush")
            held = {name: self.memory[name].clone() for name in cursors}
            handed = {name: arguments[name].clone() for name in ("write_pos", "force_flush")}
            super().launch_decode(layer, **arguments)
            assert all(bool((self.memory[name] == held[name]).all()) for name in cursors)
            assert all(bool((arguments[name] == handed[name]).all()) for name in handed)
            self.launches += 1

    target = Watched(Release("sglang==0.5.16"), "watched")
    verdict = walk(placed(L), target)

    assert verdict.mismatches == []
    assert target.launches == 4 * L


def test_a_ring_of_one_does_not_have_the_bits_of_plain_decoding() -> None:
    """`docs/findings.md`: by an ULP, in one token, both within limits."""
    present("sglang==0.5.23")
    history = load(FINDINGS / "decode_ring_bits.json")
    walks = [record(history, resolve(f"sglang-{f}==0.5.23")) for f in ("decode", "packed")]

    found = divergence(walks[0], walks[1], bits=True)

    assert divergence(walks[0], walks[1]) is None
    assert found is not None
    assert (found.operation, found.oracle) == (1, ("", ""))
    assert found.value is not None
    assert found.value.ulp == "1"


# ------------------------------------------------------------------ the published benchmark


def test_the_published_benchmark_never_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as 0.5.16 ships it (sgl-project/sglang #38398): it flushes at L = 1 and nowhere else."""
    present("sglang==0.5.16")
    import torch
    import triton

    release = Release("sglang==0.5.16")
    path, flushes = "sglang.kernels.ops.attention.fla", dict[int, list[bool]]()
    kernel = release.module("fused_recurrent_linear_replayssm.py")
    random = torch.Generator().manual_seed(0)

    def watched(**arguments: Any) -> None:
        # It draws its token unseeded and repeats it, so its state can settle on a fixed point, and
        # a store of the very same bits is not seen: before each step the state is another one.
        state = arguments["initial_state"]
        state.copy_(torch.randn(state.shape, generator=random))
        before = state.clone()
        kernel.fused_recurrent_linear_replayssm_decode(**arguments)
        flushes.setdefault(arguments["d_cache"].shape[2], []).append(bool((state != before).any()))

    names = path.split(".")
    for end in range(1, len(names) + 1):
        package = ModuleType(".".join(names[:end]))
        package.__path__ = []
        monkeypatch.setitem(sys.modules, package.__name__, package)
    packed, ring = (
        ModuleType(f"{path}.{n}") for n in ("fused_recurrent", "fused_recurrent_linear_replayssm")
    )
    packed.__dict__["fused_recurrent_gated_delta_rule_packed_decode"] = lambda **arguments: None
    ring.__dict__["fused_recurrent_gdn_replayssm_decode"] = watched
    for module in (packed, ring):
        monkeypatch.setitem(sys.modules, module.__name__, module)

    def do_bench(step: Any, **more: Any) -> float:
        for _ in range(20):  # more than a ring of 16 takes
            step()
        return 1.0

    monkeypatch.setattr(triton.testing, "do_bench", do_bench)
    benchmark = ModuleType("benchmark")
    source = release.wheel.read(BENCHMARK).decode()
    exec(compile(source, BENCHMARK, "exec"), benchmark.__dict__)  # noqa: S102 - the control

    benchmark.__dict__["_bench_cfg"](1, 1, 1, 32, 16, [1, 8, 16], torch.float32, "cpu")

    assert {L: (len(steps), sum(steps)) for L, steps in flushes.items()} == {
        1: (20, 20),
        8: (20, 0),
        16: (20, 0),
    }


def test_its_steps_as_a_history_are_inconclusive() -> None:
    """A cursor that stays at 0 is a request that is seated anew each time: nothing ever folds."""
    operations: list[Any] = []
    for step in range(6):
        operations += [
            Admit(request=step, tag=2 * step),
            Decode(tag=2 * step + 1, rows=(step,)),
            Free(request=step),
        ]
    history = Trace(
        setup=setup_of(8),
        payload=PayloadSpec(seed=1, profile="slow-decay"),
        operations=tuple(operations),
    )

    report = compare(resolve("sim@decode-ring"), resolve("sim@snapshots"), iter([history]))

    assert report.windows == 6
    assert report.divergence is None
    assert report.folds == (0, 0)
    assert report.inconclusive == [
        "sim@decode-ring never folded, so its flush was not compared: give it longer histories"
    ]


def test_a_campaign_that_never_flushed_is_inconclusive() -> None:
    """It names what was not reached: from an empty ring of 16 on two steps do not flush."""
    (plan, *_) = plans(resolve("sim@decode-ring"), name="sim@decode-ring", ring=16)
    seated = plan._replace(operations=plan.operations - {"place"})

    few = Campaign([seated], "cpu", 0, Budget(2, None), None, 1).run(lambda *_: None)

    assert {"fold", "forced fold"} <= set(few.missed)
    assert "fold, forced fold" in few.inconclusive[0]
