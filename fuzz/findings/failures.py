"""Failures on disk: `failures/<symptom>-<12 hex>/`, each with its trace and the line to replay it.

The name derives from the content, so the same failing history gets the same name everywhere.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, Final

import msgspec

from ringfold.fuzz.histories.trace import Symptom, Trace, digest, replacing, save
from ringfold.fuzz.judging.mismatch import Mismatch
from ringfold.fuzz.provenance import stamped
from ringfold.fuzz.target import Device

FOLDER: Final = "failures"
TRACE: Final = "trace.json"
ACCOUNT: Final = "mismatch.txt"


def as_failure(trace: Trace, mismatches: list[Mismatch], identity: dict[str, str]) -> Trace:
    """`trace` up to the operation that failed, with what was seen and what a replay must find."""
    # Operations are counted with repeats unrolled, so of the trace's own this keeps enough.
    end = 1 + max(m.operation for m in mismatches)
    symptoms = dict.fromkeys((m.check, m.symptom) for m in mismatches)
    return msgspec.structs.replace(
        trace,
        operations=trace.operations[:end],
        identity=identity,
        expected=tuple(Symptom(check=check, symptom=symptom) for check, symptom in symptoms),
        seen=tuple(msgspec.to_builtins(m) for m in mismatches),
    )


def write(
    failure: Trace, mismatches: list[Mismatch], run_dir: Path, device: Device = "cpu"
) -> Path:
    """Save a failure under `run_dir`; returns the path of its trace."""
    folder = run_dir / FOLDER / f"{slug(mismatches[0])}-{digest(failure)}"
    path = folder / TRACE
    save(failure, path)
    lines = [m.sentence() for m in mismatches]
    write_text(
        folder / ACCOUNT, "\n".join([*lines, "", reproduce(path, failure.target, device), ""])
    )
    return path


def write_suspect(trace: Trace, run_dir: Path) -> Path:
    """Save a history that may have killed the process that walked it."""
    path = run_dir / FOLDER / f"worker-died-{digest(trace)}" / TRACE
    save(trace, path)
    return path


def reproduce(path: Path, target: str | None, device: Device) -> str:
    """The line that replays a trace; without a target it is walked on the one that it names."""
    command = ["ringfold", "replay", str(path)]
    if target is not None:
        command += ["--target", target]
    if device != "cpu":
        command += ["--device", device]
    return "reproduce: " + shlex.join(command)


def slug(mismatch: Mismatch) -> str:
    """A symptom as a file name."""
    words = re.sub(r"[^a-z0-9]+", "-", mismatch.symptom.lower()).strip("-")
    return f"{mismatch.check}-{words}"[:60].rstrip("-")


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old content or the new, never a part."""
    with replacing(path) as part:
        # A line that names a file has the bytes of its name, whatever they are.
        part.write_text(text, encoding="utf-8", errors="surrogateescape")


def write_json(path: Path, value: Any) -> None:
    """The same for a report as JSON, which says where it was made."""
    encoded = msgspec.json.encode(stamped(value))
    write_text(path, msgspec.json.format(encoded, indent=2).decode() + "\n")
