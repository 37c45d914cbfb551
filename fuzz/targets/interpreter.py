"""Triton on the CPU: when its interpreter runs, what it cannot do, and how to make it faster.

Triton reads ``TRITON_INTERPRET`` when it is imported and at every ``@triton.jit``, so a process
belongs to one mode for life. The interpreter computes bfloat16 silently wrong. Its time goes into
bookkeeping that can be done once; `fast_interpreter` leaves that out, and every result is bit for
bit what Triton's own interpreter gives (a test compares them).
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

from ringfold.fuzz.target import RefusedError

_VARIABLE = "TRITON_INTERPRET"
_forever = ExitStack()
_inside = False


class ModeError(RuntimeError):
    """Triton was imported in the other mode before this process chose one."""


class DtypeError(RefusedError):
    """A dtype that the interpreter does not compute."""


class SlowInterpreterWarning(UserWarning):
    """The installed Triton is not one whose interpreter can be made (wholly) faster."""


def set_device_mode(device: Literal["cpu", "cuda"]) -> None:
    """Choose for this process: ``cpu`` is Triton's interpreter, ``cuda`` its compiler.

    Raises:
        ModeError: Triton is imported already, in the other mode.
        ValueError: `device` is neither.
    """
    if device not in {"cpu", "cuda"}:
        raise ValueError(f"device {device!r} is neither 'cpu' nor 'cuda'")
    if "triton" in sys.modules and interpreted() != (device == "cpu"):
        raise ModeError(
            f"device {device!r} was asked for, but Triton is imported already, to "
            f"{'interpret' if interpreted() else 'compile'} kernels; choose the device before "
            "anything imports triton, or start another process"
        )
    if device == "cpu":
        os.environ[_VARIABLE] = "1"
    else:
        os.environ.pop(_VARIABLE, None)


def interpreted() -> bool:
    """Whether Triton kernels are interpreted here, or will be once Triton is imported."""
    language = sys.modules.get("triton.language")
    if language is not None and hasattr(language, "sum"):
        # What Triton's own jit functions became when it was imported.
        return type(language.sum).__name__ == "InterpretedFunction"
    return os.environ.get(_VARIABLE, "0").lower() in {"1", "true", "yes", "on", "y"}


def check_dtype(dtype: object) -> None:
    """Refuse bfloat16 (a name or a torch dtype) where kernels are interpreted.

    Raises:
        DtypeError: stores would truncate it, and arithmetic and dots would run on its raw bits.
    """
    if interpreted() and str(dtype).removeprefix("torch.") in {"bfloat16", "bf16"}:
        raise DtypeError(
            "dtype bfloat16 is silently wrong in Triton's CPU interpreter (stores truncate, "
            "arithmetic runs on the raw bits); use float16 or float32, or --device cuda"
        )


@contextmanager
def fast_interpreter() -> Iterator[None]:
    """Interpret kernels faster within this context; without effect where they are compiled.

    Where the installed Triton's functions are not the known ones they stay in place, and a
    `SlowInterpreterWarning` names them.
    """
    global _inside  # noqa: PLW0603 - what is seated is global to Triton too
    if _inside or not interpreted():
        yield
        return
    with ExitStack() as seated:
        _seat(seated)
        _inside = True
        seated.callback(_leave)
        yield


def enable() -> None:
    """Enter `fast_interpreter` for the rest of the process; once is as good as many times."""
    _forever.enter_context(fast_interpreter())


def _leave() -> None:
    global _inside  # noqa: PLW0603 - as above
    _inside = False


def _seat(stack: ExitStack) -> None:
    import triton

    try:
        from ringfold.fuzz.targets import fast_triton
    except (ImportError, AttributeError) as error:
        _warn(f"the interpreter of Triton {triton.__version__} is unknown here ({error})")
        return
    fitting = [one for one in fast_triton.STAND_INS if one.fits()]
    others = [f"{one} ({one.digest()})" for one in fast_triton.STAND_INS if one not in fitting]
    if others:
        _warn(f"Triton {triton.__version__} has unknown versions of {', '.join(others)}")
    stack.enter_context(fast_triton.standing_in(fitting))


def _warn(what: str) -> None:
    warnings.warn(
        f"{what}; they stay in place: results are the same, but slower. "
        "Known are Triton 3.6.0, 3.7.1, 3.8.0 and 3.9.0",
        SlowInterpreterWarning,
        stacklevel=5,
    )
