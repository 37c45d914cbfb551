"""Plots of what commands found; Matplotlib is imported when one is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from ringfold.fuzz.bench.case import STANDARD, Case
from ringfold.fuzz.bench.report import Measured, Report
from ringfold.fuzz.commands.options import writable_file
from ringfold.sim.drift import Bound, Study, Track
from ringfold.sim.memory import Account

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GIB = 2**30
PANELS_ABREAST = 3
SUFFIXES = (".png", ".svg", ".pdf")


def require(path: Path | None) -> None:
    """Raise `typer.BadParameter`, before any work is done, if `path` could not be drawn to."""
    if path is None:
        return
    if find_spec("matplotlib") is None:
        raise typer.BadParameter(
            "needs matplotlib: pip install 'ringfold[plots]'", param_hint="--plot"
        )
    if path.suffix not in SUFFIXES:
        raise typer.BadParameter(
            f"{path} is none of {', '.join(SUFFIXES)}: name one of these", param_hint="--plot"
        )
    if not path.parent.is_dir():
        raise typer.BadParameter(
            f"{path.parent} is not a folder: create it first", param_hint="--plot"
        )
    writable_file(path, "--plot")


def new_figure(width: float, height: float) -> Figure:
    """A figure that no window system knows of, inches wide and high."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def memory(path: Path, title: str, accounts: Sequence[Account]) -> None:
    """Bars of buffers, one a layout, in GiB."""
    figure = new_figure(9, 0.7 + 0.45 * len(accounts))
    axes = figure.add_subplot()
    names = [f"{a.dialect} ({a.releases})" for a in accounts]
    parts = {
        "states": ("checkpoint",),
        "convolution": ("conv", "conv_windows"),
        "snapshots": ("snapshots",),
    }
    known = {name for members in parts.values() for name in members}
    start = [0.0] * len(accounts)
    for label in (*parts, "rings and cursors"):
        sizes = [
            sum(
                b.bytes
                for b in a.buffers
                if (b.name in parts[label] if label in parts else b.name not in known)
            )
            / GIB
            for a in accounts
        ]
        axes.barh(names, sizes, left=start, label=label)
        start = [before + size for before, size in zip(start, sizes, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("GiB")
    axes.set_title(title)
    axes.legend()
    figure.savefig(path, dpi=150)


def drift(path: Path, study: Study, bounds: Sequence[Bound], tracks: Sequence[Track]) -> None:
    """Errors of state and outputs, and flips so far, against tokens: a column a gate strength.

    A curve is the worst key similarity. Ring lengths and acceptance rates but for the first are
    left out, so that the curves can be told apart.
    """
    base = [
        t
        for t in tracks
        if (t.case.ring, t.case.acceptance) == (tracks[0].case.ring, tracks[0].case.acceptance)
    ]
    walked = list(dict.fromkeys(t.case.who for t in base))
    precisions = list(dict.fromkeys(t.case.precision for t in base))
    styles = ("-", "--", ":", "-.", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)))
    figure = new_figure(4 * len(study.gates), 9)
    grid = figure.subplots(3, len(study.gates), sharex=True, sharey="row", squeeze=False)
    for gate, A_log in enumerate(study.gates):
        state, output, flips = grid[:, gate]
        state.set_title(f"A_log = {A_log:g}")
        for track in base:
            x = [p.tokens for p in track.points]
            look = {
                "color": f"C{walked.index(track.case.who)}",
                "linestyle": styles[precisions.index(track.case.precision) % len(styles)],
                "label": f"{track.case.who} {track.case.precision}",
            }
            state.loglog(x, [max(p.state[gate]) for p in track.points], **look)
            output.loglog(x, [max(p.output[gate]) for p in track.points], **look)
            so_far, counted = 0, []
            for point in track.points:
                so_far += sum(point.flips[gate])
                counted.append(so_far)
            flips.loglog(x, counted, **look)
        x = [b.tokens for b in bounds]
        state.loglog(x, [max(b.state[gate]) for b in bounds], "k-", lw=2, label="float32 bound")
        output.loglog(x, [max(b.output[gate]) for b in bounds], "k-", lw=2, label="float32 bound")
        flips.set_xlabel("tokens")
    for axes, label in zip(
        grid[:, 0], ("error of the state", "error of outputs", "flips so far"), strict=True
    ):
        axes.set_ylabel(label)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small")
    figure.savefig(path, dpi=120)


def bench(path: Path, report: Report) -> None:
    """A panel for each thing that varies, with the cases that differ in nothing else."""
    from matplotlib.ticker import LogFormatter

    timed = report.measured
    fields = [f for f in Case.__struct_fields__ if len({getattr(m.case, f) for m in timed}) > 1]
    fields = fields or ["batch"]
    columns = min(len(fields), PANELS_ABREAST)
    figure = new_figure(5 * columns, 0.5 + 4 * -(-len(fields) // columns))
    for number, field in enumerate(fields, start=1):
        axes = figure.add_subplot(-(-len(fields) // columns), columns, number)
        row = along(timed, field)
        at = range(len(row))
        for i, name in enumerate(report.options["targets"]):
            times = [next(p for p in one.peers if p.target == name) for one in row]
            here = [(x, p.median_us) for x, p in zip(at, times, strict=True) if p.samples_us]
            if here:
                axes.semilogy(*zip(*here, strict=True), "o-", color=f"C{i}", label=name)
        axes.semilogy(at, [one.floor_us or 0.0 for one in row], "k--", label="floor")
        axes.set_xticks(list(at), [_tick(getattr(one.case, field)) for one in row])
        axes.set_xlabel(field)
        axes.set_title(_shared(row), fontsize="small")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
        axes.grid(visible=True, which="both", alpha=0.3)
    figure.axes[0].set_ylabel("us a step and layer")
    legend = figure.axes[0].get_legend_handles_labels()
    figure.legend(*legend, loc="outside lower center", ncols=2 * columns)
    figure.savefig(path, dpi=120)


def along(measured: list[Measured], field: str) -> list[Measured]:
    """The longest run of cases that differ in `field` alone, numbers by their size."""
    groups: dict[Case, list[Measured]] = {}
    default = getattr(STANDARD, field)
    for one in measured:
        groups.setdefault(msgspec.structs.replace(one.case, **{field: default}), []).append(one)
    longest = max(groups.values(), key=len)
    return sorted(longest, key=lambda one: _size(getattr(one.case, field)))


def _size(value: object) -> float:
    """Of a number; what is none stays in its order, behind them."""
    try:
        return float(str(value))
    except ValueError:
        return inf


def _tick(value: object) -> str:
    """In two lines what has four numbers."""
    return str(value).replace(" K=", "\nK=")


def _shared(row: Sequence[Measured]) -> str:
    """What all of these cases have in common."""
    first, *others = (str(one.case).split() for one in row)
    return " ".join(word for word in first if all(word in words for words in others))
