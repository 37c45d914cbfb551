"""The release's streaming sessions: who finishes a turn keeps row and slots for the next one.

Whether a request is of a session, a server knows from its first token on; a trace shows it by a
prefill behind a verify. So a request joins a session of its own when it finishes its first turn,
and stays in it until it leaves, unless it does what the requests of no session do.
"""

from __future__ import annotations

from typing import Any

from ringfold.fuzz.targets.standins import Loose


def join(cache: Any, request: Any) -> None:
    """Have a running request be of a session, if it is of none."""
    if request.session is None:
        name = f"of request {request.rid}"
        request.session = Loose(session_id=name, streaming=True, finish_req=lambda *given: None)
        if hasattr(cache.session, "take"):  # else the session takes what it keeps at the end
            cache.session.take(request)


def close(cache: Any, session: Any) -> None:
    """Give back what the session keeps between turns."""
    cache.release_session(session.session_id)


def leave(cache: Any, request: Any) -> None:
    """Have a request be of no session, as one that is aborted: what it has is its own again."""
    if request.session is not None:
        cache.session.slots.pop(request.session.session_id, None)
        request.session = None
