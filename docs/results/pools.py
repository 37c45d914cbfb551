"""Walk every release's pool on the CPU; what was driven, what differed, and what agrees without it.

    python docs/results/pools.py              # all eight, some 20 minutes; writes pools-cpu.json
    python docs/results/pools.py 0.5.16       # that release anew, in the same file
    python docs/results/pools.py --table      # prints the table of docs/integration.md from it

Three parts of each release, `--seconds` shared among them 3 : 4 : 3. `everything` is all that the
target owns, dead memory full of finite garbage, in every other history of NaN; `sound` is that but
for what the release is known to lose (`LOSING`, docs/findings.md), and must agree; `tracks` is the
latter of the pool with an extra buffer and prefixes, and must agree from 0.5.17 on. The histories
are those of `ringfold fuzz`, told one after the other without an eye on each other; with an extra
buffer the first of each configuration is one in which prefixes are handed on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from ringfold.fuzz.findings.failures import write_json
from ringfold.fuzz.findings.legality import classify
from ringfold.fuzz.histories.generate import history, told
from ringfold.fuzz.histories.story import Plan
from ringfold.fuzz.histories.trace import (
    Admit,
    Commit,
    Decode,
    Donate,
    Evict,
    Hit,
    Operation,
    PayloadSpec,
    Prefill,
    Trace,
    Verify,
    unroll,
)
from ringfold.fuzz.judging.mismatch import Mismatch
from ringfold.fuzz.judging.walk import Verdict, walk
from ringfold.fuzz.provenance import stamped
from ringfold.fuzz.running.hunt import plans
from ringfold.fuzz.targets import registry

RESULTS: Final = Path(__file__).parent / "pools-cpu.json"
VERSIONS: Final = tuple(f"0.5.{patch}" for patch in range(16, 24))
SEED: Final = 0
SHARES: Final = {"everything": 0.3, "sound": 0.4, "tracks": 0.3}
PREFIXES: Final = frozenset({"donate", "hit", "evict"})
THINKING: Final = "0.5.22"
"""The first release that keeps no state of what a model thought under the name of its prompt."""
LOSING: Final = {
    "ring": PREFIXES | {"save", "restore"},
    "fold-every-commit": frozenset[str](),
    "compact": PREFIXES | {"save", "restore"},
}
"""Operations that are findings of a dialect's releases; where there are some, so are turns of a
session, which prefill a request that waits. With an extra buffer prefixes are none."""


class Part:
    """What came of some histories."""

    def __init__(self) -> None:
        self.histories = self.failing = self.windows = 0
        self.driven, self.compared, self.situations = (Counter[str]() for _ in range(3))
        self.largest: dict[str, float] = {}
        self.findings: dict[str, dict[str, Any]] = {}

    def add(self, trace: Trace, verdict: Verdict) -> None:
        """One more history; the largest errors are those of histories without a mismatch."""
        self.histories += 1
        self.windows += verdict.windows
        walked = [operation for operation, _ in unroll(trace.operations)][: verdict.operations]
        self.driven.update(itertools.chain(*map(driven, walked)))
        if "prefill" not in verdict.skipped:
            self.driven["prefill: a turn"] += len(turns(walked))
        for name, times in verdict.skipped.items():
            self.driven[name] -= times
        self.compared.update(verdict.compared)
        self.situations.update(verdict.situations)
        if not verdict.mismatches:
            both = self.largest.keys() | verdict.largest.keys()
            pairs = (self.largest, verdict.largest)
            self.largest = {name: max(p.get(name, 0.0) for p in pairs) for name in both}
        self.failing += bool(verdict.mismatches)
        for mismatch in verdict.mismatches:
            self.find(trace, mismatch)

    def find(self, trace: Trace, mismatch: Mismatch) -> None:
        """A finding is told by its first example."""
        name = f"{mismatch.kind}: {mismatch.check}: {mismatch.symptom}"
        if name in self.findings:
            self.findings[name]["histories"] += 1
            return
        operations = trace.operations[: mismatch.operation + 1]
        found = classify(msgspec.structs.replace(trace, operations=operations), trace.target)
        self.findings[name] = {
            "histories": 1,
            "first": mismatch.sentence(),
            "legality": found and str(found),
        }

    def told(self) -> dict[str, Any]:
        """All of it."""
        return {
            "histories": self.histories,
            "with a mismatch": self.failing,
            "row-windows": self.windows,
            "driven": dict(sorted(self.driven.items())),
            "compared": dict(sorted(self.compared.items())),
            "situations": dict(sorted(self.situations.items())),
            "largest": dict(sorted(self.largest.items())),
            "findings": self.findings,
        }


def driven(operation: Operation) -> Iterator[str]:
    """The operation, and of a batch what kind it is."""
    kind = type(operation).__name__.lower()
    yield kind
    match operation:
        case Verify(rows=rows, lengths=lengths) if any(row is not None for row in rows):
            yield f"verify: {lengths[0]} drafts"
        case Decode(rows=rows) if None in rows:
            yield "decode: padded"
        case Prefill(lengths=lengths):
            yield from ("prefill: one token",) * (1 in lengths)
            yield from ("prefill: beyond 64 tokens",) * (max(lengths) > 64)


def turns(operations: Iterable[Operation]) -> set[int]:
    """Which of them prefill a request that has verified since it was prefilled last."""
    verified, found = set[int | None](), set[int]()
    for i, operation in enumerate(operations):
        for inner, _ in unroll((operation,)):
            if isinstance(inner, Verify):
                verified.update(inner.rows)
        if isinstance(operation, Prefill):
            if verified & set(operation.rows):
                found.add(i)
            verified.difference_update(operation.rows)
    return found


def without_turns(trace: Trace) -> Trace:
    """No prefill of a request that has verified, and may wait."""
    operations = trace.operations
    while gone := turns(operations):
        operations = tuple(o for i, o in enumerate(operations) if i not in gone)
    return msgspec.structs.replace(trace, operations=operations)


def handed_on(plan: Plan) -> Trace:
    """Two begin from a prefix, and one of them leaves another, while its records wait."""
    ones: list[Operation] = [
        Admit(request=0, tag=0),
        *step(1, 0),
        Donate(request=0, prefix=0, dead=plan.worst),
        Hit(request=1, prefix=0),
        Hit(request=2, prefix=0, dead=plan.worst),
        *step(2, 1, 2),
        Donate(request=1, prefix=1, dead=plan.worst),
        Evict(prefix=0, dead=plan.worst),
        Hit(request=3, prefix=1),
        *step(3, 2, 3),
    ]
    return told(plan, PayloadSpec(seed=SEED, profile="slow-decay"), ones)


def step(tag: int, *rows: int) -> Iterator[Operation]:
    """A window of one; `told` makes it a server's."""
    yield Verify(tag=tag, rows=rows, lengths=(1,) * len(rows))
    yield Commit(tag=tag, accepted=(1,) * len(rows))


