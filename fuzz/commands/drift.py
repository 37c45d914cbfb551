"""`ringfold drift`: errors over many thousand tokens, and the first word that they change."""

from __future__ import annotations

import time
from collections.abc import Container
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer

from ringfold.fuzz.commands import plots
from ringfold.fuzz.commands.options import OnDevice, device_of, writable_file
from ringfold.fuzz.console import AsJson, new_table, out, print_json, print_table, progress_display
from ringfold.fuzz.drifting import TargetWalker, cases_on
from ringfold.fuzz.findings.failures import write_text
from ringfold.fuzz.provenance import stamped
from ringfold.fuzz.target import Device, RefusedError
from ringfold.fuzz.targets.registry import MissingTargetError, resolve
from ringfold.sim.dialects import DIALECTS
from ringfold.sim.drift import (
    PRECISIONS,
    Bound,
    Case,
    Study,
    Text,
    Track,
    Walker,
    cases_of,
    cut,
    run,
)
from ringfold.sim.setup import Geometry, require

EARLY = 1000
"""Tokens after which errors are compared with those at the end."""


class Report(msgspec.Struct, frozen=True):
    """What a run of `ringfold drift` found."""

    seconds: float
    study: Study
    bounds: list[Bound]
    tracks: list[Track]
    identities: dict[str, dict[str, str]] = {}
    """What exactly the targets are."""
    refused: dict[str, str] = {}
    """Cases that a target does not run, and why."""
    reused: list[dict[str, str]] = []
    """Where earlier runs were made whose tracks are among these."""


class Saved(Report, frozen=True):
    """The same as a file holds it."""

    machine: dict[str, str] = {}


class Summary(NamedTuple):
    """A case in a few numbers, the worst gate strength, similarity and seed."""

    state_early: float | None
    state: float
    output: float
    flips: int
    first_flip: int | None
    """The earliest of all texts."""
    flipped: int
    """Texts with a flip."""
    texts: int


