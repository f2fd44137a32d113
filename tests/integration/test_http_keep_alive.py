"""Idle connections to servers that close them: given up before the server, and requests sent again."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import trustme

from gateway.ir.errors import Unavailable
from gateway.transports.contract import ClientLimits, HttpClient
from gateway.transports.http1 import client as native
from gateway.transports.net.tls_files import TlsContext
from gateway.wire.http import HttpRequest
from tests.integration.http_kit import HTTP_MAKES

pytestmark = [pytest.mark.usefixtures("http_clients"), pytest.mark.needs("kept_connections")]

POST = HttpRequest("POST", "/v2/models/m/infer", body=(b"hello",))
LARGE = HttpRequest("POST", "/v2/models/m/infer", body=(bytes(3 << 20),))
GET = HttpRequest("GET", "/v2/health/ready")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n%b\r\nok"


class Server:
    """A server on threads, so that it closes connections while the loop of the client stands still.

    Args:
        first: What it does with the first connection after its first response.
        fields: Header fields of its responses.
    """

    def __init__(self, first: Callable[[Any], None], fields: bytes = b"") -> None:
        self._first = first
        self._response = OK % fields
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.tls: ssl.SSLContext | None = None
        self.connections = 0
        self.requests = 0
        self.did_first = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(
                target=self._serve, args=(accepted, self.connections), daemon=True
            ).start()

    def _serve(self, accepted: Any, number: int) -> None:
        if self.tls is not None:
            accepted = self.tls.wrap_socket(accepted, server_side=True)
        with accepted, suppress(OSError):  # it is closed, here or there
            while self.read(accepted):
                accepted.sendall(self._response)
                if number == 1:
                    try:
                        self._first(accepted)
                    finally:
                        self.did_first.set()

    def read(self, connection: Any) -> bool:
        """Read a request; return whether there was one."""
        data = b""
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece:
                return False
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:])
        left = int(fields.get(b"content-length", 0)) - len(body)
        while left > 0:
            left -= len(connection.recv(65536))
        self.requests += 1
        return True


@asynccontextmanager
async def client_of(
    server: Server, limits: ClientLimits, context: ssl.SSLContext | None = None
) -> AsyncIterator[HttpClient]:
    scheme = "http" if context is None else "https"
    url = f"{scheme}://127.0.0.1:{server.port}"
    tls = None if context is None else TlsContext(context)
    client = HTTP_MAKES.http_client(url, limits, tls=tls)
    try:
        yield client
    finally:
        await client.close()
        server.close()


def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients miss that an idle connection has ended, as if the end arrived an instant later."""
    monkeypatch.setattr(native, "UNSEEN_S", 60.0)


@pytest.mark.parametrize(
    ("wire", "is_encrypted"),
    [(POST, False), (LARGE, False), (POST, True)],
    ids=["small", "large", "tls"],
)
async def test_a_request_that_met_the_end_of_its_connection_is_sent_again(
    monkeypatch: pytest.MonkeyPatch, wire: HttpRequest, is_encrypted: bool
) -> None:
    """The server closed before the head arrived, so it has read nothing: also a POST goes again."""
    unchecked(monkeypatch)
    server = Server(lambda connection: connection.close())
    context = None
    if is_encrypted:
        authority = trustme.CA()
        server.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(server.tls)
        context = ssl.create_default_context()
        authority.configure_trust(context)
    async with client_of(server, ClientLimits(), context) as client:
        await client.send(POST, deadline=None)
        assert server.did_first.wait(30)  # the loop stands still, and reads of no end
        time.sleep(0.02)  # noqa: ASYNC251  # for the kernel
        response = await client.send(wire, deadline=time.monotonic() + 30)
        assert (b"ok", 2, 2) == (bytes(response.view), server.connections, server.requests)


async def test_a_request_that_was_read_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that reads a POST and closes may have run it."""
    unchecked(monkeypatch)

    def read_and_close(connection: Any) -> None:
        server.read(connection)
        connection.close()

    server = Server(read_and_close)
    async with client_of(server, ClientLimits()) as client:
        await client.send(POST, deadline=None)
        with pytest.raises(Unavailable):
            await client.send(POST, deadline=time.monotonic() + 30)
        assert (1, 2) == (server.connections, server.requests)


LIMITS = ClientLimits(reuse_s=0.05)


@pytest.mark.parametrize(
    ("limits", "fields", "wire", "connections"),
    [
        (LIMITS, b"", POST, 2),
        (LIMITS, b"", GET, 1),
        (LIMITS, b"Keep-Alive: timeout=5\r\n", POST, 1),
        (LIMITS, b"keep-alive: max=100, Timeout=75\r\n", POST, 1),
        (ClientLimits(), b"Keep-Alive: timeout=0\r\n", POST, 2),
        (ClientLimits(), b"Keep-Alive: nonsense\r\n", POST, 1),
        (replace(LIMITS, keepalive_s=0.05), b"Keep-Alive: timeout=5\r\n", POST, 2),
        (replace(LIMITS, keepalive_s=0.05), b"", GET, 2),
    ],
)
async def test_idle_connections_close_before_the_server_closes_them(
    limits: ClientLimits, fields: bytes, wire: HttpRequest, connections: int
) -> None:
    """What the server says counts, or else a guess; a request that may be sent twice may try."""
    server = Server(lambda _connection: None, fields)
    async with client_of(server, limits) as client:
        for pause_s in (0.1, 0.0):
            await client.send(wire, deadline=None)
            await asyncio.sleep(pause_s)
        assert connections == server.connections
