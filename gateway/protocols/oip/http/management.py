"""Health, metadata and the list of models over HTTP.

Source: Open Inference Protocol, "Health" and "Metadata"; docs/protocols/open-inference.md,
"15. Health, metadata and versions".
"""

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.ir.context import ModelRef
from gateway.ir.errors import MalformedMessage
from gateway.ir.limits import MessageLimits, check_count, check_name
from gateway.ir.metadata import (
    ModelMetadata,
    ModelState,
    RepositoryEntry,
    ServerMetadata,
    TensorMetadata,
)
from gateway.ir.redaction import redact
from gateway.ir.tensors.datatypes import Datatype
from gateway.protocols.oip.errors import HTTP_OK
from gateway.protocols.oip.json.binary_tensors import JSON_HEADERS
from gateway.protocols.oip.json.parse import dump
from gateway.protocols.oip.json.tensors import list_member
from gateway.wire.http import HttpRequest, HttpResponse
from gateway.wire.json.values import read_value

_DATATYPES: Mapping[str, Datatype] = {datatype.value: datatype for datatype in Datatype}
_STATES: Mapping[str, ModelState] = {state.value: state for state in ModelState}
_FALSE = (False, "false", "False")
_MOST_NAMES = 10_000


def json_response(status: int, document: Mapping[str, Any] | list[Any]) -> HttpResponse:
    """Return a response whose body is *document*."""
    return HttpResponse(status, JSON_HEADERS, (dump(document),))


def optional_json(document: Mapping[str, Any] | list[Any] | None) -> HttpResponse:
    """Return a response of status 200 whose body is *document*, or empty for None."""
    if document is None:
        return HttpResponse(HTTP_OK, JSON_HEADERS, ())
    return json_response(HTTP_OK, document)


def encode_health(
    key: str, *, healthy: bool, unhealthy_status: int, model: ModelRef | None = None
) -> HttpResponse:
    """Write the response to a health request.

    It has a JSON body, which the kserve client needs and others ignore; the status has the same
    meaning.

    Args:
        key: "live" or "ready".
        healthy: The reply.
        unhealthy_status: For False.
        model: Named in the body of its own readiness.
    """
    document: dict[str, Any] = {} if model is None else {"name": model.name}
    document[key] = healthy
    return json_response(HTTP_OK if healthy else unhealthy_status, document)


def decode_health(key: str, wire: HttpResponse, limits: MessageLimits) -> bool:
    """Read a health response of status 200: true, unless its JSON body is false.

    Triton and MLServer send no body, KServe and TorchServe send JSON.
    """
    view = wire.view
    if not view.nbytes:
        return True
    try:
        document = read_value(view, "the response", limits)
    except MalformedMessage:
        return True
    return not (type(document) is dict and document.get(key) in _FALSE)


def encode_server_metadata(reply: ServerMetadata) -> HttpResponse:
    """Write a server's metadata."""
    return json_response(
        HTTP_OK,
        {"name": reply.name, "version": reply.version, "extensions": list(reply.extensions)},
    )


def decode_server_metadata(wire: HttpResponse, limits: MessageLimits) -> ServerMetadata:
    """Read a server's metadata; the list of extensions may be missing.

    Raises:
        MalformedMessage: It is not such a document.
    """
    members = _object(wire, limits)
    return ServerMetadata(
        _text(members, "name"), _text(members, "version"), tuple(_texts(members, "extensions"))
    )


def encode_model_metadata(reply: ModelMetadata) -> HttpResponse:
    """Write a model's metadata; unknown properties of a tensor are omitted."""
    return json_response(
        HTTP_OK,
        {
            "name": reply.name,
            "versions": list(reply.versions),
            "platform": reply.platform,
            "inputs": [_signature(tensor) for tensor in reply.inputs],
            "outputs": [_signature(tensor) for tensor in reply.outputs],
        },
    )


def _signature(tensor: TensorMetadata) -> dict[str, Any]:
    member: dict[str, Any] = {"name": tensor.name}
    if tensor.datatype is not None:
        member["datatype"] = tensor.datatype.value
    if tensor.shape is not None:
        member["shape"] = tensor.shape
    return member


def decode_model_metadata(
    model: ModelRef, wire: HttpResponse, limits: MessageLimits
) -> ModelMetadata:
    """Read a model's metadata; servers may omit any member, or name datatypes differently.

    Raises:
        MalformedMessage: It is not such a document.
        TooLarge: It has too many tensors, or a name is too long.
    """
    members = _object(wire, limits)
    return ModelMetadata(
        name=_text(members, "name") or model.name,
        versions=tuple(_texts(members, "versions")),
        platform=_text(members, "platform"),
        inputs=_tensors(members, "inputs", limits),
        outputs=_tensors(members, "outputs", limits),
    )


