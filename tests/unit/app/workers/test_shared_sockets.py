"""Addresses that workers share are opened once, by the supervisor."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from gateway.app.workers.shared_sockets import SharedSockets
from gateway.config.load import load_text

TEXT = """
version: 1
listeners:
  - http: "127.0.0.1:0"
    grpc: "127.0.0.1:0"
    default_model: m
    streams: [{protocol: graphpipe, address: "127.0.0.1:0"}]
  - {name: other, http: "127.0.0.1:PORT"}
"""


def test_ports_are_resolved_and_reserved() -> None:
    """Port 0 becomes a fixed port for the workers, and no other process can use it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        fixed_port = free.getsockname()[1]
    addresses = SharedSockets(load_text(TEXT.replace("PORT", str(fixed_port))))
    first, second = addresses.loaded.config.listeners
    assert first.http is not None
    assert first.grpc is not None
    assert first.streams[0].address.tcp is not None
    assert second.http is not None
    ports = [first.http.port, first.grpc.port, first.streams[0].address.tcp.port, fixed_port]
    assert fixed_port == second.http.port
    assert len({0, *ports}) == len(ports) + 1
    for port in ports:
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", port))
    addresses.close()
    addresses.close()
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def test_a_used_address_releases_the_reserved_ports() -> None:
    """The error names the address, and the ports reserved before it are free again."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as probe:
        port = listener.getsockname()[1]
        probe.bind(("127.0.0.1", 0))
        mine = probe.getsockname()[1]
        probe.close()
        text = TEXT.replace("PORT", str(port)).replace('grpc: "127.0.0.1:0"', f"grpc: {mine}")
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: "):
            SharedSockets(load_text(text))
    socket.create_server(("127.0.0.1", mine)).close()


def test_unix_sockets_are_opened_once(tmp_path: Path) -> None:
    """Workers share one socket, whose file is removed when it is closed."""
    file = tmp_path / "g.sock"
    text = TEXT.replace('address: "127.0.0.1:0"', f'address: "unix:{file}", mode: "0600"')
    addresses = SharedSockets(load_text(text.replace("PORT", "0")))
    ((where, descriptor),) = addresses.sockets.items()
    assert f"unix:{file}" == where
    assert 0o600 == stat.S_IMODE(file.stat().st_mode)
    with (
        socket.socket(fileno=os.dup(descriptor)) as worker,
        socket.socket(socket.AF_UNIX) as client,
    ):
        client.connect(str(file))
        worker.accept()[0].close()
    with pytest.raises(OSError, match="a server listens on it already"):
        SharedSockets(load_text(text.replace("PORT", "0")))
    addresses.close()
    assert not file.exists()
    assert {} == addresses.sockets
