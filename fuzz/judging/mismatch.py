"""One failed check, as a sentence that a person understands and as data for a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

Check = Literal[
    "outputs",
    "state-local",
    "state-global",
    "cursors",
    "records",
    "convolution",
    "frame",
    "exactness",
    "crash",
]
"""What was judged; the design's seven checks, the state twice, the convolution's window, and a
target that raised."""

CONTINUES: frozenset[Check] = frozenset({"frame", "exactness"})
"""After these the walk can go on; after any other the target's memory is no longer meaningful."""


class Mismatch(msgspec.Struct, frozen=True, omit_defaults=True):
    """The worst element of one check on one operation.

    `units` is the error over what is allowed (above 1 fails, None when that is no number);
    `elements` counts all that failed. Figures are strings, so that NaN and infinities survive JSON.
    """

    check: Check
    operation: int
    kind: str
    symptom: str
    iteration: int = 0
    step: int = 0
    request: int | None = None
    row: int | None = None
    where: str = ""
    expected: str = ""
    got: str = ""
    error: str = ""
    allowed: str = ""
    relative: str = ""
    ulp: str = ""
    units: float | None = None
    elements: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """What two findings of one cause share."""
        return (self.check, self.symptom)

    def sentence(self) -> str:
        """A lab note: what, where, how far off."""
        place = f"operation {self.operation} ({self.kind}, step {self.step}"
        if self.iteration:
            place += f", iteration {self.iteration}"
        place += ")"
        if self.request is not None:
            place += f", request {self.request}"
        if self.row is not None:
            place += f" (row {self.row})"
        text = f"{self.check}: {self.symptom} at {place}"
        if self.where:
            text += f", {self.where}"
        if self.expected or self.got:
            text += f": expected {self.expected}, got {self.got}"
        if self.error and self.got != "nan":
            units = "" if self.units is None else f"{self.units:.3g} times that, "
            # A state is judged by rows over K, in 2-norm; the element shown is the row's worst.
            what = "its row is off by" if self.check.startswith("state") else "off by"
            text += (
                f"; {what} {self.error} where {self.allowed} is allowed"
                f" ({units}relative {self.relative}, {self.ulp} ULP)"
            )
        if self.elements > 1:
            text += f"; {self.elements} elements differ"
        return text + "."


def failed_checks(seen: Iterable[Mapping[str, Any]]) -> dict[int, list[str]]:
    """Checks that failed, by the number of the operation.

    `seen` are mismatches as a trace keeps them. Anybody may have edited those, so what names no
    operation or no check is passed over.
    """
    failed: dict[int, list[str]] = {}
    for mismatch in seen:
        operation, check = mismatch.get("operation"), mismatch.get("check")
        if isinstance(operation, int) and isinstance(check, str):
            checks = failed.setdefault(operation, [])
            if check not in checks:
                checks.append(check)
    return failed
