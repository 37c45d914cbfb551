"""Compile a kernel of a release for an H200, where no GPU is needed, and count its contractions.

Run as a script, in a process of its own: the tests' process interprets kernels.  Its argument is
the release; `RINGFOLD_WHEELS` says where its files are.  Prints {"fused": count, "unfused": count,
"forced": count, "kernels": names} as JSON: FMAs in the PTX of a launch as released, of one without
fusion, and of one without whose caller asks for it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

FILE = "gdn_replayssm_spec_decode.py"


def pretend_hopper() -> None:
    """Have Triton compile for an H200 that is not there."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    class Hopper:
        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

        def get_active_torch_device(self) -> None:
            return None

    driver.set_active(Hopper())


def contractions(module: Any, **options: object) -> int:
    """FMAs in the PTX of what a launch of the module's kernel compiles."""
    import torch

    compiled = module.wrapped.warmup(*[torch.float32] * 3, grid=(1,), **options)
    return int(compiled.asm["ptx"].count("fma.rn.f32"))


def main(release: str) -> dict[str, Any]:
    """All three, of kernels that are wrapped by heuristics as some releases' are."""
    from ringfold.fuzz.targets.fusion import without_fusion
    from ringfold.fuzz.targets.sglang_release import Release

    pretend_hopper()
    fused = Release(release, "cuda").module(FILE)
    unfused = Release(release, "cuda", fusion=False).module(FILE)
    return {
        "fused": contractions(fused),
        "unfused": contractions(unfused),
        "forced": contractions(unfused, enable_fp_fusion=True),
        "kernels": sorted(without_fusion(unfused)),
    }


if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)
    json.dump(main(sys.argv[1]), sys.stdout)
