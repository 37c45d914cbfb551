"""Walk pools with an extra buffer through prompts that are tracked, and what begins from them.

    python docs/results/prompts.py               # four releases, 100 s each: prompts-cpu.json
    python docs/results/prompts.py 0.5.22        # that release anew, in the same file
    python docs/results/prompts.py --table       # prints the table of docs/integration.md from it

The histories of `ringfold fuzz` have prompts of 64 tokens now and then; these have little else.
Requests begin with a chunk or two of up to 192 tokens, verify, go on, leave a prefix when they were
tracked last a while ago, and others begin from that. Where a release loses nothing between turns of
a session, they take turns. 0.5.16, whose commits store nothing apart, tracks in prompts alone.
Seconds are those of processor time, of this process and the release's together.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from pools import Part

from ringfold.fuzz.findings.failures import write_json
from ringfold.fuzz.histories.draws import Seeded
from ringfold.fuzz.histories.generate import told
from ringfold.fuzz.histories.story import Plan
from ringfold.fuzz.histories.trace import (
    CHUNK,
    CHUNK_MAX,
    Admit,
    Commit,
    Donate,
    Evict,
    Free,
    Hit,
    Operation,
    PayloadSpec,
    Prefill,
    Trace,
    Verify,
    validate,
)
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.provenance import stamped
from ringfold.fuzz.running.hunt import plans
from ringfold.fuzz.targets import registry

RESULTS: Final = Path(__file__).parent / "prompts-cpu.json"
VERSIONS: Final = ("0.5.16", "0.5.18", "0.5.20", "0.5.23")
SEED: Final = 0
EVENTS: Final = 14


class Story:
    """A history of prompts, told event by event."""

    def __init__(self, plan: Plan, number: int) -> None:
        self.plan, self.draw = plan, Seeded((SEED, number))
        self.told: list[Operation] = []
        self.running: dict[int, bool] = {}
        """Who runs, and whether it has verified since its last prompt."""
        self.tracked: set[int] = set()
        """Who can leave a prefix."""
        self.prefixes: list[int] = []
        self.tags, self.requests, self.names = itertools.count(), itertools.count(), iter(range(99))

    def tell(self) -> Trace:
        """As many events as there are to be."""
        self.begin()
        events = [self.begin, self.step, self.step, self.step, self.go_on]
        events += [self.leave, self.leave, self.follow, self.follow, self.free, self.evict]
        for _ in range(EVENTS):
            events[self.draw.integer(0, len(events) - 1)]()
        self.step()
        payload = PayloadSpec(seed=self.draw.integer(0, 2**32 - 1), profile="slow-decay")
        trace = told(self.plan, payload, self.told)
        validate(trace)
        return trace

    @property
    def room(self) -> int:
        """How many more can be seated."""
        return self.plan.setup.slots - 1 - len(self.running) - len(self.prefixes)

    def begin(self) -> None:
        """Some are admitted, and have their prompts prefilled together."""
        new = [next(self.requests) for _ in range(min(self.room, self.draw.integer(1, 2)))]
        for request in new:
            self.add(Admit(request=request, tag=next(self.tags)))
            self.running[request] = False
        for _ in range(self.draw.integer(1, 2)):
            self.prefill(new)

    def go_on(self) -> None:
        """Those whose prompt is not at its end, or the next turn of any."""
        turns = self.plan.setup.dialect == "fold-every-commit"
        self.prefill([one for one, verified in self.running.items() if turns or not verified])

    def prefill(self, requests: list[int]) -> None:
        """Whole chunks, more than that, or a few tokens."""
        if not (requests := requests[: self.plan.rows]):
            return
        kinds = self.draw.integers(0, [3] * len(requests)).tolist()
        lengths = [(self.whole, self.more, self.more, self.few)[kind]() for kind in kinds]
        rows, tag = tuple(requests), next(self.tags)
        self.add(Prefill(tag=tag, rows=rows, lengths=tuple(lengths)))
        self.tracked |= {row for row, n in zip(rows, lengths, strict=True) if n >= CHUNK}
        self.running |= dict.fromkeys(rows, False)

    def whole(self) -> int:
        """Chunks, and no token more."""
        return CHUNK * self.draw.integer(1, CHUNK_MAX // CHUNK)

    def more(self) -> int:
        """A chunk at least."""
        return self.draw.integer(CHUNK + 1, CHUNK_MAX - 1)

    def few(self) -> int:
        """Less than a chunk."""
        return self.draw.integer(1, CHUNK - 1)

    def step(self) -> None:
        """A window for some, of which now and then a token is tracked."""
        if not (rows := tuple([*self.running][-self.plan.rows :])):
            return
        T, tag, track = self.plan.setup.window, next(self.tags), None
        if "track" in self.plan.operations and self.draw.chance(0.2):
            track = self.draw.integer(1, T)
        accepted = tuple(self.draw.integers(1, [T] * len(rows)).tolist())
        self.add(Verify(tag=tag, rows=rows, lengths=(T,) * len(rows)))
        self.add(Commit(tag=tag, accepted=accepted, track=track))
        self.tracked |= {r for r, n in zip(rows, accepted, strict=True) if track and n >= track}
        self.running |= dict.fromkeys(rows, True)

    def leave(self) -> None:
        """Who was tracked leaves a prefix."""
        able = sorted(self.tracked & self.running.keys())
        if able and len(self.prefixes) < self.plan.setup.slots - 3:
            request, prefix = able[self.draw.integer(0, len(able) - 1)], next(self.names)
            self.gone(Donate(request=request, prefix=prefix))
            self.prefixes.append(prefix)

    def follow(self) -> None:
        """Another request begins from a prefix."""
        if self.prefixes and self.room > 0:
            request = next(self.requests)
            prefix = self.prefixes[self.draw.integer(0, len(self.prefixes) - 1)]
            self.add(Hit(request=request, prefix=prefix))
            self.running[request] = False

    def free(self) -> None:
        """Somebody leaves nothing."""
        if len(self.running) > 1:
            self.gone(Free(request=min(self.running)))

    def evict(self) -> None:
        """The oldest prefix is given up."""
        if len(self.prefixes) > 1:
            self.add(Evict(prefix=self.prefixes.pop(0)))

    def gone(self, operation: Donate | Free) -> None:
        """A request ends."""
        self.add(operation)
        del self.running[operation.request]
        self.tracked.discard(operation.request)

    def add(self, operation: Operation) -> None:
        """One operation more, behind which dead memory is as bad as may be, or left alone."""
        worst = self.plan.worst if self.draw.chance(0.5) else "leave"
        self.told.append(msgspec.structs.replace(operation, dead=worst))


def prompted(target: Any, seconds: float) -> dict[str, Any]:
    """Histories of every configuration in 16 bits in turn, until the time is up."""
    part, tracked, stored = Part(), 0, target.dialect.name != "ring"
    start = spent(target)
    for number in itertools.count():
        for plan in plans(target):
            if plan.setup.dtypes.activation == "float32":
                continue
            if spent(target) - start > seconds:
                return {**part.told(), "prompts tracked": tracked, "seconds": seconds}
            finite = target.dialect.name == "compact" or number % 2 == 0
            owned = (target.operations | {"prefill"}) - (set() if stored else {"track"})
            served = plan._replace(operations=owned, worst="garbage" if finite else "nan")
            trace = Story(served, number).tell()
            verdict = walk(trace, target)
            part.add(trace, verdict)
            done = trace.operations[: verdict.operations]
            tracked += sum(n >= CHUNK for o in done if isinstance(o, Prefill) for n in o.lengths)
    raise AssertionError("there is no last history")


def spent(target: Any) -> float:
    """Seconds of processor time so far, of this process and the worker."""
    own, pid = time.process_time(), target.worker.running and target.worker.running.pid
    if pid is None:
        return own
    ticks = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[11:13]
    return own + sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def table(releases: dict[str, Any]) -> Iterator[str]:
    """Markdown: one row a release."""
    columns = ("release", "histories", "prompts tracked", "prefixes left, begun from")
    columns += ("row-windows", "differ", "outputs", "state", "bits")
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for version, found in releases.items():
        driven, largest = found["driven"], found["largest"]
        state = max(largest[f"state-{which}"] for which in ("local", "global"))
        cells = (
            version,
            str(found["histories"]),
            str(found["prompts tracked"]),
            f"{driven.get('donate', 0)}, {driven.get('hit', 0)}",
            f"{found['row-windows']:,}",
            str(found["with a mismatch"]),
            f"{largest['outputs']:.2f}",
            f"{state:.2f}",
            f"{found['compared'].get('exactness', 0):,}",
        )
        yield f"| {' | '.join(cells)} |"


def main() -> int:
    """Walk some releases, or print the table; 1 if something differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", nargs="*", default=VERSIONS, help="such as 0.5.16")
    parser.add_argument("--seconds", type=float, default=100.0, help="of each release")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    kept = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    releases: dict[str, Any] = kept.get("releases", {})
    if options.table:
        print("\n".join(table(releases)))
        return 0
    for version in options.versions:
        target: Any = registry.resolve(f"sglang-pool=={version}+tracks")
        identity = dict(target.identity())
        releases[version] = stamped({"identity": identity, **prompted(target, options.seconds)})
        write_json(options.out, {"releases": dict(sorted(releases.items()))})
        print([*table({version: releases[version]})][-1], file=sys.stderr, flush=True)
    return int(any(releases[v]["with a mismatch"] for v in options.versions))


if __name__ == "__main__":
    sys.exit(main())
