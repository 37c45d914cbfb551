"""`ringfold bench`: one step in the steady state, all peers side by side, beside the floor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from ringfold.fuzz.bench.case import AVERAGED_STEPS, STANDARD, SWEEPS, Case, cases, swept
from ringfold.fuzz.bench.report import Peer, Report
from ringfold.fuzz.bench.run import PEERS, WRONG, Bench, Options
from ringfold.fuzz.commands import plots
from ringfold.fuzz.commands.options import (
    AGREE,
    INCONCLUSIVE,
    MISMATCH,
    OnDevice,
    device_of,
    dtype_of,
    geometry_of,
    until_stopped,
    writable_file,
)
from ringfold.fuzz.console import AsJson, new_table, out, print_json, print_table, progress_display
from ringfold.fuzz.findings.failures import write_json
from ringfold.fuzz.running.crew import cores
from ringfold.sim.setup import ACTIVATIONS

BATCHES: Final = (1, 16, 64, 256)
SMALL: Final = Case(geometry=geometry_of("1,2,32,32"), batch=3, ring=8, window=2, dtype="float16")
"""What the interpreter can run in a second or two."""


def bench(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TARGET]...", help=f"Whom to measure. [{' '.join(PEERS)}]"),
    ] = None,
    device: OnDevice = "cpu",
    batch: Annotated[
        list[int] | None, typer.Option(help="Rows of a step, repeatable. [1, 16, 64, 256]")
    ] = None,
    ring: Annotated[list[int] | None, typer.Option(help="Ring length L, repeatable. [16]")] = None,
    window: Annotated[
        list[int] | None, typer.Option(help="Drafted tokens T, bonus included, repeatable. [4]")
    ] = None,
    acceptance: Annotated[
        list[str] | None,
        typer.Option(
            metavar="uniform|P",
            help="Tokens accepted: uniform on 1..T, or the chance of each draft; repeatable.",
        ),
    ] = None,
    geometry: Annotated[
        list[str] | None,
        typer.Option(metavar="H,HV,K,V", help="Heads and dimensions, repeatable. [16,32,128,128]"),
    ] = None,
    layers: Annotated[
        list[int] | None,
        typer.Option(help="Layers between two commits, repeatable; times are a layer's. [1]"),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="|".join(ACTIVATIONS), help="Of inputs and records. [bfloat16]"),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(help=f"Cases that change one thing, repeatable: {', '.join(SWEEPS)}."),
    ] = None,
    steps: Annotated[
        int,
        typer.Option(
            min=1, max=AVERAGED_STEPS, help="Steps in a graph, each with inputs of its own."
        ),
    ] = Options().steps,
    rounds: Annotated[
        int, typer.Option(min=1, help="Samples of each peer; peers take turns.")
    ] = Options().rounds,
    seed: Annotated[
        int, typer.Option(help="Decides inputs and acceptance.", min=0, max=2**32 - 1)
    ] = 0,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Processes that compile. [one a core]")
    ] = None,
    commit: Annotated[
        str | None, typer.Option(help="What to call the code measured. [git's name for it]")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Run the steps and judge them, small on a CPU; no times."),
    ] = False,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Written anew after every case.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw times against what varies.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure verify and commit of a layer in the steady state, all peers in turn.

    After Ctrl-C it tells what was measured by then.
    """
    plots.require(plot)
    writable_file(save, "--save")
    if dry_run and plot is not None:
        raise typer.BadParameter("a dry run has no times to draw", param_hint="--plot")
    if device == "cpu" and not dry_run:
        raise typer.BadParameter(
            "an interpreter's times say nothing: use --device cuda, or --dry-run for the same "
            "steps without a clock",
            param_hint="--device",
        )
    on = device_of(device)
    base = SMALL if on == "cpu" else STANDARD
    kind = dtype_of(dtype) or base.dtype
    chosen = [] if sweep is None else swept(sweep, kind)
    lists = (geometry, batch, ring, window, acceptance, layers)
    if sweep is None or any(one is not None for one in lists):
        chosen = chosen + cases(
            [geometry_of(g) for g in geometry] if geometry else [base.geometry],
            batch or ([base.batch] if on == "cpu" else BATCHES),
            ring or [base.ring],
            window or [base.window],
            acceptance or [base.acceptance],
            layers or [base.layers],
            kind,
        )
    chosen = list(dict.fromkeys(chosen))
    names = targets or list(PEERS)
    for case in chosen:
        case.setup("ring")  # refuses what no ring could be
    options = Options(steps, rounds, seed, workers or cores(), commit)
    with progress_display() as progress, until_stopped() as stopped:
        task = progress.add_task("starting", total=None)

        def on_case(report: Report, doing: str) -> None:
            progress.update(task, description=f"{', '.join(names)} on {on}: {doing}")
            if save is not None:
                write_json(save, report)

        report = Bench(names, chosen, on, options, timed=not dry_run).run(on_case, stopped)
    if stopped() and not report.measured:
        raise KeyboardInterrupt  # nothing to tell yet
    if plot is not None:
        plots.bench(plot, report)
    if as_json:
        print_json(report)
    else:
        _show(report)
    raise typer.Exit(_verdict(report))


def _verdict(report: Report) -> int:
    flags = [flag for one in report.measured for peer in one.peers for flag in peer.flags]
    if any(flag.startswith(WRONG) for flag in flags):
        return MISMATCH
    return INCONCLUSIVE if flags or report.inconclusive else AGREE


def _show(report: Report) -> None:
    timed = report.bandwidth is not None
    headings = ["case", "target", "error", "written"]
    headings += ["us a step", "+-", "over floor", "peak MiB"] if timed else []
    table = new_table(*headings)
    for column in table.columns[2:]:
        column.justify = "right"
    for one in report.measured:
        for i, peer in enumerate(one.peers):
            table.add_row("" if i else str(one.case), *_cells(peer, timed))
        if one.floor_us is not None:
            floor = ["", "floor", "", f"{one.cycle.flushing:.0%}", f"{one.floor_us:.1f}"]
            table.add_row(*floor, "", "1.00", "")
    print_table(table)
    for one in report.measured:
        for peer in one.peers:
            for flag in peer.flags:
                out.print(f"{peer.target}, {one.case}: {flag}")
    for reason in report.inconclusive:
        out.print(f"inconclusive: {reason}")
    what = report.machine
    out.print()
    out.print(
        f"{what['device']}, torch {what['torch']}, triton {what['triton']}, ringfold "
        f"{what['ringfold']} ({what['commit'][:12]}), {what['date']}; error: of outputs, in "
        "2-norm, relative; written: rows whose checkpoint changed in a step.",
    )
    if report.bandwidth is not None:
        out.print(
            f"A step is one layer's verify and commit, median of {report.options['rounds']} rounds "
            "and half the distance of its quartiles. Floor: the bytes that the ring protocol must "
            f"move, at {report.bandwidth.copy / 1e12:.2f} TB/s as a copy reached in this run.",
        )


def _cells(peer: Peer, timed: bool) -> list[str]:
    cells = [
        peer.target,
        "" if peer.output_error is None else f"{peer.output_error:.1e}",
        "" if peer.written_share is None else f"{peer.written_share:.0%}",
    ]
    if timed and peer.samples_us:
        cells += [f"{peer.median_us:.1f}", f"{peer.spread_us:.2f}", f"{peer.floor_ratio:.2f}"]
        cells.append(f"{(peer.peak_bytes or 0) / 2**20:.0f}")
    return cells
