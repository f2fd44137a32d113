"""Discover: finds the upstream that serves a model, for gateways without routes.

An upstream's repository index lists its models. An upstream without an index is asked whether the
model is ready. Names come from clients, so cached results are bounded in number and age.
"""

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

from gateway.ir.calls import MODEL_CONTROL_CALLS, Call, ModelReadyRequest, RepositoryIndexRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import GatewayError, InvalidRequest, ModelNotFound, Unavailable, Unsupported
from gateway.service import ReplyCoroutine, Service, bound_call
from gateway.telemetry.call_path import current_path, record_target, without_recording

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
        self._only: tuple[str, Service] | None = None
        if len(upstreams) == 1:
            name, only = next(iter(upstreams.items()))
            self._only = name, bound_call(only)
        self._ttl_s = ttl_s
        self._ask_timeout_s = ask_timeout_s
        self._owners: dict[str, tuple[float, str | None]] = {}
        self._lookups: dict[str, asyncio.Future[str | None]] = {}

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Send *call* to the model's upstream.

        Raises:
            ModelNotFound: No upstream serves it.
            Unavailable: No upstream confirmed the model, and some could not be reached.
        """
        if self._only is None or call.model is None:
            return self._discover(call)
        # With one upstream there is nothing to discover.
        name, only = self._only
        path = current_path()
        if path is not None:
            path.target = name
        return only(call)

    async def _discover(self, call: Call[R]) -> R:
        if call.model is None:
            raise InvalidRequest("the call names no model")
        if type(call) in MODEL_CONTROL_CALLS:
            self._owners.pop(call.model.name, None)  # another upstream may have the model now
        owner = await self._owner(call.model.name)
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
            self._owners.pop(call.model.name, None)  # the model moved: look it up next time
            raise

    async def _owner(self, model: str) -> str | None:
        cached = self._owners.get(model)
        if cached is not None and cached[0] > time.monotonic():
            return cached[1]
        lookup = self._lookups.get(model)
        if lookup is None:
            with without_recording():  # the first caller has sent one call only
                lookup = asyncio.ensure_future(self._look_up(model))
            self._lookups[model] = lookup
            lookup.add_done_callback(partial(self._looked_up, model))
        # Shielded: the first caller may be cancelled while others wait for the same lookup.
        return await asyncio.shield(lookup)

    def _looked_up(self, model: str, lookup: asyncio.Future[str | None]) -> None:
        del self._lookups[model]
        if not lookup.cancelled():
            lookup.exception()  # all callers may have left, so that nobody else looks at it

    async def _look_up(self, model: str) -> str | None:
        results = await asyncio.gather(
            *(self._serves(upstream, model) for upstream in self._upstreams.values()),
            return_exceptions=True,
        )
        for name, result in zip(self._upstreams, results, strict=True):
            if result is True:
                self._store(model, name)
                return name
        for name, result in zip(self._upstreams, results, strict=True):
            if isinstance(result, BaseException):
                raise Unavailable(
                    f"no upstream is known to serve model {model!r}, "
                    f"and {name!r} is unavailable: {result}"
                ) from result
        self._store(model, None)
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

    def _store(self, model: str, owner: str | None) -> None:
        if len(self._owners) >= _MAX_CACHED:
            self._owners.clear()
        self._owners[model] = (time.monotonic() + self._ttl_s, owner)
