"""The commit table with one row changed."""

from __future__ import annotations

from typing import Any

from ringfold.sim.cursors import COMMIT, Rule


def row_replaced(name: str, **columns: Any) -> tuple[Rule, ...]:
    """`COMMIT` with other columns in the row called `name`."""
    return tuple(rule._replace(**columns) if rule.name == name else rule for rule in COMMIT)
