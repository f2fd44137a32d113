"""Tally: counts what models are used, and answers questions about it.

Stands outside the router, so that names are the callers' own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelStatisticsRequest,
    RepositoryIndexRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError, NotFound, Unsupported
from gateway.ir.metadata import ModelState
from gateway.ir.statistics import ModelStatistics
from gateway.ir.streams import on_stream_end
from gateway.service import Service
from gateway.telemetry.call_path import CALL_PATH, CallPath
from gateway.telemetry.model_usage import Usage

R = TypeVar("R")

_INFERENCES = (InferRequest, StreamInferRequest)


class UsageStatistics:
    """Counts inferences; answers for the gateway, and for targets that count nothing.

    Args:
        inner: Answers.
        usage: Where the counts are; shared by all listeners.
        clock: Seconds, fine-grained.
    """

    def __init__(
        self, inner: Service, usage: Usage, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._inner = inner
        self._usage = usage
        self._clock = clock

    async def __call__(self, call: Call[R], /) -> R:
        """Answer *call*.

        Raises:
            ModelNotFound: Statistics are asked of a model that is not served.
        """
        if isinstance(call, ModelStatisticsRequest):
            # A ModelStatisticsRequest's R is a tuple of statistics.
            return cast("R", await self._statistics(call))
        if type(call) not in _INFERENCES:
            return await self._inner(call)
        taken = CALL_PATH.get() or CallPath()
        begun = self._clock()
        asked = call.model or ModelRef("")
        try:
            reply = await self._inner(call)
        except GatewayError as error:
            self._ended(asked, taken, begun, error)
            raise
        answering = asked
        if isinstance(reply, InferResponse):
            answering = _answering(asked, reply.model)
        return on_stream_end(call, reply, partial(self._ended, answering, taken, begun))

    def _ended(
        self, model: ModelRef, taken: CallPath, begun: float, error: BaseException | None
    ) -> None:
        if error is not None:
            if not isinstance(error, GatewayError) or isinstance(error, NotFound):
                return
            model = _answering(model, error.model)
        self._usage.record_call(
            model,
            ok=error is None,
            seconds=self._clock() - begun,
            queued_s=taken.queued_s,
        )

    async def _statistics(self, call: ModelStatisticsRequest) -> tuple[ModelStatistics, ...]:
        if call.own:
            return await self._own(call)
        try:
            found = await self._inner(call)
        except Unsupported:
            return await self._own(call)
        if call.model is not None:
            return found
        # Models whose targets count nothing, such as those of the gateway itself.
        told = {one.name for one in found}
        return (*found, *(one for one in await self._own(call) if one.name not in told))

    async def _own(self, call: ModelStatisticsRequest) -> tuple[ModelStatistics, ...]:
        """Return what has been counted, with the versions there are of which nothing has been."""
        counted = self._usage.of(call.model)
        known = {(one.name, one.version) for one in counted}
        unused = [
            ModelStatistics(name=model.name, version=model.version)
            for model in await self._served(call)
            if (model.name, model.version) not in known
        ]
        return (*counted, *unused)

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
        question: Call[Any] = ModelMetadataRequest(model=model, context=context)
        versions = (await self._inner(question)).versions
        return [
            ModelRef(model.name, version)
            for version in ([model.version] if model.version else versions)
        ]


def _answering(asked: ModelRef, told: ModelRef | None) -> ModelRef:
    """Return the model under the caller's name, with the version that answered where it is told."""
    if asked.version or told is None:
        return asked
    return ModelRef(asked.name, told.version)
