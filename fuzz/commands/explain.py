"""`ringfold explain`: a history as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ringfold.fuzz.console import AsJson, out, print_json, print_table
from ringfold.fuzz.findings import explain as explaining
from ringfold.fuzz.histories.trace import load


def explain(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace file.")],
    as_json: AsJson = False,
) -> None:
    """Print a history as a table: a row an operation, with cursors and ring rows drawn in text."""
    history = load(trace)
    lines = explaining.explain(history)
    if as_json:
        print_json({"trace": str(trace), "setup": history.setup, "operations": list(lines)})
        return
    out.print(f"{trace}: {history.setup}")
    out.print(
        f"payload: seed {history.payload.seed}, {history.payload.profile}; "
        "ring rows: . dead, # live, f folded by the verify in flight, w window in flight",
    )
    print_table(explaining.table(lines))
