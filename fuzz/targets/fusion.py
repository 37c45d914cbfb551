"""A release's kernels compiled without contraction: the target `sglang==VERSION+no-fusion`.

Unless `enable_fp_fusion` is off, LLVM and `ptxas` turn a multiply and an add into one FMA where
they see fit, and so two kernels that share a formula may part in bits (docs/exactness.md).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any, Final

OPTION: Final = "enable_fp_fusion"


def without_fusion(module: ModuleType) -> list[str]:
    """Launch every kernel that `module` defines without fusion, whatever its caller asks for.

    Returns:
        The names of its kernels. Functions that kernels call are among them, to no effect.
    """
    from triton.runtime.jit import KernelInterface

    names = []
    for name, value in vars(module).items():
        # Heuristics and autotuning wrap a kernel, and hand on what they don't know.
        kernel = value
        while isinstance(inner := getattr(kernel, "fn", None), KernelInterface):
            kernel = inner
        if isinstance(kernel, KernelInterface) and kernel.fn.__module__ == module.__name__:
            kernel.run = _unfused(kernel.run)
            names.append(name)
    return names


def _unfused(run: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(run)
    def launch(*arguments: Any, **options: Any) -> Any:
        return run(*arguments, **{**options, OPTION: False})

    return launch
