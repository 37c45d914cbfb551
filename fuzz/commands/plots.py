"""Plots of the simulator's results; Matplotlib is imported when one is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ringfold.sim.memory import Account

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GIB = 2**30


def require(path: Path | None) -> None:
    """Raise `typer.BadParameter`, before any work is done, if `path` could not be drawn to."""
    if path is None:
        return
    if find_spec("matplotlib") is None:
        raise typer.BadParameter(
            "needs matplotlib: pip install 'ringfold[plots]'", param_hint="--plot"
        )
    if not path.parent.is_dir():
        raise typer.BadParameter(
            f"{path.parent} is not a folder: create it first", param_hint="--plot"
        )


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
