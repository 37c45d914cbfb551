"""One module out of a wheel, without the package around it.

A kernel file needs torch, triton, and now and then a name or two from its own package; those come
from stand-ins that exist only while the file executes. Triton and `inspect` ask for the source of
what they compile, so it is handed to `linecache` under a name that says release and path: that
name is what a traceback shows.
"""

from __future__ import annotations

import hashlib
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

from ringfold.fuzz.targets.wheels import Wheel, WheelError

PREFIX = "_ringfold_loaded."


def load_module(
    wheel: Wheel,
    path: str,
    name: str,
    *,
    stand_ins: Mapping[str, ModuleType] | None = None,
    rewrite: Callable[[str], str] | None = None,
) -> ModuleType:
    """Execute the file at `path` inside `wheel` as a module of its own.

    Args:
        wheel: where the file comes from.
        path: path inside the wheel, such as ``sglang/kernels/ops/...py``.
        name: what to call the module; it stays in `sys.modules` as ``_ringfold_loaded.<name>``,
            for `inspect` and Triton look there. A second load under one name replaces the first.
        stand_ins: modules that the file imports and that are not to be the real ones, by full
            name; a dotted name needs its parents among them.
        rewrite: applied to the source before it is compiled; line numbers should stay as they are.

    Returns:
        The module. ``__ringfold_sha256__`` is that of the file as released, not as rewritten.

    Raises:
        WheelError: the file is not there, is not UTF-8, or does not compile.
    """
    content = wheel.read(path)
    filename = f"{wheel.release}/{path}"
    try:
        source = content.decode("utf-8")
        if rewrite is not None:
            source = rewrite(source)
        code = compile(source, filename, "exec", dont_inherit=True)
    except (UnicodeDecodeError, SyntaxError) as error:
        raise WheelError(f"{filename} is not Python that can be loaded: {error}") from error

    module = ModuleType(PREFIX + name)
    module.__file__ = filename
    module.__dict__["__ringfold_sha256__"] = hashlib.sha256(content).hexdigest()
    # Without a modification time the entry survives linecache.checkcache().
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    sys.modules[module.__name__] = module
    try:
        with _standing_in(stand_ins or {}):
            exec(code, module.__dict__)  # noqa: S102 - running it is what it was fetched for
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


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
