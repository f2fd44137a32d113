"""Discover: finds the upstream that serves a model, for gateways without routes.

An upstream's repository index lists its models. An upstream without an index is asked whether the
model is ready. Names come from clients, so cached results are bounded in number and age.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, TypeVar

from gateway.concurrency.ttl_lookup import TtlLookup
from gateway.ir.calls import MODEL_CONTROL_CALLS, Call, ModelReadyRequest, RepositoryIndexRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import GatewayError, InvalidRequest, ModelNotFound, Unavailable, Unsupported
from gateway.service import Service
from gateway.telemetry.call_path import record_target, without_recording

R = TypeVar("R")

_MAX_CACHED = 4096


class Discover:
    """Sends a call about a model to the first upstream that serves it.

    Args:
        upstreams: By name, in order of precedence.
        ttl_s: Time for which a result is cached.
        ask_timeout_s: Timeout of each lookup at an upstream.
    """

    def __init__(
        self, upstreams: Mapping[str, Service], *, ttl_s: float = 10.0, ask_timeout_s: float = 2.0
    ) -> None:
        self._upstreams = dict(upstreams)
        self._ask_timeout_s = ask_timeout_s
        self._owners: TtlLookup[str, str] = TtlLookup(self._look_up, ttl_s, ttl_s, _MAX_CACHED)

    async def __call__(self, call: Call[R], /) -> R:
        """Send *call* to the model's upstream.

        Raises:
            ModelNotFound: No upstream serves it.
            Unavailable: No upstream confirmed the model, and some could not be reached.
        """
        if call.model is None:
            raise InvalidRequest("the call names no model")
        if type(call) in MODEL_CONTROL_CALLS:
            self._owners.forget(call.model.name)  # another upstream may have the model now
        owner = await self._owners.get(call.model.name)
        if owner is None:
            raise ModelNotFound(
                f"no upstream serves model {call.model.name!r}; "
                f"upstreams: {', '.join(self._upstreams)}",
                model=call.model,
            )
        record_target(owner)
        try:
            return await self._upstreams[owner](call)
        except ModelNotFound:
            self._owners.forget(call.model.name)  # the model moved: look it up next time
            raise

    async def _look_up(self, model: str) -> str | None:
        with without_recording():  # the first caller has sent one call only
            results = await asyncio.gather(
                *(self._serves(upstream, model) for upstream in self._upstreams.values()),
                return_exceptions=True,
            )
        for name, result in zip(self._upstreams, results, strict=True):
            if result is True:
                return name
        for name, result in zip(self._upstreams, results, strict=True):
            if isinstance(result, BaseException):
                raise Unavailable(
                    f"no upstream is known to serve model {model!r}, "
                    f"and {name!r} is unavailable: {result}"
                ) from result
        return None

    async def _serves(self, upstream: Service, model: str) -> bool:
        context = Context(deadline=time.monotonic() + self._ask_timeout_s)
        try:
            async with asyncio.timeout(self._ask_timeout_s):
                entries = await upstream(RepositoryIndexRequest(context=context))
        except Unsupported:
            pass
        else:
            return any(entry.name == model for entry in entries)
        ready: Call[Any] = ModelReadyRequest(model=ModelRef(model), context=context)
        try:
            async with asyncio.timeout(self._ask_timeout_s):
                return bool(await upstream(ready))
        except GatewayError as error:
            if error.is_retryable:
                raise
            return False
