"""The readiness of a server, asked with few imports."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.cli.calling.health import NO_FLAGS
from gateway.cli.calling.readiness import ask_ready
from gateway.cli.calling.server_flags import ServerFlags
from gateway.ir.errors import ConnectFailure, DeadlineExceeded, Forbidden
from gateway.settings.units import Url
from gateway.transports.grpc.headers import RESPONSE_HEAD, TRAILERS_OK, trailers_only_block
from gateway.transports.http2 import frames
from gateway.wire.grpc import GrpcStatus

WAIT_S = 20.0
HEAVY = ("asyncio", "numpy", "structlog", "gateway.app", "gateway.registry")


def http(status: str, body: str = "") -> list[bytes]:
    return [f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()]


def grpc(message: bytes, trailers: bytes = TRAILERS_OK) -> list[bytes]:
    """Return a response in several frames, after those of the connection."""
    data = b"\0" + len(message).to_bytes(4, "big") + message
    return [
        frames.settings(()),
        frames.frame(frames.PING, 0, 0, bytes(8)),
        frames.frame(frames.HEADERS, frames.END_HEADERS, 1, RESPONSE_HEAD),
        frames.frame(frames.DATA, 0, 1, data[:3]),
        frames.frame(frames.DATA, 0, 1, data[3:]),
        frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, trailers),
    ]


FAILED = frames.frame(
    frames.HEADERS,
    frames.END_HEADERS | frames.END_STREAM,
    1,
    trailers_only_block(GrpcStatus.UNAVAILABLE, "no", ()),
)


@contextmanager
def server(parts: list[bytes], requests: list[bytes], path: str = "") -> Iterator[int]:
    """Serve one connection with *parts*, each in a packet of its own; yield the port.

    With a *path* it is at a unix socket, which has no port.
    """

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            requests.append(connection.recv(65_536))
            for part in parts:
                connection.sendall(part)
            if parts:
                connection.settimeout(WAIT_S)
                while connection.recv(65_536):  # until the client has left
                    pass

    at = (path, socket.AF_UNIX) if path else (("127.0.0.1", 0), socket.AF_INET)
    with socket.create_server(at[0], family=at[1]) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield 0 if path else listener.getsockname()[1]
        thread.join(WAIT_S)


def result_of(
    carrier: str,
    parts: list[bytes],
    model: str | None = None,
    version: str = "",
    server_flags: ServerFlags = NO_FLAGS,
    path: str = "",
) -> tuple[bool | None, bytes]:
    """Return the result and what the server received."""
    requests: list[bytes] = []
    with server(parts, requests, path) as port:
        url = Url("oip", carrier, "" if path else "127.0.0.1", port, socket=path)
        found = ask_ready(url, model, version, WAIT_S, server_flags)
    return found, requests[0]


@pytest.mark.parametrize(
    ("carrier", "parts", "expected"),
    [
        ("http", http("200 OK"), True),
        ("http", http("200 OK", '{"ready": true}'), True),
        ("http", http("200 OK", '{"ready": false}'), False),
        ("http", http("200 OK", '{"name": "m", "ready": "False"}'), False),
        ("http", http("503 Service Unavailable"), False),
        ("http", http("400 Bad Request"), False),
        ("http", http("500 Internal Server Error"), None),
        ("http", [frames.settings(()) + b"\r\n"], None),
        ("http", [], None),
        ("grpc", grpc(b"\x08\x01"), True),
        ("grpc", [b"".join(grpc(b"\x08\x01"))], True),
        ("grpc", grpc(b""), False),
        (
            "grpc",
            grpc(
                b"\x08\x01", trailers_only_block(GrpcStatus.INTERNAL, "", ())[len(RESPONSE_HEAD) :]
            ),
            None,
        ),
        ("grpc", grpc(b"something else"), None),
        ("grpc", [frames.settings(()), FAILED], None),
        ("grpc", [frames.settings(()), frames.reset(1, frames.REFUSED_STREAM)], None),
        ("grpc", http("200 OK"), None),
        ("grpc", [], None),
    ],
)
def test_response_means_readiness(carrier: str, parts: list[bytes], expected: bool | None) -> None:
    """What is neither ready nor not ready is left to the client of the other commands."""
    assert expected is result_of(carrier, parts)[0]


@pytest.mark.parametrize(
    ("carrier", "parts"), [("http", http("200 OK")), ("grpc", grpc(b"\x08\x01"))]
)
def test_reads_readiness_at_a_unix_socket(carrier: str, parts: list[bytes], tmp_path: Path) -> None:
    """Its name in the request is `localhost`, as it has none of its own."""
    found, request = result_of(carrier, parts, path=str(tmp_path / "s"))
    assert (True, True) == (found, b"localhost" in request)


@pytest.mark.parametrize(
    ("carrier", "parts", "wanted"),
    [
        ("http", http("200 OK"), b"GET /v2/models/a%2Fb/versions/3/ready HTTP/1.1\r\n"),
        ("grpc", grpc(b"\x08\x01"), b"\0\0\0\0\x08\x0a\x03a/b\x12\x013"),
    ],
)
def test_request_names_the_model(carrier: str, parts: list[bytes], wanted: bytes) -> None:
    """Name and version of the model are sent, and the headers of the flags."""
    flags = ServerFlags(headers={"X-Key": "secret"})
    found, request = result_of(carrier, parts, "a/b", "3", flags)
    assert (True, True) == (found, wanted in request)
    assert b"secret" in request


@pytest.mark.parametrize("carrier", ["http", "grpc"])
def test_silent_server_is_late(carrier: str) -> None:
    """The timeout ends the wait for a response."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(DeadlineExceeded, match=r"no response within 0\.05 s"),
    ):
        ask_ready(
            Url("oip", carrier, "127.0.0.1", listener.getsockname()[1]), None, "", 0.05, NO_FLAGS
        )


