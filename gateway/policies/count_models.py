"""CountModels: counts inferences by the names that clients use, for other servers' metrics."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from gateway.ir.bodies.streams import on_stream_end
from gateway.ir.calls import Call, InferRequest, InferResponse, StreamInferRequest
from gateway.ir.context import ModelRef, with_version
from gateway.ir.errors import ErrorCode, GatewayError
from gateway.service import ReplyCoroutine, Service
from gateway.telemetry.call_path import CallPath, current_path
from gateway.telemetry.usage.model_counts import ModelCounts

R = TypeVar("R")

_INFERENCES: Final = (InferRequest, StreamInferRequest)


class CountModels:
    """Counts the inferences of clients, and those that are in flight.

    Args:
        inner: The service to call.
        counts: The counts of the process.
        clock: High-resolution seconds.
    """

    def __init__(
        self,
        inner: Service,
        counts: ModelCounts,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._inner = inner
        self._counts = counts
        self._clock = clock

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Handle *call*."""
        return self._count(call) if type(call) in _INFERENCES else self._inner(call)

    async def _count(self, call: Call[R]) -> R:
        start = self._clock()
        model, path = call.model or ModelRef(""), current_path()
        self._counts.arrived[model.name] += 1
        try:
            reply = await self._inner(call)
        except BaseException as error:
            self._on_end(model, path, start, error)
            raise
        if isinstance(reply, InferResponse):
            model = with_version(model, reply.model)
        return on_stream_end(call, reply, partial(self._on_end, model, path, start))

    def _on_end(
        self, model: ModelRef, path: CallPath | None, start: float, error: BaseException | None
    ) -> None:
        counts = self._counts
        left = counts.arrived[model.name] - 1
        if left > 0:
            counts.arrived[model.name] = left
        else:
            del counts.arrived[model.name]
        code = None if error is None else _code_of(error)
        if isinstance(error, GatewayError):
            model = with_version(model, error.model)
        target, queued_s = ("", 0.0) if path is None else (path.target, path.queued_s)
        counts.ended(model, target, code, self._clock() - start, queued_s)


def _code_of(error: BaseException) -> ErrorCode:
    if isinstance(error, GatewayError):
        return error.code
    is_left = isinstance(error, asyncio.CancelledError | GeneratorExit)
    return ErrorCode.CANCELLED if is_left else ErrorCode.INTERNAL
