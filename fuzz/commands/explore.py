"""`ringfold explore`: every step that the protocol allows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ringfold.fuzz.commands.options import (
    AGREE,
    INCONCLUSIVE,
    MISMATCH,
    OnDevice,
    dead_of,
    device_of,
    geometry_of,
    writable_folder,
)
from ringfold.fuzz.console import AsJson, out, print_json, progress_display
from ringfold.fuzz.running import explore as exploring
from ringfold.fuzz.running.explore import Explored
from ringfold.fuzz.targets import registry
from ringfold.sim.setup import ACTIVATIONS, Dtypes, Setup


def explore(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="What to explore; see `ringfold targets`.")
    ],
    ring: Annotated[int, typer.Option(help="Ring length L, a power of two.")],
    window: Annotated[int, typer.Option(help="Longest window T.")],
    device: OnDevice = "cpu",
    geometry: Annotated[
        str, typer.Option(metavar="H,HV,K,V", help="Heads and dimensions.")
    ] = "1,2,32,32",
    dtype: Annotated[
        str, typer.Option(metavar="|".join(ACTIVATIONS), help="Activations and records.")
    ] = "float32",
    max_time: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Stop so many seconds after the first window. [when all is done]"
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Worker processes. [one a core]")
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Where failures/ and report.json go. [failures/ here, no report]"),
    ] = None,
    dead: Annotated[
        str, typer.Option(metavar="leave|garbage|nan", help="What dead memory is filled with.")
    ] = "nan",
    as_json: AsJson = False,
) -> None:
    """Walk every step that the protocol allows, and every input of its cursors, on a target."""
    on, shape, filled = device_of(device), geometry_of(geometry), dead_of(dead)
    writable_folder(run_dir)
    setup = Setup(
        dialect=registry.resolve(target, on).dialect.name,
        geometry=shape,
        ring=ring,
        window=window,
        slots=2,
        dtypes=Dtypes(activation=dtype, record=dtype),
    )
    with progress_display() as progress:
        task = progress.add_task(f"{target} on {on}: starting", total=None)

        def show(report: Explored) -> None:
            progress.update(
                task,
                description=f"{target} on {on}: {report.covered} of {report.transitions} "
                f"transitions, {report.failing} fail; {report.rate:.0f} row-windows a second",
            )

        report = exploring.explore(
            target,
            setup,
            on,
            dead=filled,
            run_dir=run_dir,
            workers=workers,
            seconds_max=max_time,
            on_progress=show,
        )
    if as_json:
        print_json(report)
    else:
        _show_explored(report)
    wrong = report.failing or report.cursor_inputs_wrong
    raise typer.Exit(MISMATCH if wrong else INCONCLUSIVE if report.inconclusive else AGREE)


def _show_explored(report: Explored) -> None:
    for one in report.counterexamples:
        out.print(f"{report.target}: {one.sentence}")
        out.print(one.reproduce)
        out.print()
    if report.hanging:
        out.print(f"{report.target}: the target hangs")
        out.print(report.hanging)
        out.print()
    if report.cursor_inputs_wrong:
        out.print(f"{report.target}: cursors: {report.cursor_example}")
        out.print()
    for reason in report.inconclusive:
        out.print(f"inconclusive: {reason}")
    spent = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in report.spent.items())
    out.print(f"Time, added up over workers ({report.workers}): {spent}.")
    largest = ", ".join(f"{check} {ratio:.3g}" for check, ratio in report.largest.items())
    out.print(f"Largest error / allowed: {largest or 'nothing was compared'}.")
    out.print(
        f"{report.target} on {report.device}, {report.setup}: {report.states} states, "
        f"{report.covered} of {report.transitions} transitions (coverage {report.coverage:.3g}), "
        f"{report.failing} of them fail; {report.cursor_inputs} cursor inputs, "
        f"{report.cursor_inputs_wrong} wrong; {report.windows} row-windows in "
        f"{report.seconds:.0f} s ({report.rate:.0f} a second), after "
        f"{report.compile_seconds:.0f} s to start and compile.",
    )
