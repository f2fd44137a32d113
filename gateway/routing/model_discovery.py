"""Discover: finds out which of several upstreams serves a model.

For gateways that are given upstreams and no routes. An upstream's index says what it serves; one
that has no index is asked whether the model is ready. Names come from clients, so what is
remembered is bounded in number and age.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, TypeVar

from gateway.ir.calls import MODEL_CONTROL_CALLS, Call, ModelReadyRequest, RepositoryIndexRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import GatewayError, InvalidRequest, ModelNotFound, Unavailable, Unsupported
from gateway.service import ReplyCoroutine, Service
from gateway.telemetry.call_path import record_target

R = TypeVar("R")

_REMEMBERED = 4096


class Discover:
    """Sends a call about a model to the first upstream that serves it.

    Args:
        upstreams: By name, in order of precedence.
        ttl_s: How long a finding is trusted; a model that moves is found again after that.
        ask_timeout_s: Longest wait for one upstream's word.
    """

    def __init__(
        self, upstreams: Mapping[str, Service], *, ttl_s: float = 10.0, ask_timeout_s: float = 2.0
    ) -> None:
        self._upstreams = dict(upstreams)
        self._only = next(iter(upstreams.items())) if len(upstreams) == 1 else None
        self._ttl_s = ttl_s
        self._ask_timeout_s = ask_timeout_s
        self._owners: dict[str, tuple[float, str | None]] = {}
        self._asking: dict[str, asyncio.Future[str | None]] = {}

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Answer by the model's upstream.

        Raises:
            ModelNotFound: No upstream serves it.
            Unavailable: None is known to, and some could not be asked.
        """
        if self._only is None or call.model is None:
            return self._found(call)
        # There is nothing to find out, and nothing that could be forgotten.
        record_target(self._only[0])
        return self._only[1](call)

    async def _found(self, call: Call[R]) -> R:
        if call.model is None:
            raise InvalidRequest("the call names no model")
        if type(call) in MODEL_CONTROL_CALLS:
            self._owners.pop(call.model.name, None)  # it may not have been there, and be there now
        owner = await self._owner(call.model.name)
        if owner is None:
            raise ModelNotFound(
                f"model {call.model.name!r} is served by no upstream; "
                f"asked: {', '.join(self._upstreams)}",
                model=call.model,
            )
        record_target(owner)
        try:
            return await self._upstreams[owner](call)
        except ModelNotFound:
            self._owners.pop(call.model.name, None)  # it moved: ask again next time
            raise

    async def _owner(self, model: str) -> str | None:
        known = self._owners.get(model)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        asking = self._asking.get(model)
        if asking is None:
            asking = asyncio.ensure_future(self._ask(model))
            self._asking[model] = asking
            asking.add_done_callback(lambda _done: self._asking.pop(model, None))
        # Shielded: the first caller may leave while others wait for the same finding.
        return await asyncio.shield(asking)

    async def _ask(self, model: str) -> str | None:
        found = await asyncio.gather(
            *(self._serves(upstream, model) for upstream in self._upstreams.values()),
            return_exceptions=True,
        )
        for name, serves in zip(self._upstreams, found, strict=True):
            if serves is True:
                self._remember(model, name)
                return name
        for name, serves in zip(self._upstreams, found, strict=True):
            if isinstance(serves, BaseException):
                raise Unavailable(
                    f"no upstream is known to serve model {model!r}, "
                    f"and {name!r} could not be asked: {serves}"
                ) from serves
        self._remember(model, None)
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
            if error.retryable:
                raise
            return False

    def _remember(self, model: str, owner: str | None) -> None:
        if len(self._owners) >= _REMEMBERED:
            self._owners.clear()
        self._owners[model] = (time.monotonic() + self._ttl_s, owner)
