"""ConfirmUnload: delays the reply to an unload until the model is unloaded.

Servers reply immediately and unload the model later; until then the model is still ready.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import structlog

from gateway.ir.calls import (
    Call,
    ModelReadyRequest,
    ModelUnloadRequest,
    RepositoryIndexRequest,
)
from gateway.ir.errors import GatewayError
from gateway.ir.metadata import ModelState
from gateway.service import ReplyCoroutine, Service

log = structlog.get_logger(__name__)

R = TypeVar("R")


class ConfirmUnload:
    """Checks after an unload whether the model is ready or unloading, until it is neither.

    Args:
        inner: One server.
        timeout_s: Time after which the unload succeeds although the model is still ready, because
            the server accepted the request. It never exceeds the caller's deadline.
        interval_s: Time between two checks.
        sleep: Waits.
        clock: Monotonic seconds, that of deadlines.
    """

    def __init__(
        self,
        inner: Service,
        *,
        timeout_s: float = 10.0,
        interval_s: float = 0.05,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._timeout_s = timeout_s
        self._interval_s = interval_s
        self._sleep = sleep
        self._clock = clock

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner*; after an unload, wait until the model is not ready."""
        if isinstance(call, ModelUnloadRequest):
            # The reply to a ModelUnloadRequest is None, which is its R.
            return cast("ReplyCoroutine[R]", self._unload(call))
        return self._inner(call)

    async def _unload(self, call: ModelUnloadRequest) -> None:
        await self._inner(call)
        until = self._clock() + self._timeout_s
        deadline = call.context.deadline
        if deadline is not None:
            until = min(until, deadline - 2 * self._interval_s)
        check = ModelReadyRequest(model=call.model, context=call.with_context(origin=None).context)
        while self._clock() < until:
            if not await self._is_ready(check) and not await self._is_unloading(check):
                return
            await self._sleep(self._interval_s)
        log.warning("model still ready after it was unloaded", model=str(call.model))

    async def _is_ready(self, check: ModelReadyRequest) -> bool:
        try:
            return await self._inner(check)
        except GatewayError:  # some servers reply that the model does not exist
            return False

    async def _is_unloading(self, check: ModelReadyRequest) -> bool:
        """Return whether the index still lists a version of the model as being unloaded."""
        model = check.model
        try:
            entries = await self._inner(RepositoryIndexRequest(context=check.context))
        except GatewayError:
            return False
        return model is not None and any(
            entry.name == model.name and entry.state is ModelState.UNLOADING for entry in entries
        )
