"""`ringfold simulate`: a workload's folds, the bytes they move, and which ring length is best."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ringfold.fuzz.commands.memory import model_of
from ringfold.fuzz.commands.options import geometry_of, refuse, typed, writable_file
from ringfold.fuzz.console import AsJson, new_table, out, print_json, print_table, progress_display
from ringfold.fuzz.histories.served import served
from ringfold.fuzz.histories.trace import Decode, Trace, Verify, save
from ringfold.fuzz.predicting import Compared, Length, compare
from ringfold.sim.dialects import DIALECTS, RING_DIALECT, VERIFIERS
from ringfold.sim.engine.workload import Workload
from ringfold.sim.memory import Pool, pool_of
from ringfold.sim.presets import PRESETS
from ringfold.sim.setup import Dtypes, require
from ringfold.sim.traffic import RING_ROW_READINGS, Prediction, predict, recommended

H200_TERABYTES = 4.2
"""What one H200 was measured to reach while reading states, in 10^12 bytes a second."""


OF_TRACES = {"--dialect", "--geometry", "--convolution"}
OF_MEASURED = {"--measured", "--ring", "--bandwidth", "--json"}
OF_PREDICTIONS = {"--bandwidth", "--readings", "--tp"}


class Sweep(msgspec.Struct, frozen=True):
    """One protocol and window over ring lengths."""

    dialect: str
    window: int
    predictions: list[Prediction]
    recommended_ring: int


class Written(msgspec.Struct, frozen=True):
    """A workload as a trace."""

    trace: str
    dialect: str
    operations: dict[str, int]
    windows: int
    """Row-windows of a walk that owns all of these operations."""


class Report(msgspec.Struct, frozen=True):
    """What `ringfold simulate` prints."""

    model: str
    tp: int
    bandwidth: float
    readings: float
    workload: Workload
    protocols: list[Prediction]
    sweeps: list[Sweep]


def simulate(
    line: typer.Context,
    preset_name: Annotated[
        str | None,
        typer.Option(
            "--preset",
            metavar="NAME",
            help=f"A public model: {', '.join(PRESETS)}. [qwen3.5-35b-a3b]",
        ),
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
        float | None,
        typer.Option(
            help="Of the memory in TB/s. [4.2, as one H200 gave; with --measured its own]"
        ),
    ] = None,
    readings: Annotated[
        float,
        typer.Option(
            help="What computing on a row of a ring costs, in readings of it; the default is that "
            "of our kernels on one H200.",
            min=0.0,
        ),
    ] = RING_ROW_READINGS,
    measured: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="What `ringfold bench --save` wrote: predict its cases, ring by ring, and no "
            "workload.",
        ),
    ] = None,
    state_dtype: Annotated[str | None, typer.Option(help="Of states. [the model's]")] = None,
    conv_dtype: Annotated[str, typer.Option(help="Of activations and records.")] = "bfloat16",
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks that share the heads.")] = 1,
    seed: Annotated[int, typer.Option(help="Decides what is accepted.", min=0)] = 0,
    prompt: Annotated[int, typer.Option(help="Longest prompt, in new tokens.")] = 1,
    chunk: Annotated[int, typer.Option(help="Tokens of a prompt that a step prefills.")] = 2048,
    samples: Annotated[int, typer.Option(help="Requests that answer each prompt: forks.")] = 1,
    turns: Annotated[int, typer.Option(help="Prompts of a conversation: prefix hits.")] = 1,
    cached: Annotated[int, typer.Option(help="States kept for a prefix cache besides.")] = 0,
    context: Annotated[
        int | None,
        typer.Option(help="Tokens that the attention cache holds: beyond it, retractions. [all]"),
    ] = None,
    gap: Annotated[float, typer.Option(help="Mean steps between conversations.")] = 0.0,
    aborts: Annotated[float, typer.Option(help="Chance that a client leaves in a window.")] = 0.0,
    adaptive: Annotated[
        bool, typer.Option("--adaptive", help="Drafts follow what is accepted, down to none.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Write the workload as a trace, predict nothing."),
    ] = None,
    dialect: Annotated[
        str, typer.Option(help=f"Of the trace: {', '.join(DIALECTS)}.")
    ] = RING_DIALECT.name,
    geometry: Annotated[
        str, typer.Option(metavar="H,HV,K,V", help="Of the trace: heads and dimensions.")
    ] = "1,2,32,32",
    convolution: Annotated[
        int, typer.Option(help="Of the trace: width of the convolution, 0 for none.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Serve a workload by every protocol; predict bytes and time, and recommend a ring length."""
    writable_file(trace, "--trace")
    _refuse_idle(typed(line), window, ring)
    if bandwidth is not None:
        known = 0 < bandwidth < math.inf
        require(known, "bandwidth", bandwidth, "above 0, and finite", "give it in TB/s")
    if measured is not None:
        beside = compare(measured, ring or [8, 16, 32, 64], bandwidth)
        print_json(beside) if as_json else _show_beside(beside)
        return
    speed = bandwidth or H200_TERABYTES
    chosen = preset_name or (None if config else "qwen3.5-35b-a3b")
    model = model_of(chosen, config, (None,) * 5, 4)
    windows, rings = window or [4], ring or [16, 8, 32, 64, 128]
    load = Workload(
        requests=requests,
        tokens=tokens,
        running=running,
        window=windows[0],
        ring=rings[0],
        acceptance=acceptance,
        seed=seed,
        prompt=prompt,
        chunk=chunk,
        samples=samples,
        turns=turns,
        gap=gap,
        aborts=aborts,
        cached=cached,
        context=context,
        adaptive=adaptive,
    )
    if trace is not None:
        dtypes = Dtypes(conv_dtype, conv_dtype, state_dtype or model.state_dtype)
        history = served(load, dialect, geometry_of(geometry), dtypes, convolution)
        written = write(trace, history)
        print_json(written) if as_json else _show_written(written)
        return
    pool = pool_of(
        model,
        window=load.window,
        running=running,
        slots=running + cached,
        ring=load.ring,
        state_dtype=state_dtype,
        conv_dtype=conv_dtype,
        tp=tp,
    )
    protocols, sweeps = _predicted(pool, load, windows, rings, speed, readings)
    report = Report(model.name, tp, speed, readings, load, protocols, sweeps)
    if as_json:
        print_json(report)
        return
    _show(report, pool)


