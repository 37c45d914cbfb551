"""`ringfold simulate`: a workload's folds, the bytes they move, and which ring length is best."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from ringfold.fuzz.commands.memory import model_of
from ringfold.fuzz.console import AsJson, out, print_json, print_table, progress_display
from ringfold.sim.dialects import DIALECTS, VERIFIERS
from ringfold.sim.engine.workload import Workload
from ringfold.sim.memory import Pool, pool_of
from ringfold.sim.presets import PRESETS
from ringfold.sim.setup import require
from ringfold.sim.traffic import Prediction, predict, recommended

H200_TERABYTES = 4.2
"""What one H200 was measured to reach while reading states, in 10^12 bytes a second."""


class Sweep(msgspec.Struct, frozen=True):
    """One protocol and window over ring lengths."""

    dialect: str
    window: int
    predictions: list[Prediction]
    recommended_ring: int


class Report(msgspec.Struct, frozen=True):
    """What `ringfold simulate` prints."""

    model: str
    tp: int
    bandwidth: float
    workload: Workload
    protocols: list[Prediction]
    sweeps: list[Sweep]


def simulate(
    preset_name: Annotated[
        str | None,
        typer.Option("--preset", help=f"A public model: {', '.join(PRESETS)}. [qwen3.5-35b-a3b]"),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A model's config.json.")] = None,
    requests: Annotated[int, typer.Option(help="Requests to serve.")] = 1000,
    tokens: Annotated[int, typer.Option(help="Tokens that each decodes.")] = 1000,
    running: Annotated[int, typer.Option(help="Most requests that run at a time.")] = 256,
    window: Annotated[
        list[int] | None, typer.Option(help="Drafts of a verify, bonus included; repeatable. [4]")
    ] = None,
    ring: Annotated[
        list[int] | None, typer.Option(help="Ring length; repeatable. [16, 8, 32, 64, 128]")
    ] = None,
    acceptance: Annotated[
        float | None,
        typer.Option(help="Chance of each draft. [1 to T tokens with equal chance]"),
    ] = None,
    bandwidth: Annotated[
        float, typer.Option(help="Memory bandwidth in TB/s; measured on one H200: 4.2.")
    ] = H200_TERABYTES,
    state_dtype: Annotated[str | None, typer.Option(help="Of states. [the model's]")] = None,
    conv_dtype: Annotated[str, typer.Option(help="Of activations and records.")] = "bfloat16",
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks that share the heads.")] = 1,
    seed: Annotated[int, typer.Option(help="Decides what is accepted.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Serve a workload by every protocol; predict bytes and time, and recommend a ring length."""
    require(bandwidth > 0, "bandwidth", bandwidth, "above 0", "give it in TB/s")
    name = preset_name or (None if config else "qwen3.5-35b-a3b")
    model = model_of(name, config, (None,) * 5, 4)
    windows, rings = window or [4], ring or [16, 8, 32, 64, 128]
    load = Workload(requests, tokens, running, windows[0], rings[0], acceptance, seed)
    pool = pool_of(
        model,
        window=load.window,
        running=running,
        ring=load.ring,
        state_dtype=state_dtype,
        conv_dtype=conv_dtype,
        tp=tp,
    )
    with progress_display() as display:
        task = display.add_task("serving", total=None)

        def at(dialect: str, served: Workload) -> Prediction:
            display.update(task, description=f"{dialect}, T={served.window}, L={served.ring}")
            return predict(dialect, pool, served, bandwidth * 1e12)

        protocols = [at(dialect, load) for dialect in DIALECTS]
        sweeps = []
        for dialect in (d.name for d in VERIFIERS.values() if d.has_ring):
            for T in windows:
                predictions = [
                    at(dialect, msgspec.structs.replace(load, window=T, ring=L))
                    for L in sorted(rings)
                    if L >= 2 * T
                ]
                if predictions:
                    best = recommended(predictions).ring or 0
                    sweeps.append(Sweep(dialect, T, predictions, best))
    report = Report(model.name, tp, bandwidth, load, protocols, sweeps)
    if as_json:
        print_json(report)
        return
    _show(report, pool)


def _show(report: Report, pool: Pool) -> None:
    load = report.workload
    out.print(
        f"{report.model}, {pool.geometry}, {load.requests:,} requests of {load.tokens:,} tokens, "
        f"{load.running} at a time, T={load.window}, L={load.ring}, at {report.bandwidth:g} TB/s. "
        "Bytes and times are one layer's.",
        markup=False,
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    headings = ("protocol", "folds", "waiting", "at most", "accepted", "KiB/token", "us/step")
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    for one in report.protocols:
        seen, ring = one.statistics, one.ring is not None
        table.add_row(
            one.dialect,
            f"{seen.fold_share:.1%}" if ring else "",
            f"{seen.waiting:.2f}" if ring else "",
            str(seen.waiting_max) if ring else "",
            f"{seen.accepted:.2f}",
            f"{one.bytes_per_token / 1024:,.0f}",
            f"{one.step_microseconds:.1f}",
        )
    out.print()
    print_table(table)
    swept = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("protocol", "T", "us/step by ring length", "recommended"):
        swept.add_column(heading)
    for sweep in report.sweeps:
        times = ", ".join(f"L={p.ring}: {p.step_microseconds:.1f}" for p in sweep.predictions)
        swept.add_row(sweep.dialect, str(sweep.window), times, f"L={sweep.recommended_ring}")
    out.print()
    out.print(swept)
    out.print(
        "\nfolds: row-windows that fold; waiting: records that wait after a commit; times: what "
        "the bytes take at that bandwidth, launches and other kernels left out. What a server "
        "delivers end to end is outside what this predicts.",
        markup=False,
    )
