"""The side of a client: requests to servers of TensorFlow Serving and KServe V1, and their replies.

Predictions are columns for TensorFlow Serving, which leave each tensor its own first axis, and rows
for KServe V1.

Source: docs/protocols/tensorflow-serving.md, "13. Upstreams".
"""

import json
import math
from typing import Any, Final

import orjson

from gateway.api.protocol import unsupported
from gateway.ir import errors
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    OpaqueCall,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerReadyRequest,
)
from gateway.ir.context import ModelRef, Origin
from gateway.ir.data import UntypedRules
from gateway.ir.limits import MessageLimits, check_count, check_name
from gateway.ir.metadata import ModelMetadata, RepositoryEntry
from gateway.protocols.tfs.errors import JSON, http_error_class
from gateway.protocols.tfs.http.paths import MODELS, upstream_path
from gateway.protocols.tfs.metadata import FIELD, read_metadata_document
from gateway.protocols.tfs.models import check_plain, required_model, required_version
from gateway.protocols.tfs.options import TfsOptions
from gateway.wire.errors import clip, read_error_text, strip_traceback
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from gateway.wire.json_values import read_value
from gateway.wire.metadata import http_headers
from gateway.wire.row_values import NonfiniteStyle, RowStyle, columns_json, rows_json
from gateway.wire.rows import RowsReader, is_list, read_rows_document

_OK: Final = range(200, 300)
_SERVER_ERRORS: Final = range(500, 600)
_ABSENT: Final = (404, 503)
_HEALTH: Final = (ServerLiveRequest, ServerReadyRequest)
_STYLE: Final = RowStyle(nonfinite=NonfiniteStyle.WORDS, has_b64=True)
_OF_THE_MESSAGE: Final = frozenset({"accept", "content-type"})
_MODELS: Final = 10_000


def encode_call(call: Call[Any], options: TfsOptions, codec: str) -> HttpRequest:
    """Write a request to a server.

    Raises:
        Unsupported: The dialect has no such request.
    """
    context = call.context
    body: bytes | None = None
    method = "GET"
    if isinstance(call, InferRequest):
        method, path, body = "POST", _path(call, options, ":predict"), _prediction(call, options)
    elif isinstance(call, OpaqueCall):
        return _explanation(call, options, codec)
    elif isinstance(call, _HEALTH):
        path = "/" if options.is_kserve else f"{MODELS}/"
    elif isinstance(call, ModelReadyRequest):
        path = _path(call, options, "")
    elif isinstance(call, ModelMetadataRequest) and not options.is_kserve:
        path = _path(call, options, "/metadata")
    elif isinstance(call, RepositoryIndexRequest) and options.is_kserve:
        path = MODELS
    else:
        raise unsupported(call, codec)
    headers = [*http_headers(context)]
    if body is not None:
        headers += JSON
    parts = () if body is None else (body,)
    return HttpRequest(method, path, "", Headers(headers), parts, context.deadline)


def _path(call: Call[Any], options: TfsOptions, rest: str) -> str:
    model = required_model(call)
    if options.is_kserve:
        if model.version:
            raise errors.Unsupported(
                f"KServe V1 has no versions, and the call is for version {model.version!r}",
                model=model,
            )
        return upstream_path(model.name, 0, rest)
    return upstream_path(model.name, required_version(model), rest)


def _prediction(call: InferRequest, options: TfsOptions) -> bytes:
    check_plain(call)
    try:
        if options.is_kserve:
            return b'{"instances":' + rows_json(call.inputs, _STYLE) + b"}"
        head = b"{"
        if options.signature:
            head += b'"signature_name":' + orjson.dumps(options.signature) + b","
        return head + b'"inputs":' + columns_json(call.inputs, _STYLE) + b"}"
    except errors.InvalidOutput as error:
        raise errors.Unsupported(error.message.replace("output", "input", 1)) from error


def _explanation(call: OpaqueCall, options: TfsOptions, codec: str) -> HttpRequest:
    message = call.message
    if message.codec != codec or not options.is_kserve:
        raise errors.Unsupported("only a server of KServe V1 has explanations", model=call.model)
    request: HttpRequest = message.wire
    kept = [pair for pair in request.headers.pairs if pair[0].lower() in _OF_THE_MESSAGE]
    headers = Headers((*kept, *http_headers(call.context)))
    path = _path(call, options, message.form)
    return HttpRequest("POST", path, "", headers, request.body, call.context.deadline)


def write_answer(reply: Origin) -> HttpResponse:
    """Return the server's explanation as the client gets it."""
    wire: HttpResponse = reply.wire
    kept = [pair for pair in wire.headers.pairs if pair[0].lower() in _OF_THE_MESSAGE]
    return HttpResponse(wire.status, Headers(kept), wire.body)


