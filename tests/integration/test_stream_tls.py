"""Byte streams under TLS."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import nullcontext

import pytest
import trustme

from gateway.ir.errors import NotSent
from gateway.transports.contract import ClientLimits
from gateway.transports.net.tls_files import TlsContext
from gateway.transports.stream.client import StreamClient
from gateway.wire.stream import Frame
from tests.integration.http_kit import eventually
from tests.integration.stream_kit import Echo, Slow, ordered, payload_of, serving


def contexts(trusted: trustme.CA, signer: trustme.CA) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    signer.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted.configure_trust(client)
    return server, client


async def test_frames_are_echoed_under_tls() -> None:
    """The client verifies the server's name and authority."""
    authority = trustme.CA()
    server, client = contexts(authority, authority)
    async with serving(Echo(), ssl_context=server) as running:
        asking = StreamClient(
            running.server.address, ordered, ClientLimits(), tls=TlsContext(client)
        )
        payload = bytes(range(256)) * 2000
        found = [payload_of(await asking.send(Frame((payload,)), deadline=None)) for _ in range(2)]
        await asking.close()
        await eventually(lambda: not running.server._listener.connections)
    assert [payload] * 2 == found


async def test_fixed_address_is_verified_by_its_host_name() -> None:
    """The client connects to the address and verifies the certificate by the host name."""
    authority = trustme.CA()
    server, client = contexts(authority, authority)
    authority.issue_cert("triton.test").configure_cert(server)
    async with serving(Echo(), ssl_context=server) as running:
        port = running.server.address.rpartition(":")[2]
        for host, fails in (("triton.test", False), ("other.test", True)):
            asking = StreamClient(
                f"{host}:{port}",
                ordered,
                ClientLimits(),
                tls=TlsContext(client),
                address="127.0.0.1",
            )
            refused = pytest.raises(NotSent, match="Hostname mismatch") if fails else nullcontext()
            with refused:
                await asking.send(Frame((b"question",)), deadline=None)
            await asking.close()


async def test_untrusted_server_gets_no_request() -> None:
    """Nothing is sent to a server with an untrusted certificate."""
    server, client = contexts(trustme.CA(), trustme.CA())
    frontend = Echo()
    async with serving(frontend, ssl_context=server) as running:
        asking = StreamClient(
            running.server.address, ordered, ClientLimits(), tls=TlsContext(client)
        )
        with pytest.raises(NotSent, match="certificate verify failed"):
            await asking.send(Frame((b"question",)), deadline=None)
        await asking.close()
    assert [] == frontend.seen


async def test_cancelled_request_cancels_the_server() -> None:
    """Cancellation reaches the server, as without TLS."""
    authority = trustme.CA()
    server, client = contexts(authority, authority)
    frontend = Slow()
    async with serving(frontend, ssl_context=server) as running:
        asking = StreamClient(
            running.server.address, ordered, ClientLimits(), tls=TlsContext(client)
        )
        request = asyncio.ensure_future(asking.send(Frame((b"question",)), deadline=None))
        await eventually(lambda: bool(frontend.waiting))
        request.cancel()
        async with asyncio.timeout(20):
            await frontend.end.wait()
        await asking.close()
    assert [b"question"] == frontend.cancelled