def _tensors(
    members: Mapping[str, Any], key: str, limits: MessageLimits
) -> tuple[TensorMetadata, ...]:
    found = list_member(members, key)
    check_count(f"{key} in the metadata", len(found), limits.tensors, "tensors")
    return tuple([_tensor(key, item, limits) for item in found])


def _tensor(key: str, item: Any, limits: MessageLimits) -> TensorMetadata:
    if type(item) is not dict:
        raise MalformedMessage(f"one of the {key} in the metadata is not an object")
    name, datatype, shape = _text(item, "name"), item.get("datatype"), item.get("shape")
    check_name(f"a name of {key} in the metadata", name, limits.name_bytes, "name_bytes")
    return TensorMetadata(
        name,
        _DATATYPES.get(datatype) if type(datatype) is str else None,
        _shape(shape, limits),
    )


def _shape(shape: Any, limits: MessageLimits) -> tuple[int, ...] | None:
    if type(shape) is not list or len(shape) > limits.rank:
        return None
    is_valid = all(type(dim) is int and dim >= -1 for dim in shape)
    return tuple(shape) if is_valid else None


WHOLE_INDEX = "whole index"
"""Form of an index that was requested at Triton's path."""


def decode_index_request(wire: HttpRequest, limits: MessageLimits) -> bool:
    """Return whether a request for the index selects ready models only; its body is optional.

    Raises:
        MalformedMessage: The body is not a JSON object, or `ready` is not a boolean.
    """
    view = wire.view
    document = read_value(view, "the request", limits) if view.nbytes else {}
    if type(document) is not dict or type(document.get("ready", False)) is not bool:
        raise MalformedMessage('the request for the index is {} or {"ready": true or false}')
    ready: bool = document.get("ready", False)
    return ready


def encode_index(reply: Iterable[RepositoryEntry], *, whole: bool) -> HttpResponse:
    """Write the list of models: each name once as KServe, or with all members as Triton."""
    if whole:
        # Triton omits empty members; a model of unknown state has none.
        entries = [
            {key: value for key, value in _members(entry).items() if value} for entry in reply
        ]
        return json_response(HTTP_OK, entries)
    return json_response(HTTP_OK, {"models": list(dict.fromkeys(entry.name for entry in reply))})


def _members(entry: RepositoryEntry) -> dict[str, str]:
    state = "" if entry.state is ModelState.UNKNOWN else entry.state.value
    return {
        "name": entry.name,
        "version": entry.version,
        "state": state,
        "reason": entry.reason,
    }


def decode_index(wire: HttpResponse, limits: MessageLimits) -> tuple[RepositoryEntry, ...]:
    """Read a repository index (Triton, MLServer) or a list of names (KServe).

    Raises:
        MalformedMessage: It is neither.
        TooLarge: A name is too long, or there are too many.
    """
    document = read_value(wire.view, "the response", limits)
    if type(document) is dict:
        document = list_member(document, "models", required=True)
    if type(document) is not list:
        raise MalformedMessage("the response is not a list of models")
    check_count("models", len(document), _MOST_NAMES, "json_keys")
    return tuple([_entry(item, limits) for item in document])


def _entry(item: Any, limits: MessageLimits) -> RepositoryEntry:
    members = {"name": item} if type(item) is str else item
    if type(members) is not dict or not _text(members, "name"):
        raise MalformedMessage("a model in the response has no name")
    name = _text(members, "name")
    check_name("model name", name, limits.model_name_bytes, "model_name_bytes")
    # MLServer writes "State.READY" over gRPC; it is accepted here too.
    state = _text(members, "state").rpartition(".")[2]
    return RepositoryEntry(
        name,
        _text(members, "version"),
        _STATES.get(state, ModelState.UNKNOWN),
        redact(_text(members, "reason")),
    )


def _object(wire: HttpResponse, limits: MessageLimits) -> dict[str, Any]:
    document = read_value(wire.view, "the response", limits)
    if type(document) is not dict:
        raise MalformedMessage("the response is JSON, but not an object")
    return document


def _text(members: Mapping[str, Any], key: str) -> str:
    value = members.get(key)
    if value is None:
        return ""
    if type(value) is not str:
        raise MalformedMessage(f"{key!r} in the response is {str(value)[:40]!r}: expected a string")
    return value


def _texts(members: Mapping[str, Any], key: str) -> list[str]:
    return [str(value) for value in list_member(members, key)]
