"""Options of sockets."""

from __future__ import annotations

import socket

from gateway.transports.net.sockets import tune


def test_a_lost_keepalive_probe_keeps_the_connection() -> None:
    """TCP_USER_TIMEOUT ends it at the first timer afterwards, so all probes are sent before."""
    with socket.socket() as sock:
        tune(sock)

        def option(name: int) -> int:
            return sock.getsockopt(socket.IPPROTO_TCP, name)

        last_s = option(socket.TCP_KEEPIDLE) + option(socket.TCP_KEEPINTVL) * (
            option(socket.TCP_KEEPCNT) - 1
        )
        assert 3 == option(socket.TCP_KEEPCNT)
        assert last_s * 1000 < option(socket.TCP_USER_TIMEOUT) == 30_000
