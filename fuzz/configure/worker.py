"""Runs in a release's own environment: its validation, and what a server would then do.

The program reads one JSON object a line and answers each with one on standard output. It imports
nothing of ringfold. A job is done in a child process of its own, since a release keeps its
arguments in globals; the import, which takes long, is done once.

    {"flags": {...}, "environment": {...}, "model": FOLDER, "hardware": NAME, "exercise": bool}

An answer says how far the configuration came. `stage` is the last that was begun: `validation`,
`pool`, `backend`, then the events of `exercise`. `refused` holds the exception of validation,
`crashed` that of a later stage; `differs` the first event after which the release with the replay
flag disagrees with itself without it.

Hardware is pretended: the predicates of `sglang.srt.utils.common` answer for the named machine,
and packages of compiled kernels are stand-ins that fail when called.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import traceback
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

PREDICATES: Final = (
    "is_cuda",
    "is_hip",
    "is_npu",
    "is_xpu",
    "is_musa",
    "is_mps",
    "is_cpu",
    "is_sm90_supported",
    "is_sm100_supported",
    "is_sm100_or_sm110_supported",
    "is_sm110_supported",
    "is_sm120_supported",
    "is_blackwell_supported",
    "is_hopper_with_cuda_12_3",
)
HARDWARE: Final[Mapping[str, tuple[str, frozenset[str], tuple[int, int]]]] = {
    "h200": (
        "cuda",
        frozenset({"is_cuda", "is_sm90_supported", "is_hopper_with_cuda_12_3"}),
        (9, 0),
    ),
    "b200": (
        "cuda",
        frozenset(
            {
                "is_cuda",
                "is_sm100_supported",
                "is_sm100_or_sm110_supported",
                "is_blackwell_supported",
            }
        ),
        (10, 0),
    ),
    "mi300": ("cuda", frozenset({"is_hip"}), (9, 4)),
    "cpu": ("cpu", frozenset({"is_cpu"}), (0, 0)),
}
"""Device flag, predicates that hold, compute capability."""
DEVICE_MEGABYTES: Final = 140 * 1024
COMPILED: Final = ("sgl_kernel", "flashinfer", "deep_gemm", "aiter")
"""Packages without which the CUDA and ROCm branches do not import."""


class _Missing:
    """Stands for anything in a compiled package."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        raise RuntimeError(f"{self.name} is a compiled kernel that is not here")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self.name}.{name}")


class _Package(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # Some capitalised names are subclassed on import.
        value = type(name, (), {}) if name[:1].isupper() else _Missing(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in COMPILED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        package = _Package(spec.name)
        package.__path__ = []
        return package

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def load() -> Any:
    """Import the release on `sys.path`; returns its `sglang.srt.server_args`."""
    _standins().before_import()
    server_args = importlib.import_module("sglang.srt.server_args")
    importlib.import_module("sglang.srt.mem_cache.kv_cache_configurator")
    return server_args


def _standins() -> Any:
    """The module of that name from the folder of targets, whose `sglang.py` no path may meet."""
    file = Path(__file__).parents[1] / "targets" / "standins.py"
    spec = importlib.util.spec_from_file_location("standins", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["standins"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pretend(name: str, originals: Mapping[str, Any]) -> None:
    """Have every module of the release see that machine."""
    torch = importlib.import_module("torch")
    _, holds, capability = HARDWARE[name]
    torch.cuda.get_device_capability = lambda *_: capability
    torch.version.cuda = "12.8" if "is_cuda" in holds else None

    def answering(predicate: str) -> Callable[..., bool]:
        def answer(*_: Any, **__: Any) -> bool:
            return predicate in holds

        vars(answer)["pretends"] = True
        return answer

    for module in [m for n, m in sys.modules.items() if n.startswith("sglang.srt")]:
        names = vars(module)
        for predicate, original in originals.items():
            known = names.get(predicate)
            if known is original or getattr(known, "pretends", False):
                names[predicate] = answering(predicate)
        if "get_device_memory_capacity" in names:
            names["get_device_memory_capacity"] = lambda *_, **__: DEVICE_MEGABYTES


def validate(server_args: Any, flags: Mapping[str, Any]) -> Any:
    """What a launch does with its arguments before anything is loaded; returns them resolved."""
    arguments = server_args.ServerArgs(**flags)
    if hasattr(arguments, "resolve_once"):
        arguments.resolve_once()
    arguments.check_server_args()
    if hasattr(arguments, "resolve_once"):
        overrides = importlib.import_module("sglang.srt.arg_groups.overrides")
        return arguments, overrides.resolved_view(arguments)
    return arguments, arguments


REPORTED: Final = (
    "speculative_algorithm",
    "speculative_eagle_topk",
    "speculative_num_steps",
    "speculative_num_draft_tokens",
    "speculative_adaptive",
    "speculative_adaptive_config",
    "mamba_ssm_dtype",
    "mamba_radix_cache_strategy",
    "uses_mamba_radix_cache",
    "disable_radix_cache",
    "linear_attn_backend",
    "linear_attn_decode_backend",
    "disable_overlap_schedule",
    "page_size",
    "enable_mixed_chunk",
    "disaggregation_mode",
    "linear_replayssm_cache_len",
    "enable_linear_replayssm",
    "enable_gdn_replayssm_spec",
    "enable_linear_replayssm_spec",
    "enable_unified_memory",
)


def exception(error: BaseException) -> dict[str, str]:
    """Type, text and the last place inside the release."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "sglang/" in f.filename]
    at = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
    where = f"{at.filename.rpartition('sglang/')[2]}:{at.name}"
    return {"type": type(error).__name__, "text": " ".join(str(error).split()), "where": where}


def answer(job: Mapping[str, Any], server_args: Any) -> dict[str, Any]:
    """Do one job."""
    os.environ.update(job["environment"])
    flags = {"model_path": job["model"], "device": HARDWARE[job["hardware"]][0], **job["flags"]}
    found: dict[str, Any] = {"stage": "validation"}
    try:
        arguments, resolved = validate(server_args, flags)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a launch would die of
        return {**found, "refused": exception(error)}
    found["resolved"] = {name: getattr(resolved, name, None) for name in REPORTED}
    if job["exercise"]:
        exercise = importlib.import_module("exercise")
        found.update(exercise.run(arguments, resolved, exception))
    return found


def in_child(job: Mapping[str, Any], server_args: Any) -> bytes:
    """The answer to `job`, worked out in a fork of this process."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        code = 1
        try:
            found = answer(job, server_args)
            with os.fdopen(write, "wb") as pipe:
                pipe.write(json.dumps(found, default=str).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        ended = {
            "stage": "validation",
            "crashed": {"type": "", "text": f"status {status}", "where": ""},
        }
        return json.dumps(ended).encode()
    return said


def main() -> None:
    """Answer jobs until standard input ends; the first line out names the release."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the release prints
    server_args = load()
    common = importlib.import_module("sglang.srt.utils.common")
    originals = {name: getattr(common, name) for name in PREDICATES if hasattr(common, name)}
    sys.meta_path.append(_Finder())
    version = importlib.import_module("sglang").__version__

    def say(line: bytes) -> None:
        answers.write(line + b"\n")
        answers.flush()

    say(json.dumps({"release": version}).encode())
    machine = ""
    for line in sys.stdin.buffer:
        job = json.loads(line)
        if job["hardware"] != machine:
            machine = job["hardware"]
            pretend(machine, originals)
        say(in_child(job, server_args))


if __name__ == "__main__":
    main()
