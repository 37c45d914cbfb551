"""SGLang's pool, backend and commit on a GPU: walked as they come, and by replays of graphs.

    python docs/results/pool.py OUT.json 0.5.16 0.5.18 0.5.23 [--seconds S] [--windows N] [--jobs J]

A job is a release, a geometry and a dtype, in a process of its own: random histories of the
tester's, whose steps are launched one by one, and replayed from captured CUDA graphs; with an extra
buffer, states are tracked and prefixes begin from them, but not in 0.5.16. Left out are the
operations at which that release is known to lose something (`LOSING`); those follow as the traces
of the findings, in a job a release. OUT.json says of each what was compared, how large the largest
error was over what is allowed, what differed, and what was captured.

Exit code: 0 if nothing differed but what is known, and all findings are there; 1 otherwise; 3 if
there was no time for all. With `--device cpu` the smallest jobs alone, in the interpreter.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ringfold.fuzz import provenance
from ringfold.fuzz.findings.failures import write_json
from ringfold.fuzz.histories.generate import history
from ringfold.fuzz.histories.trace import Trace, load
from ringfold.fuzz.judging.mismatch import Mismatch
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.running.hunt import plans
from ringfold.fuzz.target import Device
from ringfold.fuzz.targets import registry
from ringfold.sim.setup import Geometry

ROWS: Final = {
    "cuda": {(16, 32, 128, 128): 3, (4, 8, 64, 64): 6, (1, 2, 32, 32): 6},
    "cpu": {(1, 2, 32, 32): 6},
}
"""Rows of a batch at most, by geometry; what takes longest comes first."""
DTYPES: Final = {"cuda": ("bfloat16", "float32"), "cpu": ("float32", "float16")}
MODES: Final = {"cuda": ("", "+graph"), "cpu": ("",)}
STEPS: Final = {"": "launched", "+graph": "replayed", "+tracks": "tracked"}
"""What becomes of a step, by how the target is driven."""
PREFILLED: Final = ((4, 8, 64, 64), "bfloat16")
"""Where chunks of prompts are computed, too: that is another handful of kernels to compile."""
TRACKED: Final = ((1, 2, 32, 32), "float32")
"""Where states are tracked as well, and prefixes begin from them."""
ELEMENTS: Final = 2**24
"""Elements of states in the windows of a case at most: what the float64 recurrence has to walk."""
RING_LEAST: Final = 16
"""Rows of a compact ring that a GPU compiles: one side of a `tl.dot`."""
RING: Final = 16
WINDOW: Final = 4
SEED: Final = 7

PREFIXES: Final = frozenset({"donate", "hit", "evict"})
TRACKING: Final = frozenset({"track", "cut", "branch", "store"})
"""Whatever has a commit store a state."""
LOSING: Final = {
    "ring": PREFIXES | {"save", "restore"},
    "fold-every-commit": frozenset[str](),
    "compact": PREFIXES | {"save", "restore"},
}
"""Operations that are findings of a dialect's releases. With tracked states prefixes are none, but
that the ring's release stores nothing."""
FINDINGS: Final = {
    "ring": ("pool_retraction", "pool_prefix_window"),
    "fold-every-commit": (),
    "compact": ("pool_retraction_compact", "pool_prefix_state"),
}
"""Traces that show them."""
ULP_MAX: Final = 16
"""Finding 13: in float32 two kernels contract other products, and an exact fold is not exact. Seen:
4 ULP, and zeros of the other sign."""
WORST: Final = {"ring": "nan", "fold-every-commit": "nan", "compact": "garbage"}
"""What dead memory holds: NaN in a dead record is a finding of the compact releases."""