def _refuse_idle(given: set[str], windows: list[int] | None, rings: list[int] | None) -> None:
    """Options that would decide nothing are a mistake."""
    if "--measured" in given:
        refuse(given - OF_MEASURED, "--measured", "what was measured is predicted, no workload")
    elif "--trace" in given:
        refuse(given & OF_PREDICTIONS, "--trace", "a trace is written and nothing predicted")
        for option, lengths in (("--window", windows), ("--ring", rings)):
            if lengths and len(lengths) > 1:
                raise typer.BadParameter(f"a trace has one: {option} once", param_hint="--trace")
    else:
        refuse(given & OF_TRACES, "--trace", "these are of the trace that it writes")


def _predicted(
    pool: Pool,
    load: Workload,
    windows: list[int],
    rings: list[int],
    terabytes: float,
    readings: float,
) -> tuple[list[Prediction], list[Sweep]]:
    """The workload by every protocol, then by those with a ring at every length that fits."""
    with progress_display() as display:
        task = display.add_task("serving", total=None)

        def at(protocol: str, served: Workload) -> Prediction:
            display.update(task, description=f"{protocol}, T={served.window}, L={served.ring}")
            return predict(protocol, pool, served, terabytes * 1e12, readings)

        protocols = [at(name, load) for name in DIALECTS]
        sweeps = []
        for name in (d.name for d in VERIFIERS.values() if d.has_ring):
            for T in windows:
                predictions = [
                    at(name, msgspec.structs.replace(load, window=T, ring=L))
                    for L in sorted(rings)
                    if L >= 2 * T
                ]
                if predictions:
                    times = {p.ring or 0: _with_work(p) for p in predictions}
                    sweeps.append(Sweep(name, T, predictions, recommended(times)))
    return protocols, sweeps


def _with_work(one: Prediction) -> float:
    return one.step_microseconds + one.work_microseconds


