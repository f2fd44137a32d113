"""Every error of every upstream codec, through every frontend codec."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from google.protobuf import text_format

from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import ERROR_CLASSES, ErrorCode, GatewayError
from gateway.protocols.grps.brpc.framing import frame_bytes
from gateway.protocols.grps.messages import Flag, GrpsMessage, GrpsStatus
from gateway.protocols.grps.protobuf.message import write_message
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.schema.baidu_std_pb2 import RpcMeta, RpcResponseMeta
from gateway.wire.grpc import GrpcResponse, GrpcStatus
from gateway.wire.http import Buffer, Headers, HttpResponse
from gateway.wire.stream import Frame
from tests.cases.graphpipe_oracle import build_response
from tests.properties.carries import WAYS, Carries
from tests.properties.registered import arrived, body_of, pairs_of

CALL = InferRequest(model=ModelRef("m"))
TEXT = "what went wrong: 'x'"
REASON = "RuntimeError: what went wrong"
TRACEBACK = (
    "Traceback (most recent call last):\n"
    + '  File "/srv/secret/executor.py", line 213, in infer\n    raise RuntimeError\n' * 500
    + REASON
    + "\n"
)
GRPS_CODES = (0, 1, 400, 401, 403, 404, 408, 413, 429, 499, 500, 501, 502, 503, 504, 599, 1001)
BRPC_CODES = (1, 2, 125, *range(1001, 1014), 2001, 2002, 2003, 2004, 2005, -5, 2**31 - 1)
GRAPHPIPE_CODES = (-1, 0, 1, 400, 404, 429, 499, 500, 501, 503, 600, 2**63 - 1)
HTTP_STATUSES = range(400, 600)
FRONTENDS = pytest.mark.parametrize("front", WAYS, ids=lambda way: way.name)
UPSTREAMS = pytest.mark.parametrize("behind", WAYS, ids=lambda way: way.name)


@UPSTREAMS
def test_every_error_code_is_forwarded(behind: Carries) -> None:
    """Clients get the responses that errors of the gateway itself would have, with the text."""
    for kind in ERROR_CLASSES.values():
        wire = arrived(listener(behind).encode_error(CALL, kind(TEXT)))
        for front in WAYS:
            check_crossing(front, behind, wire)


@UPSTREAMS
def test_every_upstream_status_is_forwarded(behind: Carries) -> None:
    """Every status of an upstream is encoded by the rules of the clients' protocols."""
    for wire in unlike(behind, TEXT):
        for front in WAYS:
            check_crossing(front, behind, wire)


@UPSTREAMS
def test_only_the_last_line_of_a_traceback_is_forwarded(behind: Carries) -> None:
    """Clients get only the last line of an upstream's traceback, and no file name."""
    for wire in unlike(behind, TRACEBACK):
        error = raised_by(behind, wire)
        for front in WAYS:
            response = listener(front).encode_error(CALL, error)
            text = repr((response, pairs_of(response))).encode() + b"".join(body_of(response))
            assert b"what went wrong" in text
            assert b"executor.py" not in text


def unlike(behind: Carries, text: str) -> list[Any]:
    """Read every error that a server can send; return one for each class of what is raised.

    A listener sees no more of an error than its class and its text, unless it is of its own protocol.
    """
    found: dict[Any, Any] = {}
    for wire in errors_of(behind.codec, text):
        error = raised_by(behind, wire)
        assert error.message.endswith(text.strip().splitlines()[-1])
        assert "executor.py" not in error.message
        found.setdefault((type(error), error.retry_after_s, error.limit), wire)
    assert found
    return list(found.values())


@FRONTENDS
@pytest.mark.parametrize("behind", [way for way in WAYS if "grpc" in way.codec], ids=str)
def test_an_upstream_that_cancels_is_a_bad_upstream_error(front: Carries, behind: Carries) -> None:
    """An upstream's CANCELLED status never counts as a cancellation by the client."""
    error = raised_by(behind, GrpcResponse(status=GrpcStatus.CANCELLED, details=TEXT))
    assert ErrorCode.BAD_UPSTREAM is error.code
    if front.codec != behind.codec:
        client_error = raised_by(front, arrived(listener(front).encode_error(CALL, error)))
        expected = front.errors.get(ErrorCode.BAD_UPSTREAM, ErrorCode.BAD_UPSTREAM)
        assert expected is client_error.code


