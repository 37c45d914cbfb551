"""What goes over the pipes between ringfold and a worker: a header in MessagePack, then raw arrays.

Both ends import this file and nothing else of ringfold. A message is

    length of the header (4 bytes, little-endian) | header | bytes of each array, in order

and every request has exactly one reply. Nothing is unpickled.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

HEADER_BYTES_MAX = 2**24


class Header(msgspec.Struct):
    """What is asked or answered, and the dtype and shape of each array that follows."""

    verb: str
    fields: dict[str, Any]
    arrays: list[tuple[str, list[int]]]


class Message(NamedTuple):
    """A request (`verb` is a name of the worker's) or a reply (`verb` is `done` or `failed`)."""

    verb: str
    fields: dict[str, Any]
    arrays: list[NDArray[Any]]


def send(
    stream: IO[bytes],
    verb: str,
    fields: Mapping[str, Any] | None = None,
    arrays: Sequence[NDArray[Any]] = (),
) -> None:
    """Write one message and flush."""
    whole = [np.asarray(array, order="C") for array in arrays]
    kinds = [(array.dtype.name, list(array.shape)) for array in whole]
    header = msgspec.msgpack.encode(Header(verb, dict(fields or {}), kinds))
    stream.write(struct.pack("<I", len(header)) + header)
    stream.writelines(array.tobytes() for array in whole)
    stream.flush()


def receive(stream: IO[bytes]) -> Message | None:
    """Read one message; None where the other end closed instead of sending one.

    Raises:
        EOFError: it closed in the middle of one.
        ValueError: what came is no message, such as something printed in between.
    """
    first = stream.read(4)
    if not first:
        return None
    (length,) = struct.unpack("<I", _exactly(stream, 4, first))
    if length > HEADER_BYTES_MAX:
        raise ValueError(f"a header of {length} bytes, but at most {HEADER_BYTES_MAX} are allowed")
    try:
        header = msgspec.msgpack.decode(_exactly(stream, length), type=Header)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a header: {error}") from None
    arrays = []
    for name, shape in header.arrays:
        dtype = np.dtype(name)
        content = _exactly(stream, int(np.prod(shape)) * dtype.itemsize)
        arrays.append(np.frombuffer(content, dtype).reshape(shape))
    return Message(header.verb, header.fields, arrays)


def _exactly(stream: IO[bytes], count: int, begun: bytes = b"") -> bytes:
    content = begun
    while len(content) < count:
        more = stream.read(count - len(content))
        if not more:
            raise EOFError(f"closed after {len(content)} of {count} bytes")
        content += more
    return content
