"""The way a call took, noted by those who choose it and read by the one who reports it.

Router and balance know the names of route and target; the layer that reports the call stands
outside both. The note belongs to the task that answers the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec


class CallPath(msgspec.Struct):
    """Names of the route and target that a call took; "" while none is chosen.

    Attributes:
        queued_s: How long it waited for a place.
    """

    route: str = ""
    target: str = ""
    queued_s: float = 0.0


CALL_PATH: ContextVar[CallPath | None] = ContextVar("gateway_taken", default=None)


def record_route(name: str) -> None:
    """Note the route of the call in progress, when somebody wants to know."""
    taken = CALL_PATH.get()
    if taken is not None:
        taken.route = name


def record_target(name: str) -> None:
    """Note the target of the call in progress, when somebody wants to know."""
    taken = CALL_PATH.get()
    if taken is not None:
        taken.target = name


@contextmanager
def without_recording() -> Iterator[None]:
    """Note nothing of what is done within: it is the gateway's own, for the call in progress."""
    token = CALL_PATH.set(None)
    try:
        yield
    finally:
        CALL_PATH.reset(token)


def record_queue_time(seconds: float) -> None:
    """Note how long the call in progress has waited for a place, when somebody wants to know."""
    taken = CALL_PATH.get()
    if taken is not None:
        taken.queued_s += seconds
