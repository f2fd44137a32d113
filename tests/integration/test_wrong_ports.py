"""Upstreams whose URL has the scheme of another port: the error names what the port serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from gateway.app import connect
from gateway.config.tls import TlsConfig
from gateway.ir.calls import ServerReadyRequest
from gateway.ir.errors import GatewayError
from gateway.settings.units import parse_url
from tests.fakes import settle
from tests.integration.asking_kit import running

CONFIG = """
version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}]
admin: {address: off}
lifecycle: {pre_stop: 0s, drain: 1s}
models:
  simple: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
"""


TRANSPORTS = pytest.mark.parametrize("transport", ["native", "reference"])


async def failure(url: str, tls: TlsConfig | None = None, transport: Any = "native") -> str:
    """Return the error of a call to *url*."""
    connected = connect(parse_url(url), tls=tls, transport=transport)
    try:
        with pytest.raises(GatewayError) as caught:
            await connected.service(ServerReadyRequest())
    finally:
        await connected.close()
    return caught.value.message


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[str]:
    """Run a server, which has closed its connections when this ends; yield its address."""
    tasks: set[asyncio.Task[Any]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(current_task())
        with suppress(ConnectionError):
            await serve(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
        # A client may just have connected again. The loop would forget a connection between its
        # acceptance and its first callback if the server closed there.
        asyncio.get_running_loop().remove_reader(server.sockets[0].fileno())
        await settle()
        server.close()
        await asyncio.gather(*tasks)


def current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def responding(data: bytes) -> AbstractAsyncContextManager[str]:
    """Run a server that sends *data* on every connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(data)
        await writer.drain()

    return listening(serve)


@pytest.mark.needs("url_hints")
@TRANSPORTS
async def test_http_to_a_grpc_port(transport: str) -> None:
    """The port of a real gRPC server is recognised by its first frame."""
    async with running(CONFIG) as gateway:
        url = f"oip+http://{gateway.addresses['main.grpc']}"
        message = await failure(url, transport=transport)
    assert "serves gRPC on this port" in message
    assert "oip+grpc://" in message


@TRANSPORTS
async def test_grpc_to_an_http_port(transport: str) -> None:
    """An HTTP/1 server responds to the HTTP/2 preface with a status line."""
    async with responding(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n") as address:
        message = await failure(f"oip+grpc://{address}", transport=transport)
    assert "it serves HTTP/1 on this port" in message
    assert "oip+http://" in message


@pytest.mark.needs("url_hints")
@TRANSPORTS
@pytest.mark.parametrize(("carrier", "other"), [("grpc", "http"), ("http", "grpc")])
async def test_a_server_that_closes_without_a_byte(
    carrier: str, other: str, transport: str
) -> None:
    """Triton closes so on its port of HTTP, and servers of gRPC in Go: the error has the other URL."""
    async with responding(b"") as address:
        message = await failure(f"oip+{carrier}://{address}", transport=transport)
    assert f"on this port, use a URL such as oip+{other}://" in message
    assert "if it needs TLS on this port, add `tls: {}`" in message


@pytest.mark.needs("error_hints")
@TRANSPORTS
async def test_a_server_that_accepts_and_sends_no_http2(transport: str) -> None:
    """One that waits for the rest of a request of HTTP/1 is told from one that cannot be reached."""

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listening(wait) as address:
        message = await failure(f"oip+grpc://{address}", transport=transport)
    assert "if it serves HTTP on this port, use a URL such as oip+http://" in message


def with_tls(folder: Path) -> str:
    """Write a certificate of an unknown authority, and return a configuration with it."""
    certificate = trustme.CA().issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "server.key")
    certificate.cert_chain_pems[0].write_to_path(folder / "server.pem")
    tls = "{http: '127.0.0.1:0', grpc: '127.0.0.1:0', tls: {cert: server.pem, key: server.key}}"
    return CONFIG.replace('{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}', tls)


async def test_plain_http_to_a_port_with_tls() -> None:
    """A TLS server responds to plain text with an alert."""
    async with responding(b"\x15\x03\x03\x00\x02\x02\x46") as address:
        message = await failure(f"oip+http://{address}")
    assert "it needs TLS on this port" in message


@pytest.mark.parametrize("carrier", ["http", "grpc"])
async def test_plain_to_a_gateway_with_tls(carrier: str, tmp_path: Path) -> None:
    """The error names TLS and the key that enables it."""
    async with running(with_tls(tmp_path), tmp_path) as gateway:
        message = await failure(f"oip+{carrier}://{gateway.addresses[f'main.{carrier}']}")
    assert "it needs TLS on this port" in message
    assert "add `tls: {}` to the upstream" in message


@pytest.mark.parametrize("carrier", ["https", "grpcs"])
async def test_an_unknown_authority_is_named_with_the_setting(carrier: str, tmp_path: Path) -> None:
    """The error of a URL with TLS says how to trust another authority."""
    async with running(with_tls(tmp_path), tmp_path) as gateway:
        message = await failure(f"{carrier}://{gateway.addresses[f'main.{carrier[:4]}']}")
    assert "certificate verify failed" in message
    assert "`tls: {ca: FILE}` or --tls-ca FILE" in message


@pytest.mark.parametrize("carrier", ["http", "grpc"])
async def test_tls_to_a_plain_gateway(carrier: str) -> None:
    """The error names the missing TLS and the key to remove."""
    async with running(CONFIG) as gateway:
        url = f"oip+{carrier}://{gateway.addresses[f'main.{carrier}']}"
        message = await failure(url, TlsConfig())
    assert "uses no TLS on this port; remove `tls` from the upstream" in message


@pytest.mark.parametrize("scheme", ["oip+https", "oip+grpcs"])
async def test_tls_to_a_server_that_closes_the_handshake(scheme: str) -> None:
    """Asyncio raises an error without a text there; the reason is not empty."""
    async with responding(b"") as address:
        message = await failure(f"{scheme}://{address}")
    assert "closed the connection in the TLS handshake; if it uses no TLS on this port" in message


_SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_READY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("carrier", "reply", "transport"),
    [("http", _READY, "native"), ("http", _READY, "reference"), ("grpc", _SETTINGS, "native")],
)
async def test_a_server_that_has_replied_before_has_the_right_port(
    carrier: str, reply: bytes, transport: Any
) -> None:
    """After a reset the error has no hint of another URL: the server worked a moment ago."""
    served = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        served += 1
        await reader.read(1)
        if served == 1:
            writer.write(reply)
            await writer.drain()

    async with listening(serve) as address:
        connected = connect(parse_url(f"oip+{carrier}://{address}"), transport=transport)
        try:
            with suppress(GatewayError):  # of gRPC, which has no reply to the call
                await connected.service(ServerReadyRequest())
            with pytest.raises(GatewayError) as caught:
                await connected.service(ServerReadyRequest())
        finally:
            await connected.close()
    assert served > 1
    assert (
        "broke the connection" in caught.value.message or "cannot connect" in caught.value.message
    )
    assert "use a URL such as" not in caught.value.message
