"""A worker without a release: it answers, raises, prints, hangs and dies when it is asked to."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.targets.pool.protocol import Message
from ringfold.fuzz.targets.pool.worker import serve


class StandIn:
    """A verb a thing that may happen to a worker."""

    def doubled(self, *arrays: NDArray[Any], **fields: Any) -> Message:
        """Twice of each array, and the fields as they came."""
        return Message("done", fields, [2 * array for array in arrays])

    def silent(self) -> None:
        """Nothing to say."""

    def raising(self) -> None:
        """What a release may raise."""
        raise AssertionError("the slot is taken")

    def printing(self) -> Message:
        """On every stream but that of the replies."""
        print("to standard output", flush=True)  # noqa: T201 - that is what is tested
        print("to standard error", file=sys.stderr, flush=True)  # noqa: T201
        os.write(1, b"past Python\n")
        return Message("done", {}, [np.arange(3.0)])

    def nonsense(self) -> Message:
        """Something that is no message, where replies go."""
        for handle in range(3, 32):
            try:
                os.write(handle, b"\xff" * 64)
            except OSError:
                continue
        return Message("done", {}, [])

    def hanging(self) -> None:
        """Never an answer."""
        print("about to hang", file=sys.stderr, flush=True)  # noqa: T201
        time.sleep(3600)

    def dying(self) -> None:
        """As after a fault in compiled code."""
        print("about to die", file=sys.stderr, flush=True)  # noqa: T201
        os.abort()

    def pid(self) -> Message:
        """Who it is."""
        return Message("done", {"pid": os.getpid()}, [])


if __name__ == "__main__":
    serve(StandIn)
