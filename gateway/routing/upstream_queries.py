"""Calls to the server that the upstreams handle: statistics, settings and opaque calls.

A call goes to all upstreams concurrently and ignores those that do not support it. Statistics are
added up. A change of settings applies to every upstream that supports it, and the reply is that of
the first upstream in the configuration. An opaque call goes to the first upstream of its codec.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar, cast

import structlog

from gateway.ir.calls import (
    MODEL_CONTROL_CALLS,
    Call,
    LogSettingsRequest,
    ModelStatisticsRequest,
    OpaqueCall,
    ServerMetadataRequest,
    TraceSettingRequest,
)
from gateway.ir.context import Origin
from gateway.ir.errors import GatewayError, Unsupported
from gateway.ir.metadata import ServerMetadata
from gateway.ir.statistics import ModelStatistics, merge_statistics
from gateway.service import ReplyCoroutine, Service
from gateway.telemetry.log.error_texts import error_text

log = structlog.get_logger(__name__)

R = TypeVar("R")


class UpstreamQuestions:
    """Sends these calls to the upstreams, and all others to *inner*.

    Args:
        inner: Handles calls to the gateway itself.
        upstreams: By name, in the order of the configuration.
        served: Whether clients can reach a model under its name; statistics omit others.
        identity: Returns the metadata of the server whose name and version clients find, or None
            for the gateway's own.
    """

    def __init__(
        self,
        inner: Service,
        upstreams: Mapping[str, Service],
        served: Callable[[str], bool],
        identity: Callable[[], ServerMetadata | None] = lambda: None,
    ) -> None:
        self._inner = inner
        self._upstreams = dict(upstreams)
        self._served = served
        self._identity = identity

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Handle *call*.

        Raises:
            GatewayError: An upstream rejected a change, or all upstreams failed.
            Unsupported: No upstream supports the call.
        """
        # Each branch has its R; the type system cannot follow an isinstance that far.
        if isinstance(call, TraceSettingRequest):
            return cast("ReplyCoroutine[R]", self._settings(call, "trace settings", call.changes))
        if isinstance(call, LogSettingsRequest) and not call.own:
            return cast("ReplyCoroutine[R]", self._settings(call, "log settings", call.changes))
        if isinstance(call, ModelStatisticsRequest) and not call.own:
            return cast("ReplyCoroutine[R]", self._statistics(call))
        if isinstance(call, ServerMetadataRequest):
            return cast("ReplyCoroutine[R]", self._metadata(call))
        if isinstance(call, OpaqueCall):
            return cast("ReplyCoroutine[R]", self._first(call))
        return self._inner(call)

    async def _metadata(self, call: ServerMetadataRequest) -> ServerMetadata:
        """Return the gateway's extensions, with the name and version of the chosen server."""
        found, server = await self._inner(call), self._identity()
        return found if server is None else replace(server, extensions=found.extensions)

    async def _statistics(self, call: ModelStatisticsRequest) -> tuple[ModelStatistics, ...]:
        replies = await self._call_all(call, "statistics", strict=False)
        merged = merge_statistics(tuple(chain.from_iterable(replies)))
        return tuple(one for one in merged if self._served(one.name))

    async def _first(self, call: OpaqueCall) -> Origin:
        """Call the first upstream with the same protocol and transport."""
        for service in self._upstreams.values():
            try:
                return await service(call)
            except Unsupported as error:
                if error.origin is not None:
                    raise
        raise Unsupported(f"no upstream of this gateway supports {call.message.codec}")

    async def _settings(self, call: Call[Any], subject: str, changes: Mapping[str, Any]) -> Any:
        return (await self._call_all(call, subject, strict=bool(changes)))[0]

    async def _call_all(self, call: Call[Any], subject: str, *, strict: bool) -> list[Any]:
        """Return the replies of all upstreams that succeed; with *strict*, all must succeed."""
        results = await asyncio.gather(
            *(service(call) for service in self._upstreams.values()), return_exceptions=True
        )
        replies: list[Any] = []
        failures: list[GatewayError] = []
        for name, result in zip(self._upstreams, results, strict=True):
            if isinstance(result, Unsupported):
                continue
            if isinstance(result, GatewayError):
                log.warning(
                    "upstream skipped", question=subject, upstream=name, reason=error_text(result)
                )
                failures.append(result)
            elif isinstance(result, BaseException):
                raise result
            else:
                replies.append(result)
        if failures and (strict or not replies):
            raise failures[0]
        if not replies:
            raise Unsupported(f"no upstream of this gateway has {subject}")
        return replies


class RefreshModelIndex:
    """Discards the cached model index after a model is loaded or unloaded.

    Args:
        inner: The service to call.
        forget: Called after each such call, also if it fails.
    """

    def __init__(self, inner: Service, forget: Callable[[], None]) -> None:
        self._inner = inner
        self._forget = forget

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Handle *call*."""
        return self._control(call) if type(call) in MODEL_CONTROL_CALLS else self._inner(call)

    async def _control(self, call: Call[R]) -> R:
        try:
            return await self._inner(call)
        finally:
            self._forget()