def decode_reply(
    call: Call[Any], wire: HttpResponse, options: TfsOptions, limits: MessageLimits, codec: str
) -> Any:
    """Read a server's response to *call*.

    Raises:
        GatewayError: It is an error, or cannot be used.
    """
    if wire.status not in _OK:
        if isinstance(call, _HEALTH) and not options.is_kserve:
            return wire.status not in _SERVER_ERRORS  # its text says that there is no such path
        if isinstance(call, ModelReadyRequest) and wire.status in _ABSENT:
            return False
        raise _error_of(call, wire, limits, codec)
    if isinstance(call, OpaqueCall):
        return Origin(codec, wire)
    try:
        if isinstance(call, InferRequest):
            return _read_prediction(call, wire, limits, codec)
        document = read_value(wire.view, "the response", limits)
        if type(document) is not dict:
            raise errors.MalformedMessage("the response is no JSON object")
        return _read_answer(call, document, options, limits)
    except errors.InvalidRequest as error:
        if isinstance(error, errors.MalformedMessage | errors.InvalidTensor):
            raise
        raise errors.MalformedMessage(error.message) from error


def _read_answer(
    call: Call[Any], document: dict[str, Any], options: TfsOptions, limits: MessageLimits
) -> Any:
    if isinstance(call, _HEALTH):
        return str(document.get("status")).lower() == "alive" if options.is_kserve else True
    if isinstance(call, ModelReadyRequest):
        return _is_ready(document)
    if isinstance(call, ModelMetadataRequest):
        return _read_metadata(call, document, options, limits)
    return _read_models(document, limits)


def _is_ready(document: dict[str, Any]) -> bool:
    versions = document.get("model_version_status")
    if isinstance(versions, list):
        return any(type(each) is dict and each.get("state") == "AVAILABLE" for each in versions)
    return document.get("ready") in (True, "True", "true")


def _read_metadata(
    call: ModelMetadataRequest, document: dict[str, Any], options: TfsOptions, limits: MessageLimits
) -> ModelMetadata:
    name = required_model(call).name
    try:
        spec, signatures = document["model_spec"], document["metadata"][FIELD][FIELD]
        return read_metadata_document(name, spec, signatures, options.signature, limits)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise errors.MalformedMessage(
            f"metadata of model {name!r} cannot be read: {type(error).__name__} {error}"
        ) from error


def _read_models(document: dict[str, Any], limits: MessageLimits) -> tuple[RepositoryEntry, ...]:
    names = document.get("models")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise errors.MalformedMessage("the list of models has no list of names")
    check_count("models", len(names), _MODELS, "models")
    for name in names:
        check_name("model name", name, limits.model_name_bytes, "model_name_bytes")
    return tuple([RepositoryEntry(name) for name in names])


def _read_prediction(
    call: InferRequest, wire: HttpResponse, limits: MessageLimits, codec: str
) -> InferResponse:
    document = read_rows_document(wire.view, "the response", limits)
    rules = UntypedRules(
        protocol="tfs", has_nulls=True, bytes_element_size=limits.bytes_element_size
    )
    reader = RowsReader(document, limits, rules)
    key = "predictions" if "predictions" in document.members else "outputs"
    if key not in document.members:
        known = ", ".join(map(repr, list(document.members)[:8])) or "none"
        raise errors.MalformedMessage(
            f"the response has neither predictions nor outputs: it has {known}"
        )
    is_rows = key == "predictions" and is_list(document.members[key])
    outputs = reader.rows(key, allows_empty=True) if is_rows else reader.columns(key)
    model = call.model or ModelRef("")
    return InferResponse(
        model=model,
        outputs=outputs,
        id=call.id,
        origin=Origin(codec, wire),
    )


def dump_words(document: Any) -> bytes:
    """Return JSON in which numbers that are not finite are words."""
    text = orjson.dumps(document)
    if b"null" not in text or not _has_nonfinite(document):
        return text
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _has_nonfinite(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_nonfinite, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_nonfinite, value))


def _error_of(
    call: Call[Any], wire: HttpResponse, limits: MessageLimits, codec: str
) -> errors.GatewayError:
    """Return the error of a server's response, with the response as its origin."""
    text = read_error_text(wire.view, limits.error_text_bytes)
    try:
        document = orjson.loads(wire.view[: limits.json_bytes])
        found = document.get("error", document.get("detail"))
        text = found if isinstance(found, str) else text
    except (orjson.JSONDecodeError, AttributeError):
        pass  # not in the protocol's form: the text is all that there is
    text = clip(strip_traceback(text), limits.error_text_bytes)
    text = text or f"upstream responded with status {wire.status} and no text"
    kind = http_error_class(wire.status)
    return kind(text, model=call.model, origin=Origin(codec, wire))
