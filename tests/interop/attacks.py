"""Requests that hurt real servers, and the checks that they do so no more.

Directly, each request ends its server, hangs it, or takes what it should not have. Through the
gateway, over either carrier to the server, the request gets an error. The server then
replies as before, and a bystander that sends requests all the time notices nothing.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from gateway.protocols.oip.server_defects import DEFECTS
from gateway.schema import open_inference_pb2 as pb
from tests.integration.cli_kit import Running
from tests.integration.workers_kit import eventually
from tests.interop.gateways import make
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

READY_S = 60.0
MOST_WAIT_S = 1.0
"""A bystander never waits longer than this for an answer, while those who answer can run."""

IS_HURT_FIRST = make() == "native"
"""Whether tests hurt a server directly first. No transport of a gateway decides what that does."""

Test = TypeVar("Test", bound=Callable[..., object])

Send = Callable[[str, str], str]
"""Sends a request, given "host:port" for HTTP and gRPC; returns the status or the code."""

INNOCENT = Innocent("identity_fp32", "FP32", (1, 4))
FP32 = "/v2/models/identity_fp32/infer"
BROKEN = "broken off"


def row(name: str) -> Callable[[Test], Test]:
    """Link a test to a row of the table of defects."""
    assert name in {defect.name for defect in DEFECTS}
    return lambda test: test


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
    """Return a function that POSTs *body*."""

    def send(http_address: str, _grpc_address: str) -> str:
        try:
            return str(post(http_address, path, body, headers=dict(headers))[0])
        except (OSError, http.client.HTTPException):
            return BROKEN

    return send


def each(path: str, bodies: Sequence[bytes], timeout_s: float = 3.0) -> Send:
    """Return a function that POSTs *bodies* in order, until one has no response."""

    def send(http_address: str, _grpc_address: str) -> str:
        found = BROKEN
        for body in bodies:
            try:
                found = str(post(http_address, path, body, timeout_s)[0])
            except (OSError, http.client.HTTPException):
                return BROKEN
        return found

    return send


def by_grpc(request: pb.ModelInferRequest, *metadata: tuple[str, str]) -> Send:
    """Return a function that sends *request* as a unary call."""

    def send(_http_address: str, grpc_address: str) -> str:
        with channel(grpc_address) as opened:
            try:
                infer_method(opened)(request, timeout=20, metadata=metadata)
            except grpc.RpcError as error:
                return _code(error)
        return "OK"

    return send


def by_stream(request: pb.ModelInferRequest, *metadata: tuple[str, str]) -> Send:
    """Return a function that sends *request* on a stream, and returns its status or error text."""

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


def addresses(gateway: Running) -> tuple[str, str]:
    """Return the HTTP and gRPC addresses of a gateway."""
    return gateway.addresses["main.http"], gateway.addresses["main.grpc"]


def unharmed(sacrifice: Sacrifice, gateway: Running, seen: Bystander) -> None:
    """Check that no other client noticed, and that innocent requests have the right replies."""
    assert not seen.failures
    # aiohttp reads a body of small chunks in one turn of the loop.
    assert seen.worst_s < (MOST_WAIT_S if make() == "native" else 3 * MOST_WAIT_S)
    http_address, grpc_address = addresses(gateway)
    INNOCENT.by_http(http_address)
    INNOCENT.by_grpc(grpc_address)
    assert not sacrifice.is_hurt()


def await_ready(gateway: Running, innocent: Innocent = INNOCENT) -> None:
    """Wait until the gateway reaches the server again."""
    address = gateway.addresses["main.http"]

    def is_served() -> bool:
        try:
            innocent.by_http(address)
        except (AssertionError, OSError, http.client.HTTPException):
            return False
        return True

    eventually(is_served, READY_S)


def worst_wait(
    sacrifice: Sacrifice, address: str, send: Callable[[], object], *processes: int
) -> float:
    """Return the longest wait of a bystander at *processes*, in seconds, while something is sent."""
    with bystander(sacrifice.innocent.by_http, address, *processes) as seen:
        seen.await_requests()
        send()
    return seen.worst_s