def test_missing_server_is_unreachable() -> None:
    """The error names the address and the reason."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectFailure, match=rf"cannot connect to 127\.0\.0\.1:{port}: .*refused"):
        ask_ready(Url("oip", "http", "127.0.0.1", port), None, "", WAIT_S, NO_FLAGS)


@pytest.mark.parametrize(
    "url",
    [
        Url("trtis", "http", "h", 1),
        Url("graphpipe", "tcp", "h", 1),
        Url("oip", "http", "h", 1, "/p"),
    ],
)
def test_other_protocols_are_left_to_another_client(url: Url) -> None:
    """Nothing is sent."""
    assert ask_ready(url, None, "", 0.1, NO_FLAGS) is None


@pytest.mark.parametrize(
    ("carrier", "parts"), [("http", http("200 OK")), ("grpc", grpc(b"\x08\x01"))]
)
def test_command_imports_little(carrier: str, parts: list[bytes]) -> None:
    """A probe of a container costs a fifth of a second; numpy alone takes a tenth."""
    program = (
        "import sys; from gateway.cli.commands import run; "
        "status = run(sys.argv[1:]); "
        f"print(status, [name for name in {HEAVY} if name in sys.modules])"
    )
    with server(parts, []) as port:
        command = [sys.executable, "-c", program, "health", f"oip+{carrier}://127.0.0.1:{port}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "ready\n0 []\n" == done.stdout


@pytest.mark.parametrize("model", [None, "m"])
@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
def test_a_refusal_is_not_the_state_of_a_model(model: str | None, status: str) -> None:
    """The error has the reason of the server; "not ready" would send an operator to the model."""
    with server(http(status, '{"error": "a key is missing"}'), []) as port:
        url = Url("oip", "http", "127.0.0.1", port)
        with pytest.raises(Forbidden, match=f"status {status[:3]}: a key is missing"):
            ask_ready(url, model, "", WAIT_S, NO_FLAGS)
