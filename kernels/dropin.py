"""SGLang 0.5.16's three functions for the ring, by the names under which it imports them.

In SGLang, `sglang.kernels.ops.attention.fla.gdn_replayssm_spec_decode` is the module to replace.
"""

from ringfold.kernels.cursors import commit_gdn_replayssm_spec, reset_gdn_replayssm_spec_cursors
from ringfold.kernels.ring import gdn_replayssm_spec_decode

__all__ = [
    "commit_gdn_replayssm_spec",
    "gdn_replayssm_spec_decode",
    "reset_gdn_replayssm_spec_cursors",
]
