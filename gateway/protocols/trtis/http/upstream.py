"""TensorRT v1 over HTTP to a real old server: writes requests and reads responses.

Every failure there is 400 with the reason in `NV-Status`; a response without it has no reason.

Source: docs/protocols/tensorrt-v1.md, "18. Towards an old server".
"""

import re
from functools import lru_cache
from typing import Any

from gateway.api.protocol import unsupported
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelUnloadRequest,
    ServerLiveRequest,
    ServerReadyRequest,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
)
from gateway.ir.context import Origin
from gateway.ir.errors import GatewayError, MalformedMessage, Unsupported, UpstreamProtocolError
from gateway.ir.limits import MessageLimits
from gateway.protocols.trtis.errors import HTTP_ERROR, HTTP_OK
from gateway.protocols.trtis.http.context import NAME, OWN, REQUEST, RESPONSE, STATUS
from gateway.protocols.trtis.http.paths import infer_path, register_path, segment
from gateway.protocols.trtis.infer_request import views_of
from gateway.protocols.trtis.infer_request_header import write_header
from gateway.protocols.trtis.infer_response import read_reply, sizes_in_band
from gateway.protocols.trtis.management import check_control, read_shared_status
from gateway.protocols.trtis.model_names import required_model
from gateway.protocols.trtis.options import TrtisOptions
from gateway.protocols.trtis.status_replies import (
    MODEL_CONTROL_CALLS,
    STATUS_READERS,
    error_of,
)
from gateway.protocols.trtis.textproto.parser import parse_text
from gateway.protocols.trtis.textproto.writer import request_line
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.wire.http import Buffer, Headers, HttpRequest, HttpResponse
from gateway.wire.metadata import http_headers
from gateway.wire.protobuf_library import parse

_BINARY = "format=binary"
_OCTETS = ("Content-Type", "application/octet-stream")
_HEALTH = {ServerLiveRequest: "/api/health/live", ServerReadyRequest: "/api/health/ready"}
_ABOUT_A_MODEL = (ModelMetadataRequest, ModelReadyRequest)
_SHARED = "/api/sharedmemorycontrol"
# The usual status; its id counts the server's responses, so that no two are equal.
_SUCCESS = re.compile(r'code: SUCCESS(?: server_id: "[ !#-\[\]-~]*")?(?: request_id: [0-9]{1,19})?')
_SUCCEEDED = pb.RequestStatus(code=pb.SUCCESS)
# Responses repeat their headers: entries for some hundred models. Longer headers are rare.
_CACHE_ENTRIES = 512
_REMEMBERED_LENGTH = 4096
_STATUS_KEY, _RESPONSE_KEY = STATUS.lower(), RESPONSE.lower()


def encode_call(call: Call[Any], options: TrtisOptions) -> HttpRequest:
    """Write a request; raw inputs are views.

    Raises:
        Unsupported: TensorRT v1 cannot carry it, or has no such request.
    """
    passed = http_headers(call.context, without=OWN)
    deadline = call.context.deadline
    if isinstance(call, InferRequest):
        path = infer_path(required_model(call))
        header = _written(call, options)
        headers = Headers(((REQUEST, request_line(header)), _OCTETS, *passed))
        return HttpRequest("POST", path, _BINARY, headers, tuple(views_of(call)), deadline)
    if type(call) in _HEALTH:
        return HttpRequest("GET", _HEALTH[type(call)], "", Headers(passed), (), deadline)
    if type(call) in STATUS_READERS or isinstance(call, SharedStatusRequest):
        return HttpRequest("GET", _question_path(call), _BINARY, Headers(passed), (), deadline)
    path, body = _control_path(call), _control_body(call)
    return HttpRequest("POST", path, "", Headers(passed), body, deadline)


def _written(call: InferRequest, options: TrtisOptions) -> pb.InferRequestHeader:
    try:
        return write_header(call, schedule=options.sends_schedule)
    except ValueError as error:  # lone surrogates in a name, numbers over 64 bits
        raise Unsupported(f"request cannot be written: {error}", model=call.model) from error


def _question_path(call: Call[Any]) -> str:
    if isinstance(call, SharedStatusRequest):
        return f"{_SHARED}/status"
    if call.model is None and type(call) not in _ABOUT_A_MODEL:
        return "/api/status"
    return f"/api/status/{segment('model name', required_model(call).name)}"


