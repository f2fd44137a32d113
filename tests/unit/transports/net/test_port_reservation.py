"""Holding an address that several processes share, and nobody else."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

from gateway.transports.net.port_reservation import PortReservation


@pytest.fixture
def guard() -> Iterator[PortReservation]:
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


def test_those_who_share_may_listen(guard: PortReservation) -> None:
    """Any number of sockets that share the port listen on it beside the guard."""
    options = (socket.SO_REUSEADDR, socket.SO_REUSEPORT)
    with listening(guard.port, *options) as first, listening(guard.port, *options) as second:
        assert [guard.port] * 2 == [each.getsockname()[1] for each in (first, second)]


@pytest.mark.parametrize("options", [(), (socket.SO_REUSEADDR,)])
def test_others_may_not(guard: PortReservation, options: tuple[int, ...]) -> None:
    """A server that does not share gets no place, also while nobody listens."""
    with pytest.raises(OSError, match="in use"):
        listening(guard.port, *options)


@pytest.mark.parametrize("shares", [False, True])
def test_a_second_guard_is_refused(guard: PortReservation, shares: bool) -> None:
    """Two supervisors never share a port, whether the first one's workers listen yet or not."""
    options = (socket.SO_REUSEADDR, socket.SO_REUSEPORT)
    worker = listening(guard.port, *options) if shares else None
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{guard.port}: ") as raised:
        PortReservation("127.0.0.1", guard.port)
    assert errno.EADDRINUSE == raised.value.errno
    if worker is not None:
        worker.close()


def test_it_takes_no_connections(guard: PortReservation) -> None:
    """What only holds the address does not listen: a client is refused at once."""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", guard.port), timeout=5)


def test_it_lets_go(guard: PortReservation) -> None:
    """A guard that was closed, twice if you like, leaves the address to others."""
    guard.close()
    guard.close()
    listening(guard.port).close()


def test_every_address_has_one_port() -> None:
    """Port 0 on every address is the same port in each family."""
    every = PortReservation("", 0)
    try:
        with pytest.raises(OSError, match="in use"):
            listening(every.port)
    finally:
        every.close()


def test_a_host_without_address_is_named() -> None:
    """An error names the address that was asked for."""
    with pytest.raises(OSError, match=r"cannot listen on \[::g\]:80: "):
        PortReservation("::g", 80)
