"""`ringfold vary`: the same history told in other ways."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ringfold.fuzz.commands.options import (
    AGREE,
    INCONCLUSIVE,
    MISMATCH,
    OnDevice,
    device_of,
    until_stopped,
    writable_folder,
)
from ringfold.fuzz.comparing import metamorphic
from ringfold.fuzz.comparing.metamorphic import Variations
from ringfold.fuzz.comparing.variations import CHEAP, VARIATIONS
from ringfold.fuzz.console import AsJson, out, print_json, print_table, progress_display
from ringfold.fuzz.running.hunt import plans as plans_of
from ringfold.fuzz.targets import registry


def vary(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="What to test; see `ringfold targets`.")
    ],
    device: OnDevice = "cpu",
    seed: Annotated[
        int, typer.Option(help="Decides every history and how it is varied.", min=0, max=2**32 - 1)
    ] = 0,
    max_windows: Annotated[
        int, typer.Option(min=1, help="Stop after so many row-windows, of all walks together.")
    ] = 3000,
    max_time: Annotated[
        float | None, typer.Option(min=0.0, help="Or after so many seconds. [no limit]")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where failures/ goes. [this folder]")
    ] = None,
    far: Annotated[
        bool,
        typer.Option("--far", help="Also put slots so far apart that offsets need 64 bits."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Tell each history in other ways that must change nothing, and compare what comes of them.

    After Ctrl-C it tells what was compared by then.
    """
    on, folder = device_of(device), writable_folder(run_dir)
    under_test = registry.resolve(target, on)
    plans = plans_of(under_test, on, name=target)
    with progress_display() as progress, until_stopped() as stopped:
        task = progress.add_task(f"{target} on {on}: starting", total=None)

        def show(report: Variations) -> None:
            progress.update(
                task,
                description=f"{target} on {on}: {report.windows} of {max_windows} row-windows, "
                f"{sum(report.judged.values())} varied histories, {len(report.findings)} findings",
            )

        report = metamorphic.vary(
            plans,
            under_test,
            seed,
            max_windows,
            device=on,
            run_dir=folder,
            variations=VARIATIONS if far else CHEAP,
            seconds_max=max_time,
            on_progress=show,
            stopped=stopped,
        )
    if stopped() and not report.windows:
        raise KeyboardInterrupt  # nothing to tell yet
    if as_json:
        print_json(report)
    else:
        _show_varied(report)
    if report.findings:
        raise typer.Exit(MISMATCH)
    raise typer.Exit(INCONCLUSIVE if report.inconclusive else AGREE)


def _show_varied(report: Variations) -> None:
    table = Table("variation", "judged", "bit for bit", "makes no difference", box=None)
    for one in VARIATIONS:
        judged, compared = report.judged.get(one.name, 0), report.compared.get(one.name, 0)
        table.add_row(one.name, str(judged), str(compared), one.holds)
    print_table(table)
    for finding in report.findings:
        out.print()
        out.print(f"{report.target}: {finding.sentence}")
        for line in finding.reproduce:
            out.print(line)
    out.print()
    for reason in report.inconclusive:
        out.print(f"inconclusive: {reason}")
    out.print(
        f"{report.target} on {report.device}, seed {report.seed}: {len(report.findings)} findings; "
        f"{report.histories} histories, {report.windows} row-windows in {report.seconds:.0f} s.",
    )
