"""Every configuration near the base: the simulator's verdict beside the release's own answer.

The release is asked twice, with the replay flags and without, so that a refusal which has nothing
to do with replay is known as such. What it accepts is then exercised (`exercise`): a hazard that
the simulator predicts has to show as a disagreement of the release with itself, and where it
predicts none nothing may show. Whatever does not come out as predicted is a *surprise* and is
listed, in either direction; so is an answer that the table of rules gets wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from ringfold.fuzz.configure.asking import Answer, Difference, Failure, Worker, worker
from ringfold.sim.configuration.flags import Configuration
from ringfold.sim.configuration.rules import refusals
from ringfold.sim.configuration.safety import HAZARDS, Verdict, judge
from ringfold.sim.configuration.serving import release_of

Outcome = Literal[
    "runs",
    "refused",
    "accepted but unsafe",
    "refused though safe",
    "crashes late",
    "refused either way",
]
COMPILED: Final = {hazard.name for hazard in HAZARDS if hazard.compiled}
STAND_INS: Final[Mapping[tuple[str, str], tuple[str, str]]] = {
    ("bfloat16", "bfloat16"): ("float16", "float16"),
    ("bfloat16", "float32"): ("float16", "float32"),
    ("float32", "bfloat16"): ("float32", "float16"),
    ("float16", "bfloat16"): ("float32", "float16"),
}
"""Dtypes of activations and records that behave alike where the interpreter gets bfloat16 wrong."""
NOT_HERE: Final = ("compiled kernel that is not here", "'sgl_kernel' object has no attribute")
"""What is said where a stand-in for a compiled package is called: nothing about a configuration."""


class Row(msgspec.Struct, omit_defaults=True):
    """One configuration."""

    configuration: Configuration
    changes: str
    outcome: Outcome
    hazards: list[str]
    refused: Failure | None = None
    rules: list[str] = []
    """Rows of the table that refuse it."""
    exercised: bool = False
    events: list[tuple[str, float]] = []
    """What agreed, and the largest difference over the largest number."""
    differs: Difference | None = None
    crashed: Failure | None = None
    """How a hazard showed, if it did."""
    not_run: str = ""
    pool: dict[str, Any] | None = None


class Comparison(msgspec.Struct):
    """A release, compared."""

    release: str
    dialect: str
    configurations: int
    exercised: int
    outcomes: dict[str, int]
    shown: dict[str, dict[str, Any]]
    """By hazard: how many accepted configurations have it, and one in which it showed."""
    safe_refusals: dict[str, dict[str, Any]]
    """By rule: how many safe configurations it refuses, and one of them."""
    surprises: list[str]
    rows: list[Row]
    stopped: bool = False
    """By hand, before all was asked."""


def compare(
    release: str,
    configurations: Sequence[Configuration],
    exercise: bool = True,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Ask a release such as ``sglang==0.5.16`` about each configuration, and judge the answers."""
    rows: list[Row] = []
    stopped = False
    with worker(release) as asked:
        version = asked.release
        try:
            # Pretending another machine takes a while, so those of one are asked in a row.
            for i, flags in enumerate(sorted(configurations, key=lambda flags: flags.hardware)):
                on_progress(f"{release}: validation of {i + 1} of {len(configurations)}")
                rows.append(_validated(flags, asked))
            rows.sort(key=lambda row: configurations.index(row.configuration))
            chosen = _chosen(rows) if exercise else []
            for i, row in enumerate(chosen):
                on_progress(f"{release}: running {i + 1} of {len(chosen)} ({row.changes})")
                _exercise(row, asked)
        except KeyboardInterrupt:
            stopped = True
    return _summary(version, rows, stopped)


def _validated(flags: Configuration, asked: Worker) -> Row:
    version = asked.release
    verdict = judge(flags, release_of(version))
    answer = asked.ask(flags)
    rules = [rule.name for rule in refusals(flags, version)]
    row = Row(
        flags,
        str(flags),
        _outcome(answer, verdict),
        [hazard.name for hazard in verdict.hazards],
        refused=answer.refused or answer.crashed,
        rules=rules,
    )
    if answer.refused and (flags.replays or flags.decode_ring):
        if asked.ask_without_replay(flags).refused is not None:
            row.outcome = "refused either way"
    elif answer.refused:
        row.outcome = "refused either way"
    return row


