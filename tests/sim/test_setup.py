"""Every illegal value of a setup is refused, by name, with its limit and the way out.

A setup is part of every trace, and traces are edited by hand: a message is all that a person gets.
What is refused here is what no implementation could serve; what is legal is built and read back.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ringfold.sim.dialects import DIALECTS
from ringfold.sim.setup import DIALECT_NAMES, Dtypes, Geometry, Setup, SetupError

LEGAL: dict[str, Any] = {
    "dialect": "ring",
    "geometry": Geometry(2, 4, 16, 32),
    "ring": 8,
    "window": 2,
    "slots": 4,
}


@pytest.mark.parametrize(
    ("changes", "limit", "remedy"),
    [
        ({"dialect": "rings"}, "'rings', but must be one of snapshots, ring", "name a dialect"),
        ({"layers": 0}, "layers is 0, but must be in 1..256", "choose layers <= 256"),
        ({"layers": 257}, "layers is 257, but must be in 1..256", "choose layers <= 256"),
        ({"window": 0}, "window is 0, but must be at least 1", "a verify has a token"),
        ({"ring": 1}, "ring is 1, but must be in 2..1024", "a power of two up to 1024"),
        ({"ring": 2048}, "ring is 2048, but must be in 2..1024", "a power of two up to 1024"),
        ({"ring": 12}, "ring is 12, but must be a power of two", "use 16"),
        ({"window": 5}, "ring is 8, but must be at least two windows, 2 * 5", "to 16 or shorten"),
        ({"slots": 1}, "slots is 1, but must be in 2..65536", "one request needs two"),
        ({"slots": 65_537}, "slots is 65537, but must be in 2..65536", "slot 0 is the null slot"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_an_illegal_setup_is_refused(changes: dict[str, Any], limit: str, remedy: str) -> None:
    """The message names the value, the limit and the remedy."""
    with pytest.raises(SetupError) as refused:
        Setup(**(LEGAL | changes))

    assert limit in str(refused.value)
    assert remedy in str(refused.value)


@pytest.mark.parametrize(
    ("heads", "value_heads", "key_dim", "value_dim", "limit", "remedy"),
    [
        (0, 4, 16, 16, "heads is 0, but must be in 1..256", "choose heads <= 256"),
        (257, 257, 16, 16, "heads is 257, but must be in 1..256", "choose heads <= 256"),
        (1, 0, 16, 16, "value_heads is 0, but must be in 1..256", "choose value_heads <= 256"),
        (1, 512, 16, 16, "value_heads is 512, but must be in 1..256", "choose value_heads <= 256"),
        (2, 3, 16, 16, "value_heads is 3, but must be a multiple of heads = 2", "each key head"),
        (1, 1, 0, 16, "key_dim is 0, but must be in 1..256", "split the head"),
        (1, 1, 257, 16, "key_dim is 257, but must be in 1..256", "split the head"),
        (1, 1, 16, 0, "value_dim is 0, but must be in 1..256", "split the head"),
        (1, 1, 16, 300, "value_dim is 300, but must be in 1..256", "split the head"),
    ],
)
def test_an_illegal_geometry_is_refused(
    heads: int, value_heads: int, key_dim: int, value_dim: int, limit: str, remedy: str
) -> None:
    """The message names the value, the limit and the remedy."""
    with pytest.raises(SetupError) as refused:
        Geometry(heads, value_heads, key_dim, value_dim)

    assert limit in str(refused.value)
    assert remedy in str(refused.value)


@pytest.mark.parametrize("name", ["activation", "record", "state"])
def test_an_unknown_dtype_is_refused(name: str) -> None:
    """The message lists the dtypes there are."""
    with pytest.raises(SetupError, match=rf"dtypes\.{name} is 'int4', but must be one of float32"):
        Dtypes(**{name: "int4"})


def test_a_setup_survives_json() -> None:
    """Written and read back it is the same setup."""
    setup = Setup(**LEGAL, layers=3, dtypes=Dtypes("float16", "float16"), l2norm=False)

    assert msgspec.json.decode(msgspec.json.encode(setup), type=Setup) == setup


def test_an_illegal_setup_is_refused_when_read() -> None:
    """Validation happens on load, with the same message."""
    text = msgspec.json.encode(Setup(**LEGAL)).replace(b'"ring":8', b'"ring":12')

    with pytest.raises(msgspec.ValidationError, match="a power of two"):
        msgspec.json.decode(text, type=Setup)


def test_a_misspelt_field_is_refused_when_read() -> None:
    """A trace edited by hand does not silently lose a setting."""
    text = msgspec.json.encode(Setup(**LEGAL)).replace(b'"layers"', b'"layer"')

    with pytest.raises(msgspec.ValidationError, match="unknown field `layer`"):
        msgspec.json.decode(text, type=Setup)


def test_every_dialect_can_be_named() -> None:
    """The setup knows the names of the rows in the dialect table, and no others."""
    assert set(DIALECT_NAMES) == set(DIALECTS)
