"""The release in whose environment this runs, and stand-ins for what a server has around it."""

from __future__ import annotations

import importlib
from typing import Any

standins: Any = importlib.import_module("standins")  # the worker has loaded it
Loose = standins.Loose


def srt(name: str) -> Any:
    """A module of the release's runtime."""
    return importlib.import_module(f"sglang.srt.{name}")
