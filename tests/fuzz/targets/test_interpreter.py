"""The fast interpreter gives, bit for bit, what Triton's own gives.

The same kernels run twice, once as Triton interprets them and once with our stand-ins seated, and
all memory they wrote is compared as bits. Triton's own run is the truth here: nothing is said about
whether it is right. One kernel is made up of everything that the stand-ins touch; the others are
SGLang's released ring kernels, where their wheel is cached. The rest is about modes: a process
interprets or compiles, never both, and bfloat16 is refused where it would be silently wrong.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from ringfold.fuzz.targets import fast_triton, interpreter, wheels
from ringfold.fuzz.targets.interpreter import (
    DtypeError,
    ModeError,
    SlowInterpreterWarning,
    check_dtype,
    fast_interpreter,
    interpreted,
    set_device_mode,
)
from ringfold.fuzz.targets.loading import load_module

RELEASE = "sglang==0.5.16"
RING = "sglang/kernels/ops/attention/fla/gdn_replayssm_spec_decode.py"

pytestmark = pytest.mark.skipif(not interpreted(), reason="about the interpreter: --device cpu")

Memory = dict[str, torch.Tensor]


@triton.jit
def halve(x):
    """Called from inside a kernel, which makes Triton patch its language again."""
    return tl.sum(x, axis=0) / 2


@triton.jit
def even_programs(out, N: tl.constexpr):
    """A mask that a comparison of two scalars is a part of."""
    program = tl.program_id(0)
    columns = tl.arange(0, N)
    mask = (columns < N - 1) & (program % 2 == 0)
    got = tl.load(out + program * N + columns, mask=mask, other=7)
    tl.store(out + program * N + columns, got + 1, mask=mask)


@triton.jit
def everything(x, y, n, counts, out, ints, halves, N: tl.constexpr, M: tl.constexpr):
    """Whatever the stand-ins touch: types, shapes, promotion, integers, calls, dots, masks."""
    program = tl.program_id(0)
    rows, columns = tl.arange(0, N), tl.arange(0, M)
    inside = (rows < n)[:, None] & (columns < M)[None, :]
    tile = rows[:, None] * M + columns[None, :]
    a = tl.load(x + program * N * M + tile, mask=inside, other=0.0)
    b = tl.load(y + tile).to(tl.float32)
    acc = tl.zeros([N, N], dtype=tl.float32)
    for _ in range(tl.load(counts + program)):
        acc += tl.dot(a, tl.trans(b), input_precision="ieee")
        acc = tl.where(rows[:, None] > rows[None, :], acc, acc * 0.5)
    for step in tl.static_range(3):
        acc -= tl.cumsum(acc, axis=0) / (step + 1.5)
    total = halve(tl.exp(-tl.abs(a))) + tl.max(b, axis=0)
    wrapped = (program.to(tl.int64) * 7 + rows * 3) & (N - 1)
    if program % 2 == 0:
        total = tl.sqrt(total * total + 1e-6)
    tl.store(out + program * N * N + rows[:, None] * N + rows[None, :], acc, mask=rows[:, None] < n)
    tl.store(halves + program * M + columns, total.to(tl.float16))
    tl.store(ints + program * N + rows, (wrapped // 2 - rows % 3).to(tl.int32) << 2)


def run_everything() -> Memory:
    """All memory after three programs of `everything`, inputs included; rows above 5 are masked."""
    random = torch.Generator().manual_seed(11)
    memory = {
        "x": torch.randn(3, 8, 16, generator=random),
        "y": torch.randn(8, 16, generator=random).to(torch.float16),
        "counts": torch.tensor([0, 1, 3], dtype=torch.int32),
        "out": torch.full((3, 8, 8), torch.nan),
        "ints": torch.full((3, 8), -1, dtype=torch.int32),
        "halves": torch.full((3, 16), torch.nan, dtype=torch.float16),
    }
    memory["x"][2, 1, 3] = torch.inf
    everything[(3,)](
        memory["x"],
        memory["y"],
        5,
        *(memory[k] for k in ("counts", "out", "ints", "halves")),
        8,
        16,
    )
    return memory


def run_ring(ring: ModuleType, dtype: torch.dtype, windows: int = 7) -> Memory:
    """All memory of SGLang's ring after some windows of two requests beside a padding row.

    The geometry is H=1, HV=2, K=V=32, L=8, T=2; acceptance is drawn, and dead memory is NaN.
    """
    H, HV, K, V, L, T = 1, 2, 32, 32, 8, 2
    random = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    rings = {
        "d": torch.full((4, HV, L, V), torch.nan),
        "k": torch.full((4, H, L, K), torch.nan),
        "g": torch.full((4, HV, L), torch.nan),
        "rawv": torch.full((4, HV, L, V), torch.nan, dtype=dtype),
        "rawk": torch.full((4, H, L, K), torch.nan, dtype=dtype),
        "beta": torch.full((4, HV, L), torch.nan),
    }
    cursors = [torch.zeros(4, dtype=d) for d in (torch.int32, torch.int32, torch.int8)]
    slots = torch.tensor([2, 0, 3], dtype=torch.int32)
    starts = torch.arange(0, 3 * T + 1, T, dtype=torch.int32)
    checkpoint, A_log, dt_bias = draw(4, HV, V, K), draw(HV) - 3, draw(HV)
    outputs = []
    for _ in range(windows):
        tokens = [draw(3 * T, *s).to(dtype) for s in ((H, K), (H, K), (HV, V), (HV,), (HV,))]
        out = torch.full((3 * T, HV, V), torch.nan, dtype=dtype)
        ring.gdn_replayssm_spec_decode(
            *tokens, A_log, dt_bias, checkpoint, *rings.values(), out, starts, slots, *cursors, L, T
        )
        accepted = torch.randint(0, T + 1, (3,), generator=random, dtype=torch.int32)
        ring.commit_gdn_replayssm_spec(*cursors, accepted, slots, L, T)
        outputs.append(out)
    return {
        "out": torch.stack(outputs),
        "checkpoint": checkpoint,
        **rings,
        **{f"cursor {i}": c for i, c in enumerate(cursors)},
    }


def assert_same_bits(stock: Memory, fast: Memory) -> None:
    """Every tensor equal as bits, NaN and the sign of zero included."""
    for name, tensor in stock.items():
        np.testing.assert_array_equal(
            tensor.numpy().view(f"i{tensor.itemsize}"),
            fast[name].numpy().view(f"i{tensor.itemsize}"),
            err_msg=name,
        )


@pytest.fixture(scope="module", autouse=True)
def fast_kernels() -> None:
    """Triton's own interpreter unless a test says otherwise, whatever ran before this module."""
    interpreter._forever.close()
    assert all(getattr(one.owner, one.name) is one.stock for one in fast_triton.STAND_INS)


