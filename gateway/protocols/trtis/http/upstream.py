"""TensorRT v1 over HTTP to a real old server: writes requests and reads responses.

Every failure there is 400 with the reason in `NV-Status`; a response without it has no reason.

Source: docs/protocols/tensorrt-v1.md, "18. Towards an old server".
"""

import re
from functools import lru_cache, partial
from typing import Any

from gateway.api.protocol import Handling
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
from gateway.protocols.trtis.http.paths import infer_path, read_query, register_path, segment
from gateway.protocols.trtis.infer_request import views_of
from gateway.protocols.trtis.infer_request_header import write_header
from gateway.protocols.trtis.infer_response import read_reply, sizes_in_band
from gateway.protocols.trtis.management import (
    model_to_load,
    model_to_unload,
    read_shared_status,
)
from gateway.protocols.trtis.model_names import required_model
from gateway.protocols.trtis.options import TrtisOptions
from gateway.protocols.trtis.status_replies import STATUS_READERS, StatusReader, error_of
from gateway.protocols.trtis.textproto.parser import parse_text
from gateway.protocols.trtis.textproto.writer import request_line
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.wire.heads.metadata import http_headers
from gateway.wire.http import Buffer, Headers, HttpRequest, HttpResponse
from gateway.wire.protobuf.library import parse

_BINARY = "format=binary"
_OCTETS = ("Content-Type", "application/octet-stream")
_ABOUT_A_MODEL = (ModelMetadataRequest, ModelReadyRequest)
_NO_MODEL = (pb.INVALID_ARG, pb.NOT_FOUND)
_SHARED = "/api/sharedmemorycontrol"
_CONTROL = "/api/modelcontrol"
# The usual status; its id counts the server's responses, so that no two are equal.
_SUCCESS = re.compile(r'code: SUCCESS(?: server_id: "[ !#-\[\]-~]*")?(?: request_id: [0-9]{1,19})?')
_SUCCEEDED = pb.RequestStatus(code=pb.SUCCESS)
# Responses repeat their headers: entries for some hundred models. Longer headers are rare.
_CACHE_ENTRIES = 512
_REMEMBERED_LENGTH = 4096
_STATUS_KEY, _RESPONSE_KEY = STATUS.lower(), RESPONSE.lower()


class V1Client:
    """Writes requests to old servers, and reads their responses.

    Args:
        limits: The limits of a message.
        options: The options of the upstream.

    Attributes:
        calls: How it handles each kind of call, with no responses to clients.
    """

    def __init__(self, limits: MessageLimits, options: TrtisOptions) -> None:
        self._limits = limits
        self._options = options
        self.calls: dict[type[Call[Any]], Handling] = {
            InferRequest: Handling(self._infer, self._infer_reply),
            ServerLiveRequest: Handling(partial(_get, "/api/health/live"), by_status=_health),
            ServerReadyRequest: Handling(partial(_get, "/api/health/ready"), by_status=_health),
            SharedStatusRequest: Handling(
                partial(_get, f"{_SHARED}/status", query=_BINARY),
                lambda _call, wire: read_shared_status(
                    parse(wire.view, pb.SharedMemoryStatus).shared_memory_region, limits
                ),
            ),
            ModelLoadRequest: Handling(
                lambda call: _post(call, f"{_CONTROL}/load/{_segment_of(model_to_load(call))}"),
                _done,
            ),
            ModelUnloadRequest: Handling(
                lambda call: _post(call, f"{_CONTROL}/unload/{_segment_of(model_to_unload(call))}"),
                _done,
            ),
            SharedRegisterRequest: Handling(_register, _done),
            SharedUnregisterRequest: Handling(_unregister, _done),
        }
        for kind, read in STATUS_READERS.items():
            self.calls[kind] = Handling(
                partial(_status_question, needs_model=kind in _ABOUT_A_MODEL),
                partial(_read_status, read, limits),
                by_status=_is_absent if kind is ModelReadyRequest else None,
            )

    def error_in(self, call: Call[Any], wire: HttpResponse) -> GatewayError | None:
        """Return the error in a response, with it as origin; None for a success."""
        status = _status(wire)
        if status is None:
            return UpstreamProtocolError(
                f"upstream responded with HTTP status {wire.status} and without {STATUS}: is it a "
                "TensorRT v1 server?",
                model=call.model,
            )
        if status.code != pb.SUCCESS:
            most = self._limits.error_text_bytes
            return error_of(call, status, Origin(NAME, wire, whole=NAME), most)
        if wire.status == HTTP_OK:
            return None
        return UpstreamProtocolError(
            f"upstream responded with HTTP status {wire.status} and {STATUS} SUCCESS",
            model=call.model,
        )

    def _infer(self, call: InferRequest) -> HttpRequest:
        path = infer_path(required_model(call))
        try:
            header = write_header(call, schedule=self._options.sends_schedule)
        except ValueError as error:  # lone surrogates in a name, numbers over 64 bits
            raise Unsupported(f"request cannot be written: {error}", model=call.model) from error
        context = call.context
        passed = http_headers(context, without=OWN)
        headers = Headers(((REQUEST, request_line(header)), _OCTETS, *passed))
        return HttpRequest("POST", path, _BINARY, headers, tuple(views_of(call)), context.deadline)

    def _infer_reply(self, call: InferRequest, wire: HttpResponse) -> InferResponse:
        line = wire.headers.get(_RESPONSE_KEY)
        if line is None:
            raise MalformedMessage(f"response to an inference has no {RESPONSE}")
        header = read_response_line(line)
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
        whole = _read_end(call, body[at:])
        if [entry.name for entry in whole.output] != [entry.name for entry in header.output]:
            raise MalformedMessage(
                f"the end of the body does not repeat {RESPONSE}: the sizes of the outputs, "
                f"{at} bytes of {body.nbytes}, may be wrong"
            )
        return read_reply(call, whole, raws, Origin(NAME, wire), self._limits)


