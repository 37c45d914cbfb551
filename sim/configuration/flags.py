"""The flags that decide how a speculative window is verified, as one value.

A `Configuration` is what somebody types, before any default is worked out. `AXES` lists the values
that are enumerated, the first of each being the plainest server that replays: that is the base, and
every other configuration is so many changes away from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Final, Literal

import msgspec

from ringfold.sim.setup import ACTIVATIONS, require

Replay = Literal["spec", "off", "decode", "both"]
Model = Literal["gdn", "kda", "mamba2"]
Hardware = Literal["h200", "b200", "mi300", "cpu"]
Algorithm = Literal["none", "NEXTN", "NGRAM", "DFLASH"]
Radix = Literal["auto", "no_buffer", "extra_buffer", "off"]


class Drafts(msgspec.Struct, frozen=True, array_like=True):
    """--speculative-num-steps, --speculative-eagle-topk, --speculative-num-draft-tokens."""

    steps: int | None = None
    topk: int | None = None
    tokens: int | None = None

    def __str__(self) -> str:
        return ",".join("-" if x is None else str(x) for x in msgspec.structs.astuple(self))


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The flags of one server; None and `auto` leave the choice to the release.

    `replay`: `spec` is --enable-linear-replayssm-spec (--enable-gdn-replayssm-spec before 0.5.17),
    `decode` --enable-linear-replayssm. `ring` is --linear-replayssm-cache-len. `record` is
    SGLANG_MAMBA_CONV_DTYPE: convolution windows, and rings with them. `breadth` is
    --speculative-ngram-max-bfs-breadth.
    """

    replay: Replay = "spec"
    model: Model = "gdn"
    hardware: Hardware = "h200"
    algorithm: Algorithm = "NEXTN"
    drafts: Drafts = Drafts()
    adaptive: bool = False
    breadth: int | None = None
    backend: str | None = None
    radix: Radix = "off"
    ring: int = 16
    state: str | None = None
    record: str = "bfloat16"
    activation: str = "bfloat16"
    disaggregation: Literal["null", "prefill", "decode"] = "null"
    page: int | None = None
    overlap: bool = True
    mixed: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (("record", ACTIVATIONS), ("activation", ACTIVATIONS)):
            value = getattr(self, name)
            require(value in allowed, name, value, f"one of {', '.join(allowed)}", "name one")
        require(
            self.state is None or self.state in ACTIVATIONS,
            "state",
            self.state,
            f"one of {', '.join(ACTIVATIONS)}",
            "name one, or leave it out",
        )

    def __str__(self) -> str:
        """What is not as in the base."""
        changes = [
            f"{name}={getattr(self, name)}"
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(BASE, name)
        ]
        return " ".join(changes) or "base"

    @property
    def replays(self) -> bool:
        """Whether windows are to be verified from records."""
        return self.replay in ("spec", "both")

    @property
    def decode_ring(self) -> bool:
        """Whether plain decoding is to be buffered."""
        return self.replay in ("decode", "both")


BASE: Final = Configuration()

AXES: Final[Mapping[str, tuple[object, ...]]] = {
    "replay": ("spec", "off", "decode", "both"),
    "model": ("gdn", "kda", "mamba2"),
    "hardware": ("h200", "b200", "mi300", "cpu"),
    "algorithm": ("NEXTN", "none", "NGRAM", "DFLASH"),
    "drafts": (Drafts(), Drafts(1, 1, 2), Drafts(7, 1, 8), Drafts(3, 4, 8)),
    "adaptive": (False, True),
    "breadth": (None, 1),
    "backend": (None, "flashinfer", "cutedsl"),
    "radix": ("off", "auto", "no_buffer", "extra_buffer"),
    "ring": (16, 0, 2, 4, 8, 12, 32),
    "state": (None, "float32", "float16", "bfloat16"),
    "record": ("bfloat16", "float16", "float32"),
    "activation": ("bfloat16", "float16", "float32"),
    "disaggregation": ("null", "prefill", "decode"),
    "page": (None, 64),
    "overlap": (True, False),
    "mixed": (False, True),
}


def neighbours(changes: int) -> Iterator[Configuration]:
    """Every configuration that differs from the base in up to so many axes, nearest first.

    With two changes, every value of an axis meets every value of every other, and no third flag
    can refuse the pair before its own rule is asked.
    """
    for count in range(changes + 1):
        for names in combinations(AXES, count):
            yield from _changed(BASE, names)


def _changed(configuration: Configuration, names: tuple[str, ...]) -> Iterator[Configuration]:
    if not names:
        yield configuration
        return
    for value in AXES[names[0]][1:]:
        changed = msgspec.structs.replace(configuration, **{names[0]: value})
        yield from _changed(changed, names[1:])