@pytest.fixture(scope="module")
def ring() -> ModuleType:
    """SGLang's released ring kernels."""
    wheel = wheels.find(RELEASE)
    if wheel is None:
        pytest.skip(f"{RELEASE} is not cached; type: ringfold targets add {RELEASE}")
    return load_module(wheel, RING, "test_interpreter")


class TestSameBits:
    """What Triton computes and what it computes faster."""

    def test_of_a_kernel_that_uses_everything(self) -> None:
        """Types, shapes, promotion, integers, nested calls, dots, scans, masks, infinities."""
        stock = run_everything()
        with fast_interpreter():
            fast = run_everything()

        assert stock["out"].isnan().any(), "infinity reaches the output"
        assert not stock["out"][:2, :5].isnan().any(), "the kernel wrote its rows"
        assert stock["out"][0, 5:].isnan().all(), "and left the masked ones"
        assert_same_bits(stock, fast)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
    def test_of_the_released_ring(self, ring: ModuleType, dtype: torch.dtype) -> None:
        """Verify, exact fold and cursor advance, over windows that flush and wrap."""
        stock = run_ring(ring, dtype)
        with fast_interpreter():
            fast = run_ring(ring, dtype)

        assert (stock["cursor 1"] > 0).any(), "a fold moved the ring's base"
        assert_same_bits(stock, fast)

    @pytest.mark.parametrize("absent", fast_triton.STAND_INS, ids=str)
    def test_with_one_stand_in_absent(self, absent: fast_triton.StandIn) -> None:
        """Each may be missing, as it is where the installed Triton has another function."""
        stock = run_everything()
        with fast_triton.standing_in([one for one in fast_triton.STAND_INS if one is not absent]):
            fast = run_everything()

        assert_same_bits(stock, fast)


