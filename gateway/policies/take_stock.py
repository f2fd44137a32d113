"""TakeStock: reports each inference to the counter of callers."""

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from gateway.ir.calls import Call, InferRequest, inference_of
from gateway.ir.streams import on_stream_end
from gateway.service import Service
from gateway.telemetry.call_log import NO_FAILURES, code_of

R = TypeVar("R")

CountCall = Callable[[InferRequest, float, bool], None]
"""Called with each inference, its duration in seconds, and whether it failed."""


class TakeStock:
    """Reports each inference when its reply is complete.

    Args:
        inner: The service to call.
        count: Called for each inference.
        clock: Monotonic seconds.
    """

    def __init__(
        self, inner: Service, count: CountCall, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._inner = inner
        self._count = count
        self._clock = clock

    async def __call__(self, call: Call[R], /) -> R:
        """Call *inner*, and report an inference."""
        request = inference_of(call)
        if request is None:
            return await self._inner(call)
        start = self._clock()
        try:
            reply = await self._inner(call)
        except BaseException as error:
            self._end(request, start, error)
            raise
        if request is call:
            self._count(request, self._clock() - start, False)
            return reply
        return on_stream_end(call, reply, partial(self._end, request, start))

    def _end(self, request: InferRequest, start: float, error: BaseException | None) -> None:
        failed = error is not None and code_of(error) not in NO_FAILURES
        self._count(request, self._clock() - start, failed)
