"""`ringfold shrink`: the smallest history that fails for the same cause."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ringfold.fuzz.commands.options import (
    AGREE,
    MISMATCH,
    OnDevice,
    device_of,
    until_stopped,
    writable_folder,
)
from ringfold.fuzz.console import AsJson, out, print_json, progress_display
from ringfold.fuzz.findings import shrink as shrinking
from ringfold.fuzz.findings.simpler.order import steps
from ringfold.fuzz.histories.trace import Trace, load
from ringfold.fuzz.targets import registry


def shrink(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace that fails.")],
    target: Annotated[
        str | None, typer.Option(help="Walk this target in place of the recorded one.")
    ] = None,
    device: OnDevice = "cpu",
    max_time: Annotated[
        float, typer.Option(min=0.0, help="Seconds after which the best so far is the result.")
    ] = shrinking.SECONDS_MAX,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where failures/ goes. [this folder]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look for the smallest history that fails for the same cause, and write it down.

    After Ctrl-C that is the best so far.
    """
    on, folder = device_of(device), writable_folder(run_dir)
    found = load(trace)
    found = msgspec.structs.replace(found, target=target or found.target or "sim")
    under_test = registry.resolve(str(found.target), on)
    with progress_display() as progress:
        task = progress.add_task(f"shrinking {trace}", total=None)

        def show(best: Trace, walks: int) -> None:
            now = f"{steps(best)} steps, {len(best.operations)} operations"
            progress.update(task, description=f"shrinking {trace}: {now}, {walks} walks")

        try:
            with until_stopped() as stopped:
                shrunk = shrinking.shrink(
                    found,
                    under_test,
                    folder=trace.parent,
                    seconds_max=max_time,
                    on_progress=show,
                    stopped=stopped,
                )
        except shrinking.NoFailureError as error:
            if as_json:
                print_json({"trace": str(trace), "target": found.target, "account": str(error)})
            else:
                out.print(f"{trace} on {found.target}: {error}")
            raise typer.Exit(AGREE) from None
    written = shrinking.write(found, shrunk, trace.parent, folder, on)
    if as_json:
        print_json(written)
    else:
        out.print(written.account)
        out.print(written.sentence)
        out.print(written.reproduce)
    raise typer.Exit(MISMATCH)
