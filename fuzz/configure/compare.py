"""Every configuration near the base: the simulator's verdict beside the release's own answer.

The release is asked twice, with the replay flags and without, so that a refusal which has nothing
to do with replay is known as such. What it accepts is then exercised (`exercise`): a hazard that
the simulator predicts has to show as a disagreement of the release with itself, and where it
predicts none nothing may show. Whatever does not come out as predicted is a *surprise* and is
listed, in either direction; so is an answer that the table of rules gets wrong.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from ringfold.fuzz.targets import environments
from ringfold.sim.configuration.flags import BASE, Configuration
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
SMALL: Final = {"max_mamba_cache_size": 12, "max_running_requests": 4, "mem_fraction_static": 0.8}
MODELS: Final[Mapping[str, Mapping[str, Any]]] = {
    "gdn": {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 2,
        "num_experts": 0,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "kda": {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 32,
        "v_head_dim": 32,
        "linear_attn_config": {
            "kda_layers": [1],
            "full_attn_layers": [2],
            "num_heads": 2,
            "head_dim": 32,
            "short_conv_kernel_size": 4,
        },
    },
    "mamba2": {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "M*",
        "mamba_num_heads": 2,
        "mamba_head_dim": 32,
        "ssm_state_size": 32,
        "n_groups": 1,
    },
}
COMMON: Final = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "intermediate_size": 64,
    "vocab_size": 128,
    "max_position_embeddings": 1024,
    "torch_dtype": "bfloat16",
}


class Failure(msgspec.Struct, omit_defaults=True):
    """An exception of the release."""

    type: str
    text: str
    where: str
    """`file:function` under `sglang/`."""

    def __str__(self) -> str:
        return f"{self.type}: {self.text} ({self.where})"


class Difference(msgspec.Struct):
    """An event after which the release with the flag is not the release without it."""

    event: str
    text: str


class Answer(msgspec.Struct, omit_defaults=True):
    """What a worker said of one configuration."""

    stage: str
    resolved: dict[str, Any] = {}
    refused: Failure | None = None
    pool: dict[str, Any] | None = None
    events: list[tuple[str, float]] = []
    crashed: Failure | None = None
    differs: Difference | None = None


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


class Worker:
    """The release's process, and how to ask it."""

    def __init__(self, process: subprocess.Popen[str], models: Path, said: Path) -> None:
        self.process, self.models, self.said = process, models, said
        self.plain: dict[Configuration, Answer] = {}
        self.release = str(self._read()["release"])

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            tail = self.said.read_text(errors="replace").strip().splitlines()[-3:]
            raise RuntimeError(f"the release's process ended: {' / '.join(tail)}")
        return dict(json.loads(line))

    def ask(self, flags: Configuration, exercise: bool = False) -> Answer:
        """What the release makes of these flags."""
        assert self.process.stdin is not None
        model = self.models / flags.model
        job = {
            "flags": arguments(flags, release_of(self.release).spec_flag, model),
            "environment": {"SGLANG_MAMBA_CONV_DTYPE": flags.record},
            "model": str(model),
            "hardware": flags.hardware,
            "exercise": exercise,
        }
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return msgspec.convert(self._read(), Answer)

    def ask_without_replay(self, flags: Configuration) -> Answer:
        """The same without the flags of replay, asked once for all that differ in these alone."""
        plain = msgspec.structs.replace(flags, replay="off", ring=BASE.ring)
        if plain not in self.plain:
            self.plain[plain] = self.ask(plain)
        return self.plain[plain]


def arguments(flags: Configuration, spec_flag: str, model: Path) -> dict[str, Any]:
    """The fields of `ServerArgs` that these flags set."""
    drafts = flags.drafts
    given: dict[str, Any] = {
        **SMALL,
        spec_flag: flags.replays or None,
        "enable_linear_replayssm": flags.decode_ring or None,
        "speculative_algorithm": None if flags.algorithm == "none" else flags.algorithm,
        "speculative_draft_model_path": str(model) if flags.algorithm == "DFLASH" else None,
        "speculative_num_steps": drafts.steps,
        "speculative_eagle_topk": drafts.topk,
        "speculative_num_draft_tokens": drafts.tokens,
        "speculative_adaptive": flags.adaptive or None,
        "speculative_ngram_max_bfs_breadth": flags.breadth,
        "linear_attn_decode_backend": flags.backend,
        "disable_radix_cache": flags.radix == "off" or None,
        "mamba_radix_cache_strategy": None if flags.radix == "off" else flags.radix,
        "linear_replayssm_cache_len": flags.ring,
        "mamba_ssm_dtype": flags.state,
        "dtype": flags.activation,
        "disaggregation_mode": flags.disaggregation,
        "page_size": flags.page,
        "disable_overlap_schedule": None if flags.overlap else True,
        "enable_mixed_chunk": flags.mixed or None,
    }
    return {name: value for name, value in given.items() if value is not None}


@contextmanager
def worker(release: str) -> Iterator[Worker]:
    """A process that has the release imported.

    Raises:
        BuildError: there is no environment for releases.
        WheelError: the release is not here.
    """
    environment = environments.find()
    if environment is None:
        raise environments.BuildError(
            f"no environment to import SGLang in: type `{environments.REMEDY}`"
        )
    variables = environments.variables(release)
    program = Path(__file__).parent / "worker.py"
    with tempfile.TemporaryDirectory() as folder:
        models, said = Path(folder), Path(folder) / "said"
        for name, config in MODELS.items():
            (models / name).mkdir()
            text = json.dumps({**COMMON, **config}, indent=1)
            (models / name / "config.json").write_text(text)
        with (
            said.open("w") as errors,
            subprocess.Popen(
                [str(environment.python), str(program)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=variables,
                cwd=folder,
                text=True,
            ) as process,
        ):
            try:
                yield Worker(process, models, said)
            finally:
                assert process.stdin is not None
                process.stdin.close()
                process.terminate()


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