def drift(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...",
            help="Implementations to walk, see `ringfold targets`. [machines of the simulator]",
        ),
    ] = None,
    device: OnDevice = "cpu",
    tokens: Annotated[int, typer.Option(help="Length of each text.")] = 10_000,
    dialect: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Of machines, repeatable: {', '.join(DIALECTS)}. [all, unless targets are named]"
        ),
    ] = None,
    precision: Annotated[
        list[str] | None, typer.Option(help=f"Repeatable: {', '.join(PRECISIONS)}. [all]")
    ] = None,
    ring: Annotated[
        list[int] | None, typer.Option(help="Ring length, repeatable. [16, 8, 64]")
    ] = None,
    acceptance: Annotated[
        list[float] | None,
        typer.Option(help="How likely a draft is accepted, repeatable. [0.7, 0, 1]"),
    ] = None,
    gate: Annotated[
        list[float] | None, typer.Option(help="A_log, repeatable. [-1, -4, -7, -10]")
    ] = None,
    similarity: Annotated[
        list[float] | None, typer.Option(help="Mean cosine of keys, repeatable. [0, 0.5, 0.9]")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Texts of each kind.")] = 2,
    seed: Annotated[int, typer.Option(help="Decides every number.", min=0, max=2**32 - 1)] = 0,
    window: Annotated[int, typer.Option(help="Drafted tokens of a verify, bonus included.")] = 4,
    heads: Annotated[int, typer.Option(help="Key heads H.")] = 1,
    value_heads: Annotated[int, typer.Option(help="Value heads HV.")] = 2,
    k: Annotated[int, typer.Option("--k", help="Width K of a key.")] = 32,
    v: Annotated[int, typer.Option("--v", help="Width V of a value.")] = 32,
    reuse: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.json",
            help="What --save left of the same texts, or of longer ones: its cases are not walked "
            "again. Repeatable.",
        ),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Written anew at every point reached.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw errors against tokens.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Walk protocols at many precisions through long texts; compare state, outputs and words."""
    plots.require(plot)
    writable_file(save, "--save")
    on, defaults = device_of(device), Study()
    if on == "cuda" and not targets:
        raise typer.BadParameter(
            "machines of the simulator run on the CPU: name a target, such as triton",
            param_hint="--device",
        )
    study = Study(
        geometry=Geometry(heads, value_heads, k, v),
        window=window,
        tokens=tokens,
        gates=tuple(gate or defaults.gates),
        similarities=tuple(similarity or defaults.similarities),
        seeds=seeds,
        seed=seed,
    )
    dialects = dialect or ([] if targets else list(DIALECTS))
    for name in dialects:
        require(name in DIALECTS, "dialect", name, f"one of {', '.join(DIALECTS)}", "name one")
    swept = (precision or list(PRECISIONS), ring or [16, 8, 64], acceptance or [0.7, 0.0, 1.0])
    saved = [_read(path, study) for path in reuse or []]
    known = {track.case: track for one in saved for track in one.tracks if track.points}
    text, started = Text(study), time.monotonic()
    there = _opened(text, dialects, targets or [], on, swept, known)
    if not there.walkers and known.keys().isdisjoint(there.cases):
        why = "; ".join(dict.fromkeys(there.refused.values()))
        raise MissingTargetError(f"nothing to walk, {', '.join(targets or [])} can't: {why}")
    reused = [one for file in saved for one in (*file.reused, file.machine)]

    def report(bounds: list[Bound], tracks: list[Track]) -> Report:
        seconds = round(time.monotonic() - started, 1)
        seen = known | {track.case: track for track in tracks}
        shown = [seen[case] for case in there.cases if case in seen]
        found = Report(seconds, study, bounds, shown, there.identities, there.refused, reused)
        if save is not None:
            write_text(save, msgspec.json.encode(stamped(found)).decode() + "\n")
        return found

    with progress_display() as display:
        task = display.add_task("decoding the text", total=None)

        def at_step(position: int, case: Case) -> None:
            display.update(task, description=f"{position:,} of {tokens:,} tokens: {case}")

        if there.walkers:
            found = report(*run(text, there.walkers, report, at_step))
        else:
            found = report(saved[0].bounds, [])
    if plot is not None:
        plots.drift(plot, found.study, found.bounds, found.tracks)
    print_json(found) if as_json else _show(found)


class Opened(NamedTuple):
    """What there is to walk."""

    cases: list[Case]
    """In the order in which they are shown, those that are known or refused among them."""
    walkers: list[Walker]
    identities: dict[str, dict[str, str]]
    refused: dict[str, str]


def _opened(
    text: Text,
    dialects: list[str],
    targets: list[str],
    device: Device,
    swept: tuple[list[str], list[int], list[float]],
    known: Container[Case],
) -> Opened:
    """Machines and targets on the text, but for cases that are known."""
    cases = cases_of(dialects, *swept)
    there = Opened(cases, [Walker(case, text) for case in cases if case not in known], {}, {})
    for name in targets:
        there.identities[name] = dict(resolve(name, device).identity())
        for case in cases_on(resolve(name, device), *swept):
            there.cases.append(case)
            try:
                if case not in known:
                    there.walkers.append(TargetWalker(resolve(name, device), case, text))
            except RefusedError as error:
                there.refused[str(case)] = str(error)
    return there


def _read(path: Path, study: Study) -> Saved:
    """What was saved of these texts, cut to their length; cases that fell short have no points."""
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=Saved)
    except (OSError, msgspec.MsgspecError) as error:
        raise typer.BadParameter(
            f"{path} is not what --save writes ({error})", param_hint="--reuse"
        ) from None
    for field in Study.__struct_fields__:
        here, there = getattr(study, field), getattr(saved.study, field)
        if here != there and field != "tokens":
            raise typer.BadParameter(
                f"{path} is of other texts: its {field} is {there}, and here it is {here}",
                param_hint="--reuse",
            )
    bounds = [bound for bound in saved.bounds if bound.tokens <= study.tokens]
    tracks = [cut(track, study.tokens) for track in saved.tracks]
    return msgspec.structs.replace(saved, bounds=bounds, tracks=tracks)


def summary(track: Track) -> Summary:
    """The worst of everything; outputs from `EARLY` tokens on, where the text is as long."""
    last = track.points[-1]
    late = [p for p in track.points if p.tokens >= EARLY] or track.points
    early = [p for p in track.points if p.tokens == EARLY]
    flips = [token for gate in track.first_flip for kind in gate for token in kind]
    at = [token for token in flips if token is not None]
    return Summary(
        max(map(max, early[0].state)) if early else None,
        max(map(max, last.state)),
        max(max(map(max, p.output)) for p in late),
        sum(sum(map(sum, p.flips)) for p in track.points),
        min(at, default=None),
        len(at),
        len(flips),
    )


def _show(report: Report) -> None:
    study, first = report.study, report.tracks[0].case
    table = new_table("case", "state@1k", "at end", "outputs", "flips", "first", "texts")
    for track in report.tracks:
        one, case = summary(track), track.case
        table.add_row(
            _label(case, first),
            "" if one.state_early is None else f"{one.state_early:.1e}",
            f"{one.state:.1e}",
            f"{one.output:.1e}",
            f"{one.flips:,}",
            "" if one.first_flip is None else f"{one.first_flip:,}",
            f"{one.flipped}/{one.texts}",
        )
    print_table(table)
    for why in dict.fromkeys(report.refused.values()):
        left_out = ", ".join(case for case, reason in report.refused.items() if reason == why)
        out.print(f"\nleft out: {left_out}: {why}")
    out.print(
        f"\n{study.tokens:,} tokens, {study.geometry}, T={study.window}; L={first.ring} and "
        f"acceptance {first.acceptance:g} but where another is named. Errors are relative, "
        f"the worst of all gates, similarities and seeds, of outputs from {EARLY:,} tokens on "
        "(of a shorter text all); flips are words that differ from the "
        "text's, in all texts; "
        "first is the earliest, texts how many have one.",
    )


def _label(case: Case, first: Case) -> str:
    ring = f" L={case.ring}" if case.ring != first.ring else ""
    rate = f" acceptance={case.acceptance:g}" if case.acceptance != first.acceptance else ""
    return f"{case.who} {case.precision}{ring}{rate}"
