"""Concurrency of a route: a limit on its inferences in flight, and a short queue for the rest."""

import asyncio
from typing import Any

from gateway.concurrency.limiter import ControlledDelay, Limiter, LimiterFull, QueueLate
from gateway.ir.calls import Call, InferRequest
from gateway.ir.errors import Overloaded, QueueTimeout
from gateway.telemetry.call_path import queue_group, queue_priority, record_queue_time


class ConcurrencyLimit(Limiter):
    """The inferences that a route may have in flight and queued.

    They are served in the order of their arrival, unless they have priorities.

    On the path of every call, so `CallLimits` counts in `used` itself where nobody waits.

    Args:
        name: Of the route, for errors.
        in_flight: Inferences at a time.
        queue: Inferences that may wait; 0 refuses at once.
        wait_s: How long one may wait.
        target_s: How long one may wait while the queue has not been empty for *wait_s*; None for no
            such rule.
        has_priorities: Whether inferences of a higher priority are served first.
    """

    def __init__(  # all by name but the first
        self,
        name: str,
        *,
        in_flight: int,
        queue: int = 256,
        wait_s: float = 0.1,
        target_s: float | None = None,
        has_priorities: bool = False,
    ) -> None:
        if in_flight < 1:
            raise ValueError(f"route {name!r}: in_flight is {in_flight}; expected at least 1")
        super().__init__(
            in_flight,
            queue=queue,
            group=queue_group if has_priorities else None,
            priority=queue_priority if has_priorities else None,
            delay=None if target_s is None else ControlledDelay(target_s, wait_s),
        )
        self._name = name
        self._wait_s = wait_s

    async def wait_for_slot(self, call: Call[Any], request: InferRequest | None = None) -> None:
        """Wait for a slot among those in flight, and take it.

        Args:
            call: For errors.
            request: The inference of *call*; its queue timeout bounds the wait.

        Raises:
            Overloaded: The queue is full, or no slot came free in time.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        wait_s, timeout_us = self._wait_s, None if request is None else request.timeout_us
        if timeout_us is not None:
            wait_s = min(wait_s, timeout_us / 1e6)
        try:
            await self.acquire(timeout_s=wait_s)
        except LimiterFull:
            raise Overloaded(
                f"route {self._name!r} is overloaded: {self.limit} requests in flight and "
                f"{self.queued} queued (policies.in_flight, policies.queued)",
                model=call.model,
                limit="queue",
            ) from None
        except QueueLate:
            raise Overloaded(
                f"the queue of route {self._name!r} is late: it accepts no further call",
                model=call.model,
                limit="queue_target",
            ) from None
        except TimeoutError:
            if timeout_us is not None and wait_s < self._wait_s:
                queue = f"a slot of route {self._name!r}"
                raise QueueTimeout.after(timeout_us, queue, call.model) from None
            raise Overloaded(
                f"route {self._name!r} had no free slot for another inference "
                f"within {self._wait_s} s",
                model=call.model,
                limit="queue_wait",
            ) from None
        record_queue_time(loop.time() - begun)

    def on_stream_end(self, _error: BaseException | None) -> None:
        """Take a stream's slot back at its end."""
        self.release()
