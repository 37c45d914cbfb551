"""Request pools, built by the release's own configurator with replay and without."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

from .release import Loose, srt, standins

REQUESTS: Final = 4
FLAGS: Final = (
    "enable_gdn_replayssm_spec",
    "enable_linear_replayssm_spec",
    "enable_linear_replayssm",
)


def build(arguments: Any, model_config: Any) -> tuple[Any, Any]:
    """The pool of these arguments, by the release's own configurator, and one without replay."""
    configurator = srt("mem_cache.kv_cache_configurator")
    architecture = srt("configs.hybrid_arch")
    maker = object.__new__(configurator.KVCacheConfigurator)
    hybrid = architecture.mambaish_config(model_config)
    facts = {
        "server_args": arguments,
        "model_config": model_config,
        "device": "cpu",
        "is_draft_worker": False,
        "mambaish_config": hybrid,
        "layer_info": Loose(start_layer=0, end_layer=hybrid.num_hidden_layers),
    }
    for name in ("hybrid_gdn_config", "hybrid_kda_config"):
        if hasattr(architecture, name):
            facts[name] = getattr(architecture, name)(model_config)
    for name, value in facts.items():
        object.__setattr__(maker, name, value)
    with standins.OnCpu(), _recorded() as calls:
        pool = maker._build_req_to_token_pool(max_num_reqs=REQUESTS)
        off = {n: False if n in FLAGS else value for n, value in calls[-1].items()}
        return pool, type(pool)(**off)


@contextlib.contextmanager
def _recorded() -> Iterator[list[dict[str, Any]]]:
    """What a hybrid pool was built with."""
    pools = srt("mem_cache.memory_pool")
    decode = srt("disaggregation.decode")
    calls: list[dict[str, Any]] = []
    classes = [pools.HybridReqToTokenPool, decode.HybridMambaDecodeReqToTokenPool]
    originals = [cls.__init__ for cls in classes]

    def recording(original: Any) -> Any:
        def init(self: Any, *args: Any, **options: Any) -> None:
            if not args:
                calls.append(options)
            original(self, *args, **options)

        return init

    for cls, original in zip(classes, originals, strict=True):
        cls.__init__ = recording(original)
    try:
        yield calls
    finally:
        for cls, original in zip(classes, originals, strict=True):
            cls.__init__ = original


def described(pool: Any) -> dict[str, Any]:
    """Which replay buffers exist, how they are keyed, and whether snapshots do."""
    mamba = pool.mamba_pool
    cache = mamba.mamba_cache
    names = ("d", "k", "g", "rawv", "rawk", "beta")
    rings = {name: getattr(cache, f"replayssm_{name}", None) for name in names}
    cursors = ("write_pos", "spec_write_pos", "cache_base", "is_flush")
    return {
        "rings": {
            name: [list(ring.shape), str(ring.dtype)]
            for name, ring in rings.items()
            if ring is not None
        },
        "cursors": {
            name: list(getattr(mamba, f"replayssm_{name}").shape)
            for name in cursors
            if getattr(mamba, f"replayssm_{name}", None) is not None
        },
        "snapshots": getattr(cache, "intermediate_ssm", None) is not None,
        "checkpoint": str(cache.temporal.dtype),
        "slots": cache.temporal.shape[1],
        "extra_buffer": bool(getattr(pool, "enable_mamba_extra_buffer", False)),
    }
