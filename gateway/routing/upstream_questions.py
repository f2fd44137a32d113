"""Targets: questions to the server whose answer is the upstreams'.

What a question to "the server" means with several of them is decided here. A question goes to all
of them at once; those that do not have it are passed over. Statistics are those of all together.
Of settings, a change is made at every upstream that has them, and the answer is that of the first
in the order of the configuration. What is not modelled goes to the first that can read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, TypeVar, cast

import structlog

from gateway.ir.calls import (
    MODEL_CONTROL_CALLS,
    Call,
    LogSettingsRequest,
    ModelStatisticsRequest,
    OpaqueCall,
    TraceSettingRequest,
)
from gateway.ir.context import Origin
from gateway.ir.errors import GatewayError, Unsupported
from gateway.ir.statistics import ModelStatistics, merge_statistics
from gateway.service import ReplyCoroutine, Service

log = structlog.get_logger(__name__)

R = TypeVar("R")


class UpstreamQuestions:
    """Asks upstreams what they are to say of themselves; everything else goes through.

    Args:
        inner: Answers about the gateway itself.
        upstreams: By name, in the order of the configuration.
        served: Whether a model can be reached here under its name: others are nobody's business.
    """

    def __init__(
        self, inner: Service, upstreams: Mapping[str, Service], served: Callable[[str], bool]
    ) -> None:
        self._inner = inner
        self._upstreams = dict(upstreams)
        self._served = served

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Answer *call*.

        Raises:
            GatewayError: What an upstream said that did not make the change, or where none answers.
            Unsupported: No upstream has what is asked for.
        """
        # Each branch knows its R; the type system cannot follow an isinstance that far.
        if isinstance(call, TraceSettingRequest):
            return cast("ReplyCoroutine[R]", self._settings(call, "trace settings", call.changes))
        if isinstance(call, LogSettingsRequest) and not call.own:
            return cast("ReplyCoroutine[R]", self._settings(call, "log settings", call.changes))
        if isinstance(call, ModelStatisticsRequest) and not call.own:
            return cast("ReplyCoroutine[R]", self._statistics(call))
        if isinstance(call, OpaqueCall):
            return cast("ReplyCoroutine[R]", self._first(call))
        return self._inner(call)

    async def _statistics(self, call: ModelStatisticsRequest) -> tuple[ModelStatistics, ...]:
        answers = await self._ask(call, "statistics", strict=False)
        found = merge_statistics(tuple(chain.from_iterable(answers)))
        return tuple(one for one in found if self._served(one.name))

    async def _first(self, call: OpaqueCall) -> Origin:
        """Ask the first upstream that speaks the same protocol over the same carrier."""
        for service in self._upstreams.values():
            try:
                return await service(call)
            except Unsupported as error:
                if error.origin is not None:
                    raise
        raise Unsupported(f"no upstream of this gateway speaks {call.message.codec}")

    async def _settings(self, call: Call[Any], what: str, changes: Mapping[str, Any]) -> Any:
        return (await self._ask(call, what, strict=bool(changes)))[0]

    async def _ask(self, call: Call[Any], what: str, *, strict: bool) -> list[Any]:
        """Return the answers there are; with *strict*, one that fails fails all."""
        asked = await asyncio.gather(
            *(service(call) for service in self._upstreams.values()), return_exceptions=True
        )
        answers: list[Any] = []
        failed: list[GatewayError] = []
        for name, found in zip(self._upstreams, asked, strict=True):
            if isinstance(found, Unsupported):
                continue
            if isinstance(found, GatewayError):
                log.warning(
                    "upstream passed over", question=what, upstream=name, reason=found.message
                )
                failed.append(found)
            elif isinstance(found, BaseException):
                raise found
            else:
                answers.append(found)
        if failed and (strict or not answers):
            raise failed[0]
        if not answers:
            raise Unsupported(f"no upstream of this gateway has {what}")
        return answers


class RefreshModelIndex:
    """Has models listed anew once one has been loaded or unloaded.

    Args:
        inner: Answers.
        forget: Called after each such call, whatever became of it.
    """

    def __init__(self, inner: Service, forget: Callable[[], None]) -> None:
        self._inner = inner
        self._forget = forget

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Answer *call*."""
        return self._control(call) if type(call) in MODEL_CONTROL_CALLS else self._inner(call)

    async def _control(self, call: Call[R]) -> R:
        try:
            return await self._inner(call)
        finally:
            self._forget()
