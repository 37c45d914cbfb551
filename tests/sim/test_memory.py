"""Bytes are counted as the releases allocate them, and the published figures come out.

Two figures were measured by others: the snapshots of a 30-layer model with 48 running requests
(published as 11.48 GB) and its six rings. The rest is compared with products written out by hand
from the shapes in SGLang's `MambaPool`, and with its formula for the bytes of a ring. What the
releases' own pools allocate is compared in `tests/fuzz/test_memory_pools.py`.
"""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ringfold.sim.memory import (
    LAYOUTS,
    Account,
    Layout,
    Pool,
    accounts,
    pool_of,
    requests_that_fit,
    total,
)
from ringfold.sim.presets import PRESETS, ConfigError, Model, from_config, preset
from ringfold.sim.setup import Geometry, SetupError

MODEL = Model("published", 30, Geometry(16, 32, 128, 128))
# Every axis has a size of its own, so that no two shapes agree by accident.
SMALL = Model("small", 2, Geometry(3, 6, 5, 7), conv_width=4)


def found(pool: Pool, dialect: str, releases: str = "") -> Account:
    """The account of a dialect; of its first row unless `releases` says which."""
    return next(a for a in accounts(pool) if a.dialect == dialect and releases in a.releases)


def sizes(one: Account) -> dict[str, int]:
    """Bytes by buffer."""
    return {b.name: b.bytes for b in one.buffers}


class TestPublishedFigures:
    """30 layers, H=16, HV=32, K=V=128, 4 drafted tokens, 48 running requests, L=16, bfloat16."""

    pool = pool_of(MODEL, window=4, running=48, ring=16)

    def test_snapshots(self) -> None:
        """11.48 GiB: one state a drafted token, running requests and a padding row, float32."""
        assert found(self.pool, "snapshots").snapshots_bytes == 12_331_253_760

    def test_six_rings_a_slot(self) -> None:
        """11.37 MiB a state slot."""
        assert found(self.pool, "ring").rings_bytes_per_slot == 397_312 * 30

    def test_the_rings_of_0_5_16_are_kept_for_every_slot(self) -> None:
        """A larger prefix cache brings more rings, and no more of those keyed on requests."""
        wider = msgspec.structs.replace(self.pool, slots=144)

        assert found(wider, "ring").rings_bytes == 145 * 397_312 * 30
        assert found(wider, "compact").rings_bytes == found(self.pool, "compact").rings_bytes


