"""Writing a trace as a file that a person can read: an operation is a line."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from ringfold.fuzz.histories.trace.history import Trace

LINE_MAX: Final = 100


def save(trace: Trace, path: Path | str) -> None:
    """Write `trace`, the same bytes each time; a reader sees the old file or the whole new one."""
    path = Path(path)
    content = msgspec.to_builtins(trace, order="deterministic")
    content["seen"] = _finite(content["seen"])
    text = _pretty(content, "") + "\n"
    with replacing(path) as file:
        file.write_text(text, encoding="utf-8")


def _pretty(value: Any, indent: str) -> str:
    """JSON with an operation a line: a dict stands on one if it fits, a list of plain values does.

    Only what holds a list of dicts is always spread out.
    """
    deeper = indent + "  "
    if isinstance(value, dict):
        line = "" if any(map(_lists_dicts, value.values())) else _compact(value)
        if line and len(indent) + len(line) <= LINE_MAX:
            return line
        inside = [f"{_compact(key)}: {_pretty(item, deeper)}" for key, item in value.items()]
        opening, closing = "{}"
    elif _lists_dicts(value):
        inside = [_pretty(item, deeper) for item in value]
        opening, closing = "[]"
    else:
        return _compact(value)
    return f"{opening}\n{deeper}" + f",\n{deeper}".join(inside) + f"\n{indent}{closing}"


def _lists_dicts(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and isinstance(value[0], dict)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: as strings they survive."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place at the end, or goes away."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
