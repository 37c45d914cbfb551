"""`ringfold compare`: two targets on the same histories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ringfold.fuzz.commands.options import (
    AGREE,
    INCONCLUSIVE,
    MISMATCH,
    OfDead,
    OfDtype,
    OfGeometry,
    OfRing,
    OfSeed,
    OfWindow,
    OfWindows,
    OnDevice,
    dead_of,
    device_of,
    dtype_of,
    geometry_of,
    refuse,
    typed,
    until_stopped,
    writable_folder,
)
from ringfold.fuzz.comparing import compare as comparing
from ringfold.fuzz.comparing.compare import Report, histories
from ringfold.fuzz.console import AsJson, out, print_json, print_table, progress_display
from ringfold.fuzz.histories.trace import load
from ringfold.fuzz.targets import registry

TIME_MAX_DEFAULT = 60.0
OF_HISTORIES = {"--seed", "--geometry", "--ring", "--window", "--dtype", "--dead"}


def compare(
    context: typer.Context,
    one: Annotated[str, typer.Argument(metavar="TARGET", help="See `ringfold targets`.")],
    other: Annotated[str, typer.Argument(metavar="TARGET", help="To compare it with.")],
    bits: Annotated[
        bool, typer.Option("--bits", help="Stop where a bit differs, whatever the oracle says.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(metavar="TRACE", help="Walk this history and no others.")
    ] = None,
    device: OnDevice = "cpu",
    seed: OfSeed = 0,
    max_time: Annotated[
        float | None, typer.Option(min=0.0, help="Stop after so many seconds. [60]")
    ] = None,
    max_windows: OfWindows = None,
    geometry: OfGeometry = None,
    ring: OfRing = None,
    window: OfWindow = None,
    dtype: OfDtype = None,
    dead: OfDead = "nan",
    run_dir: Annotated[
        Path | None, typer.Option(help="Where failures/ goes. [this folder]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Walk the same histories on two targets; say where they part first, and who is right."""
    if trace is not None:
        idle = OF_HISTORIES & typed(context)
        refuse(idle, "--trace", "that history is walked as it is")
    on, folder = device_of(device), writable_folder(run_dir)
    first, second = registry.resolve(one, on), registry.resolve(other, on)
    if trace is not None:
        traces = iter([load(trace)])
    else:
        traces = histories(
            first,
            second,
            seed,
            on,
            worst=dead_of(dead),
            geometry=None if geometry is None else geometry_of(geometry),
            ring=ring,
            window=window,
            dtype=dtype_of(dtype),
        )
        if max_time is None and max_windows is None:
            max_time = TIME_MAX_DEFAULT
    with progress_display() as progress:
        task = progress.add_task(f"{one} and {other} on {on}", total=None)

        def show(report: Report) -> None:
            progress.update(
                task,
                description=f"{one} and {other} on {on}: {report.histories} histories, "
                f"{report.windows} row-windows each",
            )

        with until_stopped() as stopped:
            report = comparing.compare(
                first,
                second,
                traces,
                names=(one, other),
                bits=bits,
                seed=seed,
                device=on,
                seconds_max=max_time,
                windows_max=max_windows,
                folder=Path() if trace is None else trace.parent,
                run_dir=folder,
                on_progress=show,
                stopped=stopped,
            )
    if as_json:
        print_json(report)
    else:
        _show(report)
    if report.divergence is not None:
        raise typer.Exit(MISMATCH)
    raise typer.Exit(INCONCLUSIVE if report.inconclusive else AGREE)


def _show(report: Report) -> None:
    table = Table("compared", "", "same bits", box=None, pad_edge=False)
    for what, count in report.compared.items():
        table.add_row(f"{what}s", str(count), str(report.identical[what]))
    print_table(table)
    out.print()
    for reason, count in report.left_out.items():
        out.print(f"Histories left out: {count}, {reason}.")
    if report.divergence is not None:
        out.print(report.divergence.sentence())
        for line in report.reproduce:
            out.print(line)
    for reason in report.inconclusive:
        out.print(f"inconclusive: {reason}")
    if report.wrong_alike:
        out.print(f"Histories in which both are wrong in the same way: {report.wrong_alike}.")
    one, other = report.targets
    asked = "to the bit" if report.bits else "within the oracle's limits"
    verdict = "part" if report.divergence is not None else f"do not part {asked}"
    out.print(
        f"{one} and {other} on {report.device}, seed {report.seed}: they {verdict}; "
        f"{report.histories} histories, {report.windows} row-windows each, "
        f"{report.folds[0]} and {report.folds[1]} folds, in {report.seconds:.0f} s.",
    )
