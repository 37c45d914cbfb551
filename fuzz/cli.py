"""The command line.

Exit codes: 0 agree, 1 mismatch, 2 usage or bad input, 3 inconclusive, 70 internal error.
Results go to standard output, progress and complaints to standard error; `--json` prints exactly
one object on standard output.
"""

from __future__ import annotations

import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, cast, get_args

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from ringfold import __version__
from ringfold.fuzz import explain as explaining
from ringfold.fuzz import explore as exploring
from ringfold.fuzz import known as known_failures
from ringfold.fuzz import metamorphic
from ringfold.fuzz import shrink as shrinking
from ringfold.fuzz.campaign import REPORT, Budget, Campaign, Report
from ringfold.fuzz.commands.drift import drift
from ringfold.fuzz.commands.memory import memory
from ringfold.fuzz.commands.simulate import simulate
from ringfold.fuzz.console import (
    AsJson,
    err,
    json_only,
    out,
    print_json,
    print_table,
    progress_display,
)
from ringfold.fuzz.explore import Explored
from ringfold.fuzz.frame import Dead
from ringfold.fuzz.hunt import plans as plans_of
from ringfold.fuzz.known import KnownFailuresError
from ringfold.fuzz.metamorphic import Variations
from ringfold.fuzz.replay import Outcome, Replayed
from ringfold.fuzz.replay import replay as replay_trace
from ringfold.fuzz.target import Device, RefusedError
from ringfold.fuzz.targets import registry, wheels
from ringfold.fuzz.targets.registry import MissingTargetError, UnknownTargetError
from ringfold.fuzz.targets.wheels import ReleaseError, WheelError
from ringfold.fuzz.trace import Trace, TraceError, load
from ringfold.fuzz.variations import VARIATIONS
from ringfold.sim.setup import ACTIVATIONS, Dtypes, Geometry, Setup, SetupError

AGREE: Final = 0
MISMATCH: Final = 1
USAGE: Final = 2
INCONCLUSIVE: Final = 3
INTERNAL: Final = 70
STOPPED: Final = 130

USAGE_ERRORS: Any = typer.BadParameter.__mro__[2]
"""ClickException, be it Click's or the copy that newer releases of Typer bring along."""

USERS_ERRORS: Final = (
    SetupError,
    TraceError,
    KnownFailuresError,
    UnknownTargetError,
    ReleaseError,
    RefusedError,
)

TIME_MAX_DEFAULT: Final = 60.0

app = typer.Typer(
    help="Is a ReplaySSM implementation of Gated DeltaNet decoding right? "
    "If not, what is the smallest history that shows it?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
targets_app = typer.Typer(
    help="List the implementations that can be tested, or add one.", rich_markup_mode=None
)
app.add_typer(targets_app, name="targets")
app.command()(memory)
app.command()(drift)
app.command()(simulate)

OnDevice = Annotated[
    str,
    typer.Option("--device", metavar="cpu|cuda", help="Where kernels run; cpu interprets them."),
]


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        print(f"ringfold {__version__}")
        raise typer.Exit


# ------------------------------------------------------------------ fuzz


@app.command()
def fuzz(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TARGET]...", help="What to test; see `ringfold targets`. [sim]"),
    ] = None,
    device: OnDevice = "cpu",
    seed: Annotated[
        int, typer.Option(help="Decides every history and every number.", min=0, max=2**32 - 1)
    ] = 0,
    max_time: Annotated[
        float | None,
        typer.Option(min=0.0, help="Stop after so many seconds from the first window on. [60]"),
    ] = None,
    max_windows: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many row-windows.")
    ] = None,
    geometry: Annotated[
        str | None, typer.Option(metavar="H,HV,K,V", help="Heads and dimensions.")
    ] = None,
    ring: Annotated[int | None, typer.Option(help="Ring length L, a power of two.")] = None,
    window: Annotated[int | None, typer.Option(help="Longest window T.")] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="|".join(ACTIVATIONS), help="Activations and records.")
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
    dead: Annotated[
        str,
        typer.Option(
            metavar="leave|garbage|nan", help="The worst that dead memory is filled with."
        ),
    ] = "nan",
    as_json: AsJson = False,
) -> None:
    """Walk many histories on each target and compare it with the oracle after every operation."""
    worst = _dead(dead)
    on = _device(device)
    names = targets or ["sim"]
    shape = _geometry(geometry)
    if dtype is not None and dtype not in ACTIVATIONS:
        raise typer.BadParameter(
            f"{dtype!r} is not one of {', '.join(ACTIVATIONS)}", param_hint="--dtype"
        )
    plans = [
        plan
        for name in names
        for plan in plans_of(
            registry.resolve(name, on),
            on,
            name=name,
            worst=worst,
            geometry=shape,
            ring=ring,
            window=window,
            dtype=dtype,
        )
    ]
    if max_time is None and max_windows is None:
        max_time = TIME_MAX_DEFAULT
    budget = Budget(max_windows, max_time)
    shrink_max = 0.0 if no_shrink else shrinking.SECONDS_MAX
    campaign = Campaign(plans, on, seed, budget, run_dir, workers, shrink_max)
    with progress_display() as progress:
        task = progress.add_task(f"{', '.join(names)} on {on}: starting", total=None)

        def show(report: Report, windows: int, elapsed: float) -> None:
            progress.update(
                task,
                description=f"{', '.join(names)} on {on}: {windows} row-windows, "
                f"{windows / elapsed if elapsed else 0.0:.0f} a second, "
                f"{report.mismatches} histories with a mismatch",
            )

        report = campaign.run(show)
    if as_json:
        print_json(report)
    else:
        _show_report(report)
    if any(not finding.flaky for finding in report.findings):
        raise typer.Exit(MISMATCH)
    raise typer.Exit(INCONCLUSIVE if report.inconclusive else AGREE)


