"""Where results and complaints go, common to all commands."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

out: Final = Console(highlight=False, soft_wrap=True)
err: Final = Console(stderr=True, highlight=False)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


def progress_display() -> Progress:
    """A display on standard error, gone when the work is done; plain when that is no terminal."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=err,
        transient=True,
    )


def print_json(value: Any) -> None:
    """One object on standard output."""
    print(msgspec.json.encode(value).decode())