def _read_status(
    read: StatusReader, limits: MessageLimits, call: Call[Any], wire: HttpResponse
) -> Any:
    return read(call, parse(wire.view, pb.ServerStatus), limits)


def _get(path: str, call: Call[Any], query: str = "") -> HttpRequest:
    headers = Headers(http_headers(call.context, without=OWN))
    return HttpRequest("GET", path, query, headers, (), call.context.deadline)


def _post(call: Call[Any], path: str, body: tuple[Buffer, ...] = ()) -> HttpRequest:
    headers = Headers(http_headers(call.context, without=OWN))
    return HttpRequest("POST", path, "", headers, body, call.context.deadline)


def _segment_of(name: str) -> str:
    return segment("model name", name)


def _status_question(call: Call[Any], *, needs_model: bool) -> HttpRequest:
    if call.model is None and not needs_model:
        return _get("/api/status", call, _BINARY)
    return _get(f"/api/status/{_segment_of(required_model(call).name)}", call, _BINARY)


def _register(call: SharedRegisterRequest) -> HttpRequest:
    body = () if call.region.device is None else (call.region.handle,)
    return _post(call, register_path(call.region), body)


def _unregister(call: SharedUnregisterRequest) -> HttpRequest:
    one = f"unregister/{segment('region', call.region)}" if call.region else "unregisterall"
    return _post(call, f"{_SHARED}/{one}")


def _done(_call: Call[None], _wire: HttpResponse) -> None:
    return None


def _health(wire: HttpResponse) -> bool | None:
    return wire.status == HTTP_OK if wire.status in (HTTP_OK, HTTP_ERROR) else None


def _is_absent(wire: HttpResponse) -> bool | None:
    status = _status(wire)
    return None if status is None or status.code not in _NO_MODEL else False


def _status(wire: HttpResponse) -> pb.RequestStatus | None:
    """Return the status of a response; None where it has none."""
    text = wire.headers.get(_STATUS_KEY)
    if text is None:
        return None
    if _SUCCESS.fullmatch(text):
        return _SUCCEEDED
    return parse_text(text, pb.RequestStatus, allow_unknown=True)


def _read_end(call: InferRequest, view: memoryview) -> pb.InferResponseHeader:
    """Return the header at the end of a body: a message, or text where a client asked for that.

    Raises:
        MalformedMessage: It is neither.
    """
    origin = call.context.origin
    query = _BINARY if origin is None or origin.whole != NAME else origin.wire.query
    if read_query(query).get("format") == "binary":
        return parse(view, pb.InferResponseHeader)
    try:
        return _parsed(str(view, "utf-8"))
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"the end of the body is no text: {error}") from error


def read_response_line(line: str) -> pb.InferResponseHeader:
    """Return the header of a response; the message may be shared, and must not be changed.

    Raises:
        MalformedMessage: It is not in text format.
    """
    return _remembered(line) if len(line) <= _REMEMBERED_LENGTH else _parsed(line)


@lru_cache(_CACHE_ENTRIES)
def _remembered(line: str) -> pb.InferResponseHeader:
    return _parsed(line)


def _parsed(line: str) -> pb.InferResponseHeader:
    return parse_text(line, pb.InferResponseHeader, allow_unknown=True)
