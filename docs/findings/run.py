"""Run the scripts beside this file that need kernel files alone, side by side, on all releases.

    python docs/findings/run.py OUT.json [--cuda] [--jobs N] [--seconds S]

What they print and how they end goes into OUT.json, as it comes. Kernel files are unpacked from the
releases that are here (`ringfold targets add sglang==0.5.16`); where several releases have the same
files, the script runs once for all of them. Exit code: 0 if all ran, 3 if there was nothing to run.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from ringfold.fuzz.findings.failures import write_json
from ringfold.fuzz.provenance import machine
from ringfold.fuzz.targets.sglang_release import (
    DECODE,
    FILES,
    FOLD,
    FOLDERS,
    PLAIN,
    RECURRENT,
    RING,
)
from ringfold.fuzz.targets.sglang_sources import AbsentError, files_of

HERE = Path(__file__).parent
RELEASES = range(16, 24)
TIMED_OUT = 124


class Script(NamedTuple):
    """What confirms a finding, on which releases, by which of their files."""

    name: str
    findings: tuple[int, ...]
    releases: range
    files: tuple[str, ...]
    options: tuple[str, ...] = ()
    """In place of --cuda, of a script that runs on a GPU alone."""


SCRIPTS = (  # those that compile most come first
    Script(
        "fold_bits.py", (13,), range(16, 17), (RING, RECURRENT), ("--keys", "64", "--jobs", "4")
    ),
    Script("accepted_windows.py", (2, 3), range(16, 17), (RING,)),
    Script("accepted_windows.py", (2, 3, 9), range(20, 24), (RING,)),
    Script("compact_low_parts.py", (11,), range(20, 24), (RING, RECURRENT)),
    Script("fold_contraction.py", (13,), range(16, 17), (RECURRENT, RING)),
    Script("fold_contraction.py", (13,), range(17, 20), (RECURRENT, FOLD)),
    Script("compact_key_dim.py", (15,), range(20, 24), (RING,)),
    Script("compact_short_ring.py", (17,), range(20, 24), (RING,)),
    Script("fold_zeros.py", (19,), range(16, 17), (RECURRENT, RING)),
    Script("fold_zeros.py", (19,), range(17, 20), (RECURRENT, FOLD)),
    Script("narrow_records.py", (12,), range(16, 17), (RING,)),
    Script("narrow_records.py", (12,), range(17, 20), (RECURRENT, FOLD)),
    Script("compact_dead_records.py", (1,), range(20, 24), (RING,)),
    Script("decode_ring_bits.py", (14,), RELEASES, (DECODE, PLAIN)),
    Script("decode_beta.py", (10,), RELEASES, (PLAIN, RECURRENT)),
)


class Run(NamedTuple):
    """A script and the files that it is given, which some releases share."""

    script: Script
    files: list[Path]
    releases: list[str]


def unpack(folder: Path) -> dict[int, dict[str, Path]]:
    """The kernel files of each release that is here, by name."""
    found: dict[int, dict[str, Path]] = {}
    for patch in RELEASES:
        try:
            wheel = files_of(f"sglang==0.5.{patch}")
        except AbsentError as error:
            print(error, file=sys.stderr)
            continue
        found[patch] = {}
        (folder / str(patch)).mkdir()
        for name in FILES:
            for place in FOLDERS:
                if name not in found[patch] and wheel.has(place + name):
                    found[patch][name] = folder / str(patch) / name
                    found[patch][name].write_bytes(wheel.read(place + name))
    return found


def runs(found: dict[int, dict[str, Path]], cuda: bool) -> Iterator[Run]:
    """Each script once for each content of its files."""
    for script in SCRIPTS:
        if script.options and not cuda:
            continue
        by_content: dict[str, Run] = {}
        for patch in script.releases:
            files = [found[patch][name] for name in script.files if name in found.get(patch, {})]
            if len(files) == len(script.files):
                content = sha256(*files)
                one = by_content.setdefault(content, Run(script, files, []))
                one.releases.append(f"0.5.{patch}")
        yield from by_content.values()


def sha256(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def perform(one: Run, cuda: bool, seconds: float) -> dict[str, Any]:
    """Run it, and say what came of it."""
    script, start = one.script, time.monotonic()
    given = [str(one.files[0].parent)] if script.options else [str(file) for file in one.files]
    command = [sys.executable, str(HERE / script.name), *given, *script.options]
    command += ["--cuda"] if cuda and not script.options else []
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}  # one core each, and no NaN told
    with tempfile.TemporaryFile("w+") as output:
        try:
            code = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, timeout=seconds, check=False,
                env=os.environ | quiet,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code = TIMED_OUT
        output.seek(0)
        lines = output.read().splitlines()
    return {
        "script": script.name,
        "findings": script.findings,
        "releases": one.releases,
        "files": {file.name: sha256(file) for file in one.files},
        "exit": code,
        "seconds": round(time.monotonic() - start, 1),
        "output": lines[-40:],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120, help="of one script")
    options = parser.parse_args()
    known = machine() | {"command": shlex.join(["docs/findings/run.py", *sys.argv[1:]])}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        waiting = [
            pool.submit(perform, one, options.cuda, options.seconds)
            for one in runs(unpack(Path(folder)), options.cuda)
        ]
        for done in as_completed(waiting):
            rows.append(row := done.result())
            rows.sort(key=lambda row: (row["findings"], row["releases"]))
            write_json(options.out, {"machine": known, "runs": rows})
            print(f"{row['script']} {', '.join(row['releases'])}: exit {row['exit']}")
            print(*(f"  {line}" for line in row["output"]), sep="\n", flush=True)
    if not rows:
        sys.exit(3)
    sys.exit(any(row["exit"] for row in rows))


if __name__ == "__main__":
    main()
