"""What several commands share: exit codes, and options that are read the same way everywhere."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, cast, get_args

import typer

from ringfold.fuzz.judging.frame import Dead
from ringfold.fuzz.target import Device
from ringfold.fuzz.targets import registry
from ringfold.sim.setup import ACTIVATIONS, Geometry

AGREE: Final = 0
MISMATCH: Final = 1
USAGE: Final = 2
INCONCLUSIVE: Final = 3
INTERNAL: Final = 70
STOPPED: Final = 130

OnDevice = Annotated[
    str,
    typer.Option("--device", metavar="cpu|cuda", help="Where kernels run; cpu interprets them."),
]

OfSeed = Annotated[
    int, typer.Option(help="Decides every history and every number.", min=0, max=2**32 - 1)
]
OfWindows = Annotated[int | None, typer.Option(min=1, help="Stop after so many row-windows.")]
OfGeometry = Annotated[str | None, typer.Option(metavar="H,HV,K,V", help="Heads and dimensions.")]
OfRing = Annotated[int | None, typer.Option(help="Ring length L, a power of two.")]
OfWindow = Annotated[int | None, typer.Option(help="Longest window T.")]
OfDtype = Annotated[
    str | None, typer.Option(metavar="|".join(ACTIVATIONS), help="Activations and records.")
]
OfDead = Annotated[
    str,
    typer.Option(metavar="leave|garbage|nan", help="The worst that dead memory is filled with."),
]


def typed(context: typer.Context) -> set[str]:
    """The options that were typed, whatever their value."""
    return {
        parameter.opts[0]
        for parameter in context.command.params
        if getattr(context.get_parameter_source(str(parameter.name)), "name", "") == "COMMANDLINE"
    }


def refuse(idle: set[str], option: str, because: str) -> None:
    """Raise `BadParameter` if there is an option that decides nothing here, since `because`."""
    if idle:
        raise typer.BadParameter(
            f"{because}: leave out {', '.join(sorted(idle))}", param_hint=option
        )


def device_of(name: str) -> Device:
    """The device called `name`; raises `BadParameter`, and `MissingTargetError` without a GPU."""
    if name == "cpu":
        return "cpu"
    if name != "cuda":
        raise typer.BadParameter(f"{name!r} is neither cpu nor cuda", param_hint="--device")
    registry.require("cuda")
    return "cuda"


def dead_of(text: str) -> Dead:
    """What dead memory is filled with; raises `BadParameter`."""
    for known in get_args(Dead):
        if text == known:
            return cast(Dead, known)
    raise typer.BadParameter(f"{text!r} is not leave, garbage or nan", param_hint="--dead")


def geometry_of(text: str) -> Geometry:
    """Read `H,HV,K,V`; raises `BadParameter`."""
    try:
        H, HV, K, V = (int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not four integers H,HV,K,V such as 1,2,32,32", param_hint="--geometry"
        ) from None
    return Geometry(H, HV, K, V)


@contextmanager
def until_stopped() -> Iterator[Callable[[], bool]]:
    """Whether somebody pressed Ctrl-C, or ended the job; the second time does not wait."""
    pressed = False

    def press(number: int, frame: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = {one: signal.signal(one, press) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: pressed
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def writable_folder(folder: Path | None, option: str = "--run-dir") -> Path:
    """`folder`, or this one, made if it is not there.

    Raises `BadParameter` where nothing can be written: it is asked before any work is done.
    """
    folder = folder or Path()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"a disk that is full takes names, and nothing else")
    except OSError as error:
        raise typer.BadParameter(
            f"nothing can be written to the folder {str(folder)!r} ({error.strerror}): "
            "name one that is yours",
            param_hint=option,
        ) from None
    return folder


def writable_file(file: Path | None, option: str) -> None:
    """Raise `BadParameter`, before any work is done, if `file` could not be written."""
    if file is None:
        return
    try:
        if file.is_dir():
            raise typer.BadParameter(f"{file} is a folder: name a file in it", param_hint=option)
        writable_folder(file.parent, option)
        # Files are written beside their place first, under a longer name.
        tempfile.NamedTemporaryFile(prefix=f".{file.name}.", dir=file.parent).close()
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint=option) from None


def dtype_of(text: str | None) -> str | None:
    """A dtype of activations, if one was named; raises `BadParameter`."""
    if text is not None and text not in ACTIVATIONS:
        raise typer.BadParameter(
            f"{text!r} is not one of {', '.join(ACTIVATIONS)}", param_hint="--dtype"
        )
    return text
