"""Every error code, through every codec: it arrives as itself or as its declared neighbour."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.ir.calls import Call, InferRequest, ModelMetadataRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import ERROR_CLASSES, ErrorCode, GatewayError
from gateway.wire.grpc import GrpcResponse, GrpcStatus
from gateway.wire.http import HttpResponse
from tests.properties.carries import WAYS, Carries
from tests.properties.registered import REGISTERED, Registered, arrived

MODEL = ModelRef("m")
CALLS: tuple[Call[Any], ...] = (InferRequest(model=MODEL), ModelMetadataRequest(model=MODEL))
CASES = [
    pytest.param(way, call, id=f"{way.name}-{type(call).__name__}")
    for way in WAYS
    for call in CALLS
    if type(call) in way.questions
]


@pytest.mark.parametrize(("way", "call"), CASES)
def test_error_codes_round_trip(way: Carries, call: Call[Any]) -> None:
    """An error encoded by a listener decodes to the same error at the upstream, text included."""
    for code in ErrorCode:
        _check_round_trip(way, call, code)


def _check_round_trip(way: Carries, call: Call[Any], code: ErrorCode) -> None:
    listener = way.registered.make(way.listener)
    upstream = way.registered.make(way.upstream)
    wire = arrived(listener.encode_error(call, ERROR_CLASSES[code]("what went wrong: 'x'")))
    with pytest.raises(GatewayError, match="what went wrong: 'x'") as caught:
        upstream.decode_reply(call, wire)
    assert way.errors.get(code, code) is caught.value.code, code
    assert caught.value.origin is not None, code
    again = arrived(listener.encode_error(call, caught.value))
    if code is not ErrorCode.QUOTA_EXCEEDED:  # one of a server is overload here
        assert _status(wire) == _status(again), code


@pytest.mark.parametrize("codec", REGISTERED.values(), ids=lambda codec: codec.name)
def test_errors_of_undecodable_requests_can_be_encoded(codec: Registered) -> None:
    """An error without a call can be encoded, whatever its code and text."""
    made = codec.make({})
    for code in ErrorCode:
        for text in ("", "x" * 100_000, "\x00\n\udcff\U0001f600", 'q"\\'):
            wire = made.encode_error(None, ERROR_CLASSES[code](text))
            assert b"x" * 2000 not in bytes(repr(arrived(wire)), "utf-8", "replace"), code


@pytest.mark.parametrize("codec", REGISTERED.values(), ids=lambda codec: codec.name)
def test_every_upstream_status_without_body_is_an_error(codec: Registered) -> None:
    """It raises a GatewayError, success included."""
    made = codec.make({})
    for wire in _empty_responses(codec.carrier):
        with pytest.raises(GatewayError):
            made.decode_reply(InferRequest(model=MODEL), wire)


def _empty_responses(carrier: str) -> Iterator[Any]:
    if carrier == "http":
        for status in range(100, 1000):
            yield HttpResponse(status, body=(b"",))
    elif carrier == "grpc":
        for status in GrpcStatus:
            if status is not GrpcStatus.OK:  # an empty message is one without outputs
                yield GrpcResponse(status=status)


def _status(wire: Any) -> Any:
    return getattr(wire, "status", None)
