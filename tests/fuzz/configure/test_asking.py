"""What a release is asked: flags as it names them, and nothing that was left open.

No release is started here; one is asked in `test_compare.py`, where there is an environment.
"""

from __future__ import annotations

from typing import Any

import pytest

from ringfold.fuzz.configure import asking
from ringfold.fuzz.targets import environments
from ringfold.sim.configuration.flags import Configuration, Drafts


def test_flags_become_the_fields_of_server_arguments(tmp_path: Any) -> None:
    """What is left out stays out, so that the release chooses."""
    flags = Configuration(replay="both", drafts=Drafts(3, 1, 4), radix="auto", overlap=False)
    given = asking.arguments(flags, "enable_linear_replayssm_spec", tmp_path)

    assert given["enable_linear_replayssm_spec"] is given["enable_linear_replayssm"] is True
    assert (given["speculative_num_steps"], given["speculative_eagle_topk"]) == (3, 1)
    assert given["disable_overlap_schedule"] is True
    assert given["mamba_radix_cache_strategy"] == "auto"
    assert "disable_radix_cache" not in given
    assert "page_size" not in given


def test_without_an_environment_the_error_says_what_to_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is started."""
    monkeypatch.setattr(environments, "find", lambda: None)

    with (
        pytest.raises(environments.BuildError, match="type `ringfold targets add"),
        asking.worker("sglang==0.5.16"),
    ):
        pass
