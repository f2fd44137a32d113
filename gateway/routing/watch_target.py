"""WatchTarget: reports how each inference of one target of a route ended."""

import time
from asyncio import CancelledError
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from gateway.ir.bodies.streams import on_stream_end
from gateway.ir.calls import Call, inference_of
from gateway.ir.errors import ErrorCode, GatewayError
from gateway.service import Service

R = TypeVar("R")

ReportEnd = Callable[[ErrorCode | None], None]
"""Called with the error of an inference; None if it succeeded."""


class WatchTarget:
    """Reports each inference when its reply is complete.

    A call that is cancelled at its deadline counts as one that exceeded it. Other cancelled calls
    are reported as such: their clients left.

    Args:
        inner: The service of the target.
        report: Called for each inference.
        timeout_s: Time after which layers outside of this one give up a call; None for no such
            time.
        clock: Monotonic seconds, as of deadlines.
    """

    def __init__(
        self,
        inner: Service,
        report: ReportEnd,
        timeout_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._report = report
        self._timeout_s = timeout_s
        self._clock = clock

    async def __call__(self, call: Call[R], /) -> R:
        """Call *inner*, and report the end of an inference."""
        request = inference_of(call)
        if request is None:
            return await self._inner(call)
        start = self._clock()
        try:
            reply = await self._inner(call)
        except BaseException as error:
            self._report(self._code(call, start, error))
            raise
        if request is call:
            self._report(None)
            return reply
        return on_stream_end(call, reply, partial(self._on_stream_end, call, start))

    def _on_stream_end(self, call: Call[Any], start: float, error: BaseException | None) -> None:
        self._report(None if error is None else self._code(call, start, error))

    def _code(self, call: Call[Any], start: float, error: BaseException) -> ErrorCode:
        if isinstance(error, GatewayError):
            return error.code
        if not isinstance(error, CancelledError):
            return ErrorCode.INTERNAL
        now, deadline = self._clock(), call.context.deadline
        is_late = deadline is not None and now >= deadline
        is_late |= self._timeout_s is not None and now - start >= self._timeout_s
        return ErrorCode.DEADLINE_EXCEEDED if is_late else ErrorCode.CANCELLED