class Job(NamedTuple):
    """What a process walks: cases of one shape, or a release's findings where there is none."""

    release: str
    """Such as 0.5.16; `installed` is the SGLang of the Python that is used."""
    device: Device
    windows: int
    """Row-windows of each mode."""
    until: float
    """By `time.time()`."""
    geometry: tuple[int, int, int, int] | None = None
    dtype: str = "float32"

    @property
    def target(self) -> str:
        """Its name."""
        return "sglang-pool" if self.release == "installed" else f"sglang-pool=={self.release}"

    def results(self) -> Iterator[dict[str, Any]]:
        """One a mode, or one a finding."""
        target: Any = registry.resolve(self.target, self.device)
        yield {"identity": dict(target.identity())}
        if self.geometry is None:
            for trace in FINDINGS[target.dialect.name]:
                path = Path(__file__).parents[1] / "findings" / f"{trace}.json"
                found = walk(compiled(load(path)), target).mismatches
                yield {"trace": path.name, "mismatches": [m.sentence() for m in found]}
            return
        for mode in MODES[self.device]:
            yield self.case(registry.resolve(self.target + mode, self.device), mode, {"prefill"})
        if (self.geometry, self.dtype) == PREFILLED:
            yield self.case(target, "", set())
        if (self.geometry, self.dtype) == TRACKED:
            without = TRACKING if target.dialect.name == "ring" else frozenset[str]()
            tracks = registry.resolve(f"{self.target}+tracks", self.device)
            yield self.case(tracks, "+tracks", {"prefill", *without})

    def case(self, target: Any, mode: str, without: set[str]) -> dict[str, Any]:
        """Random histories until there were so many row-windows, or time is up."""
        assert self.geometry is not None
        dialect = target.dialect.name
        kept = PREFIXES if mode == "+tracks" and dialect != "ring" else frozenset[str]()
        operations = target.operations - (LOSING[dialect] - kept) - without
        rows = ROWS[self.device][self.geometry]
        shape = Geometry(*self.geometry)
        fixed: dict[str, Any] = {"geometry": shape, "ring": RING, "window": WINDOW}
        told = plans(target, self.device, worst=WORST[dialect], dtype=self.dtype, **fixed)
        begun, late = time.monotonic(), lambda: time.time() > self.until
        compared, situations, replays = Counter[str](), Counter[str](), Counter[str]()
        largest: dict[str, float] = {}
        mismatches, known = list[Mismatch](), list[Mismatch]()
        refused: dict[str, str] = {}
        walked = histories = 0
        windows = min(
            self.windows, ELEMENTS // (shape.value_heads * shape.key_dim * shape.value_dim)
        )
        for number, plan in zip(itertools.count(), itertools.cycle(told)):
            if walked >= windows or late() or len(mismatches) > 3:
                break
            setup = msgspec.structs.replace(plan.setup, slots=rows + 2)
            first = number == 0 and mode != "+tracks"
            served = plan._replace(setup=setup, rows=rows, operations=operations, directed=first)
            trace = history(served, SEED, number, windows_max=windows - walked)
            verdict = walk(trace, target, out_of_time=late)
            histories, walked = histories + 1, walked + verdict.windows
            compared.update(verdict.compared)
            situations.update(verdict.situations)
            largest |= {k: max(v, largest.get(k, 0.0)) for k, v in verdict.largest.items()}
            for mismatch in verdict.mismatches:
                (known if is_known(mismatch, self.dtype) else mismatches).append(mismatch)
            if mode == "+graph":
                captured = target.captured()
                replays.update(captured["replays"])
                refused |= captured["refused"]
        return {
            "steps": STEPS[mode],
            "operations": sorted(operations),
            "histories": histories,
            "windows": walked,
            "complete": walked >= windows,
            "seconds": round(time.monotonic() - begun, 2),
            "largest": largest,
            "compared": dict(compared),
            "situations": dict(situations),
            "mismatches": [mismatch.sentence() for mismatch in mismatches],
            "known": [mismatch.sentence() for mismatch in known],
            "replays": dict(replays),
            "not captured": refused,
        }

    def run(self) -> list[dict[str, Any]]:
        """Its results, from a process of its own; what it had found when it was ended, too."""
        with tempfile.TemporaryFile("w+b") as lines:
            child = subprocess.Popen(
                [sys.executable, __file__, "--job", msgspec.json.encode(self).decode()],
                stdout=lines,
            )
            try:
                child.wait(max(1.0, self.until + 5.0 - time.time()))
            except subprocess.TimeoutExpired:
                child.kill()
            lines.seek(0)
            return [msgspec.json.decode(line) for line in lines.read().splitlines()]


