"""The kernel matrix on a GPU: released kernels and ours, two dozen configurations each.

    python docs/results/matrix.py run matrix-h200.json --seconds 460   # walks and writes
    python docs/results/matrix.py table matrix-h200*.json              # prints docs/releases.md's
    python docs/results/matrix.py fill matrix-h200*.json               # writes it into that page

Several files are told together: of other targets, or of other histories, with another `--seed`.

Releases whose loaded kernel files are the same to the byte are run once. Where a release claims
bits, it is run once more with no multiply and add contracted. Three kinds of configuration:

* pairwise: those of `ringfold fuzz`, batches of at most 256, `--each` row-windows in each; older
  files of a dialect that claims no bits walk the first six, which hold every K, V, ring and dtype;
* small: heads of 32 by 32, the first two rings, batches of up to 1,024; they make up what pairwise
  configurations leave to `--in-all` row-windows of each dialect, shared by targets that walk all;
* server: a server's geometry, for our own kernels.

All of it is one campaign in many processes, on all GPUs that there are. It exits with 3 if anything
is short of its row-windows, else with 1 if there are findings.
"""

from __future__ import annotations

import argparse
import collections
import copy
import functools
import itertools
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import msgspec

from ringfold.fuzz import provenance
from ringfold.fuzz.histories.configurations import configurations
from ringfold.fuzz.histories.story import Plan
from ringfold.fuzz.judging.frame import Dead
from ringfold.fuzz.running.campaign import Campaign, Finding, Report, Tally
from ringfold.fuzz.running.course import Budget
from ringfold.fuzz.running.crew import gpus
from ringfold.fuzz.running.hunt import plans
from ringfold.fuzz.target import Device, Target, refusal
from ringfold.fuzz.targets import registry
from ringfold.sim.setup import Geometry

PAGE: Final = Path(__file__).parents[1] / "releases.md"
BEGIN, END = "<!-- matrix: filled by results/matrix.py -->\n", "<!-- matrix: end -->\n"

OURS: Final = "triton"
FAMILIES: Final = ("sglang", "sglang-snapshots", "sglang-decode")
VERSIONS: Final = tuple(release.partition("==")[2] for release in registry.KNOWN_RELEASES)

PAIRWISE_ROWS: Final = 256
FEW: Final = 6
"""Pairwise configurations that older files walk."""
SMALL: Final = Geometry(1, 2, 32, 32)
SMALL_ROWS: Final = 1024
"""States of more are read from memory again by every pass over them."""
SMALL_RINGS: Final = 2
SMALL_HORIZON: Final = 2**15
"""Row-windows of one repeat: few enough that the last histories end together."""
SERVER: Final = {"geometry": Geometry(16, 32, 128, 128), "ring": 16, "window": 4}
SERVER_DTYPE: Final = "bfloat16"
SERVER_HORIZON: Final = 256

WORST: Final[dict[str, Dead]] = {"compact": "garbage"}
"""Dead memory is NaN at worst, but where that meets a known finding within seconds."""

OPTIONS: Final = ("each", "in_all", "server", "seed")
COLUMNS: Final = (
    "target", "row-windows", "pairwise, least in one", "checks", "outputs", "state", "bits",
    "findings",
)  # fmt: skip
TOLD_SECONDS: Final = 20.0
MISMATCH, SHORT = 1, 3
BITWISE: Final = ("exactness",)


class Entry(NamedTuple):
    """A target of the matrix."""

    target: Target
    name: str
    stands_for: tuple[str, ...]
    """Targets whose loaded files are the same."""
    whole: bool = True
    """Whether it walks all pairwise configurations."""

    @property
    def dialect(self) -> str:
        """Whose million its row-windows count for: our kernels have their own."""
        return OURS if self.name == OURS else self.target.dialect.name

    @property
    def fused(self) -> bool:
        """Whether it is compiled as its owner compiles it."""
        return not self.name.endswith(registry.NO_FUSION)


class Part(NamedTuple):
    """A configuration of the matrix, and why it is there."""

    plan: Plan
    kind: str


# ------------------------------------------------------------------ what is run


