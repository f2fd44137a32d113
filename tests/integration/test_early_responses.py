"""Servers that respond early and close: the response has arrived, although the next write fails."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import trustme

from gateway.ir.bodies.streaming_body import BodySink
from gateway.transports.contract import ClientLimits
from gateway.transports.grpc.client import GrpcClient
from gateway.transports.grpc.headers import RESPONSE_HEAD, trailers_block
from gateway.transports.http1 import client_connection
from gateway.transports.http1.client import HttpClient
from gateway.transports.http2 import frames
from gateway.transports.net.tls_files import TlsContext
from gateway.transports.stream.client import StreamClient
from gateway.wire.grpc import GrpcStatus
from gateway.wire.http import HttpRequest
from gateway.wire.stream import Frame
from tests.integration.grpc_echo import ask
from tests.integration.http_kit import eventually
from tests.integration.stream_kit import NumberedFramer, numbered, payload_of

TOO_LARGE = (
    b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 9\r\n\r\ntoo large"
)
PIECE = memoryview(bytes(64 * 1024))


class Refusing:
    """A server on a thread: it reads until *marker*, and then responds and resets when told.

    Args:
        marker: It reads until this has arrived.
        response: What it sends.
        tls: For TLS.
        greeting: What it sends first.
    """

    def __init__(
        self, marker: bytes, response: bytes, tls: ssl.SSLContext | None, greeting: bytes
    ) -> None:
        self._greeting = greeting
        self._marker = marker
        self._response = response
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.has_read = threading.Event()
        self._may_refuse = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def refuse(self) -> None:
        """Respond and reset, before this method returns."""
        assert self.has_read.wait(30)
        self._may_refuse.set()
        self._thread.join(30)

    def close(self) -> None:
        self._may_refuse.set()
        self._listener.close()
        self._thread.join(30)

    def _run(self) -> None:
        connection: Any = self._listener.accept()[0]
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True)
        with connection:
            connection.sendall(self._greeting)
            data = b""
            while self._marker not in data:
                data += connection.recv(65536)
            self.has_read.set()
            assert self._may_refuse.wait(30)
            connection.sendall(self._response)
            time.sleep(0.02)  # the response is there before the reset
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextmanager
def refusing(
    marker: bytes, response: bytes, tls: ssl.SSLContext | None = None, greeting: bytes = b""
) -> Iterator[Refusing]:
    server = Refusing(marker, response, tls, greeting)
    try:
        yield server
    finally:
        server.close()


class Upload:
    """A body of which a test decides when its pieces arrive."""

    start = 0
    end = 1 << 30

    def __init__(self) -> None:
        self.remaining_bytes = self.end
        self.is_started = False
        self.last_progress = 0.0
        self.sink: BodySink | None = None

    def pipe_to(self, sink: BodySink, /) -> None:
        self.is_started = True
        self.sink = sink

    def arrive(self) -> None:
        """Write a piece."""
        if self.sink is not None:
            self.remaining_bytes -= PIECE.nbytes
            self.sink.write(PIECE)

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def detach(self) -> None:
        self.sink = None

    async def read_all(self) -> memoryview:
        raise AssertionError("it is streamed")


@pytest.mark.parametrize(
    ("is_encrypted", "is_checked"),
    [(False, True), (False, False), (True, True)],
    ids=["plain", "unchecked", "tls"],
)
async def test_the_response_to_the_head_of_an_upload_is_returned(
    monkeypatch: pytest.MonkeyPatch, is_encrypted: bool, is_checked: bool
) -> None:
    """It is read before the next piece is sent, or, without TLS, after that has failed."""
    if not is_checked:
        monkeypatch.setattr(client_connection, "has_unread", lambda _sock: False)
    with ExitStack() as stack:
        server_side, tls = None, None
        if is_encrypted:
            authority = trustme.CA()
            server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            authority.issue_cert("127.0.0.1").configure_cert(server_side)
            client_side = ssl.create_default_context()
            authority.configure_trust(client_side)
            tls = TlsContext(client_side)
        server = stack.enter_context(refusing(b"\r\n\r\n", TOO_LARGE, server_side))
        scheme = "https" if is_encrypted else "http"
        client = HttpClient(f"{scheme}://127.0.0.1:{server.port}", ClientLimits(), tls=tls)
        upload = Upload()
        wire = HttpRequest("POST", "/v2/models/m/infer", body=(b"{}",), body_stream=upload)
        sending = asyncio.ensure_future(client.send(wire, deadline=time.monotonic() + 20))
        await eventually(server.has_read.is_set)
        upload.arrive()
        server.refuse()  # the loop stands still, and reads nothing
        upload.arrive()
        upload.arrive()
        response = await sending
        assert (413, b"too large") == (response.status, bytes(response.view))
        await client.close()


async def test_pieces_of_an_upload_keep_their_order_around_an_early_response() -> None:
    """A server may respond before it has read everything, and read on."""
    received = bytearray()
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while len(received) < 5:
            received.extend(await reader.read(100))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        done.set()

    class Letters(Upload):
        end = 5

        def arrive(self) -> None:
            assert self.sink is not None
            letter = b"abcde"[5 - self.remaining_bytes :][:1]
            self.remaining_bytes -= 1
            self.sink.write(memoryview(letter))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        client = HttpClient(f"http://127.0.0.1:{port}", ClientLimits())
        upload = Letters()
        wire = HttpRequest("POST", "/v2/models/m/infer", body=(), body_stream=upload)
        sending = asyncio.ensure_future(client.send(wire, deadline=time.monotonic() + 20))
        await eventually(lambda: upload.sink is not None)
        for _ in range(5):  # the first ones may go before `100 Continue` has arrived
            upload.arrive()
            time.sleep(0.01)  # noqa: ASYNC251  # the loop must not read
            await asyncio.sleep(0)
        assert 200 == (await sending).status
        assert b"abcde" == received
        await client.close()


async def test_a_grpc_reply_that_arrived_before_a_reset_is_returned() -> None:
    """Another call of the connection cannot be written; the one whose reply is there succeeds."""
    block = trailers_block(GrpcStatus.OK, "", ())
    response = b"".join(
        (
            frames.frame(frames.HEADERS, frames.END_HEADERS, 1, RESPONSE_HEAD),
            frames.frame(frames.DATA, 0, 1, b"\0\0\0\0\2hi"),
            frames.frame(frames.HEADERS, frames.END_HEADERS | 1, 1, block),
        )
    )
    with refusing(b"first call", response, greeting=frames.settings([])) as server:
        client = GrpcClient(f"127.0.0.1:{server.port}", ClientLimits())
        first = asyncio.ensure_future(client.send(ask(b"first call"), deadline=None))
        await eventually(server.has_read.is_set)
        server.refuse()  # the loop stands still, and reads nothing
        (connection,) = client._pool._connections
        second = client.send(ask(b"second call"), deadline=None)
        second.send(None)
        connection.flush()  # before the loop reads
        assert b"hi" == (await first).view.tobytes()
        second.close()
        await client.close()


async def test_a_frame_that_arrived_before_a_reset_is_returned() -> None:
    """The same holds for framed streams, if the end arrives after the check of the connection."""
    with refusing(b"first", numbered(1, b"reply")) as server:
        client = StreamClient(
            f"127.0.0.1:{server.port}", NumberedFramer, ClientLimits(), ordered=False
        )
        first = asyncio.ensure_future(client.send(Frame((b"first",)), deadline=None))
        await eventually(server.has_read.is_set)
        server.refuse()  # the loop stands still, and reads nothing
        (connection,) = client._open
        connection._transport.write(b"second")  # before the loop reads
        assert b"reply" == payload_of(await first)
        await client.close()