def part(version: str, name: str, seconds: float) -> dict[str, Any]:
    """Histories of every configuration in turn, until the time is up."""
    target: Any = registry.resolve(f"sglang-pool=={version}{'+tracks' * (name == 'tracks')}")
    dialect = target.dialect.name
    sound = name != "everything" and bool(LOSING[dialect])
    result, end = Part(), time.monotonic() + seconds

    def late() -> bool:
        return time.monotonic() > end

    owned = target.operations | {"prefill"}  # in 16 bits, whatever was opened last
    for number in itertools.count():
        for i, plan in enumerate(plans(target)):
            if late():
                return result.told()
            finite = dialect == "compact" if sound else (number + i) % 2 == 0
            worst: Any = "garbage" if finite else "nan"
            # Directed histories take long, and look for situations rather than operations.
            directed = i == 0 and name != "tracks"
            served: Plan = plan._replace(operations=owned, directed=directed, worst=worst)
            if sound:
                kept = PREFIXES if name == "tracks" else frozenset[str]()
                served = served._replace(operations=served.operations - (LOSING[dialect] - kept))
            if name == "tracks" and version < THINKING:
                served = served._replace(operations=served.operations - {"cut"})
            first = name == "tracks" and number == 0
            trace = handed_on(served) if first else history(served, SEED, number)
            trace = without_turns(trace) if sound else trace
            result.add(trace, walk(trace, target, out_of_time=late))
    raise AssertionError("there is no last history")


def table(releases: dict[str, Any]) -> str:
    """Markdown: one row a release."""
    columns: tuple[str, ...] = (
        "release",
        "row-windows",
        "decodes, prefills",
        "prefixes left, begun from",
        "differs",
        "sound: differ",
    )
    columns += ("outputs", "state", "bits")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for version, parts in releases.items():
        sums: Counter[str] = Counter()
        for each in SHARES:
            sums.update(parts[each]["driven"])
        found = {f.partition(":")[0] for each in SHARES for f in parts[each]["findings"]}
        sound = parts["sound"]
        state = max(sound["largest"].get(f"state-{which}", 0.0) for which in ("local", "global"))
        cells = (
            version,
            f"{sum(parts[each]['row-windows'] for each in SHARES):,}",
            f"{sums['decode']}, {sums['prefill']}",
            f"{sums['donate']}, {sums['hit']}",
            ", ".join(f"`{kind}`" for kind in sorted(found)) or "none",
            f"{sound['with a mismatch']} of {sound['histories']}",
            f"{sound['largest'].get('outputs', 0.0):.2f}",
            f"{state:.2f}",
            f"{sum(parts[each]['compared'].get('exactness', 0) for each in SHARES):,}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Walk all, or print the table; 1 if a sound part has a mismatch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", nargs="*", default=VERSIONS, help="such as 0.5.16; or all")
    parser.add_argument("--seconds", type=float, default=150.0, help="of each release")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.out.read_text(encoding="utf-8"))["releases"]))
        return 0
    kept = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    releases: dict[str, Any] = kept.get("releases", {})
    for version in options.versions:
        identity = dict(registry.resolve(f"sglang-pool=={version}").identity())
        parts = {name: part(version, name, options.seconds * s) for name, s in SHARES.items()}
        how = {"identity": identity, "seconds": options.seconds, "seed": SEED}
        releases[version] = stamped({**how, **parts})
        write_json(options.out, {"releases": dict(sorted(releases.items()))})
        print(table({version: releases[version]}).splitlines()[-1], file=sys.stderr, flush=True)
    return int(any(releases[v]["sound"]["with a mismatch"] for v in options.versions))


if __name__ == "__main__":
    sys.exit(main())