def _show_report(report: Report) -> None:
    table = Table("situation", "visits", title=None, box=None, pad_edge=False)
    for name, visits in report.situations.items():
        table.add_row(name, str(visits))
    out.print(table)
    out.print()
    checks = Table("check", "comparisons", "largest error / allowed", box=None, pad_edge=False)
    for name, count in report.compared.items():
        largest = report.largest.get(name)
        bitwise = name in ("exactness", "frame", "cursors")
        checks.add_row(name, str(count), "bitwise" if bitwise else f"{largest or 0.0:.3g}")
    out.print(checks)
    out.print()
    if (precision := report.largest.get("precision", 0.0)) > 1.0:
        out.print(
            f"precision: outputs lose up to {precision:.3g} times what a sequential float32 "
            "computation may; subtracting running sums of gates explains it (docs/checks.md).",
            markup=False,
        )
        out.print()
    spent = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in report.seconds.items())
    out.print(f"Time of {report.workers} workers: {spent}.")
    for finding in report.findings:
        out.print()
        more = f" (in {finding.histories} histories)" if finding.histories > 1 else ""
        flaky = " It did not repeat." if finding.flaky else ""
        out.print(f"{finding.target}: {finding.sentence}{flaky}{more}", markup=False)
        out.print(finding.reproduce, markup=False)
    for reason in report.inconclusive:
        out.print(f"inconclusive: {reason}", markup=False)
    verdict = (
        f"{report.mismatches} of {report.histories} histories show a mismatch"
        if report.mismatches
        else f"no mismatch in {report.histories} histor{'y' if report.histories == 1 else 'ies'}"
    )
    out.print()
    out.print(
        f"{', '.join(report.targets)} on {report.device}, seed {report.seed}: {verdict}; "
        f"{report.windows} row-windows in {report.elapsed:.0f} s, "
        f"{len(report.configurations)} configurations.",
        markup=False,
    )


# ------------------------------------------------------------------ replay


@app.command()
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
    on = _device(device)
    paths = [found for path in traces for found in _trace_files(path)]
    expected = [
        failure
        for file in ([known] if known else filter(Path.is_file, map(_known_file, traces)))
        for failure in known_failures.load(file)
    ]
    replayed = []
    with progress_display() as progress:
        task = progress.add_task("replaying", total=len(paths))
        for path in paths:
            progress.update(task, description=f"replaying {path}", advance=1)
            replayed.append(replay_trace(path, target, on, expected))
    if as_json:
        print_json({"traces": replayed})
    else:
        for one in replayed:
            _show_replayed(one)
    outcomes = {one.outcome for one in replayed}
    raise typer.Exit(
        MISMATCH
        if outcomes & {Outcome.FAILED, Outcome.GONE}
        else USAGE
        if Outcome.ERROR in outcomes
        else INCONCLUSIVE
        if Outcome.MISSING in outcomes
        else AGREE
    )


def _show_replayed(one: Replayed) -> None:
    on = f" on {one.target}" if one.target else ""
    out.print(f"{one.outcome.value:7} {one.trace}{on}: {one.account}", markup=False)
    for mismatch in one.mismatches[1:]:
        out.print(f"        {mismatch.sentence()}", markup=False)
    if one.changed:
        out.print(f"      > {one.changed}", markup=False)


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


# ------------------------------------------------------------------ explain


