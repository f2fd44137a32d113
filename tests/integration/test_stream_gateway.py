"""GraphPipe over TCP, unix sockets and HTTP through whole gateways, one behind the other."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.cases import graphpipe_oracle as oracle
from tests.cases.graphpipe_http import METADATA_REQUEST
from tests.integration.cli_kit import Running, gateway, serving
from tests.integration.workers_kit import eventually

INT32 = 6
FIRST = oracle.PlainTensor(INT32, (1, 16), struct.pack("<16i", *range(16)))
SECOND = oracle.PlainTensor(INT32, (1, 16), struct.pack("<16i", *[1] * 16))
QUESTION = oracle.build_request(
    oracle.PlainRequest(b"", ("INPUT0", "INPUT1"), (FIRST, SECOND), ("OUTPUT0", "OUTPUT1"))
)
SUM = struct.pack("<16i", *range(1, 17))
DIFFERENCE = struct.pack("<16i", *range(-1, 15))

CONFIG = """
version: 1
listeners:
  - http: 127.0.0.1:0
    streams:
      - {{protocol: graphpipe, address: "127.0.0.1:0"}}
      - {{protocol: graphpipe, address: "unix:{folder}/model.sock", mode: 0600}}
    default_model: simple
    limits: {{message_bytes: 1MiB}}
  - name: slow
    streams: [{{protocol: graphpipe, address: "127.0.0.1:0"}}]
    default_model: slow
admin: {{address: null, metrics: null}}
models:
  simple: {{backend: python, options: {{callable: "gateway.backends.examples:simple"}}}}
  slow: {{backend: python, options: {{callable: "gateway.backends.examples:slow"}}}}
lifecycle: {{pre_stop: 0s}}
"""

FRONT = """
version: 1
listeners:
  - http: 127.0.0.1:0
    streams:
      - {{protocol: graphpipe, address: "127.0.0.1:0"}}
      - {{protocol: graphpipe, address: "unix:{folder}/front.sock"}}
    default_model: simple
admin: {{address: null, metrics: null}}
upstreams: {{behind: {{url: "{upstream}"}}}}
lifecycle: {{pre_stop: 0s}}
"""


@pytest.fixture(scope="module")
def model_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with a model of its own, on every carrier of GraphPipe."""
    folder = tmp_path_factory.mktemp("streams")
    config = folder / "gateway.yaml"
    config.write_text(CONFIG.format(folder=folder))
    with serving(str(config)) as running:
        yield running


def connected(address: str) -> socket.socket:
    if address.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address.removeprefix("unix:"))
    else:
        host, _, port = address.rpartition(":")
        sock = socket.create_connection((host, int(port)))
    sock.settimeout(60)
    return sock


def received(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        assert piece, "the connection ended"
        data += piece
    return data


def ask(sock: socket.socket, message: bytes) -> bytes:
    sock.sendall(struct.pack("<I", len(message)) + message)
    return received(sock, struct.unpack("<I", received(sock, 4))[0])


def outputs(response: bytes) -> list[bytes]:
    tensors, _ = oracle.read_response(response)
    assert () == errors(response)
    return [tensor.data for tensor in tensors]


def errors(response: bytes) -> tuple[tuple[int, str], ...]:
    return oracle.read_response(response)[1]


@pytest.mark.parametrize("carrier", ["tcp", "unix"])
def test_model_is_served_on_a_stream(model_server: Running, carrier: str) -> None:
    """Requests of one connection get their responses in order, metadata among them."""
    with connected(model_server.addresses[f"main.graphpipe.{carrier}"]) as sock:
        assert [SUM, DIFFERENCE] == outputs(ask(sock, QUESTION))
        metadata = oracle.read_metadata(ask(sock, METADATA_REQUEST))
        assert [SUM, DIFFERENCE] == outputs(ask(sock, QUESTION))
    assert ["INPUT0", "INPUT1"] == [each.name for each in metadata.inputs]


def test_model_is_served_over_http(model_server: Running) -> None:
    """The response over HTTP is that of the stream."""
    with closing(HTTPConnection(model_server.addresses["main.http"], timeout=60)) as connection:
        connection.request("POST", "/graphpipe/simple", QUESTION)
        response = connection.getresponse()
        assert 200 == response.status
        assert [SUM, DIFFERENCE] == outputs(response.read())


def test_invalid_message_keeps_the_connection(model_server: Running) -> None:
    """An invalid message in a valid frame gets an error; the next request is served."""
    with connected(model_server.addresses["main.graphpipe.tcp"]) as sock:
        assert 1 == len(errors(ask(sock, bytes(64))))
        assert [SUM, DIFFERENCE] == outputs(ask(sock, QUESTION))


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", "which is text, such as HTTP"),
        (struct.pack("<I", (1 << 20) + 1), "at most 1048576 are allowed"),
        (struct.pack("<I", 0), "declares 0 bytes"),
    ],
)
def test_invalid_framing_gets_an_error_and_ends_the_connection(
    model_server: Running, sent: bytes, reason: str
) -> None:
    """The error names the reason, such as another protocol."""
    with connected(model_server.addresses["main.graphpipe.tcp"]) as sock:
        sock.sendall(sent)
        response = received(sock, struct.unpack("<I", received(sock, 4))[0])
        assert reason in str(errors(response))
        assert b"" == sock.recv(1)


