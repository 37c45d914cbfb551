"""Reading a trace from a file, and saying what is wrong where it is none."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec

from ringfold.fuzz.histories.trace.history import VERSION, Trace, TraceError, shown
from ringfold.fuzz.histories.trace.validity import REPEAT_DEPTH_MAX, validate

FILE_BYTES_MAX: Final = 64 * 2**20


class _Head(msgspec.Struct):
    """What every version of the format has."""

    version: int = msgspec.field(name="ringfold_trace")


def load(path: Path | str) -> Trace:
    """Read and validate a trace; `TraceError` names file, place, value, limit and way out."""
    path = Path(path)
    data = _read(path)
    try:
        _check_version(msgspec.json.decode(data, type=_Head).version)
        trace = msgspec.json.decode(data, type=Trace)
        json.loads(data, object_pairs_hook=_each_once)
        validate(trace)
    except msgspec.ValidationError as error:
        raise TraceError(f"{path}: {_explained(str(error), data)}") from None
    except msgspec.DecodeError as error:
        raise TraceError(f"{path}: {_located(str(error), data)}") from None
    except RecursionError:
        raise TraceError(
            f"{path}: nested too deep to read: repeats may be nested {REPEAT_DEPTH_MAX} deep"
        ) from None
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    return trace


def _read(path: Path) -> bytes:
    """The bytes of a regular file of acceptable size; never waits on a pipe or a device."""
    try:
        if path.is_dir():
            raise TraceError(f"{path}: is a folder: name the trace.json inside")
        if path.exists() and not path.is_file():
            raise TraceError(f"{path}: is not a regular file: copy its content to one")
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise TraceError(f"{path}: does not exist: check the path") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise TraceError(
            f"{path}: has more than {FILE_BYTES_MAX} bytes, the limit of a trace: "
            f"use repeat, or split the trace"
        )
    begins = data.lstrip()[:12]
    if not begins:
        raise TraceError(f"{path}: is empty: write a trace, as docs/traces.md shows")
    if begins[:1] != b"{":
        raise TraceError(f"{path}: is not a trace: it begins with {begins!r} in place of `{{`")
    return data


def _each_once(pairs: list[tuple[str, Any]]) -> None:
    """Of a key that stands twice a decoder takes the last, and a person sees the first."""
    for key, times in Counter(key for key, _ in pairs).items():
        if times > 1:
            raise TraceError(f"the key {shown(key)} stands {times} times in one object: keep one")


def _check_version(version: int) -> None:
    if version != VERSION:
        raise TraceError(
            f"ringfold_trace is {version}, but this release reads version {VERSION}: "
            f"use the release that wrote it"
        )


def _located(message: str, data: bytes) -> str:
    """Malformed JSON: the line and column in place of the byte."""
    if "truncated" in message:
        return f"ends after {len(data)} bytes inside an object: restore the end of the file"
    if not (found := re.search(r"\(byte (\d+)\)", message)):
        return f"is not JSON: {message}"
    at = int(found[1])
    line, column = data.count(b"\n", 0, at) + 1, at - data.rfind(b"\n", 0, at)
    message = message[: found.start()].strip().removeprefix("JSON is malformed: ")
    not_finite = data[at : at + 1] in (b"N", b"I")
    remedy = "write NaN and infinities as strings" if not_finite else "see what stands before it"
    found_there = shown(data[at : at + 8])
    return f"is not JSON at line {line}, column {column} ({message} {found_there}): {remedy}"


def _explained(message: str, data: bytes) -> str:
    """Right JSON, wrong content: the place, the value found there, what must stand there."""
    problem, _, place = message.partition(" - at `")
    place = place.rstrip("`") or "$"
    value = ""
    with contextlib.suppress(Exception):  # a value that cannot be shown is only left out
        value = f" (found {shown(_value_at(msgspec.json.decode(data), place))})"
    problem = problem[0].lower() + problem[1:]
    return f"at {place}: {problem}{value}: see the fields in docs/traces.md"


def _value_at(value: Any, place: str) -> Any:
    for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", place):
        value = value[key] if key else value[int(index)]
    return value
