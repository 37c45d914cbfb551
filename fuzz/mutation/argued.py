"""Mutants that are argued to change nothing, one by one, in a file that people write.

An argument belongs to one text: the file's SHA-256 is part of its key, so that it lapses with the
next release. Nothing of the text itself is kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import msgspec

import ringfold.fuzz
from ringfold.fuzz.mutation.operators import Mutant

PAGES: Final = Path(ringfold.fuzz.__path__[0]).resolve().parent / "docs"
"""In a checkout; an installed ringfold has none, and argues nothing."""
FILE: Final = PAGES / "mutation-argued.json"


class Key(NamedTuple):
    """One mutant of one text."""

    sha256: str
    line: int
    column: int
    operator: str
    variant: int


class Argument(msgspec.Struct, forbid_unknown_fields=True):
    """Why no history can tell some mutants from the right program."""

    file: str
    sha256: str
    mutants: list[tuple[int, int, str, int]]
    """Line, column, operator, variant."""
    because: str


class ArgumentError(ValueError):
    """A file of arguments that cannot be read."""


def key(sha256: str, mutant: Mutant) -> Key:
    """By which a mutant is looked up."""
    return Key(sha256, mutant.line, mutant.column, mutant.operator, mutant.variant)


def load(path: Path | None = None) -> dict[Key, str]:
    """Every argument, by the mutant it is about; none where there is no file of our own.

    Raises:
        ArgumentError: the file is not a list of arguments, or one of them says nothing.
    """
    if path is None and not FILE.is_file():
        return {}  # ringfold is installed without its docs
    path = path or FILE
    try:
        arguments = msgspec.json.decode(path.read_bytes(), type=list[Argument])
    except (OSError, msgspec.MsgspecError) as error:
        raise ArgumentError(f"{path} is no list of arguments: {error}") from error
    for argument in arguments:
        if not argument.because.strip():
            raise ArgumentError(f"{path}: an argument about {argument.file} says nothing")
    return {
        Key(argument.sha256, *mutant): argument.because
        for argument in arguments
        for mutant in argument.mutants
    }
