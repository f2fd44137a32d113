"""HTTP over TLS, server and client."""

from __future__ import annotations

import ssl

import pytest
import trustme

from gateway.ir.errors import NotSent
from gateway.transports.contract import ClientLimits
from gateway.transports.net.tls_files import TlsContext
from gateway.wire.http import HttpRequest
from tests.integration.http_kit import HTTP_MAKES, Echo, serving

pytestmark = pytest.mark.usefixtures("http_sides")


async def test_tls_requires_a_trusted_certificate() -> None:
    """A trusted certificate carries the call; with an unknown authority nothing is sent."""
    authority, stranger = trustme.CA(), trustme.CA()
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server_side)
    wire = HttpRequest("POST", "/v2", body=(bytes(1_000_000),))
    async with serving(Echo(), ssl_context=server_side) as running:
        for trusted in (authority, stranger):
            client_side = ssl.create_default_context()
            trusted.configure_trust(client_side)
            client = HTTP_MAKES.http_client(
                f"https://127.0.0.1:{running.port}", ClientLimits(), tls=TlsContext(client_side)
            )
            try:
                if trusted is authority:
                    assert len((await client.send(wire, deadline=None)).view) == 1_000_000
                else:
                    with pytest.raises(NotSent):
                        await client.send(wire, deadline=None)
            finally:
                await client.close()
