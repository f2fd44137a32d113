"""CallQueue: waits for a slot of a limiter, and says why a call has got none."""

import math
from collections.abc import Callable
from typing import Any

from gateway.concurrency.limiter import Limiter, LimiterFull, QueueLate
from gateway.concurrency.waiters import Share
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError, QueueTimeout

MakeError = Callable[[], GatewayError]


class CallQueue:
    """The wait of one call for a slot, which the shortest of three times bounds.

    Args:
        what: What it waits for, for errors: "a slot of route 'm'".
        model: Its model, for errors; None for none.
        timeout_us: The queue timeout of the request, in microseconds; None for none.
        longest_s: How long the configuration lets calls wait.
        left_s: How long the deadline of the call lets it wait.

    Attributes:
        seconds: How long it waits at most; None for no limit.
    """

    __slots__ = ("_longest_s", "_model", "_timeout_us", "_what", "seconds")

    def __init__(
        self,
        what: str,
        model: ModelRef | None = None,
        *,
        timeout_us: int | None = None,
        longest_s: float | None = None,
        left_s: float = math.inf,
    ) -> None:
        self._what = what
        self._model = model
        self._timeout_us = timeout_us
        self._longest_s = math.inf if longest_s is None else longest_s
        queue_s = math.inf if timeout_us is None else timeout_us / 1e6
        least_s = min(queue_s, self._longest_s, left_s)
        self.seconds = None if least_s == math.inf else least_s

    async def acquire(
        self,
        limiter: Limiter,
        share: Share | None = None,
        *,
        full: MakeError,
        too_long: MakeError,
        too_late: MakeError | None = None,
        late: MakeError | None = None,
        want: object = None,
    ) -> Any:
        """Acquire a slot of *limiter*; return what it grants.

        Args:
            limiter: The limiter.
            share: The share of the client.
            full: Returns the error for a full queue.
            too_long: Returns the error for a call that has waited for as long as is configured.
            too_late: Returns the error for a call whose deadline is near; *too_long* by default.
            late: Returns the error for a queue that is late; *too_long* by default.
            want: A requirement for the slot, where slots differ.

        Raises:
            QueueTimeout: The queue timeout of the request has passed first.
            GatewayError: One of the other errors.
        """
        try:
            return await limiter.acquire(1, share, timeout_s=self.seconds, want=want)
        except LimiterFull:
            raise full() from None
        except QueueLate:
            raise too_long() if late is None else late() from None
        except TimeoutError:
            raise (self.expired() or self._in_vain(too_long, too_late)) from None

    def expired(self) -> QueueTimeout | None:
        """Return the error for a call whose own queue timeout is the shortest time, if it is."""
        timeout_us = self._timeout_us
        if timeout_us is None or timeout_us / 1e6 != self.seconds:
            return None
        return QueueTimeout.after(timeout_us, self._what, self._model)

    def _in_vain(self, too_long: MakeError, too_late: MakeError | None) -> GatewayError:
        if too_late is None or self._longest_s == self.seconds:
            return too_long()
        return too_late()