class TestShapes:
    """Every buffer of a small pool, from the shapes in the releases' source."""

    pool = pool_of(SMALL, window=4, running=9, slots=20, ring=8, state_dtype="float32")
    layers, slots, requests = 2, 21, 10
    conv = 2 * 3 * 5 + 6 * 7

    def common(self) -> dict[str, int]:
        """What every speculative pool keeps."""
        return {
            "checkpoint": self.layers * self.slots * 6 * 7 * 5 * 4,
            "conv": self.layers * self.slots * self.conv * 3 * 2,
            # draft tokens + window - 1 columns, the window being conv_kernel - 1 inputs
            "conv_windows": self.layers * self.requests * self.conv * (4 + 3 - 1) * 2,
        }

    def test_snapshots(self) -> None:
        """One state a step of a request."""
        expected = self.common() | {"snapshots": self.layers * self.requests * 4 * 6 * 7 * 5 * 4}

        assert sizes(found(self.pool, "snapshots")) == expected

    def test_ring(self) -> None:
        """Six rings and three cursors a slot."""
        row = self.layers * self.slots
        expected = self.common() | {
            "d": row * 6 * 8 * 7 * 2,
            "k": row * 3 * 8 * 5 * 2,
            "g": row * 6 * 8 * 4,
            "rawv": row * 6 * 8 * 7 * 2,
            "rawk": row * 3 * 8 * 5 * 2,
            "beta": row * 6 * 8 * 4,
            "write_pos": self.slots * 4,
            "cache_base": self.slots * 4,
            "is_flush": self.slots,
        }

        assert sizes(found(self.pool, "ring")) == expected

    def test_fold_every_commit(self) -> None:
        """Raw inputs of one window a slot, and no cursors."""
        row = self.layers * self.slots
        expected = self.common() | {
            "rawv": row * 6 * 4 * 7 * 2,
            "rawk": row * 3 * 4 * 5 * 2,
            "g": row * 6 * 4 * 4,
            "beta": row * 6 * 4 * 4,
        }

        assert sizes(found(self.pool, "fold-every-commit")) == expected

    def test_compact(self) -> None:
        """Deltas and keys in two parts a request."""
        row = self.layers * self.requests
        expected = self.common() | {
            "d": row * 6 * 8 * 7 * 2,
            "d_low": row * 6 * 8 * 7 * 2,
            "k": row * 3 * 8 * 5 * 2,
            "k_low": row * 3 * 8 * 5 * 2,
            "g": row * 6 * 8 * 4,
            "write_pos": self.requests * 4,
            "cache_base": self.requests * 4,
            "is_flush": self.requests,
        }

        assert sizes(found(self.pool, "compact")) == expected

    def test_compact_keeps_no_low_part_of_a_float32_record(self) -> None:
        """There is nothing below float32 to keep."""
        pool = msgspec.structs.replace(self.pool, conv_dtype="float32")

        assert not [name for name in sizes(found(pool, "compact")) if name.endswith("_low")]

    def test_linear_cache(self) -> None:
        """A delta, a key and a gate for each token of a request's window, and no cursors."""
        row = self.layers * self.requests
        expected = self.common() | {
            "d": row * 6 * 4 * 7 * 2,
            "k": row * 3 * 4 * 5 * 2,
            "g": row * 6 * 4 * 4,
        }

        assert sizes(found(self.pool, "linear-cache")) == expected

    def test_decode_ring(self) -> None:
        """Records in the dtype of the state, one cursor, nothing that speculation needs."""
        pool = msgspec.structs.replace(self.pool, state_dtype="float16")
        row = self.layers * self.slots
        expected = {
            "checkpoint": row * 6 * 7 * 5 * 2,
            "conv": row * self.conv * 3 * 2,
            "d": row * 6 * 8 * 7 * 2,
            "k": row * 3 * 8 * 5 * 2,
            "g": row * 6 * 8 * 4,
            "write_pos": self.slots * 4,
        }

        assert sizes(found(pool, "decode-ring")) == expected

    def test_tensor_parallel_ranks_share_the_heads(self) -> None:
        """Of three ranks each keeps a third of everything but cursors."""
        third = pool_of(SMALL, window=4, running=9, slots=20, ring=8, tp=3)
        cursors = {"write_pos", "cache_base", "is_flush"}
        for whole, part in zip(accounts(self.pool), accounts(third), strict=True):
            for name, size in sizes(whole).items():
                assert sizes(part)[name] * (1 if name in cursors else 3) == size


class TestBudget:
    """What a release's own sizing charges (`_handle_max_mamba_cache`), in its words."""

    pool = pool_of(MODEL, window=4, running=48, slots=144, ring=16)
    per_request = 30 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)  # mamba_cache_per_req

    def test_0_5_16_charges_snapshots_that_the_ring_does_not_have_and_not_the_rings(self) -> None:
        """Its sizing never looks at the flag."""
        ring = found(self.pool, "ring")

        assert ring.rings_in_budget is False
        assert ring.budget_bytes == self.per_request * (144 + 48 * 4)
        assert ring.unbudgeted_bytes == ring.bytes - self.per_request * (144 + 48 * 4)

    def test_0_5_17_charges_a_ring_a_slot(self) -> None:
        """Padding slot included; what is left out are the convolution windows of the drafts."""
        fold = found(self.pool, "fold-every-commit")
        windows = sizes(fold)["conv_windows"]

        assert fold.rings_in_budget is True
        assert fold.budget_bytes == 145 * (self.per_request + fold.rings_bytes_per_slot)
        assert fold.unbudgeted_bytes == windows

    def test_0_5_20_charges_a_ring_a_request(self) -> None:
        """Likewise, for the running requests and a padding row."""
        compact = found(self.pool, "compact")

        assert compact.rings_in_budget is True
        assert compact.budget_bytes == 145 * self.per_request + 49 * compact.rings_bytes_per_request


