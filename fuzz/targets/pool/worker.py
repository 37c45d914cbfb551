"""The worker's program: serve requests until the other end closes.

It runs in the environment of `targets.environments`, with one release on its path, and needs
nothing of ringfold but the files beside it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from typing import Any

from ringfold.fuzz.targets.pool.protocol import Message, receive, send

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve one release's pools."""
    from ringfold.fuzz.targets.pool.pools import Pools

    serve(Pools)


def serve(service: type[Any]) -> None:
    """Answer requests from standard input on standard output, one after the other.

    `service` has a method for each verb, called with a message's arrays and fields. It is made at
    the first request, so that what is wrong with it is an answer too. Whatever else is printed goes
    to standard error.
    """
    end_with_parent()
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serving: Any = None
    while (message := receive(requests)) is not None:
        try:
            serving = serving or service()
            reply = getattr(serving, message.verb)(*message.arrays, **message.fields)
            reply = reply or Message("done", {}, [])
        except Exception as error:  # noqa: BLE001 - whatever a release raises is an answer
            traceback.print_exc()
            reply = failed(error)
        send(replies, *reply)


def failed(error: Exception) -> Message:
    """What was raised, and the innermost line of it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    fields = {
        "kind": type(error).__name__,
        "text": str(error)[:1000],
        "where": f"{last.filename}:{last.lineno}",
    }
    return Message("failed", fields, [])


def end_with_parent() -> None:
    """Have the kernel kill this process when the one that started it is gone."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went in between
        os._exit(1)
