"""Our kernels with a constant of theirs changed: `triton+TILE_K=16` is `triton` but for that.

So alternatives are judged and measured side by side before one of them becomes the source. Any
constant that a file in `kernels/` assigns at its top can be named, and several: `+A=1+B=None`.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Mapping
from pathlib import Path

from ringfold.fuzz.targets.loading import Rewrite

PACKAGE = "ringfold.kernels"


class ConstantError(ValueError):
    """No such constant, or no value that could be one; the message says which there are."""


def rewrite_of(changes: str) -> Rewrite | None:
    """What `+NAME=VALUE...` does to the source; None for an empty text.

    Raises:
        ConstantError: a name that is no constant of the kernels, or a value that is no literal.
    """
    wanted: dict[str, str] = {}
    known = constants()
    for change in changes.split("+")[1:]:
        name, _, value = change.partition("=")
        if name not in known:
            raise ConstantError(f"{change!r} changes no constant: there are {', '.join(known)}")
        try:
            ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise ConstantError(f"{change!r} has no literal behind the =, such as 16") from None
        wanted[name] = value
    return _rewrite(wanted) if wanted else None


def constants() -> dict[str, str]:
    """Names in capitals that are assigned a number, True, False or None, and what."""
    folders = importlib.import_module(PACKAGE).__path__
    texts = [path.read_text("utf-8") for f in folders for path in sorted(Path(f).glob("*.py"))]
    return {name: value for text in texts for name, value in _ASSIGNMENT.findall(text)}


_ASSIGNMENT = re.compile(
    r"^([A-Z][A-Z_]+)(?:: [^=\n]+)? = ([0-9.e-]+|True|False|None)$", re.MULTILINE
)


def _rewrite(wanted: Mapping[str, str]) -> Rewrite:
    def rewrite(file: str, source: str) -> str:
        def assigned(found: re.Match[str]) -> str:
            name, value = found.groups()
            if name not in wanted:
                return found[0]
            return found[0].removesuffix(value) + wanted[name]

        return _ASSIGNMENT.sub(assigned, source)

    return rewrite
