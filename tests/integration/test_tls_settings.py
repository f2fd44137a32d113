"""What a listener's `tls` decides about handshakes: names, clients, versions, protocols."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme

from tests.integration.asking_kit import running
from tests.integration.tls_kit import client_side, handshake, write_authorities, write_pair

CONFIG = """
version: 1
listeners:
  - http: "127.0.0.1:0"
    grpc: "127.0.0.1:0"
    transport: {transport}
    default_model: simple
    streams: [{{protocol: graphpipe, address: "127.0.0.1:0"}}]
    tls:
      cert: server.pem
      key: server.key
      {more}
admin: {{address: off}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
models:
  simple: {{backend: python, options: {{callable: "gateway.backends.examples:simple"}}}}
"""
TRANSPORTS = pytest.mark.parametrize("transport", ["native", "reference"])
MORE = """certificates:
        - {cert: example.pem, key: example.key}
        - {cert: wild.pem, key: wild.key}"""


def config(transport: str, more: str = "") -> str:
    return CONFIG.format(transport=transport, more=more)


@TRANSPORTS
async def test_the_name_that_a_client_sends_chooses_the_certificate(
    transport: str, tmp_path: Path
) -> None:
    """A name comes before a wildcard, and all other names get `cert`."""
    authority = trustme.CA()
    default = write_pair(tmp_path, authority, "localhost", "other.test")
    example = write_pair(tmp_path, authority, "a.models.test", stem="example")
    wild = write_pair(tmp_path, authority, "*.models.test", stem="wild")
    expected = {
        "localhost": default,
        "other.test": default,
        "a.models.test": example,
        "b.models.test": wild,
    }
    anything = client_side(authority)
    anything.check_hostname = False
    async with running(config(transport, MORE), tmp_path) as gateway:
        for name in ("main.http", "main.grpc"):
            address = gateway.addresses[name]
            for host, certificate in expected.items():
                found = await handshake(address, client_side(authority, alpn=("h2",)), host)
                assert certificate == found.certificate, (name, host)
        found = await handshake(gateway.addresses["main.http"], anything, "a.b.models.test")
        assert default == found.certificate
        renewed = write_pair(tmp_path, authority, "*.models.test", stem="wild")
        await gateway._certificates.renew()
        for name in ("main.http", "main.grpc"):
            found = await handshake(
                gateway.addresses[name], client_side(authority, alpn=("h2",)), "b.models.test"
            )
            assert renewed == found.certificate


async def accepted(address: str, context: ssl.SSLContext) -> bool:
    """Return whether a port completes a handshake, and answers over it."""
    host, _, port = address.rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(
            host, int(port), ssl=context, server_hostname="localhost"
        )
        writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        found = await reader.read(12)
        writer.transport.abort()
    except OSError:
        return False
    return found == b"HTTP/1.1 200"


@TRANSPORTS
async def test_certificates_of_clients_can_be_optional(transport: str, tmp_path: Path) -> None:
    """A client without one is served; one of another authority is not."""
    authority, clients, stranger = trustme.CA(), trustme.CA(), trustme.CA()
    write_pair(tmp_path, authority)
    write_authorities(tmp_path / "clients.pem", clients)
    more = "ca: clients.pem\n      client_certificates: optional"
    text = config(transport, more).replace('    grpc: "127.0.0.1:0"\n', "")
    async with running(text, tmp_path) as gateway:
        address = gateway.addresses["main.http"]
        found = [
            await accepted(address, client_side(authority, own))
            for own in (None, clients, stranger)
        ]
    assert [True, True, False] == found


@TRANSPORTS
async def test_the_oldest_version_is_refused(transport: str, tmp_path: Path) -> None:
    """With `min_version: "1.3"` a client of 1.2 fails; by default it does not."""
    authority = trustme.CA()
    write_pair(tmp_path, authority)
    old = client_side(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    plain = config(transport).replace('    grpc: "127.0.0.1:0"\n', "")
    for text, expected in (
        (plain, True),
        (plain.replace("key: server.key", "key: server.key\n      min_version: 1.3"), False),
    ):
        async with running(text, tmp_path) as gateway:
            address = gateway.addresses["main.http"]
            assert expected == await accepted(address, old)
            assert await accepted(address, client_side(authority))


async def test_alpn_has_what_the_port_serves(tmp_path: Path) -> None:
    """HTTP has both versions, gRPC has HTTP/2, and a GraphPipe stream negotiates nothing."""
    authority = trustme.CA()
    write_pair(tmp_path, authority)
    both = client_side(authority, alpn=("h2", "http/1.1"))
    old = client_side(authority, alpn=("http/1.1",))
    async with running(config("native"), tmp_path) as gateway:
        found = {
            name: [(await handshake(address, each)).alpn for each in (both, old)]
            for name, address in gateway.addresses.items()
        }
    assert found == {
        "main.http": ["h2", "http/1.1"],
        "main.grpc": ["h2", None],
        "main.graphpipe.tcp": [None, None],
    }
