"""Where results and complaints go, common to all commands."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, Final, NoReturn, TextIO

import msgspec
import typer
from rich.console import Console
from rich.measure import Measurement
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ringfold.fuzz.provenance import stamped

READER_GONE: Final = 128 + 13
"""Exit code where nobody reads any more, as in `ringfold explain TRACE | head`: that of SIGPIPE."""


class Stream(Console):
    """A console that ends quietly when its reader is gone, and not as if a target were wrong."""

    def on_broken_pipe(self) -> None:
        """Rich calls this in place of raising."""
        reader_gone()


# What is printed stands as it is: in a name `[x]` is no style, and `:x:` no emoji.
out: Final = Stream(highlight=False, markup=False, emoji=False, soft_wrap=True)
err: Final = Stream(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


def reader_gone() -> NoReturn:
    """Leave; what is still buffered goes nowhere."""
    silence(1, 2)
    raise SystemExit(READER_GONE)


def silence(*descriptors: int) -> None:
    """Nobody can be told there any more, and Python would try again when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)


def progress_display() -> Progress:
    """A display on standard error, gone when the work is done; plain when that is no terminal."""
    return Progress(
        SpinnerColumn("dots" if err.encoding.startswith("utf") else "line"),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=err,
        transient=True,
    )


def new_table(*headings: str) -> Table:
    """A table without lines, none of whose cells is folded."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def print_table(table: Table) -> None:
    """As wide as it is, whatever the terminal: lines that are folded can't be read or pasted."""
    natural = Measurement.get(out, out.options.update(max_width=10_000), table).maximum
    out.width = max(out.width, natural)
    out.print(table)


_for_json: TextIO | None = None


def json_only() -> None:
    """Keep standard output for `print_json`: what a target prints there goes to standard error."""
    global _for_json  # noqa: PLW0603 - there is one standard output
    if sys.stdout is None:  # it was closed before we came
        return
    _for_json = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)


def print_json(value: Any) -> None:
    """One object on standard output, which says where it was made."""
    text = msgspec.json.encode(stamped(value)).decode()
    try:
        print(text, file=_for_json or sys.stdout, flush=True)
    except BrokenPipeError:
        reader_gone()
