"""Which setups a run covers: any two values meet once, and what the caller fixes is fixed.

The pairs are counted here one by one from the table of values, independently of the library that
combines them. What cannot be combined is refused with the value, the limit and the way out.
"""

from __future__ import annotations

import itertools
from typing import Any, get_args

import msgspec
import pytest

from ringfold.fuzz.histories.configurations import (
    DECODE_RINGS,
    MANY,
    ON_CPU,
    ON_CUDA,
    configurations,
    rows,
)
from ringfold.fuzz.target import Device
from ringfold.sim.dialects import DIALECTS
from ringfold.sim.setup import Geometry, Setup, SetupError


def parts(setup: Setup) -> tuple[Any, ...]:
    g = setup.geometry
    return (
        (g.heads, g.value_heads),
        (g.key_dim, g.value_dim),
        (setup.ring, setup.window),
        setup.dtypes.activation,
        setup.layers,
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_any_two_values_meet(dialect: str, device: Device) -> None:
    """Every pair of values of two parameters is in some setup, in far fewer than all of them."""
    values = ON_CPU if device == "cpu" else ON_CUDA
    if not DIALECTS[dialect].verifies:
        values = values._replace(rings=DECODE_RINGS)
    setups = configurations(dialect, device)
    made = [parts(setup) for setup in setups]

    for (i, first), (j, second) in itertools.combinations(enumerate(values), 2):
        for pair in itertools.product(first, second):
            assert any((m[i], m[j]) == pair for m in made), pair
    assert len(made) <= 40
    assert all(setup.dialect == dialect for setup in setups)


def test_the_plainest_comes_first() -> None:
    """A run that is cut short has seen what everybody has."""
    first = configurations("ring", "cpu")[0]

    assert parts(first) == ((1, 2), (32, 32), (8, 2), "float32", 1)
    assert configurations("ring", "cpu") == configurations("ring", "cpu")


def test_what_is_large_is_tried_on_the_cpu() -> None:
    """Many rows early; then a long ring and window, a third head, and a state of several tiles.

    What is asked for stays as it is asked for.
    """
    first, _, _, _, crowded, large, *_ = configurations("ring", "cpu")

    assert large == msgspec.structs.replace(
        first, geometry=Geometry(3, 3, 128, 96), ring=32, window=6
    )
    assert crowded == msgspec.structs.replace(first, geometry=Geometry(2, 2, 32, 32), slots=14)
    short = configurations("ring", "cpu", ring=8)
    assert {setup.ring for setup in short} == {8}
    assert {Geometry(3, 3, 128, 96), Geometry(2, 2, 32, 32)} <= {s.geometry for s in short}
    slim = configurations("ring", "cpu", geometry=Geometry(1, 1, 32, 32))
    assert {setup.geometry for setup in slim} == {Geometry(1, 1, 32, 32)}
    assert {(32, 6), (8, 2)} <= {(setup.ring, setup.window) for setup in slim}
    decoded = configurations("decode-ring", "cpu")
    assert {setup.ring for setup in decoded} == {1, 6, 8, 16, 32}
    assert Geometry(3, 3, 128, 96) in {setup.geometry for setup in decoded}
    assert {setup.slots for setup in decoded} == {5, MANY + 2}


def test_records_of_several_heads_are_rounded_early() -> None:
    """In the fifth configuration, unless bits are claimed: those are of records as they come."""
    for name, dialect in DIALECTS.items():
        crowded = configurations(name, "cpu")[4]

        assert crowded.geometry.heads > 1
        assert crowded.dtypes.record == ("float32" if dialect.bitwise_fold else "float16")
    assert configurations("compact", "cpu", dtype="float32")[4].dtypes.record == "float32"


def test_everything_can_be_fixed() -> None:
    """Then there is one setup: that, and nothing else."""
    (setup,) = configurations(
        "ring", "cuda", geometry=Geometry(1, 2, 32, 32), ring=8, window=2, dtype="float32", layers=1
    )

    assert parts(setup) == ((1, 2), (32, 32), (8, 2), "float32", 1)
    assert rows(setup, "cuda") == 4096


def test_every_setup_has_room_for_a_batch_and_one_more() -> None:
    """Somebody is always left out of a batch; slot 0 is padding."""
    for device in get_args(Device):
        for i, setup in enumerate(configurations("ring", device)):
            most = MANY if (i, device) == (4, "cpu") else rows(setup, device)
            assert setup.slots == most + 2
            assert most >= 2


def test_what_is_fixed_is_fixed() -> None:
    """And the rest is combined around it."""
    g = Geometry(2, 4, 64, 32)
    setups = configurations(
        "ring", "cpu", geometry=g, ring=32, window=6, dtype="float16", bfloat16=True
    )

    assert {parts(setup)[:4] for setup in setups} == {((2, 4), (64, 32), (32, 6), "float16")}
    assert {setup.layers for setup in setups} == {1, 2}


@pytest.mark.parametrize(
    ("fixed", "expected"),
    [({"ring": 4}, {(4, 2)}), ({"ring": 16}, {(16, 4), (16, 2)}), ({"window": 5}, {(16, 5)})],
)
def test_what_is_free_adapts(fixed: dict[str, int], expected: set[tuple[int, int]]) -> None:
    """A window to the ring that was named, a ring to the window."""
    setups = configurations("ring", "cpu", **fixed)  # type: ignore[arg-type]

    assert {(setup.ring, setup.window) for setup in setups} == expected


def test_bfloat16_is_computed_on_a_gpu_and_by_the_simulator() -> None:
    """And by nothing else: an interpreter is wrong there."""

    def dtypes(device: Device, bfloat16: bool = False) -> set[str]:
        setups = configurations("ring", device, bfloat16=bfloat16)
        return {setup.dtypes.activation for setup in setups}

    assert "bfloat16" not in dtypes("cpu")
    assert "bfloat16" in dtypes("cpu", bfloat16=True)
    assert "bfloat16" in dtypes("cuda")


def test_what_a_target_refuses_is_left_out() -> None:
    """If that is everything, the reason is the error."""

    def refuses(setup: Setup) -> str:
        return "K must be 64" if setup.geometry.key_dim != 64 else ""

    assert {s.geometry.key_dim for s in configurations("ring", "cpu", refuses=refuses)} == {64}
    with pytest.raises(SetupError, match="K must be 64"):
        configurations("ring", "cpu", geometry=Geometry(1, 1, 32, 32), refuses=refuses)


@pytest.mark.parametrize(
    ("fixed", "said"),
    [
        ({"ring": 6}, "ring is 6, but must be a power of two"),
        ({"ring": 8, "window": 5}, "ring is 8, but must be at least two windows"),
        ({"window": 0}, "window is 0, but must be at least 1"),
        ({"ring": 2048}, "ring is 2048, but must be in 2..1024"),
        ({"ring": -8}, "ring is -8"),
    ],
)
def test_what_cannot_be_combined_is_refused(fixed: dict[str, int], said: str) -> None:
    """With the value, the limit and a way out behind a colon."""
    with pytest.raises(SetupError, match=said) as error:
        configurations("ring", "cpu", **fixed)  # type: ignore[arg-type]

    assert ": " in str(error.value)


def test_a_narrow_checkpoint_is_tried_where_its_protocol_differs() -> None:
    """On `compact` such a checkpoint is folded at every commit; elsewhere float32 is enough."""
    assert {s.dtypes.state for s in configurations("compact", "cpu")} == {"float32", "float16"}
    assert {s.dtypes.state for s in configurations("compact", "cuda")} >= {"float32", "bfloat16"}
    assert {s.dtypes.state for s in configurations("ring", "cuda")} == {"float32"}
