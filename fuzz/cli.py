"""The command line.

Exit codes: 0 agree, 1 mismatch, 2 usage or bad input, 3 inconclusive, 70 internal error; 130 after
Ctrl-C where there was nothing to tell yet, 141 where nobody reads the output any more.
Results go to standard output, progress and complaints to standard error; `--json` prints exactly
one object on standard output.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, Final, NoReturn

import typer

from ringfold import __version__
from ringfold.fuzz.commands.bench import bench
from ringfold.fuzz.commands.bisect import bisect
from ringfold.fuzz.commands.compare import compare
from ringfold.fuzz.commands.configuration import configuration_app
from ringfold.fuzz.commands.drift import drift
from ringfold.fuzz.commands.explain import explain
from ringfold.fuzz.commands.explore import explore
from ringfold.fuzz.commands.fuzz import fuzz
from ringfold.fuzz.commands.memory import memory
from ringfold.fuzz.commands.mutate import mutate
from ringfold.fuzz.commands.options import INCONCLUSIVE, INTERNAL, STOPPED, USAGE
from ringfold.fuzz.commands.replay import replay
from ringfold.fuzz.commands.shrink import shrink
from ringfold.fuzz.commands.simulate import simulate
from ringfold.fuzz.commands.targets import targets_app
from ringfold.fuzz.commands.vary import vary
from ringfold.fuzz.console import err, json_only, print_json, reader_gone, silence
from ringfold.fuzz.findings.known import KnownFailuresError
from ringfold.fuzz.histories.trace import TraceError
from ringfold.fuzz.target import RefusedError
from ringfold.fuzz.targets.registry import MissingTargetError, UnknownTargetError
from ringfold.fuzz.targets.wheels import ReleaseError, WheelError
from ringfold.sim.setup import SetupError

USAGE_ERRORS: Any = typer.BadParameter.__mro__[2]
"""ClickException, be it Click's or the copy that newer releases of Typer bring along."""

HELP: Final = "Usage: "
"""How Click's answer begins where no command was typed: all there are."""

FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
SCARCE: Final = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}

USERS_ERRORS: Final = (
    SetupError,
    TraceError,
    KnownFailuresError,
    UnknownTargetError,
    ReleaseError,
    RefusedError,
)

app = typer.Typer(
    help="Is a ReplaySSM implementation of Gated DeltaNet decoding right? "
    "If not, what is the smallest history that shows it?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
SUMMARIES: Final[dict[Callable[..., None], str]] = {
    fuzz: "Hunt for histories on which a target is wrong.",
    replay: "Walk kept traces again: do they still fail?",
    explain: "Print a history as a table.",
    shrink: "Look for the smallest history with the same failure.",
    explore: "Walk every step that the protocol allows.",
    vary: "Tell each history in other ways: the same bits?",
    compare: "Walk histories on two targets: where do they part?",
    bisect: "Find the first release on which a trace's verdict changed.",
    mutate: "Change a kernel's source a little: which check notices?",
    bench: "Measure what a step costs, beside other implementations.",
    memory: "Count the bytes that each protocol keeps.",
    drift: "Follow the error of a state through long texts.",
    simulate: "Serve a workload by every protocol, and predict the cost.",
}
"""Commands in the order of their list, each in one of its lines: Click would cut the docstrings."""

for command, summary in SUMMARIES.items():
    app.command(short_help=summary)(command)
app.add_typer(targets_app, name="targets", short_help="List the targets there are, or add one.")
app.add_typer(
    configuration_app, name="configuration", short_help="Ask which of SGLang's flags are safe."
)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        print(f"ringfold {__version__}")
        raise typer.Exit


def _usage(error: Any) -> str:
    """What is wrong with a line: the option, what was typed for it, and where all options are."""
    message = str(error.format_message())
    param = getattr(error, "param", None)
    if message.startswith(HELP):
        return message
    if isinstance(error, typer.BadParameter) and param is None:
        return message  # ours, and it says all that
    typed = [part for word in sys.argv[1:] for part in word.split("=", 1)]
    given = [v for o, v in itertools.pairwise(typed) if param is not None and o in param.opts]
    but = f" ({given[-1]!r} was typed)" if given else ""
    command = getattr(getattr(error, "ctx", None), "command_path", "ringfold")
    return f"{message.rstrip('.')}{but}: see `{command} --help`"


def _machines(error: Exception) -> str:
    """What this machine could not do, where that is no fault of ours; else empty."""
    if isinstance(error, MemoryError):
        return f"too little memory here ({error}): choose fewer slots, layers, heads or a smaller K"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.errno in FULL:
        return (
            f"the output can't be written: {error.strerror}: make room, or write elsewhere "
            "(with --run-dir or the like; what is temporary goes where TMPDIR says)"
        )
    if isinstance(error, OSError) and error.errno in SCARCE:
        return f"this machine gives no more ({error.strerror}): choose fewer --workers, if any"
    if isinstance(error, FileNotFoundError):  # Python's, of temporary folders
        return f"{error.strerror}: make room in one, or name another as TMPDIR"
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object!r} is no text: rename the file"
    return ""


def _fail(code: int, message: str, as_json: bool) -> NoReturn:
    if as_json:
        with contextlib.suppress(OSError):  # the disk that is full may be why
            print_json({"error": message, "exit": code})
    try:
        err.print(message if message.startswith(HELP) else f"ringfold: {message}")
    except OSError:
        silence(2)
    sys.exit(code)


def _streams(as_json: bool) -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A file's name may have letters that this terminal lacks.
            stream.reconfigure(errors="backslashreplace")
    if as_json:  # last: a stream that leads elsewhere can't be changed any more
        json_only()


def main() -> None:
    """Run the command line, with every error as one sentence and its exit code."""
    as_json = "--json" in sys.argv[1:]
    _streams(as_json)
    # Whoever ends a job in a queue wants what was found so far, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = app(prog_name="ringfold", standalone_mode=False)
    except USAGE_ERRORS as error:
        _fail(USAGE, _usage(error), as_json)
    except USERS_ERRORS as error:
        _fail(USAGE, str(error), as_json)
    except (MissingTargetError, WheelError) as error:
        _fail(INCONCLUSIVE, str(error), as_json)
    except (KeyboardInterrupt, typer.Abort):
        _fail(STOPPED, "stopped", as_json)
    except SystemExit as left:
        if left.code == 1:  # Click's, where nobody reads its help: no target is wrong
            reader_gone()
        raise
    except Exception as error:  # noqa: BLE001 - the last resort: say so, and where
        if machines := _machines(error):
            _fail(USAGE, machines, as_json)
        traceback.print_exc()
        _fail(INTERNAL, f"internal error, please report it: {error!r}", as_json)
    if code == STOPPED:  # what Typer makes of a Ctrl-C
        _fail(STOPPED, "stopped", as_json)
    sys.exit(code)