def entries(device: Device, only: Sequence[str]) -> list[Entry]:
    """One target for each set of kernel files, and where bits are claimed one without fusion."""
    alike: dict[tuple[str, ...], list[Target]] = {}
    for family in FAMILIES:
        for version in VERSIONS:
            try:
                target = registry.resolve(f"{family}=={version}", device)
            except registry.MissingTargetError as missing:
                print(f"left out: {missing}", flush=True)
                continue
            files = (f"{k} {v}" for k, v in target.identity().items() if k.endswith(".py"))
            alike.setdefault((family, *sorted(files)), []).append(target)
    made = [Entry(registry.resolve(OURS, device), OURS, ())]
    newest = {first.dialect.name: first.name for first, *_ in alike.values()}
    for first, *others in alike.values():
        claims = first.twin() is not None
        whole = claims or newest[first.dialect.name] == first.name
        made.append(Entry(first, first.name, tuple(other.name for other in others), whole))
        if claims and device == "cuda":
            name = first.name + registry.NO_FUSION
            made.append(Entry(registry.resolve(name, device), name, ()))
    return [entry for entry in made if not only or entry.name in only]


def parts(entry: Entry, options: argparse.Namespace, small: int) -> list[Part]:
    """The configurations of a target with their quotas; `small` is that of all small ones."""
    made = functools.partial(
        plans, entry.target, options.device, name=entry.name, worst=WORST.get(entry.dialect, "nan")
    )
    every = made(quota=options.each)[: options.configurations][: None if entry.whole else FEW]
    found = [Part(_at_most(plan, PAIRWISE_ROWS), "pairwise") for plan in every]
    if small:
        firsts: dict[int, Plan] = {}
        for plan in sorted(made(geometry=SMALL), key=lambda plan: plan.setup.layers):
            firsts.setdefault(plan.setup.ring, plan)
        chosen = [*firsts.values()][:SMALL_RINGS]
        for plan in chosen:
            one = plan._replace(quota=-(-small // len(chosen)), horizon=SMALL_HORIZON)
            found.append(Part(_at_most(one, SMALL_ROWS), "small"))
    if options.server and entry.name == OURS:
        one = made(**SERVER, dtype=SERVER_DTYPE, quota=options.server)[0]
        found.append(Part(one._replace(horizon=SERVER_HORIZON), "server"))
    return found


def _at_most(plan: Plan, rows: int) -> Plan:
    rows = min(plan.rows, rows)
    return plan._replace(rows=rows, setup=msgspec.structs.replace(plan.setup, slots=rows + 2))


def matrix(chosen: Sequence[Entry], options: argparse.Namespace) -> list[Part]:
    """All parts: the pairwise ones, and in each dialect the rest of its row-windows.

    Targets take turns, so that all of them have something if time is short.
    """
    without_small = [parts(entry, options, 0) for entry in chosen]
    counts = collections.Counter[str]()
    takers = collections.Counter[str]()
    for entry, found in zip(chosen, without_small, strict=True):
        counts[entry.dialect] += sum(part.plan.quota for part in found)
        takers[entry.dialect] += entry.fused and entry.whole
    every = list[list[Part]]()
    for entry in chosen:
        takes = entry.fused and entry.whole
        lacking = max(0, options.in_all - counts[entry.dialect]) if takes else 0
        small = -(-lacking // takers[entry.dialect]) if lacking else 0
        every.append(parts(entry, options, small))
    turns = itertools.zip_longest(*every)
    return [part for turn in turns for part in turn if part is not None]


def refused(entry: Entry, device: Device) -> list[dict[str, str]]:
    """Pairwise configurations that the target can't run, and its reason."""
    every = configurations(entry.target.dialect.name, device)
    reasons = [(str(setup), refusal(entry.target, setup)) for setup in every]
    return [{"setup": setup, "reason": reason} for setup, reason in reasons if reason]


def run(options: argparse.Namespace) -> int:
    """Walk all of it within the time, and write what came of it, now and then and at the end."""
    started = told = time.monotonic()
    chosen = entries(options.device, options.targets)
    every = matrix(chosen, options)
    total = sum(part.plan.quota for part in every)
    print(f"{len(chosen)} targets, {len(every)} configurations, {total:,} row-windows", flush=True)
    run_dir = options.run_dir or Path(tempfile.mkdtemp(prefix="matrix-"))
    campaign = Campaign(
        [part.plan for part in every], options.device, options.seed, Budget(None, None), run_dir,
        options.workers,
    )  # fmt: skip

    def save(report: Report) -> dict[str, Any]:
        result = {
            "machine": provenance.machine() | _asked_for(options.commit),
            "gpus": len(gpus()) if options.device == "cuda" else 0,
            "options": {name: getattr(options, name) for name in OPTIONS},
            "seconds": round(time.monotonic() - started, 1),
            "workers": report.workers,
            "targets": [_account(entry, every, report, options.device) for entry in chosen],
            "spent": report.seconds,
            "inconclusive": report.inconclusive,
        }
        options.result.parent.mkdir(parents=True, exist_ok=True)
        options.result.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        return result

    def progress(report: Report, windows: int, elapsed: float) -> None:
        nonlocal told
        now = time.monotonic()
        if options.seconds and now - started > options.seconds:
            campaign.clock.stop()
        if now - told > TOLD_SECONDS:
            told = now
            print(f"{now - started:.0f} s: {windows:,} row-windows", flush=True)
            save(report)

    report = campaign.run(progress)
    result = save(report)
    print(table([result]))
    short = [
        f"SHORT: {target['name']}, {one['setup']}: {one['windows']:,} of {one['quota']:,}"
        for target in result["targets"]
        for one in target["configurations"]
        if one["windows"] < one["quota"]
    ]
    print(*short, *(f"INCONCLUSIVE: {reason}" for reason in report.inconclusive), sep="\n")
    return SHORT if short else MISMATCH if report.findings else 0


def _asked_for(commit: str | None) -> dict[str, str]:
    command = {"command": shlex.join(["python", "docs/results/matrix.py", *sys.argv[1:]])}
    return command | ({"commit": commit} if commit else {})


def _account(entry: Entry, every: Sequence[Part], report: Report, device: Device) -> dict[str, Any]:
    """What was done with one target, and what came of it."""
    mine = [
        (part, tally)
        for part, tally in zip(every, report.configurations, strict=True)
        if tally.target == entry.name
    ]
    found = [finding for finding in report.findings if finding.target == entry.name]
    return {
        "name": entry.name,
        "dialect": entry.dialect,
        "stands_for": list(entry.stands_for),
        "identity": report.identities.get(entry.name, {}),
        "claims_bits": entry.target.twin() is not None,
        "windows": sum(tally.windows for _, tally in mine),
        "configurations": [_configuration(part, tally) for part, tally in mine],
        "refused": refused(entry, device),
        "findings": [_finding(finding) for finding in found],
    }


def _configuration(part: Part, tally: Tally) -> dict[str, Any]:
    told = msgspec.to_builtins(tally)
    del told["target"]
    return {"kind": part.kind, "rows": part.plan.rows, **told}


def _finding(finding: Finding) -> dict[str, Any]:
    told = msgspec.to_builtins(finding)
    told["trace"] = Path(finding.trace).parent.name  # of the folder failures/
    wanted = ("check", "symptom", "histories", "sentence", "trace", "flaky")
    return {key: told[key] for key in wanted}


# ------------------------------------------------------------------ what is said of it


def together(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """All targets: what several runs walked of one is added up, configuration by configuration.

    Where two runs had a quota for the same, the larger one is that of both.
    """
    targets = dict[str, dict[str, Any]]()
    for result in results:
        for target in copy.deepcopy(result["targets"]):
            known = targets.setdefault(target["name"], target)
            if known is target:
                continue
            known["windows"] += target["windows"]
            known["findings"] += target["findings"]
            alike = {(one["kind"], one["setup"]): one for one in known["configurations"]}
            for one in target["configurations"]:
                if (first := alike.get((one["kind"], one["setup"]))) is None:
                    known["configurations"].append(one)
                else:
                    _add(first, one)
    return list(targets.values())


def _add(first: dict[str, Any], more: dict[str, Any]) -> None:
    for name in ("windows", "histories", "mismatches"):
        first[name] += more[name]
    for name in ("compared", "failed"):
        first[name] = dict(collections.Counter(first[name]) + collections.Counter(more[name]))
    for check, ratio in more["largest"].items():
        first["largest"][check] = max(ratio, first["largest"].get(check, 0.0))
    first["quota"] = max(first["quota"], more["quota"])


def table(results: Sequence[dict[str, Any]]) -> str:
    """Markdown: what was walked, dialect by dialect, target by target, and where bits part."""
    targets = together(results)
    by_dialect: dict[str, list[dict[str, Any]]] = {}
    for target in targets:
        by_dialect.setdefault(target["dialect"], []).append(target)
    sums = ", ".join(
        f"{dialect} {sum(target['windows'] for target in some):,}"
        for dialect, some in by_dialect.items()
    )
    lines = [
        *(f"{_made(result)}." for result in results),
        f"Row-windows by dialect: {sums}.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
        *(_row(target) for target in targets if target["windows"]),
        "",
        *_short(targets),
        *_apart(targets),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _short(targets: Iterable[dict[str, Any]]) -> list[str]:
    """What time was too short for."""
    idle = [f"`{target['name']}`" for target in targets if not target["windows"]]
    every = [one for target in targets for one in target["configurations"]]
    short = sum(one["windows"] < one["quota"] for one in every)
    lines = (
        [f"Short of their row-windows: {short} of {len(every)} configurations."] if short else []
    )
    lines += [f"Not walked: {', '.join(idle)}."] if idle else []
    return [*lines, ""] if lines else []


def _made(result: dict[str, Any]) -> str:
    machine = result["machine"]
    versions = f"torch {machine.get('torch')}, Triton {machine.get('triton')}"
    made = f"{_gpus(result)}, {versions}, {machine['date'][:10]}, commit {machine['commit'][:7]}"
    return f"{made}: {result['seconds']:.0f} s, {result['workers']} processes"


def _gpus(result: dict[str, Any]) -> str:
    name = str(result["machine"].get("gpu", "No GPU"))
    return f"{result['gpus']} x {name}" if result["gpus"] > 1 else name


def _row(target: dict[str, Any]) -> str:
    some = target["configurations"]
    pairwise = [one for one in some if one["kind"] == "pairwise"]
    least = min((one["windows"] for one in pairwise), default=0)
    alike = ", ".join(f"`{name.partition('==')[2]}`" for name in target["stands_for"])
    findings = sorted({f"{f['check']}: {f['symptom']}" for f in target["findings"]})
    cells = (
        f"`{target['name']}`" + (f", also {alike}" if alike else ""),
        f"{target['windows']:,}",
        f"{len(pairwise)}, {least:,}",
        f"{sum(sum(one['compared'].values()) for one in some):,}",
        f"{_largest(some, 'outputs'):.2f}",
        f"{_largest(some, 'state-local', 'state-global'):.2f}",
        _bits(target),
        "; ".join(findings) or "none",
    )
    return f"| {' | '.join(cells)} |"


def _largest(some: Iterable[dict[str, Any]], *checks: str) -> float:
    return max((one["largest"].get(check, 0.0) for one in some for check in checks), default=0.0)


def _bits(target: dict[str, Any]) -> str:
    """Whether the claim held, in how many configurations that compared it, how often."""
    if not target["claims_bits"]:
        return "none claimed"
    compared = [one for one in target["configurations"] if _compared(one)]
    broken = sum(_breaks(one) for one in compared)
    count = f"{sum(map(_compared, compared)):,}"
    if not compared:
        return "not compared"
    if broken:
        return f"broken in {broken} of {len(compared)}, {count}"
    return f"held in {len(compared)}, {count}"


def _compared(one: dict[str, Any]) -> int:
    return sum(one["compared"].get(check, 0) for check in BITWISE)


def _breaks(one: dict[str, Any]) -> bool:
    return any(one["failed"].get(check) for check in BITWISE)


def _apart(targets: Iterable[dict[str, Any]]) -> list[str]:
    """Where a claim of bits did not hold."""
    lines = [
        f"* `{target['name']}`: {one['setup']}, in {one['failed'].get('exactness', 0)} of "
        f"{one['histories']} histories"
        for target in targets
        for one in target["configurations"]
        if _breaks(one)
    ]
    return ["Where bits part:", "", *lines] if lines else []


def fill(results: Sequence[dict[str, Any]]) -> None:
    """Put the table into the page, between its marks."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{table(results)}{END}{after}", encoding="utf-8")


def main() -> int:
    """Run, print or fill in."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run")
    running.add_argument("result", type=Path)
    running.add_argument("targets", nargs="*", help="only these [all]")
    running.add_argument("--device", choices=get_args(Device), default="cuda")
    running.add_argument("--seconds", type=float, default=0.0, help="stop then, from the start on")
    running.add_argument("--each", type=int, default=2000, help="row-windows a configuration")
    running.add_argument("--configurations", type=int, help="only the first ones [all pairwise]")
    running.add_argument("--in-all", type=int, default=1_000_000, help="row-windows a dialect")
    running.add_argument("--server", type=int, default=20_000, help="at a server's geometry")
    running.add_argument("--seed", type=int, default=0, help="of all histories [0]")
    running.add_argument("--workers", type=int, help="processes [one a processor]")
    running.add_argument("--run-dir", type=Path, help="where failures/ and report.json go")
    running.add_argument("--commit", help="what is run, where git can't tell")
    for verb in ("table", "fill"):
        verbs.add_parser(verb).add_argument("results", type=Path, nargs="+")
    options = parser.parse_args()
    if options.verb == "run":
        return run(options)
    results = [json.loads(path.read_text(encoding="utf-8")) for path in options.results]
    if options.verb == "fill":
        fill(results)
    else:
        print(table(results), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