def write(path: Path, history: Trace) -> Written:
    """Write a served workload to `path`, and count what is in it."""
    save(history, path)
    kinds = Counter(type(operation).__name__.lower() for operation in history.operations)
    batches = (op.rows for op in history.operations if isinstance(op, Verify | Decode))
    windows = sum(len(rows) - rows.count(None) for rows in batches)
    return Written(str(path), history.setup.dialect, dict(kinds), windows)


def _show_written(written: Written) -> None:
    counts = ", ".join(f"{count:,} {kind}" for kind, count in written.operations.items())
    out.print(f"{written.trace}: {written.windows:,} row-windows; {counts}.")
    target = f"sim@{written.dialect}"
    out.print(f"replay: ringfold replay {written.trace} --target {target}")


def _show_beside(found: Compared) -> None:
    """A line a target and case: predicted / measured at each ring length."""
    rings = sorted({one.ring for ladder in found.ladders for one in ladder.lengths})
    cases = list(dict.fromkeys(ladder.case for ladder in found.ladders))
    for case in cases:
        lengths = (f"L={ring}" for ring in rings)
        headings = ("target", "bytes", "rest", "a row", *lengths, "recommended", "over best")
        table = new_table(*headings)
        for ladder in found.ladders:
            if ladder.case != case:
                continue
            at = {one.ring: one for one in ladder.lengths}
            cells = [_both(at[ring]) if ring in at else "" for ring in rings]
            swept = len(at) > 1
            table.add_row(
                ladder.target,
                f"{at[case.ring].bytes_us:.1f}",
                f"{ladder.rest_us:.1f}",
                f"{ladder.readings:.1f}{'' if ladder.grown_at else '?'}" if swept else "",
                *cells,
                f"L={ladder.recommended_ring}" if swept else "",
                "" if ladder.over_best is None else f"{ladder.over_best - 1:+.1%}",
            )
        out.print(f"{case}:")
        print_table(table)
        out.print()
    for name, why in found.left_out.items():
        out.print(f"left out: {name}: {why}")
    out.print(
        f"Microseconds a step and layer, predicted / measured. bytes: what they take at "
        f"{found.bandwidth:.3g} TB/s; rest: what was measured beyond that at the case's L; a row: "
        "how the rest grows with each row of the ring, in readings of the row, from the longest "
        f"measured ring (?: none was, taken to be {RING_ROW_READINGS:g}); over best: the "
        "recommended length's measured time over the best measured.",
    )


def _both(one: Length) -> str:
    found = "" if one.measured_us is None else f" / {one.measured_us:.1f}"
    return f"{one.predicted_us:.1f}{found}"


def _show(report: Report, pool: Pool) -> None:
    load = report.workload
    out.print(
        f"{report.model}, {pool.geometry}, {load.requests:,} requests of {load.tokens:,} tokens, "
        f"{load.running} at a time, T={load.window}, L={load.ring}, at {report.bandwidth:g} TB/s. "
        "Bytes and times are one layer's.",
    )
    headings = ("protocol", "folds", "waiting", "at most", "accepted", "KiB/token", "us/step")
    table = new_table(*headings)
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
    rings = sorted({p.ring or 0 for sweep in report.sweeps for p in sweep.predictions})
    swept = new_table("protocol", "T", *(f"L={ring}" for ring in rings), "recommended")
    for sweep in report.sweeps:
        times = {p.ring: f"{_with_work(p):.1f}" for p in sweep.predictions}
        cells = (times.get(ring, "") for ring in rings)
        swept.add_row(sweep.dialect, str(sweep.window), *cells, f"L={sweep.recommended_ring}")
    out.print("\nus/step by ring length, computing on its rows included:")
    print_table(swept)
    out.print(
        "\nfolds: row-windows that fold; waiting: records that wait after a commit, on average and "
        "at most; accepted: tokens a step and row; us/step: what the bytes take at that bandwidth; "
        f"computing on a row of the ring takes as long as reading it {report.readings:g} times. "
        "Launches, all other computing and other kernels are left out. What a server delivers end "
        "to end is outside what this predicts.",
    )
