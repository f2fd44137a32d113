"""Concurrency of a route: a limit on its inferences in flight, and a queue for the rest."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import Field

from gateway.concurrency.call_queue import CallQueue, MakeError
from gateway.concurrency.limiter import ControlledDelay, Limiter
from gateway.concurrency.waiters import Share
from gateway.ir.calls import Call, InferRequest
from gateway.ir.errors import DeadlineExceeded, Overloaded
from gateway.policies.limits.deadline import RouteTimeout
from gateway.settings.fields import Duration
from gateway.settings.setting import Setting
from gateway.telemetry.call_path import queue_priority, queue_turn, record_queue_time

IN_FLIGHT: Final = Setting[int | None](
    key="in_flight",
    type=Annotated[int, Field(ge=1)] | None,
    default=None,
    help="Most inferences of a route at the same time. Default: no limit.",
    places=("policies",),
)
ROUTE_IN_FLIGHT: Final = Setting[int | None](
    key="in_flight",
    type=Annotated[int, Field(ge=1)] | None,
    default=None,
    help="Most inferences at the same time. Default: `policies.in_flight`.",
    places=("route",),
)
QUEUED: Final = Setting[int](
    key="queued",
    type=Annotated[int, Field(ge=0)],
    default=1024,
    help=(
        "Most inferences of a route that wait for `in_flight`. Further ones are refused as "
        "overloaded. Default: `1024`."
    ),
    places=("policies",),
)
QUEUE_WAIT: Final = Setting[float | None](
    key="queue_wait",
    type=Duration | None,
    default=None,
    help=(
        "Longest wait in that queue, after which an inference is refused as overloaded. "
        "Default: until its deadline: the client's or the route's timeout."
    ),
    places=("policies",),
)
QUEUE_TARGET: Final = Setting[float | None](
    key="queue_target",
    type=Duration | None,
    default=None,
    help=(
        "Longest wait in a queue that has not been empty for `queue_wait`, else 1 s. "
        "Inferences that wait longer are refused as overloaded, the oldest first (CoDel). "
        "Default: no limit."
    ),
    places=("policies",),
)

LATE: Final = "queue_target"
"""The limit of a call that a late queue drops."""

INTERVAL_S = 1.0
"""How long a queue may have callers before it is late, unless they wait for a shorter time."""


class ConcurrencyLimit(Limiter):
    """The inferences that a route may have in flight and queued.

    Models and clients take turns, unless inferences have priorities, which come first.

    On the path of every call, so `CallLimits` counts in `used` itself where nobody waits.

    Args:
        name: The name of the route, for errors.
        in_flight: Inferences at a time.
        queue: Inferences that may wait; 0 refuses at once.
        wait_s: How long one may wait; None for as long as its deadline allows.
        target_s: How long one may wait while the queue has not been empty for *wait_s*; None for no
            such rule.
    """

    def __init__(
        self,
        name: str,
        *,
        in_flight: int,
        queue: int = 1024,
        wait_s: float | None = None,
        target_s: float | None = None,
    ) -> None:
        if in_flight < 1:
            raise ValueError(f"route {name!r}: in_flight is {in_flight}; expected at least 1")
        interval_s = INTERVAL_S if wait_s is None else wait_s
        super().__init__(
            in_flight,
            queue=queue,
            group=queue_turn,
            priority=queue_priority,
            delay=None if target_s is None else ControlledDelay(target_s, interval_s),
        )
        self._name = name
        self._wait_s = wait_s

    async def wait_for_slot(
        self, call: Call[Any], request: InferRequest | None, limit: RouteTimeout, now: float
    ) -> None:
        """Wait for a slot among those in flight, and take it.

        Args:
            call: The call.
            request: Its inference, whose queue timeout bounds the wait.
            limit: The timeout of the route, which bounds the wait as well.
            now: The time, on the clock of the deadline of *call*.

        Raises:
            Overloaded: The queue is full, or no slot came free in time.
            DeadlineExceeded: No slot came free before the deadline.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        what = f"a slot of route {self._name!r}"
        bound = QueueBound(what, "policies.in_flight", call, request, limit, self._wait_s, now)
        await bound.acquire_in_route(
            self,
            full=lambda: Overloaded(
                f"route {self._name!r} is overloaded: {self.limit} requests in flight and "
                f"{self.queued} queued (policies.in_flight, policies.queued)",
                model=call.model,
                limit="queue",
            ),
            late=lambda: late_queue(self._name, call),
            why=lambda: f"{self.limit} inferences are in flight and {self.queued} wait",
        )
        seconds = loop.time() - begun
        record_queue_time(seconds)
        limit.note_wait(seconds)

    def on_stream_end(self, _error: BaseException | None) -> None:
        """Take a stream's slot back at its end."""
        self.release()


class QueueBound:
    """The wait of one call in a queue of its route, which the timeout of the route bounds, too.

    Args:
        what: What it waits for, for errors.
        key: The YAML key that allows more.
        call: The call.
        request: Its inference, which may have a queue timeout.
        timeout: The timeout that the route has.
        wait_s: The longest wait that is configured; None for none.
        now: The time, on the clock of the deadline of *call*.
    """

    __slots__ = ("_call", "_key", "_now", "_queue", "_timeout", "_wait_s", "_what")

    def __init__(
        self,
        what: str,
        key: str,
        call: Call[Any],
        request: InferRequest | None,
        timeout: RouteTimeout,
        wait_s: float | None,
        now: float,
    ) -> None:
        timeout_us = None if request is None else request.timeout_us
        left_s = timeout.queue_s(call, now)
        self._queue = CallQueue(
            what, call.model, timeout_us=timeout_us, longest_s=wait_s, left_s=left_s
        )
        self._what = what
        self._wait_s = wait_s
        self._key = key
        self._call = call
        self._timeout = timeout
        self._now = now

    async def acquire_in_route(
        self,
        limiter: Limiter,
        share: Share | None = None,
        *,
        full: MakeError,
        late: MakeError,
        why: Callable[[], str],
    ) -> None:
        """Acquire a slot of *limiter*.

        Args:
            limiter: The limiter of the route.
            share: The share of the client.
            full: Returns the error for a full queue.
            late: Returns the error for a queue that is late.
            why: Returns why no slot came free.
        """
        what, model = self._what[2:], self._call.model

        def too_long() -> Overloaded:
            text = f"no {what} within {self._wait_s:g} s: {why()} "
            keys = f"({self._key}, policies.queue_wait)"
            return Overloaded(text + keys, model=model, limit="queue_wait")

        def too_late() -> DeadlineExceeded:
            requested = self._call.context.deadline
            cut = self._timeout.cut(requested, self._now + (self._queue.seconds or 0.0))
            text = f"no {what} {cut or 'before the deadline'}: {why()} ({self._key})"
            return DeadlineExceeded(text, model=model, limit="queue")

        await self._queue.acquire(
            limiter, share, full=full, late=late, too_long=too_long, too_late=too_late
        )


def late_queue(route: str, call: Call[Any]) -> Overloaded:
    """Return the error for a call that waited for too long in a queue that is late."""
    return Overloaded(
        f"the queue of route {route!r} is late: it accepts no further call (policies.queue_target)",
        model=call.model,
        limit=LATE,
    )
