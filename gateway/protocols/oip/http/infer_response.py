"""Reads and writes responses to inferences, and reads error responses, over HTTP.

Source: Open Inference Protocol, "Inference Response JSON Object"; docs/protocols/open-inference.md,
"8. Inference requests and responses" and "16. Errors".
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import orjson
from msgspec import Struct

from gateway.accelerator import accelerated
from gateway.ir import errors
from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef, Origin, Parameters, unknown_of
from gateway.ir.limits import MessageLimits, is_usable_name
from gateway.ir.tensors.data import RawData, SharedMemoryData, raw_of
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Shape, Tensor
from gateway.protocols.oip.dialects import Dialect
from gateway.protocols.oip.errors import HTTP_OK
from gateway.protocols.oip.http.context import NAME
from gateway.protocols.oip.http.infer_request import ALL_JSON, InferReplyFormat
from gateway.protocols.oip.json.binary_tensors import (
    JSON_HEADERS,
    BinaryPart,
    binary_headers,
    body_of,
    json_length,
    too_short,
)
from gateway.protocols.oip.json.parse import Document, dump, read_leniently, unknown_members
from gateway.protocols.oip.json.templates import JsonTemplateCache
from gateway.protocols.oip.json.tensors import NOWHERE, TensorReader, is_plain, read_parameters
from gateway.protocols.oip.json.write import (
    FewIntegers,
    JsonTarget,
    JsonTargets,
    Nonfinite,
    append_elements,
    binary_part,
    binary_writer,
    dump_parameters,
    few_integers,
    gathered,
    put_binary,
    tensor_prefix,
)
from gateway.protocols.oip.outputs import with_c_values
from gateway.protocols.oip.shared_memory import outputs_in_shared_memory
from gateway.wire.errors import clip, read_error_text, strip_traceback
from gateway.wire.http import HttpResponse, view_of
from gateway.wire.json.values import check_depth

_WHAT = "the response"
_READ_BYTES = 64 * 1024
# A longer error is not read as JSON, which takes many times its size.
_JSON_BYTES = 256 * 1024
_CACHE_ENTRIES = 512
_USE_BINARY = (
    "request it as binary (parameter 'binary_data' of the output, or 'binary_data_output' of the "
    "request) or over gRPC"
)


def response_targets(nonfinite: Nonfinite | None) -> JsonTargets:
    """Return how outputs of responses are written."""
    return JsonTargets(_USE_BINARY, nonfinite)


class ParsedResponse(Struct, frozen=True):
    """The parsed response without its id and its outputs; `unknown` as in `Origin`.

    The model's name may be "".
    """

    model: ModelRef
    parameters: Parameters
    unknown: bytes = b""


ReplyTemplates = JsonTemplateCache[ParsedResponse]


def encode_response(
    call: InferRequest, reply: InferResponse, form: InferReplyFormat, targets: JsonTargets
) -> HttpResponse:
    """Write the response to *call*; binary outputs are views.

    The id is the client's own; an id of the gateway is omitted.

    Args:
        call: The request.
        reply: Its reply.
        form: Which outputs are binary.
        targets: How the others are written.

    Raises:
        Unsupported: The client requested JSON, and JSON cannot represent an output.
    """
    outputs = with_c_values(call, reply).outputs if call.outputs else reply.outputs
    origin = reply.origin
    unknown = unknown_of(origin, NAME) if origin is not None and origin.unknown else b""
    if form is ALL_JSON and not reply.parameters and not unknown:
        whole = _write_integers(reply.model, call.id, outputs)
        if whole is not None:
            return HttpResponse(HTTP_OK, JSON_HEADERS, (whole,), True)
    text = [_opened(call.id), _model(reply.model), unknown]
    if reply.parameters:
        text.append(b'"parameters":%b,' % dump_parameters(reply.parameters))
    found = _write_binary(outputs) if _has_only_binary(form, outputs) else None
    if found is not None:
        whole = b'%b"outputs":[%b]}' % (b"".join(text), found[0])
        return HttpResponse(HTTP_OK, binary_headers(len(whole)), (whole, *found[1]), True)
    return _encode_any(text, outputs, form, targets.of(reply))


def _has_only_binary(form: InferReplyFormat, outputs: tuple[Tensor, ...]) -> bool:
    if not form.listed:
        return form.default
    return False not in [form.listed.get(tensor.name, form.default) for tensor in outputs]


def _encode_any(
    text: list[bytes], outputs: tuple[Tensor, ...], form: InferReplyFormat, target: JsonTarget
) -> HttpResponse:
    """Write a response with outputs in any form after *text*."""
    binary: list[memoryview] = []
    before = b'"outputs":['
    is_long = False
    for tensor in outputs:
        name, datatype, shape = tensor.name, tensor.datatype, tensor.shape
        if datatype is None or shape is None:
            raise errors.Unsupported(
                f"output {name!r} has no datatype or shape in the reply or in the model's "
                "metadata: Open Inference needs both"
            )
        text.append(before)
        before = b","
        if type(tensor.data) is SharedMemoryData:
            text += (tensor_prefix("output", name, datatype, shape, tensor.parameters), b"}")
        elif form.listed.get(name, form.default):
            put_binary(text, binary, "output", tensor, datatype, shape)
        elif append_elements(text, target, tensor, datatype, shape):
            is_long = True
    text.append(b"]}" if outputs else b'"outputs":[]}')
    parts = gathered(text) if is_long else (b"".join(text),)
    if binary:
        headers, body = body_of(parts, binary, always=False)
        return HttpResponse(HTTP_OK, headers, body, is_compressible=True)
    return HttpResponse(HTTP_OK, JSON_HEADERS, parts, is_compressible=True)


ResponseWriter = Callable[[ModelRef, str, tuple[Tensor, ...]], bytes | None]


@accelerated
def response_writer(
    model_text: Callable[[ModelRef], bytes],
    integers: Callable[[str, Datatype | None, Shape | None], FewIntegers | None],
) -> ResponseWriter:
    """Return a function that writes a response whose outputs have few integers.

    It takes the model, the id of the client and the outputs, and returns None for other outputs.

    Args:
        model_text: Returns the members about a model.
        integers: Writes few integers of an output.
    """

    def write(model: ModelRef, request_id: str, outputs: tuple[Tensor, ...], /) -> bytes | None:
        text = [_opened(request_id), model_text(model)]
        before = b'"outputs":['
        for tensor in outputs:
            if tensor.parameters:
                return None
            few = integers(tensor.name, tensor.datatype, tensor.shape)
            if few is None:
                return None
            opened, size, elements, dtype = few
            data = tensor.data
            raw = data.view if type(data) is RawData else raw_of(data, dtype)
            if raw is None or len(raw) != size:
                return None
            text += (before, opened, elements(raw))
            before = b"},"
        text.append(b"}]}" if outputs else b'"outputs":[]}')
        return b"".join(text)

    return write


def _opened(request_id: str) -> bytes:
    return b'{"id":%b,' % orjson.dumps(request_id) if request_id else b"{"


@lru_cache(_CACHE_ENTRIES)  # responses repeat the same few
def _model(model: ModelRef) -> bytes:
    """Return the members of a response about its model, without braces."""
    members = {"model_name": model.name}
    if model.version:
        members["model_version"] = model.version
    return dump(members)[1:-1] + b","


_write_integers = response_writer(_model, partial(few_integers, "output"))
_write_binary = binary_writer(partial(binary_part, "output"))


def decode_response(
    call: InferRequest,
    sent_id: str,
    wire: HttpResponse,
    templates: ReplyTemplates,
    dialect: Dialect,
    echoes_id: bool | None,
) -> InferResponse:
    """Read the response to *call*; binary outputs are views of the body.

    Args:
        call: The request.
        sent_id: Its id on the wire.
        wire: A response of status 200.
        templates: Templates of responses; the limits for requests apply.
        dialect: The dialect of the server.
        echoes_id: Whether the server returns the id of requests.

    Raises:
        MalformedMessage, InvalidTensor, TooLarge: The response cannot be used.
        UpstreamProtocolError: It is the response to another request.
    """
    buffers = wire.body  # as `view_of`, without its frame
    body = buffers[0] if len(buffers) == 1 else None
    if type(body) is not memoryview:
        body = view_of(buffers)
    headers = wire.headers
    # The headers of a template are read once: each response has its own.
    is_own = headers.positions is not None
    length = json_length(headers) if is_own else headers.parsed_with(json_length)
    end = len(body) if length is None else length
    if end > len(body):
        raise too_short(end, len(body))
    places = outputs_in_shared_memory(call.outputs) if call.outputs else NOWHERE
    # The call determines which outputs are in shared memory, not the response.
    cached, key = (None, None) if places else templates.parse(body, end)
    if cached is None:
        binary = BinaryPart("output", body[end:], has_header=length is not None)
        document = read_leniently(body[:end], _WHAT, templates.limits)
        found = _scalar_text(document.members.get("id"))
        _check_id(call, sent_id, found, echoes_id)
        parsed, outputs = _read(document, binary, templates.limits, places)
        if key is not None:
            templates.learn(key, body, end, (parsed, found, outputs))
    else:
        parsed, found, outputs = cached
        if found != sent_id:
            _check_id(call, sent_id, found, echoes_id)
    if call.outputs:
        outputs = _selected(call, outputs)
    model, unknown = parsed.model, parsed.unknown
    if not model.name and call.model is not None:
        model = ModelRef(call.model.name, model.version)
    return InferResponse(
        model=model,
        outputs=outputs,
        id=call.id,
        parameters=parsed.parameters,
        has_nonfinite_words=dialect.has_nonfinite_words,
        has_null_infinities=dialect.has_null_infinities,
        has_half_in_json=dialect.has_half_in_json,
        origin=Origin(NAME, wire, unknown=unknown) if unknown else Origin(NAME, wire),
    )


def _read(
    document: Document,
    binary: BinaryPart,
    limits: MessageLimits,
    places: Mapping[str, SharedMemoryData],
) -> tuple[ParsedResponse, tuple[Tensor, ...]]:
    """Read a response without a template."""
    members = document.members
    reader = TensorReader("output", binary, limits, lenient=True, places=places)
    outputs = reader.read(document)
    model = ModelRef(
        model_text(members, "model_name", limits), model_text(members, "model_version", limits)
    )
    parameters = read_parameters(members.get("parameters"), _WHAT, limits, lenient=True)
    return ParsedResponse(model, parameters, unknown_members(members)), outputs


def _scalar_text(value: Any) -> str:
    """Return a text, or the digits of an integer; "" for any other value.

    A server that writes `"model_version": 1` has still sent its tensors.
    """
    if type(value) is int:
        return str(value)
    return value if type(value) is str else ""


def model_text(members: Mapping[str, Any], key: str, limits: MessageLimits) -> str:
    """Return the name or the version of a response's model; "" where it cannot be used."""
    found = _scalar_text(members.get(key))
    if is_plain(found, limits) or is_usable_name(key, found, limits.name_bytes):
        return found
    return ""


