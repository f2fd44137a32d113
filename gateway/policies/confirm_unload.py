"""Unloaded: the answer to an unload comes when the model is gone.

Servers answer at once and unload in their own time; whoever asked would still find the model ready.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import structlog

from gateway.ir.calls import Call, ModelReadyRequest, ModelUnloadRequest
from gateway.ir.errors import GatewayError
from gateway.service import ReplyCoroutine, Service

log = structlog.get_logger(__name__)

R = TypeVar("R")


class ConfirmUnload:
    """Asks after an unload whether the model is ready, until it is not.

    Args:
        inner: One server.
        longest_s: A model that is ready for longer is answered for all the same: the server has
            taken the request. Nor is a caller's deadline missed for it.
        every_s: Between two questions.
        sleep: Waits.
        clock: Monotonic seconds, that of deadlines.
    """

    def __init__(
        self,
        inner: Service,
        *,
        longest_s: float = 10.0,
        every_s: float = 0.05,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._longest_s = longest_s
        self._every_s = every_s
        self._sleep = sleep
        self._clock = clock

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Answer *call*; an unload is answered once the model is not ready any more."""
        if isinstance(call, ModelUnloadRequest):
            # The reply to a ModelUnloadRequest is None, which is its R.
            return cast("ReplyCoroutine[R]", self._unload(call))
        return self._inner(call)

    async def _unload(self, call: ModelUnloadRequest) -> None:
        await self._inner(call)
        until = self._clock() + self._longest_s
        deadline = call.context.deadline
        if deadline is not None:
            until = min(until, deadline - 2 * self._every_s)
        question = ModelReadyRequest(
            model=call.model, context=call.with_context(origin=None).context
        )
        while self._clock() < until:
            try:
                if not await self._inner(question):
                    return
            except GatewayError:  # some servers know nothing of it any more
                return
            await self._sleep(self._every_s)
        log.warning("model still ready after it was unloaded", model=str(call.model))