def _control_path(call: Call[Any]) -> str:
    if isinstance(call, ModelLoadRequest | ModelUnloadRequest):
        check_control(call)
        action = "load" if isinstance(call, ModelLoadRequest) else "unload"
        return f"/api/modelcontrol/{action}/{segment('model name', required_model(call).name)}"
    if isinstance(call, SharedRegisterRequest):
        return register_path(call.region)
    if isinstance(call, SharedUnregisterRequest):
        if call.region:
            return f"{_SHARED}/unregister/{segment('region', call.region)}"
        return f"{_SHARED}/unregisterall"
    raise unsupported(call, NAME)


def _control_body(call: Call[Any]) -> tuple[Buffer, ...]:
    if isinstance(call, SharedRegisterRequest) and call.region.device is not None:
        return (call.region.handle,)
    return ()


def decode_reply(call: Call[Any], wire: HttpResponse, limits: MessageLimits) -> Any:
    """Read the response to *call*; outputs are views of its body.

    Raises:
        GatewayError: The error in the response.
        MalformedMessage, InvalidTensor, TooLarge: The response cannot be used.
        UpstreamProtocolError: It has no status.
    """
    if type(call) in _HEALTH and wire.status in (HTTP_OK, HTTP_ERROR):
        return wire.status == HTTP_OK
    status = _status(call, wire)
    if wire.status != HTTP_OK or status.code != pb.SUCCESS:
        return _refused(call, wire, status, limits)
    if isinstance(call, InferRequest):
        return _infer_reply(call, wire, limits)
    read = STATUS_READERS.get(type(call))
    if read is not None:
        return read(call, parse(wire.view, pb.ServerStatus), limits)
    if isinstance(call, SharedStatusRequest):
        regions = parse(wire.view, pb.SharedMemoryStatus).shared_memory_region
        return read_shared_status(regions, limits)
    if type(call) in MODEL_CONTROL_CALLS:
        return None
    raise unsupported(call, NAME)


def _status(call: Call[Any], wire: HttpResponse) -> pb.RequestStatus:
    text = wire.headers.get(_STATUS_KEY)
    if text is None:
        raise UpstreamProtocolError(
            f"upstream responded with HTTP status {wire.status} and without {STATUS}: is it a "
            "TensorRT v1 server?",
            model=call.model,
        )
    return (
        _SUCCEEDED
        if _SUCCESS.fullmatch(text)
        else parse_text(text, pb.RequestStatus, allow_unknown=True)
    )


def _refused(
    call: Call[Any], wire: HttpResponse, status: pb.RequestStatus, limits: MessageLimits
) -> Any:
    if isinstance(call, ModelReadyRequest) and status.code in (pb.INVALID_ARG, pb.NOT_FOUND):
        return False
    if status.code == pb.SUCCESS:
        raise UpstreamProtocolError(
            f"upstream responded with HTTP status {wire.status} and {STATUS} SUCCESS",
            model=call.model,
        )
    error: GatewayError = error_of(call, status, Origin(NAME, wire), limits.error_text_bytes)
    raise error


def _infer_reply(call: InferRequest, wire: HttpResponse, limits: MessageLimits) -> InferResponse:
    line = wire.headers.get(_RESPONSE_KEY)
    if line is None:
        raise MalformedMessage(f"response to an inference has no {RESPONSE}")
    short = len(line) <= _REMEMBERED_LENGTH
    header = (
        _remembered(line) if short else parse_text(line, pb.InferResponseHeader, allow_unknown=True)
    )
    body = wire.view
    raws = []
    at = 0
    for entry, size in zip(header.output, sizes_in_band(call, header), strict=True):
        if size > body.nbytes - at:
            raise MalformedMessage(
                f"output {entry.name!r} has {size} bytes: the body has {body.nbytes - at} left"
            )
        raws.append(body[at : at + size])
        at += size
    # The header occurs a second time at the end, and only there with all classes.
    whole = parse(body[at:], pb.InferResponseHeader)
    if [entry.name for entry in whole.output] != [entry.name for entry in header.output]:
        raise MalformedMessage(
            f"the end of the body does not repeat {RESPONSE}: the sizes of the outputs, "
            f"{at} bytes of {body.nbytes}, may be wrong"
        )
    return read_reply(call, whole, raws, Origin(NAME, wire), limits)


@lru_cache(_CACHE_ENTRIES)
def _remembered(line: str) -> pb.InferResponseHeader:
    """Read NV-InferResponse; the message is shared, and must not be changed."""
    return parse_text(line, pb.InferResponseHeader, allow_unknown=True)