def _check_id(call: InferRequest, sent_id: str, found: str, echoes_id: bool | None) -> None:
    if not sent_id or found == sent_id or echoes_id is False or not (found or echoes_id):
        return
    what = f"the id {clip(found, 64)!r}" if found else "no id"
    raise errors.UpstreamProtocolError(
        f"response has {what}: the request has {sent_id!r}", model=call.model
    )


def _selected(call: InferRequest, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the requested outputs; servers may send others as well."""
    wanted = {output.name for output in call.outputs}
    missing = wanted.difference([tensor.name for tensor in outputs])
    if missing:
        raise errors.MalformedMessage(
            f"response lacks the requested output {min(missing)!r}: it has {len(outputs)} outputs"
        )
    return tuple([tensor for tensor in outputs if tensor.name in wanted])


def error_text(wire: HttpResponse, limits: MessageLimits) -> str:
    """Return the text of an error response, whatever its form and content type.

    Members `error`, `detail` (text, or FastAPI's list) and `message`; else the text itself, of a
    traceback the last line; never empty.
    """
    view = wire.view
    found = _text_of_json(view, limits) if len(view) <= _JSON_BYTES else None
    text = read_error_text(view, _READ_BYTES).strip() if found is None else strip_traceback(found)
    return clip(text or f"HTTP status {wire.status} without a text", limits.error_text_bytes)


def _text_of_json(view: memoryview, limits: MessageLimits) -> str | None:
    """Return the text in an error of JSON; None for another body, or another document."""
    try:
        document = orjson.loads(str(view, "utf-8", "replace"))
        check_depth([document], _WHAT, limits)
    except (orjson.JSONDecodeError, errors.TooLarge):
        return None
    if type(document) is dict:
        for key in ("error", "detail", "message"):
            value = document.get(key)
            if value:
                return _flat(value)
    return document if type(document) is str else None


def _flat(value: Any) -> str:
    """Return an error value as one text."""
    if type(value) is str:
        return value
    if type(value) is list:
        return "; ".join(_flat(item) for item in value[:8])
    if type(value) is dict and type(value.get("msg")) is str:
        where = value.get("loc")
        if type(where) is list:
            return f"{'.'.join(map(str, where[:8]))}: {value['msg']}"
        return str(value["msg"])
    if type(value) is dict and type(value.get("message")) is str:
        return str(value["message"])
    return dump({"error": value}).decode()
