"""`ringfold replay`: kept traces again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ringfold.fuzz.commands.options import (
    AGREE,
    INCONCLUSIVE,
    MISMATCH,
    USAGE,
    OnDevice,
    device_of,
)
from ringfold.fuzz.console import AsJson, out, print_json, progress_display
from ringfold.fuzz.findings import known as known_failures
from ringfold.fuzz.findings.replay import Outcome, Replayed, replay_all
from ringfold.fuzz.histories.trace import TraceError
from ringfold.fuzz.running.crew import REPORT


def replay(
    traces: Annotated[
        list[Path], typer.Argument(metavar="TRACE...", help="Trace files, or folders of them.")
    ],
    target: Annotated[
        str | None, typer.Option(help="Walk this target in place of the recorded one.")
    ] = None,
    device: OnDevice = "cpu",
    known: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"Failures that are expected. [a folder's own {known_failures.FILE}]",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Walk kept traces again, and say what became of each.

    AGREES, FIXED, KNOWN; FAILED, GONE (a known failure that passes); ERROR (in a file); MISSING
    (its target).
    """
    on = device_of(device)
    paths = [found for path in traces for found in _trace_files(path)]
    expected = [
        failure
        for file in ([known] if known else filter(Path.is_file, map(_known_file, traces)))
        for failure in known_failures.load(file)
    ]
    with progress_display() as progress:
        task = progress.add_task("replaying", total=len(paths))
        replayed = replay_all(
            paths,
            target,
            on,
            expected,
            on_progress=lambda path: progress.update(
                task, description=f"replaying {path}", advance=1
            ),
        )
    left = len(paths) - len(replayed)
    if as_json:
        print_json({"traces": replayed, "left_out": left})
    else:
        for one in replayed:
            _show_replayed(one)
        if left:
            out.print(f"stopped: {left} of {len(paths)} traces were not replayed")
    outcomes = {one.outcome for one in replayed}
    raise typer.Exit(
        MISMATCH
        if outcomes & {Outcome.FAILED, Outcome.GONE}
        else USAGE
        if Outcome.ERROR in outcomes
        else INCONCLUSIVE
        if Outcome.MISSING in outcomes or left
        else AGREE
    )


def _show_replayed(one: Replayed) -> None:
    on = f" on {one.target}" if one.target else ""
    out.print(f"{one.outcome.value:7} {one.trace}{on}: {one.account}")
    for mismatch in one.mismatches[1:]:
        out.print(f"        {mismatch.sentence()}")
    if one.mismatches and one.legality is not None:
        out.print(f"        {one.legality}")
    if one.changed:
        out.print(f"      > {one.changed}")


def _known_file(path: Path) -> Path:
    return path / known_failures.FILE


def _trace_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.rglob("*.json"))
    traces = [p for p in found if p.name not in {REPORT, known_failures.FILE}]
    if not traces:
        raise TraceError(f"{path}: holds no trace (*.json): name a trace or a folder of them")
    return traces
