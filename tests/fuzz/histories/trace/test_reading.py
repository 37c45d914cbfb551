"""Whatever is not a trace is refused at once and clearly.

A file that a person wrote is loaded (docs/traces.md is run as a test). A broken or hostile one
gives an error that names the file, the place, the value and the remedy, within a second: here is
one for each way in which a file can be wrong, from a missing brace to a million of them.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringfold.fuzz.histories.trace import TraceError, load, save

DOCS = Path(__file__).parents[4] / "docs" / "traces.md"
REFUSAL_SECONDS_MAX = 2.0  # seen 0.2 for the slowest, a file over the size limit
(EXAMPLE,) = re.findall(r"```json\n(.*?)```", DOCS.read_text(), re.DOTALL)


def test_the_documented_example_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/traces.md holds a trace written by hand and what comes of it; both are run."""
    monkeypatch.chdir(tmp_path)

    def written(text: str) -> Path:
        path = Path("trace.json")
        path.write_text(text)
        return path

    def edited(old: str, new: str) -> Path:
        assert old in EXAMPLE
        return written(EXAMPLE.replace(old, new))

    failed, tried = doctest.testfile(
        str(DOCS),
        module_relative=False,
        globs={"example": written(EXAMPLE), "edited": edited},
    )

    assert (failed, tried > 4) == (0, True)
    save(load(written(EXAMPLE)), "again.json")
    assert Path("again.json").read_text() == EXAMPLE  # the file format is what the page shows


def text(change: Callable[[dict[str, Any]], object] = lambda _: None) -> str:
    """The documented trace on one line, after `change` was made to it."""
    content = json.loads(EXAMPLE)
    change(content)
    return json.dumps(content)


def nested(depth: int) -> str:
    """Repeats in repeats."""
    inside = '{"op": "repeat", "times": 1, "operations": [' * depth + "]}" * depth
    return text(lambda c: c.update(operations=["HERE"])).replace('"HERE"', inside)


