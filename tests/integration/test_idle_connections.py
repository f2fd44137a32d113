"""Memory of an idle connection, which is released at its end."""

from __future__ import annotations

import asyncio
import gc
import socket
import tracemalloc
from collections.abc import Iterator

import pytest

from gateway.transports.connection_count import ConnectionCount
from gateway.transports.contract import GrpcMount, HttpMount, MemoryBudget, ServerLimits
from gateway.transports.http1.server import HttpServer
from gateway.transports.http2.frames import PREFACE, SETTINGS, frame
from tests.integration.grpc_echo import METHODS, Answers, echo
from tests.integration.http_kit import Echo, eventually

uvloop = pytest.importorskip("uvloop")

MANY = 400
MOST_BYTES = 4.5 * 1024
HTTP_1 = b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n"
HTTP_2 = PREFACE + frame(SETTINGS, 0, 0)


@pytest.fixture
def _counted() -> Iterator[None]:
    """Count what is allocated."""
    tracemalloc.start(1)
    yield
    tracemalloc.stop()


def used() -> int:
    """Return the bytes in use, without those of cycles and of this module."""
    gc.collect()
    found = tracemalloc.take_snapshot().filter_traces(
        [tracemalloc.Filter(False, __file__), tracemalloc.Filter(False, socket.__file__)]
    )
    return sum(trace.size for trace in found.statistics("filename"))


async def connect(address: str, greeting: bytes) -> socket.socket:
    """Return a connection whose client has sent *greeting* and read the response to it."""
    loop = asyncio.get_running_loop()
    host, _, port = address.rpartition(":")
    client = socket.create_connection((host, int(port)))
    client.setblocking(False)
    await loop.sock_sendall(client, greeting)
    assert await loop.sock_recv(client, 4096)
    return client


async def measure(greeting: bytes) -> tuple[float, float]:
    """Return the bytes of an idle connection, and those that remain after its end."""
    count, frontend = ConnectionCount(MANY, MANY), Echo()
    server = HttpServer(
        mounts=[HttpMount(("/v2",), frontend)],
        grpc=[GrpcMount(METHODS, Answers(echo))],
        limits=ServerLimits(),
        budget=MemoryBudget(1 << 30),
        count=count,
    )
    await server.start()
    for client in [await connect(server.address, greeting) for _ in range(10)]:
        client.close()
    await eventually(lambda: count.total == 0)
    before = used()
    clients = [await connect(server.address, greeting) for _ in range(MANY)]
    assert MANY == count.total
    frontend.seen.clear()
    size = used() - before
    for client in clients:
        client.close()
    await eventually(lambda: count.total == 0)
    await asyncio.sleep(0.05)  # the library forgets closed sockets in a later turn
    residue = used() - before
    await server.stop()
    return size / MANY, residue / MANY


@pytest.mark.usefixtures("_counted")
@pytest.mark.parametrize("greeting", [HTTP_1, HTTP_2], ids=["http_1", "http_2"])
def test_idle_connection_uses_little_memory(greeting: bytes) -> None:
    """Either version uses at most 4.5 KiB, of which a tenth may remain after the close."""
    uvloop.run(measure(greeting))  # what a process makes once does not count
    size, residue = uvloop.run(measure(greeting))
    assert 1024 < size < MOST_BYTES
    assert residue < MOST_BYTES / 10
