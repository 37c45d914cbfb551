"""What a campaign did, found and leaves open, as `--json` prints it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from ringfold.fuzz.findings.legality import Class
from ringfold.fuzz.histories import lockstep
from ringfold.fuzz.histories.story import Plan
from ringfold.fuzz.judging.walk import Verdict
from ringfold.fuzz.running.crew import raise_to
from ringfold.sim.dialects import DIALECTS
from ringfold.sim.situations import reachable_situations

SHORT_NAMED: Final = 6
"""Configurations short of their quota that a sentence names; the report has all."""


class Finding(msgspec.Struct):
    """Mismatches that share check, symptom and target."""

    target: str
    check: str
    symptom: str
    histories: int
    """In how many histories it was seen."""
    sentence: str
    """The first of them."""
    trace: str
    """The smallest history that shows it, if it was shrunk."""
    reproduce: str
    flaky: bool
    """Nowhere did it repeat."""
    found: str = ""
    """The history that showed it first, as it was found."""
    digest: str = ""
    """Of the shrunk trace: findings of one target that share it are one."""
    steps: int = 0
    legality: Class | None = None
    """Who can meet it; none where the target is no release."""


class Tally(msgspec.Struct):
    """What was done with one configuration of one target."""

    target: str
    setup: str
    windows: int = 0
    histories: int = 0
    mismatches: int = 0
    quota: int = 0
    """Row-windows that were asked for; 0: as many as there is time for."""
    compile_seconds: float = 0.0
    compared: dict[str, int] = {}
    largest: dict[str, float] = {}
    failed: dict[str, int] = {}
    """Histories in which a check failed, by check."""


class Report(msgspec.Struct):
    """A campaign's outcome, as `--json` prints it."""

    targets: list[str]
    device: str
    seed: int
    workers: int
    windows: int = 0
    """Row-windows verified and judged."""
    histories: int = 0
    mismatches: int = 0
    """Histories in which some check failed."""
    findings: list[Finding] = []
    situations: dict[str, int] = {}
    """How often each was visited: rows, or batches where that decides."""
    missed: list[str] = []
    """Situations that some configuration can reach, and none did."""
    largest: dict[str, float] = {}
    """Largest error that was seen, over what is allowed, by check."""
    compared: dict[str, int] = {}
    """How many comparisons each check made."""
    skipped: dict[str, int] = {}
    """Operations that a target does not own, by kind."""
    seconds: dict[str, float] = {}
    """Time of all workers together, by what it went into, and `telling`: that of their parent."""
    elapsed: float = 0.0
    """Seconds from the first window on."""
    rate: float = 0.0
    """Row-windows a second, from the first one on."""
    configurations: list[Tally] = []
    identities: dict[str, dict[str, str]] = {}
    inconclusive: list[str] = []
    """Why the run proves less than it was asked to."""

    def add(self, configuration: int, verdict: Verdict, elapsed: float) -> None:
        """Count a history in; `elapsed` are the campaign's seconds until now."""
        tally = self.configurations[configuration]
        for counts in (self, tally):
            counts.windows += verdict.windows
            counts.histories += 1
            counts.mismatches += bool(verdict.mismatches)
            raise_to(counts.largest, verdict.largest)
        for total, part in (
            (self.situations, verdict.situations),
            (self.compared, verdict.compared),
            (tally.compared, verdict.compared),
            (tally.failed, dict.fromkeys({m.check for m in verdict.mismatches}, 1)),
            (self.skipped, verdict.skipped),
            (self.seconds, verdict.seconds),
        ):
            total.update(Counter(total) + Counter(part))
        self.elapsed = round(elapsed, 3)
        self.rate = round(self.windows / self.elapsed, 1) if self.elapsed else 0.0

    def preparing(self) -> str:
        """How far it is before the first window."""
        if self.device == "cpu":
            return "building targets"
        count = sum(tally.compile_seconds > 0 for tally in self.configurations)
        return f"{count} of {len(self.configurations)} configurations compiled"

    def conclude(self, plans: Sequence[Plan], telling: float, first: bool = False) -> None:
        """Say what the run leaves open.

        Args:
            plans: what was walked.
            telling: seconds for which the parent told histories.
            first: whether it ended with the first failure, and owes nobody the rest.
        """
        stepping = [plan for plan in plans if _step_of(plan) in plan.operations]
        # What can be reached depends on the protocol, and on slots as far as there are few.
        by_slots = sorted(stepping, key=lambda plan: plan.setup.slots)
        protocols = {_protocol_of(plan): plan for plan in by_slots}
        reachable = set().union(*map(_reachable, protocols.values()))
        self.missed = sorted(reachable - set(self.situations))
        self.situations = dict(sorted(self.situations.items()))
        self.seconds["telling"] = telling
        self.seconds = {part: round(s, 3) for part, s in sorted(self.seconds.items())}
        if self.missed and not self.mismatches:
            self.inconclusive.append(
                f"{len(self.missed)} reachable situations were not reached "
                f"({', '.join(self.missed)}): give it more time or windows"
            )
        short = [tally for tally in self.configurations if tally.windows < tally.quota]
        if short and not first:
            named = [f"{t.target}, {t.setup}: {t.windows} of {t.quota}" for t in short]
            more = ["..."] if len(named) > SHORT_NAMED else []
            self.inconclusive.append(
                f"{len(short)} of {len(self.configurations)} configurations are short of their "
                f"row-windows ({'; '.join(named[:SHORT_NAMED] + more)}): give it more time"
            )
        if any(finding.flaky for finding in self.findings):
            self.inconclusive.append(
                "a failure did not repeat: the target's results depend on more than its inputs"
            )


def _protocol_of(plan: Plan) -> tuple[object, ...]:
    """What decides its transitions."""
    setup = plan.setup
    return setup.dialect, setup.ring, setup.window, setup.dtypes.state, plan.lockstep


def _step_of(plan: Plan) -> str:
    """The kind of operation by which the protocol of a plan goes from situation to situation."""
    return "verify" if DIALECTS[plan.setup.dialect].verifies else "decode"


def _reachable(plan: Plan) -> frozenset[str]:
    """Situations that histories of this plan can reach."""
    reachable = frozenset(reachable_situations(plan.setup))
    return reachable - lockstep.UNREACHABLE if plan.lockstep else reachable
