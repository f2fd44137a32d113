"""What the gateway tells its service manager, and which sockets it accepts from it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from gateway.api.start_error import StartError
from gateway.app.listen.activation import activated_sockets
from gateway.app.listen.server_names import inherited_sockets, server_addresses
from gateway.app.run.service_manager import ServiceManager
from gateway.config.load import load_text
from gateway.config.models import ListenerConfig
from tests.integration.http_kit import eventually
from tests.simulation.virtual_time import elapse, in_virtual_time


@contextmanager
def manager_socket(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(address)
        sock.setblocking(False)
        yield sock


def received(sock: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(sock.recv(4096).decode())
        except BlockingIOError:
            return found


@pytest.mark.parametrize("abstract", [False, True])
async def test_states_are_sent_to_the_service_manager(tmp_path: Path, abstract: bool) -> None:
    """READY when it listens, RELOADING and READY around a reload, STOPPING at the end."""
    name = f"gateway-test-{os.getpid()}"
    address = f"\0{name}" if abstract else str(tmp_path / "notify")
    environ = {"NOTIFY_SOCKET": f"@{name}" if abstract else address}
    with manager_socket(address) as sock:
        manager = ServiceManager(environ)
        assert environ == {}
        manager.started({"main.http": "127.0.0.1:8000"})
        manager.reloading()
        manager.reloaded("applied")
        manager.stopping()
        found = received(sock)
    assert "READY=1\nSTATUS=Serving on main.http 127.0.0.1:8000" == found[0]
    assert found[1].startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert found[2] == "READY=1\nSTATUS=Serving; last reload: applied"
    assert found[3].startswith("STOPPING=1")


@in_virtual_time
async def test_the_watchdog_runs_in_the_event_loop(tmp_path: Path) -> None:
    """The loop says every half interval that it runs, until the gateway stops."""
    address = str(tmp_path / "notify")
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "2000", "WATCHDOG_PID": str(os.getpid())}
    with manager_socket(address) as sock:
        manager = ServiceManager(environ)
        manager.started({})
        found: list[str] = []

        def is_fed() -> bool:
            found.extend(received(sock))
            return found.count("WATCHDOG=1") >= 3

        await eventually(is_fed)
        manager.stopping()
        await asyncio.sleep(0)
        received(sock)
        await elapse(60)
        assert [] == received(sock)


@in_virtual_time
async def test_a_watchdog_for_another_process_is_not_fed(tmp_path: Path) -> None:
    """WATCHDOG_PID names the process that the manager watches."""
    address = str(tmp_path / "notify")
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}
    with manager_socket(address) as sock:
        ServiceManager(environ).started({})
        await elapse(60)
        assert ["READY=1\nSTATUS=Serving on "] == received(sock)


def test_an_absent_service_manager_is_no_error(tmp_path: Path) -> None:
    """Without one nothing happens; with one that has gone the gateway goes on."""
    ServiceManager({}).reloading()
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).reloading()


def listeners(text: str) -> tuple[ListenerConfig, ...]:
    loaded = load_text(yaml.safe_dump({"version": 1, "listeners": yaml.safe_load(text)}))
    return tuple(loaded.config.listeners)


FIRST = 700
"""The first inherited descriptor in these tests: far above those of the test runner."""


@contextmanager
def environment(
    monkeypatch: pytest.MonkeyPatch, *names: str, where: tuple[str, int] = ("127.0.0.1", 0)
) -> Iterator[tuple[dict[str, str], int]]:
    """Yield the variables for so many sockets that listen, and the port of the first."""
    created = [socket.create_server(where) for _ in names]
    port = created[0].getsockname()[1]
    # Descriptors from 3 on belong to the test runner, and what it left open may be anywhere.
    for number, each in enumerate(created, FIRST):
        os.dup2(each.fileno(), number)
        each.close()
    monkeypatch.setattr("gateway.app.listen.activation._FIRST", FIRST)
    count = str(len(names))
    yield (
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": count, "LISTEN_FDNAMES": ":".join(names)},
        port,
    )


def test_sockets_are_found_by_the_names_of_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may have several; the variables are removed for child processes."""
    config = listeners("[{name: a, http: ':1', grpc: ':2'}, {name: b, address: ':3'}]")
    with environment(monkeypatch, "a.http", "a.grpc", "a.http", "b.http") as (environ, _):
        found = activated_sockets(config, environ)
        assert environ == {}
    counts = {
        name: len(inherited_sockets(name, found))
        for each in config
        for name in server_addresses(each)
    }
    assert {"a.http": 2, "a.grpc": 1, "b.http+grpc": 1} == counts
    assert not any(each.get_inheritable() for each in found.values())
    for each in found.values():
        each.close()


def test_sockets_without_a_name_are_found_by_their_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sockets of one unit of systemd have one name, that of the unit."""
    with environment(monkeypatch, "gateway.socket") as (environ, port):
        config = listeners(f"[{{http: '127.0.0.1:1', grpc: '127.0.0.1:{port}'}}]")
        (sock,) = inherited_sockets("main.grpc", activated_sockets(config, environ))
        sock.close()


def test_a_socket_of_no_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the socket and the servers that there are."""
    config = listeners("[{http: '127.0.0.1:1'}]")
    with (
        environment(monkeypatch, "main.grpc") as (environ, _),
        pytest.raises(StartError, match=r"'main\.grpc' belongs to no server; .*name main\.http"),
    ):
        activated_sockets(config, environ)


def test_grpcio_refuses_an_inherited_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference transport opens its sockets itself; the error names the setting."""
    config = listeners("[{grpc: '127.0.0.1:1', transport: reference}]")
    with (
        environment(monkeypatch, "main.grpc") as (environ, _),
        pytest.raises(StartError, match=r"expected 'native' \(listeners\.transport\)"),
    ):
        activated_sockets(config, environ)


def test_sockets_for_another_process_are_left() -> None:
    """LISTEN_PID names the process that they are for, such as the parent of this one."""
    config = listeners("[{http: '127.0.0.1:1'}]")
    assert {} == activated_sockets(config, {"LISTEN_PID": "1", "LISTEN_FDS": "1"})
    assert {} == activated_sockets(config, {})