def test_a_condition_on_a_scalar_may_be_part_of_a_mask() -> None:
    """On a GPU it may; in Triton 3.9.0's own interpreter it may not."""
    out = torch.zeros(3, 4, dtype=torch.int32)
    with fast_interpreter():
        even_programs[(3,)](out, 4)

    assert out.tolist() == [[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 0]]


@pytest.mark.slow
def test_it_is_faster(ring: ModuleType) -> None:
    """The released ring takes less than half the processor time that Triton's own needs."""
    RATIO_MIN = 2  # seen 4.4 to 4.6 with Triton 3.7.1, 9 with 3.6.0, two cores shared by nine

    def seconds(context: Callable[[], AbstractContextManager[None]]) -> float:
        with context():
            started = time.process_time()
            run_ring(ring, torch.float32, windows=3)
            return time.process_time() - started

    # In turns, so that whatever else the machine does concerns both.
    pairs = [(seconds(nullcontext), seconds(fast_interpreter)) for _ in range(3)]
    stock, fast = (min(those) for those in zip(*pairs, strict=True))
    assert stock > RATIO_MIN * fast


class TestSeating:
    """What is replaced, when, and what is said when it cannot be."""

    def test_every_stand_in_fits_the_tested_triton(self) -> None:
        """With the versions that are known, nothing is left at Triton's own speed."""
        if not triton.__version__.startswith(("3.6.", "3.7.", "3.8.", "3.9.")):
            pytest.skip(f"Triton {triton.__version__} is not one of those that are known")

        assert [str(one) for one in fast_triton.STAND_INS if not one.fits()] == []

    def test_all_is_back_in_place_afterwards(self) -> None:
        """Triton is left as it was found, also by an exception, and also by nested use."""

        def seated() -> list[Any]:
            return [getattr(one.owner, one.name) for one in fast_triton.STAND_INS]

        def language() -> list[Any]:
            return [tl.load, tl.core.load, tl.tensor.__add__, tl.math.exp, tl.range, tl.reduce]

        def use_and_fail() -> None:
            with fast_interpreter():
                during = seated()
                with fast_interpreter():
                    run_everything()
                assert seated() == during, "the inner one leaves the outer one alone"
                assert all(a is not b for a, b in zip(before, during, strict=True))
                raise KeyError

        before, spoken = seated(), language()
        with pytest.raises(KeyError):
            use_and_fail()

        assert seated() == before
        assert language() == spoken

    def test_an_unknown_function_stays_and_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where Triton's text is another, its own function runs, and a warning says which."""
        *others, last = fast_triton.STAND_INS
        monkeypatch.setattr(fast_triton, "STAND_INS", [*others, last._replace(known=("0" * 12,))])

        with (
            pytest.warns(SlowInterpreterWarning, match=rf"unknown versions of {last} \("),
            fast_interpreter(),
        ):
            found = getattr(last.owner, last.name)

        assert found is last.stock

    def test_an_interpreter_without_the_known_parts_is_left_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where Triton lacks what the stand-ins are built on, it runs as it is."""
        monkeypatch.delitem(sys.modules, fast_triton.__name__)
        monkeypatch.delattr("ringfold.fuzz.targets.fast_triton")
        monkeypatch.delattr("triton.runtime.interpreter._patch_attr")

        with (
            pytest.warns(SlowInterpreterWarning, match="is unknown here .*_patch_attr"),
            fast_interpreter(),
        ):
            assert interpreted()

    def test_enabling_twice_is_enabling_once(self) -> None:
        """`enable` stays for the life of a process, however often it is called."""
        script = (
            "from ringfold.fuzz.targets import interpreter as i\n"
            "i.set_device_mode('cpu'); i.enable()\n"
            "import triton.runtime.interpreter as t\n"
            "first = t._patch_lang; i.enable(); print(first is t._patch_lang, first.__module__)\n"
        )

        assert python(script) == "True ringfold.fuzz.targets.fast_triton"

    @pytest.mark.filterwarnings("error")
    def test_nan_in_a_kernel_is_no_warning(self) -> None:
        """Kernels overflow and meet NaN as they please; Triton's own interpreter warns of it."""
        x, out = torch.tensor([torch.inf, -torch.inf]), torch.zeros(1)

        with pytest.raises(InterpreterError, match="RuntimeWarning"):
            total[(1,)](x, out)
        with fast_interpreter():
            total[(1,)](x, out)

        assert out.isnan().all()


