"""A release in a process of its own, asked what it makes of flags (`worker.py` answers there)."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from ringfold.fuzz.targets import environments
from ringfold.sim.configuration.flags import BASE, Configuration
from ringfold.sim.configuration.serving import release_of

SMALL: Final = {"max_mamba_cache_size": 12, "max_running_requests": 4, "mem_fraction_static": 0.8}
"""So that a pool takes no time to build."""
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
"""What tells the kinds apart in a `config.json`, with `COMMON` beside it; two layers of each."""
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
