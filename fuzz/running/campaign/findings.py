"""What a campaign found: mismatches of one kind are one finding, and so is what shrinks alike."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ringfold.fuzz.findings import failures
from ringfold.fuzz.findings.legality import classify, rank
from ringfold.fuzz.findings.replay import replay_all
from ringfold.fuzz.findings.shrink import Shrunk, write
from ringfold.fuzz.histories.trace import Trace
from ringfold.fuzz.running.campaign.report import Finding
from ringfold.fuzz.running.campaign.worker import Walked
from ringfold.fuzz.target import Device

KEPT_MAX: Final = 5
"""Failures of one symptom that are written to disk; all are counted."""

Key = tuple[str, str, str]
"""Target, check and symptom."""


class Findings:
    """Those of each kind, with the first failure that speaks for it."""

    def __init__(self, run_dir: Path, device: Device) -> None:
        self.run_dir, self.device = run_dir, device
        self.kinds: dict[Key, Finding] = {}
        self.firsts: dict[Key, Trace] = {}

    def add(self, failure: Trace, walked: Walked) -> None:
        """Write the failure unless enough of its kind are there."""
        first = walked.verdict.mismatches[0]
        target = failure.target or ""
        key = (target, *first.key)
        known = self.kinds.get(key)
        seen = known.histories if known else 0
        # A failure that repeats speaks for its kind, rather than one that does not.
        speaks = known is None or (known.flaky and not walked.flaky)
        if speaks or seen < KEPT_MAX:
            path = failures.write(failure, walked.verdict.mismatches, self.run_dir, self.device)
        if known is None or speaks:
            known = self.kinds[key] = Finding(
                target=target,
                check=first.check,
                symptom=first.symptom,
                histories=seen,
                sentence=first.sentence(),
                trace=str(path),
                reproduce=failures.reproduce(path, target, self.device),
                flaky=walked.flaky,
                legality=classify(failure),
            )
            self.firsts[key] = failure
        known.histories += 1

    def to_shrink(self) -> dict[Key, Trace]:
        """The first failure of each kind that repeats."""
        return {key: trace for key, trace in self.firsts.items() if not self.kinds[key].flaky}

    def shrunk(self, key: Key, shrunk: Shrunk) -> None:
        """The smallest history of a kind; kinds that become one trace become one finding."""
        finding = self.kinds[key]
        for known in self.kinds.values():
            if known.digest == shrunk.digest and known.target == finding.target:
                known.histories += finding.histories
                del self.kinds[key]
                return
        written = write(self.firsts[key], shrunk, Path(), self.run_dir, self.device)
        finding.check, finding.symptom = shrunk.mismatches[0].key
        finding.found, finding.trace = finding.trace, written.trace
        finding.sentence, finding.reproduce = written.sentence, written.reproduce
        finding.digest, finding.steps = written.digest, written.steps
        finding.legality = classify(shrunk.trace)

    def confirm(self, finding: Finding) -> None:
        """Keep the history that fails by itself: the shrunk one, or else the one that was found.

        A target may remember something from history to history, and so fail in its worker alone.
        """
        for path in dict.fromkeys(filter(None, (finding.trace, finding.found))):
            again = replay_all([Path(path)], finding.target, self.device)
            if not again:
                raise KeyboardInterrupt  # pressed meanwhile
            if not (mismatches := again[0].mismatches):
                continue
            if path != finding.trace:
                finding.trace, finding.digest, finding.steps = path, "", 0
                finding.sentence = mismatches[0].sentence()
                finding.reproduce = failures.reproduce(Path(path), finding.target, self.device)
            return
        finding.flaky = True

    def ranked(self) -> list[Finding]:
        """What a user of a server can meet comes first."""
        return sorted(self.kinds.values(), key=lambda finding: rank(finding.legality))