def _outcome(answer: Answer, verdict: Verdict) -> Outcome:
    if answer.refused:
        return "refused though safe" if verdict.safe else "refused"
    if verdict.safe:
        return "runs"
    return "crashes late" if verdict.hazards[0].crashes else "accepted but unsafe"


def _chosen(rows: Sequence[Row]) -> list[Row]:
    """What is near the base, and one row of each other combination of hazards."""
    accepted = [row for row in rows if row.refused is None]
    near = [row for row in accepted if len(row.changes.split()) <= 1]
    met = {tuple(row.hazards) for row in near}
    for row in accepted:
        if tuple(row.hazards) not in met:
            met.add(tuple(row.hazards))
            near.append(row)
    return near


def _exercise(row: Row, asked: Worker) -> None:
    flags = row.configuration
    if (dtypes := (flags.activation, flags.record)) in STAND_INS:
        activation, record = STAND_INS[dtypes]
        flags = msgspec.structs.replace(flags, activation=activation, record=record)
    elif "bfloat16" in dtypes:
        row.not_run = "bfloat16 is wrong in the interpreter, and nothing stands in for it here"
        return
    if flags.state == "bfloat16":
        flags = msgspec.structs.replace(flags, state="float16")
    answer = asked.ask(flags, exercise=True)
    row.exercised, row.events, row.pool = True, answer.events, answer.pool
    row.differs, row.crashed = answer.differs, answer.crashed or answer.refused
    if row.crashed is not None:
        if any(text in row.crashed.text for text in NOT_HERE):
            row.not_run, row.crashed, row.exercised = row.crashed.text, None, False
        elif row.outcome in ("runs", "accepted but unsafe"):
            row.outcome = "crashes late"
    elif not answer.events and row.differs is None:
        row.not_run = "nothing to run: this model's layers, or no drafts"


def _summary(version: str, rows: list[Row], stopped: bool = False) -> Comparison:
    refused: dict[str, dict[str, Any]] = {}
    surprises = []
    for row in rows:
        if row.outcome == "refused though safe" and row.refused is not None:
            rule = " and ".join(row.rules) or row.refused.where
            entry = refused.setdefault(rule, {"refused": 0, "first": row.changes})
            entry["refused"] += 1
        surprises += [f"{row.changes}: {text}" for text in _surprises(row)]
    return Comparison(
        release=version,
        dialect=release_of(version).dialect,
        configurations=len(rows),
        exercised=sum(row.exercised for row in rows),
        outcomes=dict(Counter(row.outcome for row in rows)),
        shown=_shown([row for row in rows if row.refused is None]),
        safe_refusals=refused,
        surprises=surprises,
        rows=rows,
        stopped=stopped,
    )


def _shown(accepted: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """By hazard, how it showed; where it can be, in a configuration that has no other."""
    shown: dict[str, dict[str, Any]] = {}
    for row in sorted(accepted, key=lambda row: len(row.hazards)):
        for name in row.hazards:
            entry = shown.setdefault(name, {"accepted": 0, "shown": None})
            entry["accepted"] += 1
            how = None if name in COMPILED else row.differs or row.crashed
            if entry["shown"] is None and how is not None:
                entry["shown"] = {"changes": row.changes, "as": msgspec.to_builtins(how)}
    return shown


def _surprises(row: Row) -> Iterator[str]:
    if row.outcome != "refused either way" and bool(row.rules) != (row.refused is not None):
        said = str(row.refused) if row.refused else "it is accepted"
        yield f"the table says {', '.join(row.rules) or 'accepted'}, but {said}"
    if not row.exercised or row.not_run:
        return
    shown = row.differs or row.crashed
    predicted = [name for name in row.hazards if name not in COMPILED]
    if predicted and shown is None:
        yield f"{', '.join(predicted)} is predicted, and nothing shows"
    if not predicted and shown is not None:
        yield f"nothing is predicted, but {shown}"
