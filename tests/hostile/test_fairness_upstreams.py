"""Misbehaving upstreams delay no other call, and one bad response fails one call."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.hostile import frames
from tests.hostile.costly import Cost, Grpc, Http, Message, cost_of, oip_grpc, tensor
from tests.hostile.process import Gateway, running
from tests.hostile.wire import GOOD_BODY, Answer, Raw, head, post

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(120)]

CONFIG = """
version: 1
listeners:
  - http: 127.0.0.1:0
    grpc: 127.0.0.1:0
    transport: {make}
    passthrough: far
admin: {{address: "127.0.0.1:0", metrics: null}}
upstreams:
  far:
    url: "oip+{carrier}://{address}"
    transport: {make}
    options: {{dialect: triton}}
    cancellation: forward
policies: {{timeout: 20s}}
lifecycle: {{pre_stop: 0s}}
"""
WAIT_S = 0.25
ATTEMPTS = 3
MAKE = os.environ.get("HOSTILE_TRANSPORT") or "native"

Serve = Callable[[socket.socket], None]


@contextmanager
def upstream(serve: Serve) -> Iterator[str]:
    """Run *serve* for each connection, in a thread; yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):  # the end of the test closes the listener
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=handle, args=(connection,), daemon=True).start()

        def handle(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                serve(connection)

        threading.Thread(target=accept, daemon=True).start()
        host, port = listener.getsockname()
        yield f"{host}:{port}"
        listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def before(
    serve: Serve, tmp_path_factory: pytest.TempPathFactory, carrier: str = "http"
) -> Iterator[Gateway]:
    """Run a gateway in front of *serve*."""
    with upstream(serve) as address:
        file = tmp_path_factory.mktemp("far") / "gateway.yaml"
        text = CONFIG.format(make=MAKE, carrier=carrier, address=address)
        if carrier == "grpc":
            text = text.replace("    passthrough: far\n", "")
        file.write_text(text)
        with running(str(file)) as gateway:
            yield gateway
            assert gateway.alive
            assert "Traceback" not in gateway.text()


def requests(connection: socket.socket) -> Iterator[tuple[str, bytes]]:
    """Yield the request lines and bodies that come."""
    data = b""
    while True:
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece:
                return
            data += piece
        text, _, data = data.partition(b"\r\n\r\n")
        lines = text.decode("latin-1").split("\r\n")
        sizes = [line.split(": ")[1] for line in lines if line.lower().startswith("content-length")]
        size = int(sizes[0]) if sizes else 0
        while len(data) < size:
            data += connection.recv(65536)
        yield lines[0], data[:size]
        data = data[size:]


def response(document: object) -> bytes:
    """Write a response with a JSON body."""
    body = json.dumps(document).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def sums(request_id: str | None) -> bytes:
    """Write the response to an inference with the id *request_id*, or without one."""
    output = {"name": "OUTPUT0", "datatype": "INT32", "shape": [1], "data": [7]}
    document = {"model_name": "simple", "model_version": "1", "outputs": [output]}
    return response(document if request_id is None else {"id": request_id, **document})


def endless_chunks(connection: socket.socket) -> None:
    """Reply to inferences with chunks of a byte, and to all else with an empty object."""
    for line, _ in requests(connection):
        if "/infer" not in line:
            connection.sendall(response({}))
            continue
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            connection.sendall(b"1\r\nx\r\n" * 10_000)


def small_frames(connection: socket.socket) -> None:
    """Reply to calls with a message in DATA frames of a byte."""
    connection.sendall(frames.frame(frames.SETTINGS))
    data = b""
    while len(data) < len(frames.BEGIN) or b"ModelInfer" not in data:
        data += connection.recv(65536)
    connection.sendall(frames.frame(frames.SETTINGS, frames.ACK))
    block = b"\x88" + frames.literal(b"content-type", b"application/grpc")
    connection.sendall(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, block))
    connection.sendall(frames.frame(frames.DATA, 0, 1, frames.message(b"", length=60_000)))
    while True:
        connection.sendall(frames.frame(frames.DATA, 0, 1, b"x") * 5_000)


INFER = Http(post(GOOD_BODY, "Connection: close", path="/v2/models/simple/infer"))
CALL = Grpc(oip_grpc(tensor("INPUT0", "FP32", (1,)), raws=(bytes(4),)))


