"""Every error code, through every codec: it arrives as itself or as its declared neighbour."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from gateway.ir.calls import (
    Call,
    InferRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ServerLiveRequest,
    ServerReadyRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import (
    ERROR_CLASSES,
    AccessDenied,
    ErrorCode,
    GatewayError,
    Unauthenticated,
)
from gateway.ir.limits import MessageLimits
from gateway.transports.grpc.headers import cut_message, trailers_only_block
from gateway.wire.grpc import GrpcResponse, GrpcStatus
from gateway.wire.http import Headers, HttpResponse
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


HEALTH: tuple[Call[Any], ...] = (
    ServerLiveRequest(),
    ServerReadyRequest(),
    ModelReadyRequest(model=MODEL),
)
SERVER_HEALTH = (ServerLiveRequest, ServerReadyRequest)
HEALTH_CASES = [
    pytest.param(way, call, id=f"{way.name}-{type(call).__name__}")
    for way in WAYS
    for call in HEALTH
    if type(call) in way.questions
]


UNREADY: tuple[str, ...] = ("grps.", "trtis.grpc")
"""Whose status of `AccessDenied` also means "not ready".

Source: docs/protocols/grps.md, "7. Methods and health"; TensorRT v1 has no code for it.
"""


@pytest.mark.parametrize("refusal", [Unauthenticated, AccessDenied])
@pytest.mark.parametrize(("way", "call"), HEALTH_CASES)
def test_a_refused_question_about_health_is_no_health(
    way: Carries, call: Call[Any], refusal: type[GatewayError]
) -> None:
    """A server that refuses the caller is neither ready nor unready: the caller reads its text."""
    listener = way.registered.make(way.listener)
    upstream = way.registered.make(way.upstream)
    # A credential is checked before there is a call.
    refused = None if refusal is Unauthenticated else call
    wire = arrived(listener.encode_error(refused, refusal("this may not be asked")))
    if refusal is AccessDenied and way.codec.startswith(UNREADY) and type(call) in SERVER_HEALTH:
        assert not upstream.decode_reply(call, wire)
        return
    with pytest.raises(GatewayError, match="this may not be asked"):
        upstream.decode_reply(call, wire)


REFUSED: dict[str, list[Any]] = {
    "http": [HttpResponse(status, Headers([]), (b"no",)) for status in (401, 403, 407)],
    "grpc": [
        GrpcResponse((), GrpcStatus.UNAUTHENTICATED, "no"),
        GrpcResponse((), GrpcStatus.PERMISSION_DENIED, "no"),
    ],
    "stream": [],
}
"""What a proxy before a server replies, whatever its protocol."""


@pytest.mark.parametrize(("way", "call"), HEALTH_CASES)
def test_a_proxy_that_refuses_a_question_about_health_is_an_error(
    way: Carries, call: Call[Any]
) -> None:
    """It knows no protocol, and its status counts."""
    upstream = way.registered.make(way.upstream)
    for wire in REFUSED[way.registered.carrier]:
        if wire.status == 403 and way.codec.startswith(UNREADY) and type(call) in SERVER_HEALTH:
            continue
        with pytest.raises(GatewayError) as caught:
            upstream.decode_reply(call, wire)
        codes = {ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN}
        assert caught.value.code in codes or str(wire.status) in caught.value.message


@pytest.mark.parametrize("codec", REGISTERED.values(), ids=lambda codec: codec.name)
def test_errors_of_undecodable_requests_can_be_encoded(codec: Registered) -> None:
    """An error without a call can be encoded, whatever its code and text."""
    made = codec.make({})
    for code in ErrorCode:
        for text in ("", "x" * 100_000, "\x00\n\udcff\U0001f600", 'q"\\'):
            wire = made.encode_error(None, ERROR_CLASSES[code](text))
            assert b"x" * 2000 not in bytes(repr(arrived(wire)), "utf-8", "replace"), code


@pytest.mark.parametrize("text", ["x" * 20_000, "\u00fc" * 9000, "\U0001f600" * 5000])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_errors_of_servers_crossed_uncut(way: Carries, text: str) -> None:
    """A long text is cut, also where a server of the same protocol and carrier wrote it."""
    call = next(each for each in CALLS if type(each) in way.questions)
    listener, upstream = way.registered.make(way.listener), way.registered.make(way.upstream)
    wire = listener.encode_error(call, ERROR_CLASSES[ErrorCode.INVALID_ARGUMENT]("short"))
    if isinstance(wire, GrpcResponse) and wire.status is not GrpcStatus.OK:
        wire = GrpcResponse(status=wire.status, details=text)
    with pytest.raises(GatewayError) as caught:
        upstream.decode_reply(call, arrived(wire))
    again = listener.encode_error(call, caught.value)
    if isinstance(again, GrpcResponse):
        assert len(again.details.encode()) <= MessageLimits().error_text_bytes
        block = trailers_only_block(again.status, again.details, ())
        assert len(block) < 8 * 1024


@pytest.mark.parametrize("codec", REGISTERED.values(), ids=lambda codec: codec.name)
def test_every_upstream_status_without_body_is_an_error(codec: Registered) -> None:
    """It raises a GatewayError, success included."""
    made = codec.make({})
    for wire in _empty_responses(codec.carrier):
        with pytest.raises(GatewayError):
            made.decode_reply(InferRequest(model=MODEL), wire)


@pytest.mark.parametrize("text", ["x" * 7000, "\u00fc" * 1100, "a\U0001f600" * 2000, "%" * 3000])
def test_a_grpc_message_was_longer_than_clients_take(text: str) -> None:
    """What is cut is a beginning of whole characters; the percent-encoded bytes count."""
    found = cut_message(text)
    assert found.endswith("...")
    assert text.startswith(found[:-3])
    assert (
        6000 < len(quote(found, safe="".join(map(chr, range(0x20, 0x7F))).replace("%", ""))) <= 6144
    )


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
