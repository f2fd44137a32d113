"""Calls that every endpoint of an upstream must receive, because they change each server's state.

If only one of two servers loaded a model, every other inference would fail.
"""

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeVar, cast

from gateway.ir.calls import (
    Call,
    LogSettingsRequest,
    ModelLoadRequest,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    SharedRegisterRequest,
    SharedUnregisterRequest,
    TraceSettingRequest,
)
from gateway.ir.errors import GatewayError
from gateway.ir.statistics import ModelStatistics, merge_statistics
from gateway.service import Service

R = TypeVar("R")

BROADCAST_CALLS = frozenset(
    {
        LogSettingsRequest,
        ModelLoadRequest,
        ModelStatisticsRequest,
        ModelUnloadRequest,
        SharedRegisterRequest,
        SharedUnregisterRequest,
        TraceSettingRequest,
    }
)


async def broadcast(call: Call[R], services: Sequence[Service]) -> R:
    """Call all of *services* concurrently and return the first reply; statistics are added up.

    If a registration of a region fails at one service, it is reverted at the others.

    Raises:
        GatewayError: The error of the first service that failed.
    """
    results = await asyncio.gather(*(service(call) for service in services), return_exceptions=True)
    replies = [result for result in results if not isinstance(result, BaseException)]
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        succeeded = [
            service
            for service, result in zip(services, results, strict=True)
            if not isinstance(result, BaseException)
        ]
        await _roll_back(call, succeeded)
        raise failures[0]
    if isinstance(call, ModelStatisticsRequest):
        # A ModelStatisticsRequest's R is a tuple of statistics; the type system cannot follow that.
        statistics = cast("list[tuple[ModelStatistics, ...]]", replies)
        return cast("R", merge_statistics(tuple(chain.from_iterable(statistics))))
    return replies[0]


async def _roll_back(call: Call[Any], services: Sequence[Service]) -> None:
    if not isinstance(call, SharedRegisterRequest):
        return
    undo = SharedUnregisterRequest(region=call.region.name, context=call.context)
    results = await asyncio.gather(*(service(undo) for service in services), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, GatewayError):
            raise result
