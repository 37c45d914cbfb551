"""Public models with Gated DeltaNet layers: what of them decides how much memory a pool takes.

The facts are those of each model's `config.json`: the number of linear-attention layers, the heads
(`linear_num_key_heads`, `linear_num_value_heads`), their widths, and the convolution's width
(`linear_conv_kernel_dim`). `from_config` reads them out of any such file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ringfold.sim.setup import LAYERS_MAX, Geometry, SetupError, require

CONV_WIDTH_MAX: Final = 16
STATE_DTYPES: Final = ("float32", "bfloat16", "float16")


class ConfigError(SetupError):
    """A `config.json` that describes no Gated DeltaNet model."""


class Model(msgspec.Struct, frozen=True):
    """The GDN part of a model; a convolution of width W keeps W - 1 past inputs of each channel."""

    name: str
    layers: int
    geometry: Geometry
    conv_width: int = 4
    state_dtype: str = "float32"

    def __post_init__(self) -> None:
        for what, limit in (("layers", LAYERS_MAX), ("conv_width", CONV_WIDTH_MAX)):
            low = 2 if what == "conv_width" else 1
            value = getattr(self, what)
            require(
                low <= value <= limit,
                what,
                value,
                f"in {low}..{limit}",
                f"count GDN layers alone and choose {what} <= {limit}",
            )
        require(
            self.state_dtype in STATE_DTYPES,
            "state dtype",
            self.state_dtype,
            f"one of {', '.join(STATE_DTYPES)}",
            "name a dtype that pools keep states in",
        )


def _of(name: str, all_layers: int, value_heads: int) -> Model:
    """Of every four layers three are GDN; 16 key heads; heads and keys 128 wide."""
    return Model(name, all_layers * 3 // 4, Geometry(16, value_heads, 128, 128))


# Number of layers and of value heads, from "Model Overview" of the models' cards at
# huggingface.co/Qwen ("Number of Layers", "Hidden Layout: n x (3 x (Gated DeltaNet ...",
# "Number of Linear Attention Heads: ... for V and 16 for QK", "Head Dimension: 128"), read in
# copies of the cards; that of the 397B model from its config.json as quoted in public code. The
# convolution's width (linear_conv_kernel_dim 4) and the state's dtype (mamba_ssm_dtype float32)
# are the same in every configuration seen; Qwen3-Next's agree with the defaults of
# transformers.Qwen3NextConfig.
PRESETS: Final[Mapping[str, Model]] = {
    model.name: model
    for model in (
        _of("qwen3-next-80b-a3b", 48, 32),
        _of("qwen3.5-4b", 32, 32),
        _of("qwen3.5-27b", 64, 48),
        _of("qwen3.5-35b-a3b", 40, 32),
        _of("qwen3.5-397b-a17b", 60, 64),
        _of("qwen3.6-35b-a3b", 40, 32),
    )
}


def preset(name: str) -> Model:
    """The preset of this name; SetupError, listing them, if there is none."""
    if name not in PRESETS:
        raise SetupError(
            f"preset is {name!r}, but must be one of {', '.join(PRESETS)}: "
            "for another model pass its config.json with --config"
        )
    return PRESETS[name]


def from_config(text: bytes, name: str) -> Model:
    """The GDN part of the model that a `config.json` describes.

    Multimodal models keep it under `text_config`. GDN layers are those that `layer_types` calls
    "linear_attention", or else all but every `full_attention_interval`-th of `num_hidden_layers`.

    Raises:
        ConfigError: `text` is no JSON object, or a value is missing or no integer.
        SetupError: a value is there and out of range.
    """
    try:
        config = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{name}: not JSON ({error}): pass a model's config.json") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{name}: holds no JSON object: pass a model's config.json")
    nested = config.get("text_config")
    config = nested if isinstance(nested, dict) else config

    def integer(key: str) -> int:
        value = config.get(key)
        if type(value) is not int:
            raise ConfigError(
                f"{name}: {key} is {value!r}, but must be an integer: this must be the config.json "
                "of a model with Gated DeltaNet layers, or give --layers, --heads, --value-heads, "
                "--k and --v instead"
            )
        return value

    return Model(
        name,
        _linear_layers(config, name, integer),
        Geometry(
            integer("linear_num_key_heads"),
            integer("linear_num_value_heads"),
            integer("linear_key_head_dim"),
            integer("linear_value_head_dim"),
        ),
        integer("linear_conv_kernel_dim"),
        config.get("mamba_ssm_dtype") or "float32",
    )


def _linear_layers(config: Mapping[str, Any], name: str, integer: Any) -> int:
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        return kinds.count("linear_attention")
    every = integer("full_attention_interval")
    if every < 1:
        raise ConfigError(f"{name}: full_attention_interval is {every}, but must be at least 1")
    layers = integer("num_hidden_layers")
    return int(layers - layers // every)
