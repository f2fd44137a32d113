"""The reference gRPC server serves again after a path that ends grpcio's own."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from gateway.ir.errors import Unavailable
from gateway.wire.grpc import GrpcStatus
from tests.integration.grpc_echo import MAKES, Answers, ask, calling, echo, serving
from tests.integration.http_kit import retried
from tests.integration.test_grpc_hostile import CASES, PREFACE


async def test_calls_succeed_after_a_path_that_is_not_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """It listens on the same port, as often as it happens."""
    monkeypatch.setattr(MAKES, "server", "reference")
    monkeypatch.setattr(MAKES, "client", "native")
    data, _ = CASES["path_that_is_not_text"]
    async with serving(Answers(echo)) as server, calling(server) as client:
        host, _, port = server.address.rpartition(":")
        for _ in range(2):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(PREFACE + data)
            async with asyncio.timeout(60):
                with suppress(ConnectionResetError):
                    await reader.read(-1)  # until the server has ended
                writer.close()
                found = await retried(lambda: client.send(ask(), deadline=None), Unavailable)
            assert GrpcStatus.OK is found.status
