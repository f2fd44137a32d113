"""Servers that listen without the threads of the event loop, and addresses that processes share."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.transports.net.listening import PortReservation, bound_sockets, listen


class Closing(asyncio.Protocol):
    """A protocol that closes each connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def serve(sock: socket.socket) -> asyncio.Server:
    """Listen on a socket."""
    return await asyncio.get_running_loop().create_server(Closing, sock=sock)


@pytest.fixture
async def held_threads() -> AsyncIterator[None]:
    """Let every thread of the loop wait for something that does not come."""
    loop = asyncio.get_running_loop()
    ends = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        loop.set_default_executor(pool)
        waiting = loop.run_in_executor(None, ends.wait, 30)
        yield
        ends.set()
        await waiting


@pytest.mark.usefixtures("held_threads")
@pytest.mark.parametrize("host", ["", "127.0.0.1", "localhost"])
async def test_listens_while_the_threads_of_the_loop_are_held(host: str) -> None:
    """Neither every address, nor a number, nor a name waits for them."""
    async with asyncio.timeout(20):
        servers = await listen(host, 0, serve)
    port = servers[0].sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert b"" == await reader.read()
    writer.close()
    for server in servers:
        server.close()


async def test_both_families_have_one_port() -> None:
    """Port 0 of every address is the same port in each family."""
    sockets = await bound_sockets("", 0)
    try:
        assert 1 == len({each.getsockname()[1] for each in sockets})
        assert socket.AF_INET in [each.family for each in sockets]
    finally:
        for each in sockets:
            each.close()


async def test_a_port_in_use_is_named_and_nothing_stays_open() -> None:
    """The error has the address; what was bound before it is closed."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        for host in ("127.0.0.1", ""):
            with pytest.raises(OSError, match=f"cannot listen on {host}:{port}: Address already"):
                await bound_sockets(host, port)


async def test_a_name_without_an_address_is_named() -> None:
    """The error says for which address the name is unknown."""
    with pytest.raises(OSError, match=r"cannot listen on no-such-host\.invalid:1: "):
        await bound_sockets("no-such-host.invalid", 1)


@pytest.fixture
def reservation() -> Iterator[PortReservation]:
    """Hold a free port of the loopback."""
    reservation = PortReservation("127.0.0.1", 0)
    yield reservation
    reservation.close()


def listening(port: int, *options: int) -> socket.socket:
    """Listen on a port with socket options set."""
    sock = socket.socket()
    try:
        for option in options:
            sock.setsockopt(socket.SOL_SOCKET, option, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen()
    except BaseException:
        sock.close()
        raise
    return sock


def test_sockets_that_share_the_port_may_listen(reservation: PortReservation) -> None:
    """Any number of sockets with SO_REUSEPORT listen beside the reservation."""
    options = (socket.SO_REUSEADDR, socket.SO_REUSEPORT)
    with (
        listening(reservation.port, *options) as first,
        listening(reservation.port, *options) as second,
    ):
        assert [reservation.port] * 2 == [each.getsockname()[1] for each in (first, second)]


@pytest.mark.parametrize("options", [(), (socket.SO_REUSEADDR,)])
def test_other_sockets_may_not_listen(
    reservation: PortReservation, options: tuple[int, ...]
) -> None:
    """Without SO_REUSEPORT a server fails, even while no socket listens."""
    with pytest.raises(OSError, match="in use"):
        listening(reservation.port, *options)


@pytest.mark.parametrize("shares", [False, True])
def test_a_second_reservation_is_refused(reservation: PortReservation, shares: bool) -> None:
    """Two supervisors never share a port, whether workers listen yet or not."""
    options = (socket.SO_REUSEADDR, socket.SO_REUSEPORT)
    worker = listening(reservation.port, *options) if shares else None
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{reservation.port}: ") as raised:
        PortReservation("127.0.0.1", reservation.port)
    assert errno.EADDRINUSE == raised.value.errno
    if worker is not None:
        worker.close()


def test_a_reservation_does_not_accept_connections(reservation: PortReservation) -> None:
    """It does not listen: clients are refused at once."""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", reservation.port), timeout=60)


def test_a_closed_reservation_frees_the_port(reservation: PortReservation) -> None:
    """Closing it twice is harmless."""
    reservation.close()
    reservation.close()
    listening(reservation.port).close()


def test_every_address_has_the_same_port() -> None:
    """Port 0 on every address is the same port in each family."""
    every = PortReservation("", 0)
    try:
        with pytest.raises(OSError, match="in use"):
            listening(every.port)
    finally:
        every.close()


def test_an_invalid_host_is_named() -> None:
    """The error names the requested address."""
    with pytest.raises(OSError, match=r"cannot listen on \[::g\]:80: "):
        PortReservation("::g", 80)
