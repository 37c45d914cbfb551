"""A trace survives the disk unchanged.

What is saved is loaded equal, with every kind of operation and every field, and the same trace
gives the same bytes each time. Lines are short, and a reader never meets half a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ringfold.fuzz.histories.trace import (
    Admit,
    Commit,
    Decode,
    Donate,
    Evict,
    Fork,
    Free,
    Hit,
    Idle,
    Operation,
    PayloadSpec,
    Place,
    Prefill,
    Repeat,
    Restore,
    Save,
    Symptom,
    Trace,
    Verify,
    load,
    save,
)
from ringfold.fuzz.histories.trace.writing import LINE_MAX
from ringfold.sim.setup import Geometry, Setup


def history(*operations: Operation, slots: int = 4, **rest: Any) -> Trace:
    """A trace of these operations."""
    setup = Setup("ring", Geometry(1, 2, 4, 4), ring=8, window=2, slots=slots)
    payload = PayloadSpec(seed=1, profile="ordinary")
    return Trace(setup=setup, payload=payload, operations=operations, **rest)


EVERYTHING = history(
    Admit(request=0, tag=0, dead="garbage"),
    Place(request=2, tag=9, base=7, records=6, flush=True, profile="large"),
    Fork(request=1, source=0),
    Repeat(
        times=3,
        operations=(
            Verify(tag=1, rows=(1, None, 2), lengths=(2, 0, 1), profile="zeros", dead="nan"),
            Idle(rows=3),
            Commit(tag=1, accepted=(2, None, 0), bound=2),
            Repeat(times=2, operations=(Decode(tag=2, rows=(2, None), stores=(2,)),)),
        ),
    ),
    Verify(tag=4, rows=(0, 1), lengths=(2, 2)),
    Free(request=1),
    Commit(tag=4, accepted=(2, None)),
    Save(request=2),
    Restore(request=2),
    Donate(request=0, prefix=3, cut=1, dead="nan"),
    Hit(request=1, prefix=3),
    Evict(prefix=3),
    Prefill(tag=3, rows=(1,), lengths=(70,), branch=64, profile="zeros"),
    target="sglang==0.5.16",
    identity={"triton": "3.7.1", "numpy": "2.3.5"},
    expected=(Symptom("state-local", "drift"),),
    seen=({"check": "state-local", "operation": 3, "units": 12.5, "where": "head 1"},),
)


class TestOnDisk:
    """Saving and loading."""

    def test_what_is_saved_is_loaded(self, tmp_path: Path) -> None:
        """Every kind of operation and every field comes back equal."""
        path = tmp_path / "new" / "trace.json"

        save(EVERYTHING, path)

        assert load(path) == EVERYTHING
        assert {type(op) for op in EVERYTHING.operations} | {Verify, Commit, Decode, Idle} == set(
            Operation.__args__
        )

    def test_the_same_trace_gives_the_same_bytes(self, tmp_path: Path) -> None:
        """Also after a round trip, and whatever the order of the identity's keys."""
        turned = msgspec.structs.replace(
            EVERYTHING, identity=dict(reversed(EVERYTHING.identity.items()))
        )
        for name, trace in (("a", EVERYTHING), ("b", turned)):
            save(trace, tmp_path / name)
        save(load(tmp_path / "a"), tmp_path / "c")

        texts = {(tmp_path / name).read_bytes() for name in "abc"}
        assert len(texts) == 1

    def test_an_operation_is_a_line(self, tmp_path: Path) -> None:
        """Lines stay short, and an operation that is not a repeat stands on one line."""
        save(EVERYTHING, tmp_path / "trace.json")
        lines = (tmp_path / "trace.json").read_text().splitlines()

        assert '    {"op": "admit", "request": 0, "tag": 0, "dead": "garbage"},' in lines
        assert '        {"op": "commit", "tag": 1, "accepted": [2, null, 0], "bound": 2},' in lines
        assert max(map(len, lines)) <= LINE_MAX + 1  # the comma

    def test_long_rows_stay_on_one_line(self, tmp_path: Path) -> None:
        """A batch of 200 rows is spread over its fields, not over 200 lines."""
        rows = tuple(range(200))
        admitted = [Admit(request=r, tag=r) for r in rows]
        verify = Verify(tag=999, rows=rows, lengths=(1,) * 200)
        trace = history(*admitted, verify, slots=201)

        save(trace, tmp_path / "trace.json")

        assert load(tmp_path / "trace.json") == trace
        text = (tmp_path / "trace.json").read_text()
        assert f'\n      "rows": {list(rows)},\n' in text

    def test_numbers_that_json_lacks_become_strings(self, tmp_path: Path) -> None:
        """A mismatch that saw NaN can still be written down."""
        seen = ({"got": float("nan"), "limits": [float("inf"), 1.5]},)

        save(msgspec.structs.replace(EVERYTHING, seen=seen), tmp_path / "trace.json")

        assert load(tmp_path / "trace.json").seen == ({"got": "nan", "limits": ["inf", 1.5]},)

    def test_a_failed_save_leaves_the_old_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And no temporary one."""
        path = tmp_path / "trace.json"
        path.write_text("old")

        def full(*_: object, **__: object) -> None:
            raise OSError("disk full")

        monkeypatch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="disk full"):
            save(EVERYTHING, path)

        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]
