"""One SGLang: which of its files hold GDN kernels, what they contain, how they are loaded.

Releases moved, rewrote and renamed these kernels, so nothing is looked up by version. A release is
known by the functions and parameters of its files, which are read without being executed: that says
which dialect its speculative verification speaks (`DIALECTS_BY_SIGN`). A file is then executed
alone; the few names that it imports from its own package come from stand-ins that answer for the
device at hand.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from types import ModuleType
from typing import Any, Final, NamedTuple

from ringfold.fuzz.target import Device
from ringfold.fuzz.targets.fusion import OPTION, without_fusion
from ringfold.fuzz.targets.loading import load_module
from ringfold.fuzz.targets.sglang_sources import files_of, provenance
from ringfold.fuzz.targets.wheels import WheelError

FOLDERS: Final = (
    "sglang/kernels/ops/attention/linear/",
    "sglang/kernels/ops/attention/fla/",
    "sglang/kernels/ops/mamba/",
)

RING: Final = "gdn_replayssm_spec_decode.py"
FOLD: Final = "gdn_replayssm_spec_fold.py"
RECURRENT: Final = "fused_sigmoid_gating_recurrent.py"
SCATTER: Final = "mamba_state_scatter_triton.py"
PLAIN: Final = "fused_recurrent.py"
DECODE: Final = "fused_recurrent_linear_replayssm.py"
FILES: Final = (RING, FOLD, RECURRENT, SCATTER, PLAIN, DECODE)


class Sign(NamedTuple):
    """A function with some parameters that a file must have."""

    file: str
    function: str
    parameters: frozenset[str]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(sorted(self.parameters))}) in {self.file}"


def _sign(file: str, function: str, *parameters: str) -> Sign:
    return Sign(file, function, frozenset(parameters))


DIALECTS_BY_SIGN: Final[tuple[tuple[str, tuple[Sign, ...]], ...]] = (
    # A release keeps files of older protocols beside those that it uses: the first that fits is it.
    (
        "compact",
        (
            _sign(RING, "gdn_replayssm_spec_decode", "replay_indices", "launch_mode"),
            _sign(RING, "commit_gdn_replayssm_spec", "replay_indices", "fold_every_commit"),
            _sign(RING, "commit_gdn_replayssm_circular", "d_residual_cache", "k_residual_cache"),
        ),
    ),
    (
        "fold-every-commit",
        (
            _sign(RECURRENT, "fused_sigmoid_gating_delta_rule_update", "cache_ring"),
            _sign(FOLD, "commit_gdn_replayssm_fold_all_layers", "accept_lens", "rawv_cache"),
        ),
    ),
    (
        "ring",
        (
            _sign(RING, "gdn_replayssm_spec_decode", "write_pos", "cache_base", "is_flush"),
            _sign(RING, "commit_gdn_replayssm_spec", "state_batch_indices", "num_accepted"),
            _sign(RING, "reset_gdn_replayssm_spec_cursors", "do_reset"),
        ),
    ),
)


BUFFERED_DECODE: Final = _sign(
    DECODE, "fused_recurrent_linear_replayssm_decode", "write_pos", "force_flush", "g_cache"
)
"""What a release has that decodes plainly from a ring."""


class UnknownReleaseError(WheelError):
    """A release whose kernels speak no dialect that is known here."""


class Release:
    """The GDN kernels of one SGLang; `name` and what is raised as `sglang_sources.files_of`.

    They are compiled as Triton compiles them, or, without `fusion`, with no multiply and add
    contracted.
    """

    def __init__(self, name: str, device: Device = "cpu", *, fusion: bool = True) -> None:
        wheel = files_of(name)
        self.name, self.device, self.wheel, self.fusion = wheel.release, device, wheel, fusion
        self.modules: dict[str, ModuleType] = {}

    # What it contains.

    @cached_property
    def sources(self) -> Mapping[str, tuple[str, ast.Module]]:
        """Path and syntax tree of each of `FILES` that this release has, by file name."""
        found = {}
        for file in FILES:
            for folder in FOLDERS:
                if self.wheel.has(folder + file):
                    found[file] = (folder + file, ast.parse(self.wheel.read(folder + file)))
                    break
        return found

    def parameters(self, file: str, function: str) -> frozenset[str] | None:
        """Names of the parameters of a function at module level; None if there is none."""
        if file not in self.sources:
            return None
        for node in self.sources[file][1].body:
            if isinstance(node, ast.FunctionDef) and node.name == function:
                arguments = node.args
                every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
                return frozenset(argument.arg for argument in every)
        return None

    def has(self, sign: Sign) -> bool:
        """Whether the release has such a function."""
        parameters = self.parameters(sign.file, sign.function)
        return parameters is not None and sign.parameters <= parameters

    @cached_property
    def dialect(self) -> str:
        """The dialect of its speculative verification.

        Raises:
            UnknownReleaseError: it fits none; says what each dialect lacks, and what was found.
        """
        for dialect, signs in DIALECTS_BY_SIGN:
            if all(self.has(sign) for sign in signs):
                return dialect
        lacks = "; ".join(
            f"for {dialect} it lacks {next(sign for sign in signs if not self.has(sign))}"
            for dialect, signs in DIALECTS_BY_SIGN
        )
        files = ", ".join(path for path, _ in self.sources.values()) or "none of its kernel files"
        raise UnknownReleaseError(
            f"{self.name} speaks no dialect that this version knows: {lacks}; found were {files}"
        )

    # Loading.

    def module(self, file: str) -> ModuleType:
        """The module of this file name, executed once.

        Raises:
            WheelError: the release has no such file, or it imports a name that has no stand-in.
        """
        if file not in self.modules:
            if file not in self.sources:
                raise WheelError(f"{self.name} has no {file} in {' or '.join(FOLDERS)}")
            path, tree = self.sources[file]
            stand_ins = dict(self._stand_ins(path, tree))
            module = load_module(self.wheel, path, f"{self.name}.{path}", stand_ins=stand_ins)
            if not self.fusion:
                without_fusion(module)
            if self.device == "cpu":
                # A loop bound that was loaded gives Python's ints, and some kernels cast them.
                module.__dict__["range"] = steps
            self.modules[file] = module
        return self.modules[file]

    def require(self, sign: Sign) -> None:
        """Raise `UnknownReleaseError` unless there is such a function."""
        if not self.has(sign):
            raise UnknownReleaseError(f"{self.name} has no {sign}")

    def identity(self) -> dict[str, str]:
        """What these files are: name, version or commit, SHA-256 of each that was loaded."""
        options = {} if self.fusion else {OPTION: "False"}
        return {"release": self.name, **provenance(self.wheel), **options, **self.digests()}

    def digests(self) -> dict[str, str]:
        """SHA-256 of each file that was loaded."""
        return {
            file: str(module.__dict__["__ringfold_sha256__"])
            for file, module in self.modules.items()
        }

    def _stand_ins(self, path: str, tree: ast.Module) -> Iterator[tuple[str, ModuleType]]:
        """Modules with the names that the file takes from its own package when it is executed."""
        for node in tree.body:
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("sglang"):
                continue
            parts = str(node.module).split(".")
            for end in range(1, len(parts)):
                yield _package(".".join(parts[:end]))
            module = ModuleType(str(node.module))
            for alias in node.names:
                if alias.name not in ANSWERS:
                    raise WheelError(
                        f"{self.name}/{path} imports {alias.name} from {node.module}, and ringfold "
                        f"has no stand-in for that; it has {', '.join(ANSWERS)}"
                    )
                setattr(module, alias.name, ANSWERS[alias.name](self.device))
            yield str(node.module), module


def _package(name: str) -> tuple[str, ModuleType]:
    module = ModuleType(name)
    module.__path__ = []
    return name, module


# ------------------------------------------------------------------ stand-ins


class _Step(int):
    """A loop counter as compiled kernels see it: something that can be cast."""

    def to(self, dtype: object) -> _Step:
        """Itself: a Python int fits any integer type."""
        return self


def steps(*bounds: Any) -> Iterator[_Step]:
    """`range`, yielding counters that can be cast."""
    return map(_Step, builtins.range(*bounds))


def _capability(device: Device) -> tuple[int, int]:
    """Compute capability of the GPU; (0, 0) where kernels are interpreted."""
    if device == "cpu":
        return (0, 0)
    import torch

    return torch.cuda.get_device_capability()


def _sm(device: Device) -> int:
    major, minor = _capability(device)
    return 10 * major + minor


def _refused(name: str) -> Callable[[Device], Callable[..., Any]]:
    def call(*arguments: object, **keywords: object) -> Any:
        raise NotImplementedError(f"ringfold loads the kernel file alone: {name} is not there")

    return lambda device: call


def _exp(device: Device) -> Any:
    """Triton's `exp`: looked up at each call where the interpreter exchanges it for a launch."""
    import triton.language as tl

    return tl.exp if device == "cuda" else lambda x: tl.exp(x)  # noqa: PLW0108 - looked up late


ANSWERS: Final[Mapping[str, Callable[[Device], Any]]] = {
    "is_cuda": lambda device: lambda: device == "cuda",
    "is_hip": lambda device: lambda: False,
    "is_gfx95_supported": lambda device: lambda: False,
    "is_sm90_supported": lambda device: lambda: _capability(device)[0] == 9,
    "get_device_sm": lambda device: lambda: _sm(device),
    "is_tf32_supported": lambda device: _capability(device)[0] >= 8,
    "is_arch_support_pdl": lambda device: lambda: _capability(device)[0] >= 9,
    "exp": _exp,
    "input_guard": lambda device: lambda function: function,
    "make_ptr_table": _refused("make_ptr_table"),
    "get_device_core_count": _refused("get_device_core_count"),
}
"""What stands in for a name of SGLang's own package, by device: the value that it has there."""
