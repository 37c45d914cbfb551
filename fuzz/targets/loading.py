"""Kernel files: one out of a wheel, without the package around it, and any of them rewritten.

A kernel file needs torch, triton, and now and then a name or two from its own package; those come
from stand-ins that exist only while the file executes. Triton and `inspect` ask for the source of
what they compile, so it is handed to `linecache` under a name that says release and path: that
name is what a traceback shows.

`rewriting` sees the text of every kernel file before it is compiled, wherever it comes from, and
may change it: so are kernels mutated without a copy of them anywhere.
"""

from __future__ import annotations

import hashlib
import importlib
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from ringfold.fuzz.targets.wheels import Wheel, WheelError

PREFIX = "_ringfold_loaded."

Rewrite = Callable[[str, str], str]
"""From the name and the text of a kernel file to the text that runs; lines stay where they are.

The name is release and path, such as ``sglang==0.5.16/sglang/kernels/ops/...py``, or that of an
imported module as a path, such as ``ringfold/kernels/ring.py``.
"""

_rewrites: list[Rewrite] = []

LIBRARIES = frozenset({"torch", "triton"})
"""Whose kernels are nobody's target."""


def load_module(
    wheel: Wheel,
    path: str,
    name: str,
    *,
    stand_ins: Mapping[str, ModuleType] | None = None,
) -> ModuleType:
    """Execute the file at `path` inside `wheel` as a module of its own.

    Args:
        wheel: where the file comes from.
        path: path inside the wheel, such as ``sglang/kernels/ops/...py``.
        name: what to call the module; it stays in `sys.modules` as ``_ringfold_loaded.<name>``,
            for `inspect` and Triton look there. A second load under one name replaces the first.
        stand_ins: modules that the file imports and that are not to be the real ones, by full
            name; a dotted name needs its parents among them.

    Returns:
        The module. ``__ringfold_sha256__`` is that of the file as released, not as rewritten.

    Raises:
        WheelError: the file is not there, is not UTF-8, or does not compile.
    """
    content = wheel.read(path)
    filename = f"{wheel.release}/{path}"
    try:
        code = _compiled(filename, content.decode("utf-8"))
    except (UnicodeDecodeError, SyntaxError) as error:
        raise WheelError(f"{filename} is not Python that can be loaded: {error}") from error

    module = ModuleType(PREFIX + name)
    module.__file__ = filename
    module.__dict__["__ringfold_sha256__"] = hashlib.sha256(content).hexdigest()
    sys.modules[module.__name__] = module
    try:
        with _standing_in(stand_ins or {}):
            exec(code, module.__dict__)  # noqa: S102 - running it is what it was fetched for
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


def _compiled(name: str, source: str, label: str = "") -> CodeType:
    """The code of a file, rewritten by whoever is `rewriting`; its text goes to `linecache`."""
    for rewrite in _rewrites:
        source = rewrite(name, source)
    filename = label + name
    code = compile(source, filename, "exec", dont_inherit=True)
    # Without a modification time the entry survives linecache.checkcache().
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return code


@contextmanager
def rewriting(rewrite: Rewrite, label: str = "") -> Iterator[None]:
    """Within this context, hand every file with kernels to `rewrite` before it is compiled.

    That is so of files out of wheels and of modules that are imported; those imported before are
    what they were. `label` goes before the names of imported files: sources are kept by name, and
    Triton's interpreter reads them only when a kernel is launched, so copies need names of their
    own where there are several in a process.
    """
    finder = _Finder(label)
    _rewrites.append(rewrite)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _rewrites.remove(rewrite)


class _Finder:
    """Finds modules where Python finds them, and loads those with kernels by `_Loader`."""

    def __init__(self, label: str) -> None:
        self.label = label

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None leaves the module to the finders behind this one."""
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            return None
        if name.partition(".")[0] in LIBRARIES or b"@triton.jit" not in spec.loader.get_data(
            spec.loader.path
        ):
            return None
        spec.loader = _Loader(name, spec.loader.path, self.label)
        return spec


class _Loader(SourceFileLoader):
    """Executes a file as `load_module` does."""

    def __init__(self, fullname: str, path: str, label: str) -> None:
        super().__init__(fullname, path)
        self.label = label

    def get_code(self, fullname: str) -> CodeType:
        """Compiled anew: what is cached on disk is not rewritten."""
        package = self.is_package(fullname)
        name = fullname.replace(".", "/") + ("/__init__.py" if package else ".py")
        return _compiled(name, self.get_data(self.path).decode("utf-8"), self.label)


def rewritten_copies(
    package: str, modules: Sequence[str], rewrite: Rewrite, label: str
) -> list[ModuleType]:
    """Modules of `package`, imported once more and rewritten; those in `sys.modules` stay there."""
    parent_name, _, child = package.rpartition(".")
    parent = importlib.import_module(parent_name)
    with ExitStack() as undo:
        known = {name: sys.modules[name] for name in _under(package)}
        undo.callback(sys.modules.update, known)
        if hasattr(parent, child):
            undo.callback(setattr, parent, child, getattr(parent, child))
        undo.callback(_forget, package)
        _forget(package)
        with rewriting(rewrite, f"{label}/"):
            return [importlib.import_module(f"{package}.{module}") for module in modules]


def _forget(package: str) -> None:
    for name in _under(package):
        del sys.modules[name]


def _under(package: str) -> list[str]:
    return [name for name in sys.modules if name == package or name.startswith(package + ".")]


@contextmanager
def _standing_in(modules: Mapping[str, ModuleType]) -> Iterator[None]:
    """Seat `modules` in `sys.modules`, and put back what was there before."""
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