def is_quick(cost: Cost) -> bool:
    """Return whether others waited no longer than the limit."""
    return cost.waited_s <= WAIT_S


@pytest.mark.parametrize(
    ("serve", "carrier", "message"),
    [
        pytest.param(
            endless_chunks, "http", INFER, id="chunks", marks=pytest.mark.needs("framing_errors")
        ),
        pytest.param(
            small_frames,
            "grpc",
            CALL,
            id="small_frames",
            marks=pytest.mark.needs("response_frames"),
        ),
    ],
)
def test_response_in_tiny_pieces_is_rejected(
    tmp_path_factory: pytest.TempPathFactory, serve: Serve, carrier: str, message: Message
) -> None:
    """It is a server error; others are served meanwhile, and memory stays bounded."""
    with before(serve, tmp_path_factory, carrier) as gateway:
        memory = gateway.status("VmRSS")
        costs = []
        for _ in range(ATTEMPTS):
            costs.append(cost_of(gateway, message))
            if is_quick(costs[-1]):
                break
        assert is_quick(costs[-1]), costs
        assert costs[-1].outcome.split()[0] in ("502", "503", "UNAVAILABLE", "INTERNAL"), costs[-1]
        assert gateway.status("VmRSS") - memory < 64 << 20


def shifted(connection: socket.socket) -> None:
    """Send an unsolicited response before the second response of a connection."""
    seen = 0
    for line, body in requests(connection):
        if "/infer" not in line:
            connection.sendall(response({"name": "triton", "version": "2.51.0", "extensions": []}))
            continue
        seen += 1
        found = json.loads(body[: body.rindex(b"}") + 1])["id"]
        connection.sendall(sums("of a stranger") + sums(found) if seen == 2 else sums(found))


def nameless(connection: socket.socket) -> None:
    """Leave the id out of responses."""
    for line, _ in requests(connection):
        metadata = response({"name": "triton", "version": "2.51.0", "extensions": []})
        connection.sendall(sums(None) if "/infer" in line else metadata)


def infer_many(gateway: Gateway, count: int) -> list[Answer]:
    """Send inferences one after the other, on one connection."""
    found = []
    with Raw(gateway.http) as raw:
        for number in range(count):
            body = json.loads(GOOD_BODY) | {"id": f"r{number}"}
            raw.send([post(json.dumps(body).encode(), path="/v2/models/simple/infer")])
            answer = raw.answer()
            assert answer is not None
            found.append(answer)
    return found


@pytest.mark.needs("kept_connections")
def test_unsolicited_response_fails_one_call(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its connection is not used again, so no other call gets a foreign response."""
    with before(shifted, tmp_path_factory) as gateway:
        responses = infer_many(gateway, 10)
    assert [502] == [each.status for each in responses if each.status != 200][:1]
    good = [(number, each) for number, each in enumerate(responses) if each.status == 200]
    # Each second call of a connection meets a stranger's response.
    assert len(good) >= 5
    assert [f"r{number}" for number, _ in good] == [each.json["id"] for _, each in good]


def test_response_without_an_id_is_rejected(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Triton always repeats the id, so a response without one may belong to another call."""
    with before(nameless, tmp_path_factory) as gateway:
        assert [502] * 3 == [each.status for each in infer_many(gateway, 3)]


def test_dot_segments_and_trace_do_not_reach_the_upstream(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Dot segments are rejected as names, and TRACE shows no credentials."""
    lines: list[str] = []

    def recording(connection: socket.socket) -> None:
        for line, _ in requests(connection):
            lines.append(line)
            connection.sendall(response({}))

    with before(recording, tmp_path_factory) as gateway:
        for method, path in (
            ("GET", "/v2/models/%2e%2e/ready"),
            ("GET", "/v2/models/simple/versions/%2e%2e/ready"),
            ("TRACE", "/elsewhere"),
        ):
            with Raw(gateway.http) as raw:
                raw.send([head(method, path, "Cookie: secret", "Content-Length: 0")])
                answer = raw.answer()
            assert answer is not None
            assert answer.status in (400, 404, 405), path
    assert [] == [line for line in lines if ".." in line or "%2e" in line or "TRACE" in line]
