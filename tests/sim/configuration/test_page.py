"""The pages on configuration and legality show what the code says; their examples run."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("page", ["configuration.md", "legality.md"])
def test_every_example_on_the_page_runs(page: str) -> None:
    """A table that is printed there is the table."""
    found = doctest.testfile(str(DOCS / page), module_relative=False)

    assert found.attempted > 5
    assert not found.failed