@app.command()
def explain(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace file.")],
    as_json: AsJson = False,
) -> None:
    """Print a history as a table: a row an operation, with cursors and ring rows drawn in text."""
    history = load(trace)
    lines = explaining.explain(history)
    if as_json:
        print_json({"trace": str(trace), "setup": history.setup, "operations": list(lines)})
        return
    out.print(f"{trace}: {history.setup}", markup=False)
    out.print(
        f"payload: seed {history.payload.seed}, {history.payload.profile}; "
        "ring rows: . dead, # live, f folded by the verify in flight, w window in flight",
        markup=False,
    )
    print_table(explaining.table(lines))


# ------------------------------------------------------------------ targets


@targets_app.callback(invoke_without_command=True)
def targets_list(context: typer.Context, as_json: AsJson = False) -> None:
    """List the implementations that can be tested, what is missing and what to type."""
    if context.invoked_subcommand is not None:
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
    """Fetch a release's wheel into the cache; nothing of it is installed."""
    with progress_display() as progress:
        progress.add_task(f"fetching {release}", total=None)
        wheel = wheels.add(release)
    if as_json:
        print_json({"release": wheel.release, "path": str(wheel.path), "sha256": wheel.sha256})
        return
    out.print(f"{wheel.release} is here: {wheel.path}", markup=False)
    out.print(f"SHA-256 {wheel.sha256 or 'is checked file by file'}", markup=False)


# ------------------------------------------------------------------ shrink


