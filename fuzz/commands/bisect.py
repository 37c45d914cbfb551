"""`ringfold bisect`: since which release does a trace show what it shows?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from ringfold.fuzz.commands.options import (
    AGREE,
    INCONCLUSIVE,
    OnDevice,
    device_of,
    until_stopped,
)
from ringfold.fuzz.comparing import bisect as bisecting
from ringfold.fuzz.comparing.bisect import Bisected, RangeError, range_of
from ringfold.fuzz.console import AsJson, out, print_json, print_table, progress_display
from ringfold.fuzz.histories.trace import load


def bisect(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace file.")],
    between: Annotated[
        str, typer.Option(metavar="TARGET==A..B", help="Releases, such as sglang==0.5.16..0.5.23.")
    ],
    device: OnDevice = "cpu",
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Fetch the wheels that are not here.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Walk a trace on every release of a range; name the first whose verdict changed.

    After Ctrl-C it tells which were walked, and where a change may still be.
    """
    on = device_of(device)
    try:
        chosen = range_of(between)
    except RangeError as error:
        raise typer.BadParameter(str(error), param_hint="--between") from None
    history = load(trace)
    with progress_display() as progress, until_stopped() as stopped:
        task = progress.add_task("", total=None)
        report = bisecting.bisect(
            history,
            chosen,
            on,
            path=trace,
            fetch=fetch,
            on_progress=lambda name: progress.update(task, description=f"{trace} on {name}"),
            stopped=stopped,
        )
    if report.left and not report.releases:
        raise KeyboardInterrupt  # nothing to tell yet
    if as_json:
        print_json(report)
    else:
        _show(report)
    raise typer.Exit(INCONCLUSIVE if report.inconclusive else AGREE)


def _show(report: Bisected) -> None:
    table = Table("release", "", "verdict", box=None, pad_edge=False)
    for one in report.releases:
        says_nothing = f"nothing: {one.account}"
        verdict = says_nothing if one.verdict is None else one.verdict
        table.add_row(*map(Text, (one.target, "changed" if one.changed else "", verdict)))
    print_table(table)
    out.print()
    for one in report.releases:
        if one.changed or one.target == _first_that_says(report):
            out.print(f"{one.target}: {one.account}")
    out.print()
    if report.inconclusive:
        out.print(f"inconclusive: {report.inconclusive}")
    elif report.first is None:
        out.print(f"{report.trace}: every release that says anything says the same.")
    else:
        out.print(
            f"{report.trace}: {report.first} is the first to say something else.",
        )


def _first_that_says(report: Bisected) -> str:
    return next((one.target for one in report.releases if one.verdict is not None), "")
