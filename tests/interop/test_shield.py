"""Requests that hurt real servers, sent to them directly and then through the gateway.

Directly, each request ends its server, hangs it, or takes what it should not have. Through the
gateway, over either carrier to the server, the request is answered with an error. The server then
answers as before, and a bystander who asks all the time sees nothing of it.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from gateway.schema import open_inference_pb2 as pb
from tests.integration.cli_kit import Running
from tests.interop.gateways import serving
from tests.interop.sacrifice import (
    Bystander,
    Innocent,
    Sacrifice,
    bystander,
    channel,
    infer_method,
    post,
    stream_method,
)
from tests.interop.servers.triton import start as triton

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

CARRIERS = ("grpc", "http")
MOST_WAIT_S = 1.0
"""A bystander never waits longer than this for an answer."""

Send = Callable[[str, str], str]
"""Sends a request, given "host:port" for HTTP and gRPC; returns the status or the code."""

INNOCENT = Innocent("identity_fp32", "FP32", (1, 4))
FP32 = "/v2/models/identity_fp32/infer"
BROKEN = "broken off"


@pytest.fixture(scope="module")
def sacrifice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sacrifice]:
    """Run a Triton that may be killed."""
    folder = tmp_path_factory.mktemp("sacrifice")
    server = Sacrifice("triton", triton.prepare_sacrificial, folder, INNOCENT)
    yield server
    server.close()


@pytest.fixture(scope="module")
def gateways(sacrifice: Sacrifice) -> Iterator[Mapping[str, Running]]:
    """Run a gateway with default settings for each carrier to the server."""
    free = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    server = sacrifice.server
    with (
        serving("--upstream", f"oip+grpc://{server.grpc_address}", *free) as by_grpc,
        serving("--upstream", f"oip+http://{server.http_address}", *free) as by_http,
    ):
        yield {"grpc": by_grpc, "http": by_http}


@dataclass(frozen=True)
class Attack:
    """A request that hurts a server.

    Attributes:
        name: Of the test.
        sends: Ways to send it. Directly the first one is tried, through the gateway all.
        answers: What the gateway may answer.
    """

    name: str
    sends: tuple[Send, ...]
    answers: frozenset[str]


def json_body(datatype: str, shape: list[int], data: list[Any], **members: Any) -> bytes:
    """Return an inference request with one input, INPUT0."""
    tensor = {"name": "INPUT0", "datatype": datatype, "shape": shape, "data": data}
    return json.dumps({"inputs": [tensor], **members}).encode()


def by_http(path: str, body: bytes, *headers: tuple[str, str]) -> Send:
    """Return what POSTs *body*."""

    def send(http_address: str, _grpc_address: str) -> str:
        try:
            return str(post(http_address, path, body, headers=dict(headers))[0])
        except (OSError, http.client.HTTPException):
            return BROKEN

    return send


def by_grpc(request: pb.ModelInferRequest, *metadata: tuple[str, str]) -> Send:
    """Return what sends *request* as a unary call."""

    def send(_http_address: str, grpc_address: str) -> str:
        with channel(grpc_address) as opened:
            try:
                infer_method(opened)(request, timeout=20, metadata=metadata)
            except grpc.RpcError as error:
                return _code(error)
        return "OK"

    return send


def by_stream(request: pb.ModelInferRequest, *metadata: tuple[str, str]) -> Send:
    """Return what sends *request* on a stream, and returns its status or what its error says."""

    def send(_http_address: str, grpc_address: str) -> str:
        with channel(grpc_address) as opened:
            call = stream_method(opened)(iter([request]), timeout=20, metadata=metadata)
            try:
                errors = [answer.error_message for answer in call]
            except grpc.RpcError as error:
                return _code(error)
        return "OK" if not any(errors) else "error in the stream"

    return send


def _code(error: grpc.RpcError) -> str:
    assert isinstance(error, grpc.Call)
    return str(error.code().name)


def infer_request(
    model: str, datatype: str, shape: tuple[int, ...], raw: bytes, name: str = "INPUT0"
) -> pb.ModelInferRequest:
    """Return a request with one input."""
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    request.raw_input_contents.append(raw)
    return request


def _chunks(http_address: str, _grpc_address: str) -> str:
    """Send a body in 1,000,000 chunks of one byte each."""
    host, _, port = http_address.rpartition(":")
    head = f"POST {FP32} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    try:
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(head.encode())
            try:
                for _ in range(100):
                    connection.sendall(b"1\r\nx\r\n" * 10_000)
                connection.sendall(b"0\r\n\r\n")
            except OSError:
                pass  # it was answered before it was read whole
            found = connection.recv(64)
    except OSError:
        return BROKEN
    return found.split(b" ")[1].decode() if found else BROKEN


KNOWN: tuple[Attack, ...] = (
    Attack(
        "nested_json",
        (
            by_http(FP32, b"[" * 300_000 + b"]" * 300_000),
            by_http("/v2/repository/index", b"[" * 300_000 + b"]" * 300_000),
            by_http("/v2/models/identity_fp32/generate", b"[" * 300_000 + b"]" * 300_000),
        ),
        frozenset({"400", "413", "501"}),
    ),
    Attack("many_chunks", (_chunks,), frozenset({"413"})),
    Attack(
        "infinite_quality",
        (
            by_http(
                FP32, json_body("FP32", [1, 4], [1, 2, 3, 4]), ("Accept-Encoding", "gzip;q=1e400")
            ),
        ),
        frozenset({"200"}),
    ),
    Attack(
        "huge_shape",
        (
            by_http(FP32, json_body("FP32", [2**62, 4], [1, 2, 3, 4])),
            by_http(FP32, json_body("FP32", [2**63 - 1], [1, 2, 3, 4])),
            by_http(FP32, json_body("FP32", [2**40], [1, 2, 3, 4])),
            by_grpc(infer_request("identity_fp32", "FP32", (2**62, 4), bytes(16))),
        ),
        frozenset({"413", "RESOURCE_EXHAUSTED"}),
    ),
)


@pytest.mark.parametrize("attack", KNOWN, ids=lambda attack: attack.name)
def test_triton(attack: Attack, sacrifice: Sacrifice, gateways: Mapping[str, Running]) -> None:
    """What ends Triton ends at the gateway."""
    sacrifice.revive()
    attack.sends[0](sacrifice.server.http_address, sacrifice.server.grpc_address)
    assert sacrifice.is_hurt_soon(), "this Triton is not hurt: the row needs its versions checked"
    sacrifice.revive()
    for gateway in gateways.values():
        _await_ready(gateway)
        http_address, grpc_address = addresses(gateway)
        with bystander(INNOCENT.by_http, http_address) as seen:
            for send in attack.sends:
                assert send(http_address, grpc_address) in attack.answers
        unharmed(sacrifice, gateway, seen)


def addresses(gateway: Running) -> tuple[str, str]:
    """Return where a gateway listens for HTTP and gRPC."""
    return gateway.addresses["main.http"], gateway.addresses["main.grpc"]


def unharmed(sacrifice: Sacrifice, gateway: Running, seen: Bystander) -> None:
    """Check that nobody noticed, and that innocent requests are answered right."""
    assert not seen.failures
    assert seen.worst_s < MOST_WAIT_S
    http_address, grpc_address = addresses(gateway)
    INNOCENT.by_http(http_address)
    INNOCENT.by_grpc(grpc_address)
    assert not sacrifice.is_hurt()


def _await_ready(gateway: Running) -> None:
    """Wait until the gateway reaches the server again."""
    address = gateway.addresses["main.http"]
    for _ in range(100):
        try:
            INNOCENT.by_http(address)
        except (AssertionError, OSError, http.client.HTTPException):
            continue
        return
    raise AssertionError("the gateway does not reach the server again")
