"""The timeout of a route, the deadlines of streams, and the error of an expired deadline.

`policy.py` sets the deadline of a call; transports read the one that a client sends.
"""

import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

from gateway.api.layer import LayerContext
from gateway.concurrency.limiter import WAITED_S, waited_s
from gateway.concurrency.timeouts import Timeout
from gateway.ir.bodies.streams import close_stream
from gateway.ir.calls import MODEL_CONTROL_CALLS, Call, InferResponse
from gateway.ir.errors import DeadlineExceeded
from gateway.settings.fields import Duration
from gateway.settings.setting import Setting

TIMEOUT: Final = Setting[float](
    key="timeout",
    type=Duration,
    default=60.0,
    help=(
        "Longest time until the response, or the first one of a stream, queues included. A client "
        "may ask for less. `0s` sets no limit. Loads and unloads of models have none. Default: "
        "`60s`."
    ),
    places=("policies",),
)
ROUTE_TIMEOUT: Final = Setting[float | None](
    key="timeout",
    type=Duration | None,
    default=None,
    help=("Longest time until the response. Default: `policies.timeout`."),
    places=("route",),
)
STREAM_IDLE: Final = Setting[float](
    key="stream_idle",
    type=Duration,
    default=300.0,
    help="Longest time between two responses of a stream. `0s`: no limit. Default: `5m`.",
    places=("policies",),
)


class RouteTimeout:
    """How long a call of a route may take, from its arrival to its reply.

    Time in queues of the gateway counts. Loads and unloads of models have no such timeout: their
    duration says nothing about the server.

    Args:
        seconds: The timeout; None for none.
        key: Its key in YAML, for errors.
    """

    __slots__ = ("key", "seconds")

    def __init__(self, seconds: float | None = None, key: str = "timeout") -> None:
        self.seconds = seconds
        self.key = key

    def queue_s(self, call: Call[Any], now: float) -> float:
        """Return how long a call may still wait in a queue; infinity for no limit."""
        deadline = call.context.deadline
        left_s = math.inf if deadline is None else deadline - now
        if self.seconds is not None and type(call) not in MODEL_CONTROL_CALLS:
            left_s = min(left_s, self.seconds - waited_s())
        return max(0.0, left_s)

    def note_wait(self, seconds: float) -> None:
        """Count time that the current call spent in a queue."""
        WAITED_S.set(waited_s() + seconds)

    def cut(self, requested: float | None, end: float | None) -> str:
        """Return what to say if this timeout ended a call at *end*; "" if its caller's did."""
        if self.seconds is None or end is None or (requested is not None and requested <= end):
            return ""
        longer = "" if requested is None else ", which is shorter than the time of the client"
        return f"within {self.seconds:g} s ({self.key}{longer})"


def route_timeout(route: str, own: float | None, default: float) -> RouteTimeout:
    """Return the timeout of a route, and the key that says so.

    Args:
        route: Its name.
        own: Its own timeout; 0 for no limit, None for the default.
        default: The timeout of routes without one of their own; 0 for no limit.
    """
    if own is None:
        return RouteTimeout(default or None, "policies.timeout")
    return RouteTimeout(own or None, f"timeout of route {route!r}")


def timeout_at(at: LayerContext) -> RouteTimeout:
    """Return the timeout of the route whose layers are built."""
    return route_timeout(at.name, at.setting(ROUTE_TIMEOUT), at.setting(TIMEOUT))


@dataclass(frozen=True, slots=True)
class StreamTimeouts:
    """The deadlines of a stream.

    Attributes:
        total: The caller's deadline, for the complete stream.
        first: The deadline of the first reply.
        idle_s: Maximum time between replies.
        cut: What to say if the first reply is late because of the route's timeout.
    """

    total: float | None
    first: float | None
    idle_s: float | None
    clock: Callable[[], float]
    cut: str = ""

    def remaining_s(self, *, first: bool) -> float | None:
        """Return the timeout for the next reply; None for no timeout."""
        now = self.clock()
        until = self.first
        if not first:
            until = None if self.idle_s is None else now + self.idle_s
        if self.total is not None:
            until = self.total if until is None else min(until, self.total)
        return None if until is None else until - now

    def reason(self, *, first: bool) -> str:
        """Return what to say about a reply that is late; "" if the caller's deadline has passed."""
        if self.total is not None and self.clock() >= self.total:
            return ""
        return self.cut if first else f"within {self.idle_s:g} s (policies.stream_idle)"


class StreamWithTimeouts:
    """A stream that raises DeadlineExceeded when one of its deadlines expires."""

    def __init__(
        self, call: Call[Any], items: AsyncIterator[InferResponse], times: StreamTimeouts
    ) -> None:
        self._call = call
        self._items = items
        self._times = times
        self._is_first = True

    def __aiter__(self) -> AsyncIterator[InferResponse]:
        return self

    async def __anext__(self) -> InferResponse:
        remaining_s = self._times.remaining_s(first=self._is_first)
        if remaining_s is None:
            item = await anext(self._items)
            self._is_first = False
            return item
        timeout = Timeout(remaining_s)
        try:
            with timeout:
                item = await anext(self._items)
        except TimeoutError:
            if not timeout.has_expired:
                raise
            await close_stream(self._items)
            cut = self._times.reason(first=self._is_first)
            raise deadline_error(self._call, further=not self._is_first, cut=cut) from None
        self._is_first = False
        return item

    async def aclose(self) -> None:
        """Close the underlying stream."""
        await close_stream(self._items)


def deadline_error(call: Call[Any], *, further: bool = False, cut: str = "") -> DeadlineExceeded:
    """Return the error of an expired deadline of *call*, or of a *further* reply to it.

    Args:
        call: The call.
        further: Whether it had a reply before.
        cut: What ended it; "" for the deadline of its caller.
    """
    source = "the gateway" if call.model is None else f"model {str(call.model)!r}"
    response = "further response" if further else "response"
    when = cut or "before the deadline"
    return DeadlineExceeded(f"no {response} from {source} {when}", model=call.model)