@app.command()
def shrink(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace that fails.")],
    target: Annotated[
        str | None, typer.Option(help="Walk this target in place of the recorded one.")
    ] = None,
    device: OnDevice = "cpu",
    max_time: Annotated[
        float, typer.Option(min=0.0, help="Seconds after which the best so far is the result.")
    ] = shrinking.SECONDS_MAX,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where failures/ goes. [this folder]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look for the smallest history that fails for the same cause, and write it down."""
    on = _device(device)
    found = load(trace)
    found = msgspec.structs.replace(found, target=target or found.target or "sim")
    under_test = registry.resolve(str(found.target), on)
    with progress_display() as progress:
        task = progress.add_task(f"shrinking {trace}", total=None)

        def show(best: Trace, walks: int) -> None:
            now = f"{shrinking.steps(best)} steps, {len(best.operations)} operations"
            progress.update(task, description=f"shrinking {trace}: {now}, {walks} walks")

        try:
            shrunk = shrinking.shrink(
                found, under_test, folder=trace.parent, seconds_max=max_time, on_progress=show
            )
        except shrinking.NoFailureError as error:
            if as_json:
                print_json({"trace": str(trace), "target": found.target, "account": str(error)})
            else:
                out.print(f"{trace} on {found.target}: {error}", markup=False)
            raise typer.Exit(AGREE) from None
    written = shrinking.write(found, shrunk, trace.parent, run_dir or Path(), on)
    if as_json:
        print_json(written)
    else:
        out.print(written.account, markup=False)
        out.print(written.sentence, markup=False)
        out.print(written.reproduce, markup=False)
    raise typer.Exit(MISMATCH)


# ------------------------------------------------------------------ explore


@app.command()
def explore(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="What to explore; see `ringfold targets`.")
    ],
    ring: Annotated[int, typer.Option(help="Ring length L, a power of two.")],
    window: Annotated[int, typer.Option(help="Longest window T.")],
    device: OnDevice = "cpu",
    geometry: Annotated[
        str, typer.Option(metavar="H,HV,K,V", help="Heads and dimensions.")
    ] = "1,2,32,32",
    dtype: Annotated[
        str, typer.Option(metavar="|".join(ACTIVATIONS), help="Activations and records.")
    ] = "float32",
    max_time: Annotated[
        float | None, typer.Option(min=0.0, help="Stop after so many seconds. [when all is done]")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Worker processes. [one a core]")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where failures/ goes. [this folder]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Walk every step that the protocol allows, and every input of its cursors, on a target."""
    on, shape = _device(device), _geometry(geometry)
    assert shape is not None
    setup = Setup(
        dialect=registry.resolve(target, on).dialect.name,
        geometry=shape,
        ring=ring,
        window=window,
        slots=2,
        dtypes=Dtypes(activation=dtype, record=dtype),
    )
    with progress_display() as progress:
        task = progress.add_task(f"{target} on {on}: starting", total=None)

        def show(report: Explored) -> None:
            progress.update(
                task,
                description=f"{target} on {on}: {report.covered} of {report.transitions} "
                f"transitions, {report.failing} fail",
            )

        report = exploring.explore(
            target,
            setup,
            on,
            run_dir=run_dir,
            workers=workers,
            seconds_max=max_time,
            on_progress=show,
        )
    if as_json:
        print_json(report)
    else:
        _show_explored(report)
    wrong = report.counterexamples or report.cursor_inputs_wrong
    raise typer.Exit(MISMATCH if wrong else INCONCLUSIVE if report.inconclusive else AGREE)


def _show_explored(report: Explored) -> None:
    for one in report.counterexamples:
        out.print(f"{report.target}: {one.sentence}", markup=False)
        out.print(one.reproduce, markup=False)
        out.print()
    if report.cursor_inputs_wrong:
        out.print(f"{report.target}: cursors: {report.cursor_example}", markup=False)
        out.print()
    for reason in report.inconclusive:
        out.print(f"inconclusive: {reason}", markup=False)
    largest = ", ".join(f"{check} {ratio:.3g}" for check, ratio in report.largest.items())
    out.print(f"Largest error / allowed: {largest or 'nothing was compared'}.", markup=False)
    out.print(
        f"{report.target} on {report.device}, {report.setup}: {report.states} states, "
        f"{report.covered} of {report.transitions} transitions (coverage {report.coverage:.3g}), "
        f"{report.failing} of them fail; {report.cursor_inputs} cursor inputs, "
        f"{report.cursor_inputs_wrong} wrong; {report.windows} row-windows "
        f"in {report.seconds:.0f} s.",
        markup=False,
    )


# ------------------------------------------------------------------ vary


@app.command()
def vary(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="What to test; see `ringfold targets`.")
    ],
    device: OnDevice = "cpu",
    seed: Annotated[
        int, typer.Option(help="Decides every history and how it is varied.", min=0, max=2**32 - 1)
    ] = 0,
    max_windows: Annotated[
        int, typer.Option(min=1, help="Stop after so many row-windows, of all walks together.")
    ] = 3000,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where failures/ goes. [this folder]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell each history in other ways that must change nothing, and compare what comes of them."""
    on = _device(device)
    under_test = registry.resolve(target, on)
    plans = plans_of(under_test, on, name=target)
    with progress_display() as progress:
        progress.add_task(f"{target} on {on}: varying histories", total=None)
        report = metamorphic.vary(
            plans, under_test, seed, max_windows, device=on, run_dir=run_dir or Path()
        )
    if as_json:
        print_json(report)
    else:
        _show_varied(report)
    raise typer.Exit(MISMATCH if report.findings else AGREE)


def _show_varied(report: Variations) -> None:
    table = Table("variation", "judged", "bit for bit", "makes no difference", box=None)
    for one in VARIATIONS:
        judged, compared = report.judged.get(one.name, 0), report.compared.get(one.name, 0)
        table.add_row(one.name, str(judged), str(compared), one.holds)
    print_table(table)
    for finding in report.findings:
        out.print()
        out.print(f"{report.target}: {finding.sentence}", markup=False)
        for line in finding.reproduce:
            out.print(line, markup=False)
    out.print()
    out.print(
        f"{report.target} on {report.device}, seed {report.seed}: {len(report.findings)} findings; "
        f"{report.histories} histories, {report.windows} row-windows in {report.seconds:.0f} s.",
        markup=False,
    )


# ------------------------------------------------------------------ shared


def _device(name: str) -> Device:
    if name == "cpu":
        return "cpu"
    if name != "cuda":
        raise typer.BadParameter(f"{name!r} is neither cpu nor cuda", param_hint="--device")
    registry.require("cuda")
    return "cuda"


def _dead(text: str) -> Dead:
    for known in get_args(Dead):
        if text == known:
            return cast(Dead, known)
    raise typer.BadParameter(f"{text!r} is not leave, garbage or nan", param_hint="--dead")


def _geometry(text: str | None) -> Geometry | None:
    if text is None:
        return None
    try:
        H, HV, K, V = (int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not four integers H,HV,K,V such as 1,2,32,32", param_hint="--geometry"
        ) from None
    return Geometry(H, HV, K, V)


def _fail(code: int, message: str, as_json: bool) -> NoReturn:
    if as_json:
        print_json({"error": message, "exit": code})
    err.print(f"ringfold: {message}", markup=False)
    sys.exit(code)


def main() -> None:
    """Run the command line, with every error as one sentence and its exit code."""
    as_json = "--json" in sys.argv[1:]
    if as_json:
        json_only()
    # Whoever ends a job in a queue wants what was found so far, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = app(prog_name="ringfold", standalone_mode=False)
    except USAGE_ERRORS as error:
        _fail(USAGE, error.format_message(), as_json)
    except USERS_ERRORS as error:
        _fail(USAGE, str(error), as_json)
    except (MissingTargetError, WheelError) as error:
        _fail(INCONCLUSIVE, str(error), as_json)
    except (KeyboardInterrupt, typer.Abort):
        _fail(STOPPED, "stopped", as_json)
    except Exception as error:  # noqa: BLE001 - the last resort: say so, and where
        traceback.print_exc()
        _fail(INTERNAL, f"internal error, please report it: {error!r}", as_json)
    sys.exit(code)
