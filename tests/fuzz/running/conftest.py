"""Targets that hang are given up as soon as they say that they do, and no others are."""

from __future__ import annotations

import pytest

from ringfold.fuzz.running.watch import Hang, Watch


@pytest.fixture
def known_to_hang(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever hangs leaves a file in the folder `$HANGS`, named after its process.

    So no test waits for two minutes to pass, and none takes a slow machine for a target that hangs.
    That time is what decides otherwise is tested of the watch itself.
    """
    folder = tmp_path_factory.mktemp("hangs")
    monkeypatch.setenv("HANGS", str(folder))
    hanging = Watch.hanging

    def known(watch: Watch, seconds_max: float) -> Hang | None:
        walking = hanging(watch, -seconds_max)
        return walking if walking and (folder / str(walking.worker)).exists() else None

    monkeypatch.setattr(Watch, "hanging", known)
