"""`ringfold targets`: what can be tested, and how to get it."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ringfold.fuzz.console import AsJson, out, print_json, print_table, progress_display
from ringfold.fuzz.targets import environments, registry, wheels
from ringfold.fuzz.targets.sglang_release import Release

targets_app = typer.Typer(
    help="List the implementations that can be tested, or add one.", rich_markup_mode=None
)


@targets_app.callback(invoke_without_command=True)
def targets_list(context: typer.Context, as_json: AsJson = False) -> None:
    """List the implementations that can be tested, what is missing and what to type."""
    if context.invoked_subcommand is not None:
        if as_json:
            behind = f"`{context.invoked_subcommand}` and its release"
            raise typer.BadParameter(f"write it behind {behind}", param_hint="--json")
        return
    listed = registry.listed()
    if as_json:
        print_json({"targets": [row._asdict() for row in listed]})
        return
    table = Table("target", "", "about", box=None, pad_edge=False)
    for row in listed:
        here = f"missing: {row.remedy}" if row.remedy else "here"
        table.add_row(*map(Text, (row.name, here, row.about)))
    print_table(table)


@targets_app.command("add")
def targets_add(
    release: Annotated[str, typer.Argument(metavar="sglang==VERSION", help="A release to fetch.")],
    as_json: AsJson = False,
) -> None:
    """Fetch a release's wheel into the cache, and say what it speaks; nothing is installed.

    For sglang-pool==VERSION also build the environment (2 GB, minutes) in which any release can be
    imported. It lies in the cache too, apart from this one.
    """
    name = release.replace(f"{registry.POOL}==", "sglang==", 1)
    with progress_display() as progress:
        progress.add_task(f"fetching {name}", total=None)
        wheel = wheels.add(name)
    found: dict[str, Any] = {"release": wheel.release, "path": str(wheel.path)}
    # Of what is of no use here this raises, with what it lacks.
    found |= {"sha256": wheel.sha256, "dialect": Release(wheel.release).dialect}
    if name != release:
        with progress_display() as progress:
            progress.add_task("building the environment of sglang-pool", total=None)
            environment, unpacked = environments.add(), environments.unpacked(name)
        parts = {part.name: part.bytes for part in environment.record.largest}
        found |= {"unpacked": str(unpacked), "environment": str(environment.path)}
        found |= {"bytes": environment.record.bytes, "largest": parts}
    if as_json:
        print_json(found)
        return
    out.print(f"{wheel.release} is here, and speaks {found['dialect']}: {wheel.path}")
    out.print(f"SHA-256 {wheel.sha256 or 'is checked file by file'}")
    if name != release:
        out.print(f"It is unpacked in {unpacked}: {megabytes(environments.size(unpacked))}")
        named = ", ".join(f"{part} {megabytes(count)}" for part, count in parts.items())
        total = megabytes(environment.record.bytes)
        out.print(f"The environment of all releases is {environment.path}: {total} ({named}, ...)")


def megabytes(count: int) -> str:
    """So many bytes, for a person."""
    return f"{count / 1e6:,.0f} MB"
