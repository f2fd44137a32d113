"""Reserving an address that several processes share, and no other process."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

from gateway.transports.net.port_reservation import PortReservation


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