def test_padded_response_is_readable(model_server: Running) -> None:
    """A slow response to a half-closed connection is padded with zeros, which are ignored."""
    wait = oracle.PlainTensor(INT32, (1,), struct.pack("<i", 200))
    request = oracle.build_request(oracle.PlainRequest(b"", ("INPUT0",), (wait,), ()))
    with connected(model_server.addresses["slow.graphpipe.tcp"]) as sock:
        sock.sendall(struct.pack("<I", len(request)) + request)
        sock.shutdown(socket.SHUT_WR)
        response = received(sock, struct.unpack("<I", received(sock, 4))[0])
        assert b"" == sock.recv(1)
    assert 0 == len(response) % 256
    assert 1 == len(outputs(response))


@pytest.mark.parametrize("carrier", ["tcp", "unix", "http"])
def test_every_carrier_is_an_upstream(model_server: Running, carrier: str, tmp_path: Path) -> None:
    """A gateway calls another over each carrier of GraphPipe, and serves it on streams."""
    if carrier == "http":
        upstream = f"graphpipe+http://{model_server.addresses['main.http']}"
    elif carrier == "tcp":
        upstream = f"graphpipe+tcp://{model_server.addresses['main.graphpipe.tcp']}"
    else:
        path = model_server.addresses["main.graphpipe.unix"].removeprefix("unix:")
        upstream = f"graphpipe+unix://{path}"
    config = tmp_path / "front.yaml"
    config.write_text(FRONT.format(folder=tmp_path, upstream=upstream))
    with serving(str(config)) as front, ExitStack() as stack:
        for name in ("main.graphpipe.tcp", "main.graphpipe.unix"):
            sock = stack.enter_context(connected(front.addresses[name]))
            assert [SUM, DIFFERENCE] == outputs(ask(sock, QUESTION))
            metadata = oracle.read_metadata(ask(sock, METADATA_REQUEST))
            assert ["OUTPUT0", "OUTPUT1"] == [each.name for each in metadata.outputs]
        stack.close()
        assert 0 == front.stop()
    assert not (tmp_path / "front.sock").exists()


def test_restarted_upstream_is_used_again(tmp_path: Path) -> None:
    """Calls fail only while the server is down."""
    config = tmp_path / "gateway.yaml"
    config.write_text(CONFIG.format(folder=tmp_path))
    url = f"graphpipe+unix://{tmp_path}/model.sock"
    flags = ["--http", "off", "--grpc", "off", "--admin", "off", "--default-model", "simple"]
    flags += ["--graphpipe-tcp", "127.0.0.1:0", "--graphpipe-unix", f"{tmp_path}/front.sock"]
    with serving(str(config)) as first, ExitStack() as stack:
        front = stack.enter_context(serving("--upstream", url, *flags))
        sock = stack.enter_context(connected(front.addresses["main.graphpipe.unix"]))
        assert [SUM, DIFFERENCE] == outputs(ask(sock, QUESTION))
        sock = stack.enter_context(connected(front.addresses["main.graphpipe.tcp"]))
        assert [SUM, DIFFERENCE] == outputs(ask(sock, QUESTION))
        first.process.kill()
        first.process.wait()
        assert 1 == len(errors(ask(sock, QUESTION)))
        stack.enter_context(serving(str(config)))

        def without_errors() -> Any:
            response = ask(sock, QUESTION)
            return None if errors(response) else response

        assert [SUM, DIFFERENCE] == outputs(eventually(without_errors))


def test_stream_without_a_default_model_is_rejected() -> None:
    """The flag is rejected before the gateway starts."""
    found = gateway("serve", "--upstream", "http://h", "--graphpipe-tcp", "127.0.0.1:0")
    assert 2 == found.returncode
    assert "set one with --default-model NAME" in found.stderr


def test_port_in_use_is_named_with_its_flag(model_server: Running) -> None:
    """The error names the address and the flag that chooses another."""
    held_address = model_server.addresses["main.graphpipe.tcp"]
    flags = ["--http", "off", "--grpc", "off", "--admin", "off", "--default-model", "m"]
    found = gateway(
        "serve", "--upstream", "http://127.0.0.1:1", *flags, "--graphpipe-tcp", held_address
    )
    assert 1 == found.returncode
    assert f"cannot listen on {held_address}: Address already in use" in found.stderr
    assert "choose another address with --graphpipe-tcp" in found.stderr
