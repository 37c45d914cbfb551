"""A trace: a history, where its numbers come from, and what a replay of it must find."""

from __future__ import annotations

import hashlib
from typing import Final, Literal

import msgspec

from ringfold.fuzz.histories.trace.operations import Operation, Profile, Word
from ringfold.fuzz.judging.mismatch import Check
from ringfold.sim.setup import Setup

VERSION: Final = 1
Scalar = str | int | float | bool | None


class TraceError(ValueError):
    """A trace that cannot be read, or that no scheduler could have made."""


class PayloadSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where the numbers come from.

    `tensors` names a safetensors file in the trace's own folder; what it holds replaces what the
    seed would give (see `payload.load_tensors`).
    """

    seed: Word
    profile: Profile
    tensors: str | None = None


class Symptom(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What two mismatches of one cause share."""

    check: Check
    symptom: str


class Trace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A history, what a replay of it must find, and what was seen when it was written."""

    version: Literal[1] = msgspec.field(name="ringfold_trace", default=1)  # `VERSION`
    setup: Setup
    payload: PayloadSpec
    target: str | None = None
    identity: dict[str, str] = {}
    operations: tuple[Operation, ...]
    expected: Literal["agree"] | tuple[Symptom, ...] = "agree"
    seen: tuple[dict[str, Scalar | list[Scalar]], ...] = ()


def digest(trace: Trace) -> str:
    """12 hex digits of SHA-256 over what decides a run: setup, payload and operations.

    A tensors file enters by its name, not by its content.
    """
    decides = (trace.setup, trace.payload, trace.operations)
    return hashlib.sha256(msgspec.json.encode(decides)).hexdigest()[:12]


def shown(value: object) -> str:
    """A value as an error quotes it."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
