"""Concurrency of a route: a limit on its inferences in flight, and a queue for the rest."""

import asyncio
from typing import Any

from gateway.concurrency.limiter import ControlledDelay, Limiter, LimiterFull, QueueLate
from gateway.ir.calls import Call, InferRequest
from gateway.ir.errors import DeadlineExceeded, Overloaded, QueueTimeout
from gateway.policies.limits.deadline import RouteTimeout
from gateway.telemetry.call_path import queue_priority, queue_turn, record_queue_time

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
        bound = QueueBound(call, request, limit, self._wait_s, now)
        try:
            await self.acquire(timeout_s=bound.seconds)
        except LimiterFull:
            raise Overloaded(
                f"route {self._name!r} is overloaded: {self.limit} requests in flight and "
                f"{self.queued} queued (policies.in_flight, policies.queued)",
                model=call.model,
                limit="queue",
            ) from None
        except QueueLate:
            raise late_queue(self._name, call) from None
        except TimeoutError:
            raise bound.error(
                f"a slot of route {self._name!r}",
                f"{self.limit} inferences are in flight and {self.queued} wait",
                "policies.in_flight",
            ) from None
        seconds = loop.time() - begun
        record_queue_time(seconds)
        limit.note_wait(seconds)

    def on_stream_end(self, _error: BaseException | None) -> None:
        """Take a stream's slot back at its end."""
        self.release()


class QueueBound:
    """How long one call waits in a queue of its route: the shortest of all its times.

    Args:
        call: The call.
        request: Its inference, which may have a queue timeout.
        timeout: The timeout that the route has.
        wait_s: The longest wait that is configured; None for none.
        now: The time, on the clock of the deadline of *call*.

    Attributes:
        seconds: How long; None for no limit.
    """

    def __init__(
        self,
        call: Call[Any],
        request: InferRequest | None,
        timeout: RouteTimeout,
        wait_s: float | None,
        now: float,
    ) -> None:
        self._call = call
        self._timeout = timeout
        self._now = now
        self._wait_s = wait_s
        self._timeout_us = None if request is None else request.timeout_us
        left_s = timeout.queue_s(call, now)
        bounds = [left_s] if wait_s is None else [left_s, wait_s]
        if self._timeout_us is not None:
            bounds.append(self._timeout_us / 1e6)
        least_s = min(bounds)
        self.seconds = None if least_s == float("inf") else least_s

    def error(self, what: str, why: str, key: str) -> Overloaded | DeadlineExceeded:
        """Return the error of a call that has waited in vain.

        Args:
            what: What it waited for.
            why: Why there was none.
            key: The YAML key that allows more.
        """
        model, timeout_us, wait_s = self._call.model, self._timeout_us, self._wait_s
        if timeout_us is not None and timeout_us / 1e6 == self.seconds:
            return QueueTimeout.after(timeout_us, what, model)
        if wait_s is not None and wait_s == self.seconds:
            text = f"no {what[2:]} within {wait_s:g} s: {why} ({key}, policies.queue_wait)"
            return Overloaded(text, model=model, limit="queue_wait")
        requested = self._call.context.deadline
        cut = self._timeout.cut(requested, self._now + (self.seconds or 0.0))
        text = f"no {what[2:]} {cut or 'before the deadline'}: {why} ({key})"
        return DeadlineExceeded(text, model=model, limit="queue")


def late_queue(route: str, call: Call[Any]) -> Overloaded:
    """Return the error for a call that waited for too long in a queue that is late."""
    return Overloaded(
        f"the queue of route {route!r} is late: it accepts no further call (policies.queue_target)",
        model=call.model,
        limit="queue_target",
    )
