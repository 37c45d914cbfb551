"""`ringfold mutate`: small faults in a kernel's source, and whether the tester notices them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ringfold.fuzz.commands.options import AGREE, INCONCLUSIVE, OnDevice, device_of, writable_folder
from ringfold.fuzz.console import AsJson, err, out, print_json, print_table, progress_display
from ringfold.fuzz.mutation import argued as arguments
from ringfold.fuzz.mutation import campaign
from ringfold.fuzz.mutation.campaign import Report
from ringfold.fuzz.targets import registry


def mutate(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="Whose kernels; see `ringfold targets`.")
    ],
    device: OnDevice = "cpu",
    sample: Annotated[int, typer.Option(min=1, help="How many mutants are run.")] = 150,
    seed: Annotated[
        int, typer.Option(help="Decides the sample and every history.", min=0, max=2**32 - 1)
    ] = 0,
    max_time: Annotated[
        float,
        typer.Option(
            min=1.0, help="Seconds of processor time after which a mutant counts as missed."
        ),
    ] = 90.0,
    workers: Annotated[
        int, typer.Option(min=1, help="Mutants that run at once. On a GPU it slows down each.")
    ] = 1,
    argued: Annotated[
        Path | None,
        typer.Option(help="Arguments for mutants that change nothing. [docs/mutation-argued.json]"),
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where mutation.json goes. [nowhere]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change a kernel's source a little as it is loaded, again and again: is it noticed?

    Exit code 0 says that the sample was run, whatever the score. After Ctrl-C it tells of those
    that were run.
    """
    on = device_of(device)
    try:
        arguments.load(argued)
    except arguments.ArgumentError as error:
        raise typer.BadParameter(str(error), param_hint="--argued") from None
    if run_dir is not None:
        writable_folder(run_dir)
    registry.resolve(target, on)
    with progress_display() as progress:
        task = progress.add_task(f"{target} on {on}", total=None)

        def show(report: Report, line: str) -> None:
            if report.results:
                progress.console.print(line)
            noticed = report.killed + report.timed_out
            progress.update(
                task,
                description=f"{target} on {on}: {noticed} of {len(report.results)} noticed, "
                f"{sample} to run"
                if report.results
                else f"{target} on {on}: {line}",
            )

        report = campaign.mutate(
            target,
            on,
            count=sample,
            seed=seed,
            seconds_max=max_time,
            workers=workers,
            run_dir=run_dir,
            arguments=argued,
            on_progress=show,
        )
    if as_json:
        print_json(report)
    else:
        _show_report(report)
    raise typer.Exit(INCONCLUSIVE if report.inconclusive else AGREE)


def _show_report(report: Report) -> None:
    for reason in report.inconclusive:
        err.print(f"inconclusive: {reason}")
    if not report.results:
        return
    table = Table("operator", "noticed", "drawn", box=None, pad_edge=False)
    for name, (noticed, drawn) in report.operators.items():
        table.add_row(name, str(noticed), str(drawn))
    print_table(table)
    out.print()
    by = ", ".join(f"{check} {count}" for check, count in report.killed_by.items())
    out.print(f"Killed by: {by or 'nothing'}.")
    times = report.kill_seconds
    out.print(
        f"A kill took {times.median:.1f} s (median), {times.nine_in_ten:.1f} s (nine in ten), "
        f"{times.most:.1f} s (at most).",
    )
    for result in report.results:
        if result.outcome == "survived":
            where = f"{result.file}:{result.line}:{result.column}"
            out.print(f"survived: {where} {result.operator} {result.variant}")
    for stage, why in report.left_out.items():
        out.print(
            f"left out, since the target fails it without a fault: {stage}: {why}",
        )
    not_reached = sum(report.not_reached.values())
    out.print(
        f"{report.target} on {report.device}, seed {report.seed}: score {report.score:.3f}, "
        f"{report.score_without_argued:.3f} without the argued. {report.killed} killed, "
        f"{report.timed_out} timed out, {report.survived} survived, {report.argued} argued, "
        f"of {report.mutants} mutants in lines that run ({not_reached} in others) "
        f"in {report.seconds:.0f} s.",
    )
