"""Requests of commands to the admin port, and what they say of other ports."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
import typer

from gateway.cli.admin import get_metrics, get_status

PAGES = [get_status, get_metrics]


@contextmanager
def answering(response: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Answer one request with *response*; yield the address, and what is received."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                received.append(connection.recv(65_536))
                connection.sendall(response)

        thread = Thread(target=answer)
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
def test_another_port_is_no_admin_port(
    page: Callable[[str], Any], response: bytes, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page fails with the address and what is expected, whatever answers there."""
    with answering(response) as (address, _), pytest.raises(typer.Exit):
        page(address)
    text = capsys.readouterr().err
    assert text.startswith(f"gateway: no admin port of a gateway at {address}: {reason}")
    assert text.endswith("; expected HOST:PORT of its `admin`\n")


def test_an_address_may_stand_as_in_a_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    """`http://` before it is no part of the host; the token of the environment is sent."""
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", "secret")
    with answering(body("200 OK", b'{"ready": true}')) as (address, received):
        assert {"ready": True} == get_status(f"http://{address}/")
    assert received[0].startswith(b"GET /status HTTP/1.1\r\nHost: " + address.encode() + b"\r\n")
    assert b"authorization: Bearer secret\r\n" in received[0]
