"""Calls that every endpoint of an upstream must see: what they change is each server's own.

Loading a model on one of two servers would leave every other inference without it.
"""

from __future__ import annotations

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
    """Ask all of *services* at once and return the first one's answer; statistics are added up.

    A region that could not be registered everywhere is unregistered where it could.

    Raises:
        GatewayError: What the first one said that did not do it.
    """
    asked = await asyncio.gather(*(service(call) for service in services), return_exceptions=True)
    failed = [found for found in asked if isinstance(found, BaseException)]
    if failed:
        done = [
            service
            for service, found in zip(services, asked, strict=True)
            if not isinstance(found, BaseException)
        ]
        await _take_back(call, done)
        raise failed[0]
    answers = [found for found in asked if not isinstance(found, BaseException)]
    if isinstance(call, ModelStatisticsRequest):
        # A ModelStatisticsRequest's R is a tuple of statistics; the type system cannot follow that.
        listed = cast("list[tuple[ModelStatistics, ...]]", answers)
        return cast("R", merge_statistics(tuple(chain.from_iterable(listed))))
    return answers[0]


async def _take_back(call: Call[Any], services: Sequence[Service]) -> None:
    if not isinstance(call, SharedRegisterRequest):
        return
    undo = SharedUnregisterRequest(region=call.region.name, context=call.context)
    undone = await asyncio.gather(*(service(undo) for service in services), return_exceptions=True)
    for found in undone:
        if isinstance(found, BaseException) and not isinstance(found, GatewayError):
            raise found
