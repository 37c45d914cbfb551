"""The figures and lists of `docs/bench.md` are computed as the page is tested."""

import doctest
from pathlib import Path


def test_the_examples_of_the_page_are_true() -> None:
    """Each `>>>` prints what stands beneath it."""
    page = Path(__file__).parents[3] / "docs" / "bench.md"
    result = doctest.testfile(str(page), module_relative=False)

    assert result.attempted >= 4
    assert result.failed == 0
