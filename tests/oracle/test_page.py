"""The page `docs/oracle.md` teaches by examples; they run, so they cannot go stale."""

import doctest
from pathlib import Path


def test_the_examples_of_the_page_are_true() -> None:
    """Each `>>>` prints what stands beneath it."""
    page = Path(__file__).parents[2] / "docs" / "oracle.md"
    result = doctest.testfile(str(page), module_relative=False)

    assert result.attempted > 10
    assert result.failed == 0
