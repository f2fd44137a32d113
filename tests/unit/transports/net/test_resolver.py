"""Addresses of an upstream: cached for a while, with unreachable ones last."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.transports.net.resolver import UpstreamConnector, upstream_of
from tests.fakes import FakeClock

NOBODY = "127.0.0.2"


class Names:
    """A resolver with fixed addresses that counts its lookups."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.works = True
        self.is_silent = False
        self.lookups = 0

    async def __call__(self, _host: str) -> list[str]:
        self.lookups += 1
        if self.is_silent:
            await asyncio.Event().wait()
        if not self.works:
            raise socket.gaierror("no answer")
        return list(self.addresses)


class Closing(asyncio.Protocol):
    """A protocol that closes each connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


@asynccontextmanager
async def listening() -> AsyncIterator[int]:
    """Listen on 127.0.0.1 alone; yield the port."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Closing, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def peer_of(upstream: UpstreamConnector) -> str:
    """Connect, and return the address of the peer."""
    seen: list[str] = []

    class Noting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            seen.append(transport.get_extra_info("peername")[0])
            transport.close()

    await upstream.connect(Noting, {})
    await asyncio.sleep(0)  # for the transport to close
    return seen[0]


async def test_addresses_are_cached_for_the_floor() -> None:
    """Connections within that time share one lookup; the next one looks the name up again."""
    names, clock = Names("127.0.0.1"), FakeClock(0.0)
    async with listening() as port:
        upstream = UpstreamConnector("host", port, floor_s=5.0, resolve=names, clock=clock)
        for _ in range(3):
            assert "127.0.0.1" == await peer_of(upstream)
        assert 1 == names.lookups
        clock.now = 5.0
        await peer_of(upstream)
    assert 2 == names.lookups


async def test_a_dead_address_is_tried_last() -> None:
    """All addresses are tried; one that failed moves to the end."""
    names = Names(NOBODY, "127.0.0.1")
    async with listening() as port:
        upstream = UpstreamConnector("host", port, resolve=names)
        assert ["127.0.0.1"] * 2 == [await peer_of(upstream) for _ in range(2)]
        assert ["127.0.0.1", NOBODY] == await upstream._addresses()


async def test_a_failed_connect_looks_the_name_up_again() -> None:
    """The name may have moved: its addresses are dropped before the floor ends."""
    names = Names(NOBODY)
    async with listening() as port:
        upstream = UpstreamConnector("host", port, floor_s=60.0, resolve=names)
        with pytest.raises(ConnectionRefusedError):
            await peer_of(upstream)
        names.addresses = ["127.0.0.1"]
        assert "127.0.0.1" == await peer_of(upstream)


async def test_stale_addresses_are_used_while_lookups_fail() -> None:
    """A name that never resolved is an error."""
    names = Names("127.0.0.1")
    async with listening() as port:
        upstream = UpstreamConnector("host", port, floor_s=0.0, resolve=names)
        await peer_of(upstream)
        names.works = False
        assert "127.0.0.1" == await peer_of(upstream)
        with pytest.raises(socket.gaierror):
            await peer_of(UpstreamConnector("host", port, resolve=names))


async def test_known_addresses_serve_while_the_name_server_is_silent() -> None:
    """A look-up that does not end delays a connection to known addresses for an instant."""
    names = Names("127.0.0.1")
    async with listening() as port:
        upstream = UpstreamConnector("host", port, floor_s=0.0, resolve=names)
        await peer_of(upstream)
        names.is_silent = True
        async with asyncio.timeout(20):
            assert "127.0.0.1" == await peer_of(upstream)


async def test_ip_addresses_are_not_looked_up() -> None:
    """An IP address is used as it is; the system resolves a name."""
    names = Names()
    async with listening() as port:
        assert "127.0.0.1" == await peer_of(UpstreamConnector("127.0.0.1", port, resolve=names))
        assert "127.0.0.1" == await peer_of(UpstreamConnector("localhost", port))
    assert 0 == names.lookups


async def test_unix_socket(tmp_path: Path) -> None:
    """A path connects to its unix socket."""
    path = str(tmp_path / "s")
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(Closing, path)
    async with server:
        found = await upstream_of(f"unix:{path}", 5.0).connect(Closing, {})
        await asyncio.sleep(0)  # for the transport to close
    assert isinstance(found, Closing)


@pytest.mark.parametrize("target", ["", "host", "host:", ":1", "host:x"])
def test_an_invalid_target_is_rejected(target: str) -> None:
    """A target needs a host and a port."""
    with pytest.raises(ValueError, match="is not host:port"):
        upstream_of(target, 5.0)
