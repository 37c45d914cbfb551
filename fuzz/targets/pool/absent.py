"""Packages of compiled kernels that a release imports on a GPU and that its GDN path never calls.

Where the environment has them, they are imported. Where it has not, a module stands in for each:
its capitalised names are classes, since some are subclassed at import; any other is a function that
raises when it is called, so that nothing is computed by what is not there.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

PACKAGES = ("sgl_kernel", "flashinfer")
VERSION = "0.4.10"
"""Later than any version of these that a release asks for at import."""


class Unavailable:
    """A name of a package that is not there, and any attribute of it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, part: str) -> Unavailable:
        if part.startswith("__"):
            raise AttributeError(part)
        return Unavailable(f"{self.name}.{part}")

    def __call__(self, *arguments: object, **named: object) -> Any:
        """Raise: there is nothing to call."""
        raise RuntimeError(f"{self.name} was called, and its package is not installed")


class StandIn(ModuleType):
    """A module of such a package."""

    __version__ = VERSION
    __path__: list[str] = []  # noqa: RUF012 - a package without files

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        whole = f"{self.__name__}.{name}"
        made: Any = type(name, (), {}) if name[0].isupper() else Unavailable(whole)
        setattr(self, name, made)  # whoever asks again gets the same
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for what nobody else found: append it to `sys.meta_path`."""

    def __init__(self) -> None:
        self.answered: set[str] = set()
        """Modules that it stood in for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A stand-in for any module of `PACKAGES` that is not installed."""
        package = name.partition(".")[0]
        if package not in PACKAGES or _is_real(package):
            return None
        self.answered.add(name)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """An empty one."""
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to execute."""


def _is_real(package: str) -> bool:
    """Whether the package itself was found, so that a part it lacks is missing indeed."""
    module = sys.modules.get(package)
    return module is not None and not isinstance(module, StandIn)