def put(field: str, value: str) -> str:
    """A right trace with raw JSON in place of the first operation's field."""
    changed = text(lambda c: c["operations"][0].update({field: "HERE"}))
    return changed.replace('"HERE"', value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param("", "is empty: write a trace", id="empty"),
        pytest.param("\n \n", "is empty", id="blank"),
        pytest.param(bytes(range(256)) * 64, "is not a trace: it begins with", id="binary"),
        pytest.param(
            b'{"ringfold_trace": 1, "target": "\xff\xfe"}', "Invalid UTF-8", id="not UTF-8"
        ),
        pytest.param("\ufeff" + text(), "is not a trace: it begins with", id="byte order mark"),
        pytest.param(" " * (64 * 2**20 + 1), "more than 67108864 bytes, the limit", id="too big"),
        pytest.param(text()[:-40], r"ends after \d+ bytes inside an object", id="truncated"),
        pytest.param(text() + "}", r"line 1, column \d+ \(trailing characters", id="trailing"),
        pytest.param("[" * 10**6, "is not a trace: it begins with", id="a million brackets"),
        pytest.param('{"a":' * 10**6, "nested too deep to read", id="a million braces"),
        pytest.param(nested(10**5), "nested too deep to read: .* 3 deep", id="deep repeats"),
        pytest.param(put("tag", "[" * 10**6), "nested too deep to read", id="deep in a field"),
        pytest.param(put("tag", "NaN"), "line 1, column .*'NaN.*infinities as strings", id="NaN"),
        pytest.param(put("tag", "Infinity"), "infinities as strings", id="Infinity"),
        pytest.param(put("tag", '0, "tag": 1'), "'tag' stands 2 times", id="a key twice"),
        pytest.param(put("tag", "-Infinity"), "is not JSON at line 1", id="-Infinity"),
        pytest.param(
            put("request", "1e400"),
            r"at \$\.operations\[0\]\.request: number out of range",
            id="1e400",
        ),
        pytest.param(
            put("request", "1" + "0" * 400),
            r"at \$\.operations\[0\]\.request: expected `int` <= 65535 \(found 1000.*\.\.\.\)",
            id="10**400",
        ),
        pytest.param(put("request", "1" + "0" * 10**6), "out of range|<= 65535", id="10**1000000"),
        pytest.param(put("request", "-1"), r"`int` >= 0 \(found -1\): see the fields", id="below"),
        pytest.param(put("tag", str(2**32)), r"<= 4294967295 \(found 4294967296\)", id="above"),
        pytest.param(put("tag", "1.5"), r"`int`, got `float` \(found 1\.5\)", id="float"),
        pytest.param(put("tag", "true"), r"`int`, got `bool` \(found True\)", id="bool"),
        pytest.param(put("tag", '"7"'), r"`int`, got `str` \(found '7'\)", id="string"),
        pytest.param(put("op", '"admitt"'), r"invalid value 'admitt'", id="unknown operation"),
        pytest.param(put("slot", "1"), r"at \$\.operations\[0\]: .* field `slot`", id="field"),
        pytest.param(put("dead", '"zero"'), "invalid enum value 'zero'", id="dead"),
        pytest.param(
            text(lambda c: c.update(ringfold_trace=2)),
            "ringfold_trace is 2, but this release reads version 1: use the release that wrote",
            id="wrong version",
        ),
        pytest.param("{}", "missing required field `ringfold_trace`", id="no version"),
        pytest.param('{"ringfold_trace": 1}', "missing required field `setup`", id="no setup"),
        pytest.param(
            text(lambda c: c["setup"].update(ring=12)),
            r"at \$\.setup: ring is 12, but must be a power of two: .* use 16",
            id="illegal setup",
        ),
        pytest.param(
            text(lambda c: c["operations"][5].update(times=0)),
            r"at \$\.operations\[5\]\.times: expected `int` >= 1 \(found 0\)",
            id="no turns",
        ),
        pytest.param(
            text(lambda c: c["operations"][5].update(operations=[])),
            r"length >= 1 \(found \[\]\)",
            id="empty repeat",
        ),
        pytest.param(
            text(lambda c: c["operations"][2].update(rows=[None] * 65_537)),
            "length <= 65536",
            id="too many rows",
        ),
        pytest.param(
            text(lambda c: c.update(expected="disagree")), "'disagree'", id="wrong expectation"
        ),
        pytest.param(
            text(lambda c: c["operations"][2].update(lengths=[2, 1, 3])),
            r"operations\[2\] \(verify\): lengths\[2\] is 3",
            id="illegal history",
        ),
        pytest.param(
            json.dumps({"ringfold_trace": 1, "zeal": 1}), "unknown field `zeal`", id="unknown"
        ),
    ],
)
def test_a_hostile_file_is_refused(tmp_path: Path, content: str | bytes, says: str) -> None:
    """Whatever the bytes: a TraceError that begins with the path and says what to do, at once."""
    path = tmp_path / "trace.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    started = time.process_time()

    with pytest.raises(TraceError) as caught:
        load(path)

    assert time.process_time() - started < REFUSAL_SECONDS_MAX
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert re.search(says, message), message
    assert len(message) < 600


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "long", "forbidden"])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    """Nothing there, a folder, a pipe that nobody writes to, a name that no file can have."""
    path = tmp_path / "trace.json"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "long":
            path = tmp_path / ("x" * 300)
        case "forbidden":
            path.write_text("{}")
            path.chmod(0)
            if os.access(path, os.R_OK):
                pytest.skip("this user may read everything")

    with pytest.raises(TraceError) as caught:
        load(path)

    says = {
        "missing": "does not exist: check the path",
        "folder": "is a folder: name the trace.json inside",
        "pipe": "is not a regular file",
        "long": "cannot be read: File name too long",
        "forbidden": "cannot be read: Permission denied",
    }
    assert str(caught.value).startswith(f"{path}: {says[kind]}")
