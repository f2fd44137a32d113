"""The path of a call: its route and target, for the layer that logs and counts the call.

That layer is outside of the router and the balancer, which record the names. The record belongs to
the task that handles the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec


class CallPath(msgspec.Struct):
    """Names of the route and target of a call; "" before they are chosen.

    Attributes:
        queued_s: Time in the queue of a concurrency limit.
    """

    route: str = ""
    target: str = ""
    queued_s: float = 0.0


CALL_PATH: ContextVar[CallPath | None] = ContextVar("gateway_call_path", default=None)


def record_route(name: str) -> None:
    """Record the route of the current call, if it has a record."""
    path = CALL_PATH.get()
    if path is not None:
        path.route = name


def current_route() -> str:
    """Return the route of the current call; "" if it has no record."""
    path = CALL_PATH.get()
    return "" if path is None else path.route


def record_target(name: str) -> None:
    """Record the target of the current call, if it has a record."""
    path = CALL_PATH.get()
    if path is not None:
        path.target = name


@contextmanager
def without_recording() -> Iterator[None]:
    """Record nothing inside this context, for calls that the gateway makes itself."""
    token = CALL_PATH.set(None)
    try:
        yield
    finally:
        CALL_PATH.reset(token)


def record_queue_time(seconds: float) -> None:
    """Add time that the current call spent in a queue, if it has a record."""
    path = CALL_PATH.get()
    if path is not None:
        path.queued_s += seconds