def is_known(mismatch: Mismatch, dtype: str) -> bool:
    """Whether it is what contraction does to a float32 fold."""
    if mismatch.check != "exactness" or dtype != "float32":
        return False
    return int(mismatch.ulp or 0) <= ULP_MAX


def compiled(trace: Trace) -> Trace:
    """The same history in a ring that can be compiled."""
    longer = max(trace.setup.ring, RING_LEAST) if trace.setup.dialect == "compact" else None
    setup = msgspec.structs.replace(trace.setup, ring=longer or trace.setup.ring)
    return msgspec.structs.replace(trace, setup=setup)


def serve(job: Job) -> None:
    """Print the results of a job as they come, one JSON object a line."""
    printed, lines = sys.stdout, os.dup(1)
    os.dup2(2, 1)
    try:
        for result in job.results():
            os.write(lines, msgspec.json.encode(result) + b"\n")
    except Exception:  # noqa: BLE001 - whatever it is, the other jobs go on
        os.write(lines, msgspec.json.encode({"error": traceback.format_exc()}) + b"\n")
    printed.flush()


def show(told: list[dict[str, Any]]) -> None:
    """Print a line for each release and way of stepping (the table of docs/integration.md)."""
    kinds = dict.fromkeys((one["target"], one["steps"]) for one in told if "steps" in one)
    for target, steps in kinds:
        every = [one for one in told if (one["target"], one.get("steps")) == (target, steps)]
        total = Counter[str]()
        largest: dict[str, float] = {}
        for one in every:
            total["row-windows"] += one["windows"]
            total["replays"] += one["replays"].get("verify", 0)
            total["folds"] += one["situations"].get("fold", 0)
            total["bits"] += one["compared"].get("exactness", 0)
            total["known"] += len(one["known"])
            total["mismatches"] += len(one["mismatches"])
            largest |= {k: max(v, largest.get(k, 0.0)) for k, v in one["largest"].items()}
        rounded = {name: round(value, 2) for name, value in largest.items()}
        print(target, steps, dict(total), rounded)
    for one in told:
        if "steps" in one and not one["complete"]:
            print(
                "short:", one["target"], one["geometry"], one["dtype"], one["steps"], one["windows"]
            )


def main() -> int:
    """Run all jobs, the longest first."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("releases", nargs="+", help="such as 0.5.16; or: installed")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--seconds", type=float, default=80.0)
    parser.add_argument("--windows", type=int, default=300, help="row-windows of each mode")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--commit", help="what is run, where git can't tell")
    given = parser.parse_args()
    common = given.device, given.windows, time.time() + given.seconds
    shapes = itertools.product(ROWS[given.device], given.releases, DTYPES[given.device])
    jobs = [Job(release, *common, geometry, dtype) for geometry, release, dtype in shapes]
    jobs += [Job(release, *common) for release in given.releases]
    identities: dict[str, Any] = {}
    told: list[dict[str, Any]] = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for job, results in zip(jobs, pool.map(Job.run, jobs), strict=True):
            about = {"target": job.target, "geometry": job.geometry, "dtype": job.dtype}
            for result in results:
                if "identity" in result:
                    identities[job.target] = result["identity"]
                else:
                    told.append((about if job.geometry else {"target": job.target}) | result)
                    print(told[-1], flush=True)
            expected = 1 + len(MODES[given.device]) if job.geometry else 1
            expected += (job.geometry, job.dtype) in (PREFILLED, TRACKED)
            if len(results) < expected and not any("error" in result for result in results):
                told.append(about | {"complete": False})
    asked = f"python docs/results/pool.py {given.out.name} {shlex.join(sys.argv[2:])}"
    made = provenance.machine() | {"command": asked}
    made |= {"commit": given.commit} if given.commit else {}
    write_json(given.out, {"machine": made, "identities": identities, "results": told})
    show(told)
    if any(bool(r.get("mismatches")) != ("trace" in r) or "error" in r for r in told):
        return 1
    return 0 if all(result.get("complete", True) for result in told) else 3


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        serve(msgspec.json.decode(sys.argv[2], type=Job))
    else:
        sys.exit(main())
