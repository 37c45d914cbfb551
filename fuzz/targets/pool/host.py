"""To host memory and back: what a retracted request's state is copied by."""

from __future__ import annotations

from typing import Any

from ringfold.fuzz.targets.standins import Loose


def allocator(pool: Any) -> Any:
    """What moves the keys and values of full attention: here, nothing but the mamba part."""
    from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool

    places = Loose(
        mamba_pool=pool,
        _mamba_translate=lambda indices: indices,
        full_kv_pool=Loose(get_cpu_copy=lambda *a, **k: None, load_cpu_copy=lambda *a, **k: None),
        cpu_copy_carries_mamba=getattr(HybridLinearKVPool, "cpu_copy_carries_mamba", None),
    )
    return Loose(
        get_kvcache=lambda: places,
        get_cpu_copy=lambda *a, **k: HybridLinearKVPool.get_cpu_copy(places, *a, **k),
        load_cpu_copy=lambda *a, **k: HybridLinearKVPool.load_cpu_copy(places, *a, **k),
    )
