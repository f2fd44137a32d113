"""Connections of a gRPC client: the effect of a cancellation."""

from __future__ import annotations

import asyncio

import pytest

from gateway.transports.contract import ClientLimits
from gateway.transports.grpc.client import GrpcClient
from gateway.wire.grpc import GrpcRequest
from tests.fakes import settle


async def test_a_caller_stays_cancelled_when_its_connect_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of an event loop cancels both. The caller must raise CancelledError only."""
    client = GrpcClient("127.0.0.1:1", ClientLimits())

    async def connects_forever() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(client._pool, "_connect", connects_forever)
    request = GrpcRequest("/inference.GRPCInferenceService/ServerLive")
    caller = asyncio.create_task(client.send(request, deadline=None))
    await settle()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert caller.cancelled()
    await client.close()