def check_crossing(front: Carries, behind: Carries, wire: Any) -> None:
    """Compare the response to an upstream's error with that to the same error of the gateway."""
    error = raised_by(behind, wire)
    codec = listener(front)
    actual = arrived(codec.encode_error(CALL, error))
    client_error = raised_by(front, actual)
    assert TEXT in client_error.message
    if behind.registered.spec is front.registered.spec:
        return  # the upstream's own: test_properties/test_errors.py
    own = type(error)(error.message, model=error.model)
    expected = arrived(codec.encode_error(CALL, own))
    assert _outside(expected) == _outside(actual)
    assert front.errors.get(error.code, error.code) is client_error.code
    if "grps" in front.codec and error.code is not ErrorCode.OVERLOADED:
        assert _outside(actual)[0] in (None, GrpcStatus.OK, http_status(actual))


def http_status(wire: Any) -> Any:
    """Return the status of an HTTP response: grps has it in the status line and in the body."""
    return wire.status if isinstance(wire, HttpResponse) else None


@functools.cache
def listener(way: Carries) -> Any:
    """Return the codec of the side that reads requests, the same one for all errors."""
    return way.registered.make(way.listener)


@functools.cache
def upstream(way: Carries) -> Any:
    """Return the codec of the side that writes requests, the same one for all errors."""
    return way.registered.make(way.upstream)


def raised_by(way: Carries, wire: Any) -> GatewayError:
    """Return what an upstream codec raises about *wire*."""
    with pytest.raises(GatewayError) as caught:
        upstream(way).decode_reply(CALL, wire)
    return caught.value


def errors_of(codec: str, text: str) -> Iterator[Any]:
    """Yield every error that a server of *codec* can send with this text."""
    if codec in ("oip.http", "graphpipe.http"):
        for status in HTTP_STATUSES:
            yield HttpResponse(status, body=(text.encode(),))
    if codec in ("oip.grpc", "trtis.grpc", "grps.grpc", "tfs.grpc"):
        for status in GrpcStatus:
            if status is not GrpcStatus.OK:
                yield GrpcResponse(status=status, details=text)
    if codec == "grps.grpc":
        for code in GRPS_CODES:
            message = GrpsMessage(status=GrpsStatus(code, text, Flag.FAILURE))
            yield arrived(GrpcResponse(tuple(write_message(message))))
    if codec == "grps.http":
        for status in HTTP_STATUSES:
            yield HttpResponse(status, Headers((("Content-Type", "text/plain"),)), (text.encode(),))
    if codec == "grps.brpc":
        for code in BRPC_CODES:
            response = RpcResponseMeta(error_code=code, error_text=text)
            yield brpc_frame(RpcMeta(response=response), [])
        for code in GRPS_CODES:
            message = GrpsMessage(status=GrpsStatus(code, text, Flag.FAILURE))
            yield brpc_frame(RpcMeta(), write_message(message))
    if codec == "trtis.http":
        for name in pb.RequestStatusCode.DESCRIPTOR.values_by_name:
            if name != "SUCCESS":
                status_message = pb.RequestStatus(code=name, msg=text)
                line = text_format.MessageToString(status_message, as_one_line=True)
                yield HttpResponse(400, Headers((("NV-Status", line),)))
    if codec == "graphpipe.stream":
        for code in GRAPHPIPE_CODES:
            yield Frame((build_response((), [(code, text)]),))


def brpc_frame(meta: RpcMeta, message: Sequence[Buffer]) -> Frame:
    """Return a frame of baidu_std as a server sends it."""
    return Frame((b"".join(frame_bytes(meta.SerializeToString(), list(message))),))


def _outside(wire: Any) -> tuple[Any, Any]:
    return getattr(wire, "status", None), getattr(wire, "details", None)