class TestRequestsThatFit:
    """What freed memory buys."""

    @pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
    def test_one_more_would_not_fit(self, layout: Layout) -> None:
        """The count is the largest: it fits, and the next does not."""
        pool = pool_of(MODEL, window=4, running=48, slots=144, ring=16)
        budget = total(LAYOUTS[0], pool)
        running = requests_that_fit(layout, pool, budget)

        def taken(requests: int) -> int:
            return total(
                layout, msgspec.structs.replace(pool, running=requests, slots=3 * requests)
            )

        assert taken(running) <= budget < taken(running + 1)

    def test_snapshots_fit_as_often_as_they_did(self) -> None:
        """In its own bytes a layout runs its own requests."""
        pool = pool_of(MODEL, window=4, running=48, ring=16)

        assert found(pool, "snapshots").running_in_same_bytes == 48

    def test_nothing_fits_in_nothing(self) -> None:
        """Not even one request."""
        pool = pool_of(MODEL, window=4, running=48, ring=16)

        assert requests_that_fit(LAYOUTS[0], pool, 1000) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ring": 12}, "ring is 12, but must be a power of two of at least two windows, 2 \\* 4"),
        ({"ring": 4}, "use 8"),
        ({"ring": 2048}, "at most 1024"),
        ({"running": 0}, "running is 0, but must be in 1"),
        ({"slots": 8}, "slots is 8, but must be at least running = 9"),
        ({"window": 0}, "window is 0"),
        ({"state_dtype": "int8"}, "state dtype is 'int8', but must be one of float32"),
        ({"conv_dtype": "float64"}, "conv dtype is 'float64'"),
        ({"tp": 2}, "tp is 2, but must be a divisor of heads = 3 and value_heads = 6"),
    ],
    ids=str,
)
def test_an_illegal_pool_is_refused(changes: dict[str, Any], message: str) -> None:
    """The message names the value, the limit and the remedy."""
    chosen: dict[str, Any] = {"window": 4, "running": 9, "ring": 8}
    with pytest.raises(SetupError, match=message):
        pool_of(SMALL, **(chosen | changes))


CONFIG: dict[str, Any] = {
    "num_hidden_layers": 10,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}


def read(config: object) -> Model:
    """The model of a configuration."""
    return from_config(msgspec.json.encode(config), "config.json")


class TestConfig:
    """A model's `config.json`."""

    def test_geometry(self) -> None:
        """Layers 4 and 8 of ten attend to everything; the rest is GDN."""
        assert read(CONFIG) == Model("config.json", 8, Geometry(16, 32, 128, 64))

    def test_layer_types_are_counted(self) -> None:
        """They are the truth where they are given."""
        kinds = ["linear_attention", "full_attention", "linear_attention"]

        assert read(CONFIG | {"layer_types": kinds}).layers == 2

    def test_a_multimodal_model_is_nested(self) -> None:
        """Its language model lies under `text_config`."""
        nested = {"model_type": "qwen3_5", "text_config": CONFIG | {"mamba_ssm_dtype": "bfloat16"}}

        assert read(nested).state_dtype == "bfloat16"

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ([], "no JSON object"),
            ({"hidden_size": 4096}, "full_attention_interval is None, but must be an integer"),
            (CONFIG | {"linear_num_key_heads": "16"}, "linear_num_key_heads is '16'"),
            (CONFIG | {"linear_num_key_heads": True}, "linear_num_key_heads is True"),
            (CONFIG | {"full_attention_interval": 0}, "must be at least 1"),
            (CONFIG | {"layer_types": ["full_attention"]}, "layers is 0, but must be in 1"),
            (CONFIG | {"mamba_ssm_dtype": "int8"}, "state dtype is 'int8'"),
            (CONFIG | {"linear_num_value_heads": 33}, "a multiple of heads = 16"),
        ],
    )
    def test_one_that_is_none_is_refused(self, config: object, message: str) -> None:
        """The message names the file or the value, and the way out."""
        with pytest.raises(SetupError, match=message):
            read(config)

    def test_a_file_that_is_not_json_is_refused(self) -> None:
        """The same for a weights file passed by mistake."""
        with pytest.raises(ConfigError, match="not JSON"):
            from_config(b"\x80model", "model.bin")


def test_an_unknown_preset_is_refused() -> None:
    """The message lists those there are."""
    with pytest.raises(SetupError, match=r"must be one of qwen3-next-80b-a3b, .*--config"):
        preset("gpt-2")


def test_the_published_figures_are_those_of_a_preset() -> None:
    """The 30-layer model is Qwen3.5-35B-A3B: three of every four of 40 layers."""
    model = PRESETS["qwen3.5-35b-a3b"]

    assert (model.layers, model.geometry) == (MODEL.layers, MODEL.geometry)


def test_the_page_is_right() -> None:
    """The examples of `docs/memory.md` run, and print what it says."""
    page = Path(__file__).parents[2] / "docs" / "memory.md"

    assert doctest.testfile(str(page), module_relative=False).failed == 0
