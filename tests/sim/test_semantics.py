"""The reference in docs/semantics.md says what the code does.

Its examples are run, and the cells of its cursor table are compared with the source of `COMMIT`,
parsed, so neither can change without the other.
"""

from __future__ import annotations

import ast
import doctest
import inspect
from pathlib import Path

from ringfold.sim import cursors

PAGE = Path(__file__).parents[2] / "docs" / "semantics.md"


def test_its_examples_run() -> None:
    """Each prints what the page shows."""
    results = doctest.testfile(str(PAGE), module_relative=False)

    assert results.attempted > 20
    assert results.failed == 0


def test_its_cursor_table_is_the_codes() -> None:
    """Row by row, cell by cell."""
    page = PAGE.read_text(encoding="utf-8").splitlines()
    start = page.index("| rule | when | write_pos | cache_base |") + 2
    rows = [line.replace("`", "").strip("| ").split(" | ") for line in page[start:]]
    printed = rows[: next(i for i, row in enumerate(rows) if len(row) == 1)]

    assert printed == source_of_commit()


def source_of_commit() -> list[list[str]]:
    """Name and expressions of each rule, as the module writes them."""
    tree = ast.parse(inspect.getsource(cursors))
    table = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "COMMIT"
    )
    assert isinstance(table, ast.Tuple)
    rows = []
    for rule in table.elts:
        assert isinstance(rule, ast.Call)
        cells = {k.arg: k.value for k in rule.keywords}
        name = ast.literal_eval(rule.args[0])
        bodies = [cells[field] for field in ("when", "write_pos", "cache_base")]
        rows.append([name, *(ast.unparse(b.body) for b in bodies if isinstance(b, ast.Lambda))])
    return rows
