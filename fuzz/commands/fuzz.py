"""`ringfold fuzz`: many histories, each compared with the oracle."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, Final, get_args

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
    writable_folder,
)
from ringfold.fuzz.console import AsJson, out, print_json, print_table, progress_display
from ringfold.fuzz.findings import shrink as shrinking
from ringfold.fuzz.running.campaign import Campaign, Engine, Report
from ringfold.fuzz.running.course import Budget
from ringfold.fuzz.running.hunt import plans_with_twin
from ringfold.fuzz.targets import registry
from ringfold.sim.setup import LAYERS_MAX

ENGINES: Final[tuple[Engine, ...]] = get_args(Engine)
TIME_MAX_DEFAULT: Final = 60.0


def fuzz(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TARGET]...", help="What to test; see `ringfold targets`. [sim]"),
    ] = None,
    device: OnDevice = "cpu",
    seed: OfSeed = 0,
    max_time: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Stop so many seconds after the first window. [60, unless told when else]",
        ),
    ] = None,
    max_windows: OfWindows = None,
    each: Annotated[
        int | None,
        typer.Option(min=1, help="Stop when every configuration has so many row-windows."),
    ] = None,
    first: Annotated[
        bool, typer.Option("--first", help="Stop with the first failure that repeats.")
    ] = False,
    geometry: OfGeometry = None,
    ring: OfRing = None,
    window: OfWindow = None,
    dtype: OfDtype = None,
    layers: Annotated[
        int | None, typer.Option(min=1, max=LAYERS_MAX, help="Layers of the model.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Worker processes. [one a core]")
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Where failures/ goes, and then report.json too. [this folder]"),
    ] = None,
    no_shrink: Annotated[
        bool, typer.Option("--no-shrink", help="Leave failing histories as they were found.")
    ] = False,
    dead: OfDead = "nan",
    engine: Annotated[
        str,
        typer.Option(
            metavar="|".join(ENGINES),
            help="Who makes the choices of a history (docs/generation.md).",
        ),
    ] = "seeded",
    as_json: AsJson = False,
) -> None:
    """Walk many histories on each target and compare it with the oracle after every operation."""
    worst, by = dead_of(dead), _engine_of(engine)
    on = device_of(device)
    names = targets or ["sim"]
    shape = None if geometry is None else geometry_of(geometry)
    plans = [
        plan
        for name in names
        for plan in plans_with_twin(
            registry.resolve(name, on),
            on,
            name=name,
            worst=worst,
            quota=each or 0,
            geometry=shape,
            ring=ring,
            window=window,
            dtype=dtype_of(dtype),
            layers=layers,
        )
    ]
    if by == "hypothesis" and each is not None:
        raise typer.BadParameter(
            "--engine hypothesis gives each configuration turns of its own length: "
            "leave it out, or say when to stop with --max-windows or --max-time",
            param_hint="--each",
        )
    if max_time is None and max_windows is None and each is None:
        max_time = TIME_MAX_DEFAULT
    writable_folder(run_dir)
    budget = Budget(max_windows, max_time, first)
    shrink_max = 0.0 if no_shrink else shrinking.SECONDS_MAX
    campaign = Campaign(plans, on, seed, budget, run_dir, workers, shrink_max, engine=by)
    with progress_display() as progress:
        whose = f"{', '.join(names)} on {on}"
        task = progress.add_task(f"{whose}: starting", total=None)

        def show(report: Report, windows: int, elapsed: float) -> None:
            progress.update(task, description=f"{whose}: {_so_far(report, windows, elapsed)}")

        report = campaign.run(show)
    if as_json:
        print_json(report)
    else:
        _show_report(report)
    if any(not finding.flaky for finding in report.findings):
        raise typer.Exit(MISMATCH)
    raise typer.Exit(INCONCLUSIVE if report.inconclusive else AGREE)


def _so_far(report: Report, windows: int, elapsed: float) -> str:
    if not elapsed:
        return report.preparing()
    found = f"{report.mismatches} histories with a mismatch"
    return f"{windows} row-windows, {windows / elapsed:.0f} a second, {found}"


def _engine_of(text: str) -> Engine:
    for known in ENGINES:
        if text == known:
            if known == "hypothesis" and importlib.util.find_spec("hypothesis") is None:
                raise typer.BadParameter(
                    "the package hypothesis is not here: type pip install hypothesis",
                    param_hint="--engine",
                )
            return known
    raise typer.BadParameter(f"{text!r} is not one of {', '.join(ENGINES)}", param_hint="--engine")


def _show_report(report: Report) -> None:
    table = Table("situation", "visits", title=None, box=None, pad_edge=False)
    for name, visits in report.situations.items():
        table.add_row(name, str(visits))
    print_table(table)
    out.print()
    checks = Table("check", "comparisons", "largest error / allowed", box=None, pad_edge=False)
    for name, count in report.compared.items():
        largest = report.largest.get(name)
        bitwise = name in ("exactness", "frame", "cursors")
        checks.add_row(name, str(count), "bitwise" if bitwise else f"{largest or 0.0:.3g}")
    print_table(checks)
    out.print()
    if (precision := report.largest.get("precision", 0.0)) > 1.0:
        out.print(
            f"precision: outputs lose up to {precision:.3g} times what a sequential float32 "
            "computation may; subtracting running sums of gates explains it (docs/checks.md).",
        )
        out.print()
    spent = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in report.seconds.items())
    workers = "one worker" if report.workers == 1 else f"{report.workers} workers"
    out.print(f"Time of {workers}, and telling in the parent: {spent}.")
    for finding in report.findings:
        out.print()
        more = f" (in {finding.histories} histories)" if finding.histories > 1 else ""
        flaky = " It did not repeat." if finding.flaky else ""
        out.print(f"{finding.target}: {finding.sentence}{flaky}{more}")
        if finding.legality is not None:
            out.print(str(finding.legality))
        out.print(finding.reproduce)
    for reason in report.inconclusive:
        out.print(f"inconclusive: {reason}")
    verdict = (
        f"{report.mismatches} of {report.histories} histories show a mismatch"
        if report.mismatches
        else f"no mismatch in {report.histories} histor{'y' if report.histories == 1 else 'ies'}"
    )
    met = sum(tally.windows > 0 for tally in report.configurations)
    out.print()
    out.print(
        f"{', '.join(report.targets)} on {report.device}, seed {report.seed}: {verdict}; "
        f"{report.windows} row-windows in {report.elapsed:.0f} s ({report.rate:.0f} a second), "
        f"{met} of {len(report.configurations)} configurations met.",
    )
