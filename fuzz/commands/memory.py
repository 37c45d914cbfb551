"""`ringfold memory`: what each protocol keeps, in bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ringfold.fuzz.commands import plots
from ringfold.fuzz.commands.options import refuse, typed
from ringfold.fuzz.console import AsJson, out, print_json, print_table
from ringfold.sim.memory import Account, Pool, accounts, pool_of
from ringfold.sim.presets import PRESETS, ConfigError, Model, from_config, preset
from ringfold.sim.setup import Geometry

GIB = 2**30
MIB = 2**20


def memory(
    context: typer.Context,
    preset_name: Annotated[
        str | None,
        typer.Option("--preset", metavar="NAME", help=f"A public model: {', '.join(PRESETS)}."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A model's config.json.")] = None,
    layers: Annotated[int | None, typer.Option(help="GDN layers.")] = None,
    heads: Annotated[int | None, typer.Option(help="Key heads H.")] = None,
    value_heads: Annotated[int | None, typer.Option(help="Value heads HV.")] = None,
    k: Annotated[int | None, typer.Option("--k", help="Width K of a key.")] = None,
    v: Annotated[int | None, typer.Option("--v", help="Width V of a value.")] = None,
    conv_width: Annotated[int, typer.Option(help="Width of the convolution, with --layers.")] = 4,
    window: Annotated[int, typer.Option(help="Drafted tokens of one verify, bonus included.")] = 4,
    running: Annotated[int, typer.Option(help="Most requests that run at a time.")] = 48,
    slots: Annotated[
        int | None, typer.Option(help="States kept, prefix cache included. [as many as running]")
    ] = None,
    ring: Annotated[int, typer.Option(help="Ring length L, a power of two.")] = 16,
    state_dtype: Annotated[
        str | None, typer.Option(help="Of states. [the model's, or float32]")
    ] = None,
    conv_dtype: Annotated[
        str, typer.Option(help="Of activations: convolution windows and records.")
    ] = "bfloat16",
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks that share the heads.")] = 1,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the buffers as stacked bars.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count the bytes that every protocol keeps, as each SGLang release lays them out."""
    plots.require(plot)
    if preset_name is not None or config is not None:
        refuse(typed(context) & {"--conv-width"}, "--conv-width", "the model has its own")
    model = model_of(preset_name, config, (layers, heads, value_heads, k, v), conv_width)
    pool = pool_of(
        model,
        window=window,
        running=running,
        slots=slots,
        ring=ring,
        state_dtype=state_dtype,
        conv_dtype=conv_dtype,
        tp=tp,
    )
    found = accounts(pool)
    if plot is not None:
        plots.memory(plot, f"{model.name}, tp {tp}", found)
    if as_json:
        print_json({"model": model, "tp": tp, "pool": pool, "layouts": found})
        return
    _show(model, pool, tp, found)


def model_of(
    name: str | None, config: Path | None, sizes: tuple[int | None, ...], conv_width: int
) -> Model:
    """The model that the options describe; raises `BadParameter`, or `ConfigError` of a file."""
    given = [name is not None, config is not None, any(size is not None for size in sizes)]
    if sum(given) != 1:
        raise typer.BadParameter(
            "name one model: --preset NAME, or --config FILE, "
            "or --layers --heads --value-heads --k --v"
        )
    if name is not None:
        return preset(name)
    if config is not None:
        try:
            text = config.read_bytes()
        except OSError as error:
            raise ConfigError(f"{config}: can't be read ({error.strerror})") from error
        return from_config(text, str(config))
    lacking = [
        option
        for option, size in zip(
            ("--layers", "--heads", "--value-heads", "--k", "--v"), sizes, strict=True
        )
        if size is None
    ]
    if lacking:
        raise typer.BadParameter(f"a model of your own also needs {', '.join(lacking)}")
    layers, *heads = (size for size in sizes if size is not None)
    return Model("model", layers, Geometry(*heads), conv_width)


def _show(model: Model, pool: Pool, tp: int, found: list[Account]) -> None:
    out.print(
        f"{model.name}: {pool.layers} GDN layers, {pool.geometry} on each of {tp} rank(s); "
        f"T={pool.window}, L={pool.ring}, {pool.running} running, {pool.slots} slots, "
        f"states {pool.state_dtype}, records {pool.conv_dtype}. Bytes are one rank's.",
    )
    for dialect in dict.fromkeys(one.dialect for one in found):
        alike = [one for one in found if one.dialect == dialect]
        table = Table("", "keyed on", "shape", "dtype", "bytes", box=None, pad_edge=False)
        table.columns[-1].justify = "right"
        for row in alike[0].buffers:
            shape = " x ".join(map(str, row.shape))
            table.add_row(f"  {row.name}", row.keyed_on, shape, row.dtype, f"{row.bytes:,}")
        releases = ", ".join(one.releases for one in alike)
        out.print()
        out.print(f"{dialect} ({releases}): {alike[0].bytes:,} bytes")
        print_table(table)
    summary = Table(box=None, pad_edge=False)
    for heading in ("protocol", "SGLang", "GiB", "rings, MiB", "fit", "budget", "beyond"):
        summary.add_column(heading, no_wrap=True)
    for one in found:
        summary.add_row(
            one.dialect,
            one.releases,
            f"{one.bytes / GIB:.2f}",
            _each(one),
            str(one.running_in_same_bytes),
            {None: "", False: "left out", True: "counted"}[one.rings_in_budget],
            "" if one.unbudgeted_bytes is None else f"{one.unbudgeted_bytes / GIB:+.2f}",
        )
    out.print()
    print_table(summary)
    out.print(
        "\nfit: requests that run in the bytes of snapshots, slots in proportion; "
        "budget: whether the release's own sizing charges the rings; "
        "beyond: GiB allocated beyond what it charges."
    )


def _each(one: Account) -> str:
    if one.rings_bytes_per_slot:
        return f"{one.rings_bytes_per_slot / MIB:.2f}/slot"
    if one.rings_bytes_per_request:
        return f"{one.rings_bytes_per_request / MIB:.2f}/request"
    return ""
