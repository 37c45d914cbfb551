"""The page on exploring says what its files say.

Each row of its table of runs names a file, as the command wrote it; row-windows and seconds are
read there.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

PAGE: Final = Path(__file__).parents[3] / "docs" / "explore.md"
HEAD: Final = "| explored | "
LINK: Final = re.compile(r"\(results/([\w.-]+\.json)\)")


def rows() -> list[list[str]]:
    """Of the table of runs, below its head and its rule: each as its cells."""
    lines = PAGE.read_text("utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(HEAD)) + 2
    table = lines[first : lines.index("", first)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


@pytest.mark.parametrize("row", rows(), ids=lambda row: str(row[0]))
def test_a_row_is_its_file(row: list[str]) -> None:
    """And the exploration was whole, without a failure."""
    _, where, windows, seconds = row
    linked = LINK.search(where)
    assert linked is not None, where
    report: dict[str, Any] = json.loads((PAGE.parent / "results" / linked[1]).read_text("utf-8"))
    report = report.get("report", report)

    assert int(windows.replace(",", "")) == report["windows"]
    assert int(seconds.partition(",")[0]) == round(report["seconds"])
    assert (report["coverage"], report["failing"], report["cursor_inputs_wrong"]) == (1.0, 0, 0)
