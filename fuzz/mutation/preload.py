"""Imported by the server that mutants are forked from: what takes seconds to import.

No kernel of a target is among it, so that each mutant loads its own, with the fault in it. The
mode of Triton is that of the environment.
"""

import ringfold.fuzz.mutation.worker
from ringfold.fuzz.targets import interpreter

try:
    import torch
    import triton  # noqa: F401 - both are what targets import first
except ImportError:
    pass  # the simulator needs neither
else:
    torch.set_num_threads(1)
    if interpreter.interpreted():
        interpreter.enable()

__all__ = ["ringfold"]
