"""The rate of a caller, in the errors of each protocol: 429 over HTTP, status 8 over gRPC."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import InferRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import GatewayError, Overloaded, RateExceeded
from gateway.ir.limits import MessageLimits
from gateway.protocols.grps.brpc.framing import split_frame
from gateway.protocols.grps.http.paths import GrpsRoute, Surface
from gateway.protocols.grps.http.responses import encode_failure
from gateway.protocols.grps.methods import PREDICT
from gateway.registry import PROTOCOLS, protocol
from gateway.wire.grpc import GrpcStatus
from gateway.wire.http import view_of

LIMITS = MessageLimits()
CALL = InferRequest(model=ModelRef("m"))


def rate(wait_s: float = 2.5) -> RateExceeded:
    error = RateExceeded("10 inferences in a second")
    error.retry_after_s = wait_s
    return error


def codec_of(name: str, carrier: str) -> Any:
    spec = protocol(name)
    binding: Any = getattr(spec, carrier)
    return binding.codec(LIMITS, spec.options({}))


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if protocol(name).http is not None])
def test_http_has_429(name: str) -> None:
    """TensorRT v1 has its own header, the others say when the next call is accepted."""
    response = codec_of(name, "http").encode_error(CALL, rate())
    assert 429 == response.status
    if name == "trtis":
        assert "10 inferences in a second" in (response.headers.get("nv-status") or "")
    else:
        assert "3" == response.headers.get("retry-after")
        assert b"10 inferences in a second" in bytes(response.view)


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if protocol(name).grpc is not None])
def test_grpc_has_resource_exhausted(name: str) -> None:
    """The call ends with it, also where errors are part of messages."""
    response = codec_of(name, "grpc").encode_error(CALL, rate())
    assert GrpcStatus.RESOURCE_EXHAUSTED is response.status
    assert "10 inferences in a second" in response.details


def test_a_rate_ended_the_stream_of_tensorrt() -> None:
    """Other calls of the stream go on, so the error is part of a message."""
    call = CALL.changed(context=Context(session=1))
    assert GrpcStatus.OK is codec_of("trtis", "grpc").encode_error(call, rate()).status


@pytest.mark.parametrize(("error", "status"), [(rate(), 429), (Overloaded("full"), 503)])
def test_http_of_brpc_has_429(error: Overloaded, status: int) -> None:
    """The code of brpc is the same for both."""
    route = GrpsRoute(Surface.BRPC, PREDICT)
    response = encode_failure(error, route, LIMITS, unread=False, late=False, always_200=False)
    assert (status, "2004") == (response.status, response.headers.get("x-bd-error-code"))


def test_streams_have_their_code() -> None:
    """GraphPipe has the number of HTTP, brpc its own."""
    graphpipe = codec_of("graphpipe", "stream")
    with pytest.raises(GatewayError) as caught:
        graphpipe.decode_reply(CALL, graphpipe.encode_error(CALL, rate()))
    assert caught.value.origin is not None
    assert 429 == caught.value.origin.form.number
    framed = codec_of("grps", "stream").encode_error(CALL, rate())
    meta, rest = split_frame(view_of(framed.payload))
    assert (2004, b"") == (meta.response.error_code, bytes(rest))


@pytest.mark.parametrize("wait_s", [0.0, 1e9])
def test_retry_after_is_a_number_of_seconds(wait_s: float) -> None:
    """At least 1, and at most an hour."""
    response = codec_of("oip", "http").encode_error(CALL, rate(wait_s))
    assert response.headers.get("retry-after") == ("1" if not wait_s else "3600")
