"""UsageStatistics: counts the use of models, and replies to ModelStatisticsRequest.

It is outside of the router, so that it counts the names that callers use.
"""

import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, TypeVar, cast

from gateway.concurrency.slices import in_slices
from gateway.ir.bodies.streams import MappedStream, map_stream, on_stream_end
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelStatisticsRequest,
    RepositoryIndexRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef, with_version
from gateway.ir.errors import GatewayError, NotFound, Unsupported
from gateway.ir.metadata import ModelState
from gateway.ir.statistics import ModelStatistics
from gateway.service import ReplyCoroutine, Service
from gateway.telemetry.call_path import CALL_PATH, CallPath
from gateway.telemetry.usage.model_usage import Usage

R = TypeVar("R")

_INFERENCES = (InferRequest, StreamInferRequest)


class UsageStatistics:
    """Counts inferences; provides statistics for the gateway and for targets without statistics.

    Args:
        inner: The service to call.
        usage: The counts, which all listeners share.
        is_counting: Whether anybody reads the counts of an inference that begins now. Counting
            costs 9 us for each, the check less than 1 us.
        clock: High-resolution seconds.
    """

    def __init__(
        self,
        inner: Service,
        usage: Usage,
        *,
        is_counting: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._inner = inner
        self._usage = usage
        self._is_counting = is_counting
        self._clock = clock

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Handle *call*.

        Raises:
            ModelNotFound: The model of a statistics call is not served.
        """
        if isinstance(call, ModelStatisticsRequest):
            # A ModelStatisticsRequest's R is a tuple of statistics.
            return cast("ReplyCoroutine[R]", self._statistics(call))
        if type(call) in _INFERENCES and self._is_counting():
            return self._count(call)
        return self._inner(call)

    async def _count(self, call: Call[R]) -> R:
        path = CALL_PATH.get() or CallPath()
        start = self._clock()
        counted = _CountedModel(call.model or ModelRef(""))
        end = partial(self._on_end, counted, path, start)
        try:
            reply = await self._inner(call)
        except GatewayError as error:
            end(error)
            raise
        if isinstance(reply, InferResponse):
            counted.note(reply.model)
        return on_stream_end(call, map_stream(call, reply, counted.noted), end)

    def _on_end(
        self, counted: "_CountedModel", path: CallPath, start: float, error: BaseException | None
    ) -> None:
        if error is not None:
            if not isinstance(error, GatewayError) or isinstance(error, NotFound):
                return
            counted.note(error.model)
        model = counted.model
        seconds = self._clock() - start
        self._usage.record_call(model, ok=error is None, seconds=seconds, queued_s=path.queued_s)

    async def _statistics(self, call: ModelStatisticsRequest) -> tuple[ModelStatistics, ...]:
        if call.own:
            return await self._own(call)
        try:
            found = await self._inner(call)
        except Unsupported:
            return await self._own(call)
        if call.model is not None:
            return found
        # Add models whose targets have no statistics, such as those of the gateway itself.
        names = {one.name for one in found}
        return (*found, *(one for one in await self._own(call) if one.name not in names))

    async def _own(self, call: ModelStatisticsRequest) -> tuple[ModelStatistics, ...]:
        """Return the gateway's statistics, including those of unused versions."""
        used = [each async for each in in_slices(self._usage.each_of(call.model))]
        keys = {(one.name, one.version) for one in used}
        unused = [
            ModelStatistics(name=model.name, version=model.version)
            async for model in in_slices(await self._served(call))
            if (model.name, model.version) not in keys
        ]
        return (*used, *unused)

    async def _served(self, call: ModelStatisticsRequest) -> list[ModelRef]:
        model = call.model
        context = call.with_context(origin=None).context
        if model is None:
            entries = await self._inner(RepositoryIndexRequest(context=context))
            return [
                ModelRef(entry.name, entry.version)
                for entry in entries
                if entry.state is ModelState.READY
            ]
        metadata_call: Call[Any] = ModelMetadataRequest(model=model, context=context)
        versions = (await self._inner(metadata_call)).versions
        return [
            ModelRef(model.name, version)
            for version in ([model.version] if model.version else versions)
        ]


class _CountedModel:
    """The model of an inference, with its version when a reply or an error has told it."""

    def __init__(self, model: ModelRef) -> None:
        self.model = model

    def note(self, found: ModelRef | None) -> None:
        self.model = with_version(self.model, found)

    def noted(self, items: AsyncIterator[InferResponse]) -> AsyncIterator[InferResponse]:
        """Return a stream whose replies tell the version."""
        return MappedStream(items, self._of_reply)

    async def _of_reply(self, reply: InferResponse) -> InferResponse:
        self.note(reply.model)
        return reply
