"""Messages of TensorRT v1 over HTTP that pass as they came: which may, and with another model.

A message has its header as text, and a response has it once more at the end of its body.
"""

import re
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qsl

from gateway.ir.calls import Call, InferRequest
from gateway.ir.context import Origin
from gateway.ir.errors import MalformedMessage, Unsupported
from gateway.protocols.trtis.http.context import OWN, REQUEST, RESPONSE
from gateway.protocols.trtis.http.paths import infer_path, segment
from gateway.protocols.trtis.http.upstream import read_response_line
from gateway.protocols.trtis.infer_response import sizes_in_band
from gateway.protocols.trtis.model_names import required_model
from gateway.protocols.trtis.textproto.parser import parse_text
from gateway.protocols.trtis.textproto.writer import quoted
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from gateway.wire.opaque import CONTENT_HEADERS, passed_request, passed_response
from gateway.wire.protobuf.plain import is_plain_message, with_texts

STATUS_PATH: Final = "/api/status/"
_REQUEST, _RESPONSE = REQUEST.lower(), RESPONSE.lower()
_CACHE_ENTRIES: Final = 512
_NAME: Final = re.compile(r'\bmodel_name: ?"[^"]*"')


class TextHeaderMessages:
    """How messages pass whose headers are protobuf's text format."""

    def __init__(self) -> None:
        self._is_plain = lru_cache(_CACHE_ENTRIES)(_is_plain_text)

    def is_plain(self, wire: HttpRequest, /) -> bool:
        """Return whether all readers read the same: no parameter, header or field occurs twice."""
        pairs = parse_qsl(wire.query, keep_blank_values=True) if wire.query else []
        if len(dict(pairs)) < len(pairs):
            return False
        if wire.method == "GET":
            return not wire.size_bytes
        texts = [text for key, text in wire.headers.pairs if key.lower() == _REQUEST]
        return len(texts) == 1 and self._is_plain(texts[0])

    def passed(self, reply: Origin, /) -> HttpResponse:
        """Return the response of a server as the client gets it."""
        return passed_response(reply)


def send_whole(call: Call[Any], message: Origin) -> HttpRequest:
    """Return a client's request, with the path of the target's model.

    Raises:
        Unsupported: It asks for the status of a model that has another name here.
    """
    model, wire = required_model(call), message.wire
    if wire.method != "GET":
        kept = CONTENT_HEADERS | {_REQUEST}
        return passed_request(call, message, infer_path(model), kept=kept, without=OWN)
    path = STATUS_PATH + segment("model name", model.name)
    if path != wire.path:
        raise Unsupported("a status has the names of models", model=model)
    return passed_request(call, message, path, without=OWN)


def passed_inference(call: InferRequest, reply: Origin) -> HttpResponse:
    """Return a response to an inference with the client's name of the model."""
    response, name = passed_response(reply), "" if call.model is None else call.model.name
    line = response.headers.get(_RESPONSE)
    if line is None:
        return response
    header = read_response_line(line)
    if header.model_name == name:
        return response
    size = sum(sizes_in_band(call, header))
    raws, end = response.view[:size], response.view[size:]
    if is_plain_message(end, pb.InferResponseHeader.DESCRIPTOR):
        ends = with_texts(end, {1: name})
    else:  # as text, where the client asked for it
        ends = [bytearray(_named(bytes(end).decode("utf-8", "replace"), name).encode())]
    pairs = [
        (key, _named(text, name) if key.lower() == _RESPONSE else text)
        for key, text in response.headers.pairs
    ]
    return HttpResponse(response.status, Headers(pairs), (raws, *ends))


def _named(line: str, name: str) -> str:
    return _NAME.sub(lambda _: f"model_name: {quoted(name)}", line, 1)


def _is_plain_text(text: str) -> bool:
    try:
        parse_text(text, pb.InferRequestHeader, allow_unknown=True, is_strict=True)
    except MalformedMessage:
        return False
    return True