class TestModes:
    """A process interprets or compiles."""

    @pytest.mark.parametrize(("device", "expected"), [("cpu", "True"), ("cuda", "False")])
    @pytest.mark.parametrize("variable", ["0", "1"])
    def test_the_device_decides_before_triton_is_imported(
        self, device: str, expected: str, variable: str
    ) -> None:
        """Whatever the environment said, kernels are interpreted on cpu and nowhere else."""
        script = (
            f"import os; os.environ['TRITON_INTERPRET'] = '{variable}'\n"
            "from ringfold.fuzz.targets.interpreter import set_device_mode, interpreted\n"
            f"set_device_mode('{device}'); early = interpreted()\n"
            f"import triton; set_device_mode('{device}')\n"
            "print(early and interpreted())"
        )

        assert python(script) == expected

    def test_after_that_it_is_too_late(self) -> None:
        """The other mode is refused, with what to do."""
        with pytest.raises(ModeError, match=r"imported already, to interpret kernels; .* another"):
            set_device_mode("cuda")

        assert interpreted()
        set_device_mode("cpu")

    def test_there_is_no_third_device(self) -> None:
        """A device that Triton does not have is refused by name."""
        with pytest.raises(ValueError, match="device 'tpu' is neither 'cpu' nor 'cuda'"):
            set_device_mode("tpu")  # type: ignore[arg-type]


class TestBfloat16:
    """The dtype that the interpreter gets wrong."""

    @pytest.mark.parametrize("dtype", ["bfloat16", "bf16", torch.bfloat16], ids=str)
    def test_is_refused_where_kernels_are_interpreted(
        self, dtype: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a GPU it is as good as any other."""
        with pytest.raises(DtypeError, match=r"bfloat16 is silently wrong .* --device cuda"):
            check_dtype(dtype)

        monkeypatch.setattr(interpreter, "interpreted", lambda: False)
        check_dtype(dtype)

    @pytest.mark.parametrize("dtype", ["float32", "float16", torch.float32, torch.int8], ids=str)
    def test_other_dtypes_pass(self, dtype: object) -> None:
        """What the interpreter computes rightly is let through."""
        check_dtype(dtype)

    @pytest.mark.parametrize("context", [nullcontext, fast_interpreter])
    def test_is_indeed_wrong(self, context: Callable[[], AbstractContextManager[None]]) -> None:
        """1 + 1 is not 2: the day this fails, the refusal can go."""
        one = torch.ones(4, dtype=torch.bfloat16)
        out = torch.zeros(4, dtype=torch.bfloat16)

        with context():
            double[(1,)](one, out)

        assert not torch.equal(out, one + one)


@triton.jit
def double(x, out):
    """Four numbers added to themselves."""
    at = tl.arange(0, 4)
    value = tl.load(x + at)
    tl.store(out + at, value + value)


@triton.jit
def total(x, out):
    """The sum of two numbers."""
    tl.store(out + tl.arange(0, 1), tl.sum(tl.load(x + tl.arange(0, 2)), axis=0))


def python(script: str) -> str:
    """What `script` prints in a process of its own."""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()
