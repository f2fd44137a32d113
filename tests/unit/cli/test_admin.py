"""Requests of commands to the admin port, and their errors for other ports."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
import typer
from typer.main import get_command

from gateway.cli.admin import get_metrics, get_status, get_traffic
from gateway.cli.commands import command_line

PAGES = [get_status, get_metrics, get_traffic]


@contextmanager
def replying_server(response: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Reply to one request with *response*; yield the address, and the received bytes."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply() -> None:
            connection, _ = server.accept()
            with connection:
                received.append(connection.recv(65_536))
                connection.sendall(response)

        thread = Thread(target=reply)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", received
        thread.join()


def body(status: str, text: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(text), text)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (body("404 Not Found", b'{"error": "nothing is served"}'), "status 404 for /"),
        (b"\0\0\0\4\0\0\0\0\0", "the server does not speak HTTP/1"),
    ],
    ids=["http", "grpc"],
)
def test_another_port_is_reported_as_no_admin_port(
    page: Callable[[str], Any], response: bytes, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error has the address and the expected option, whatever the other server returns."""
    with replying_server(response) as (address, _), pytest.raises(typer.Exit):
        page(address)
    text = capsys.readouterr().err
    assert text.startswith(f"gateway: no admin port of a gateway at {address}: {reason}")
    assert text.endswith("; expected the address of its `admin`\n")


@pytest.mark.parametrize("page", [get_status, get_traffic])
@pytest.mark.parametrize(
    ("token", "hint"),
    [
        ("", "; set the environment variable GATEWAY_ADMIN_TOKEN to the token\n"),
        ("wrong", "; GATEWAY_ADMIN_TOKEN has the token that was sent\n"),
    ],
)
def test_a_refusal_names_the_variable_of_the_token(
    page: Callable[[str], Any],
    token: str,
    hint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operator of another machine reads there what the command needs."""
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", token)
    refusal = body("401 Unauthorized", b'{"error": "token is missing or wrong"}')
    with replying_server(refusal) as (address, _), pytest.raises(typer.Exit):
        page(address)
    assert f"gateway: token is missing or wrong{hint}" == capsys.readouterr().err


@pytest.mark.migration
def test_each_command_with_an_admin_port_names_the_variable() -> None:
    """Its help says where the token comes from."""
    found = [
        (path, command)
        for path, command in _commands(get_command(command_line()))
        if any("--admin" in each.opts and path != "health" for each in command.params)
    ]
    listens = {"serve", "init", "demo", "migration-demo"}  # their flag is where the gateway listens
    without = {
        path
        for path, command in found
        if not any(
            "GATEWAY_ADMIN_TOKEN" in (getattr(each, "help", "") or "") for each in command.params
        )
    }
    assert len(found) > 15
    assert listens >= without


def _commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each command with its words."""
    for name, each in getattr(command, "commands", {}).items():
        yield from _commands(each, f"{path} {name}".strip())
    if not hasattr(command, "commands"):
        yield path, command


def test_an_address_may_have_a_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    """`http://` is not part of the host; the token of the environment is sent."""
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", "secret")
    with replying_server(body("200 OK", b'{"ready": true}')) as (address, received):
        assert {"ready": True} == get_status(f"http://{address}/")
    assert received[0].startswith(b"GET /status HTTP/1.1\r\nHost: " + address.encode() + b"\r\n")
    assert b"authorization: Bearer secret\r\n" in received[0]
