"""A trace: one history as a JSON file that a person can read, edit and replay.

It is the only thing that passes between fuzzing, replaying, shrinking and reporting. It names
requests, window lengths and accept counts; the numbers come from the payload's seed, keyed by what
a token *is* and not by when it is drawn, so that an edited history keeps all other data.

`load` refuses whatever is not a trace, and `validate` whatever no scheduler could do. Both say
where, what, the limit and the way out. docs/traces.md shows the format by example.
"""

from ringfold.fuzz.histories.trace.history import PayloadSpec, Symptom, Trace, TraceError, digest
from ringfold.fuzz.histories.trace.operations import (
    CHUNK,
    CHUNK_MAX,
    REQUEST_MAX,
    WORD_MAX,
    Admit,
    Batched,
    Commit,
    Decode,
    Donate,
    Evict,
    Fork,
    Free,
    Hit,
    Idle,
    Operation,
    Place,
    Prefill,
    Repeat,
    Request,
    Restore,
    Save,
    Seats,
    Tagged,
    Verify,
    kind,
    rewritten,
    unroll,
)
from ringfold.fuzz.histories.trace.reading import load
from ringfold.fuzz.histories.trace.validity import validate
from ringfold.fuzz.histories.trace.writing import replacing, save

__all__ = [
    "CHUNK", "CHUNK_MAX", "REQUEST_MAX", "WORD_MAX", "Admit", "Batched", "Commit", "Decode",
    "Donate", "Evict", "Fork", "Free", "Hit", "Idle", "Operation", "PayloadSpec", "Place",
    "Prefill", "Repeat", "Request", "Restore", "Save", "Seats", "Symptom", "Tagged", "Trace",
    "TraceError", "Verify", "digest", "kind", "load", "replacing", "rewritten", "save", "unroll",
    "validate",
]  # fmt: skip
