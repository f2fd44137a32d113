"""Small messages of Open Inference over gRPC: health, metadata, repository index.

The protobuf library reads and writes them, since they have no tensors.

Source: Open Inference Protocol, gRPC API; Triton model repository extension;
docs/protocols/open-inference.md, "14. Models, statistics and settings" and
"15. Health, metadata and versions".
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from google.protobuf.message import Message

from gateway.ir.calls import (
    Call,
    ModelMetadataRequest,
    ModelReadyRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
)
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import (
    InvalidTensor,
    MalformedMessage,
    TooLarge,
    Unsupported,
)
from gateway.ir.limits import (
    MANAGEMENT_BYTES,
    MessageLimits,
    check_count,
    check_management_size,
    check_name,
)
from gateway.ir.metadata import (
    ModelMetadata,
    ModelState,
    RepositoryEntry,
    ServerMetadata,
    TensorMetadata,
)
from gateway.ir.redaction import redact
from gateway.ir.tensors.datatypes import Datatype
from gateway.protocols.oip.grpc.call_messages import CallMessage, CallMessages, CallReader
from gateway.protocols.oip.grpc.dialects import GrpcDialect, required_model
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.protobuf.library import parse
from gateway.wire.protobuf.wire_format import TooManyFields, WireError, fields

SERVICE = "/inference.GRPCInferenceService/"
_LOAD = SERVICE + "RepositoryModelLoad"
# Single fields, and unknown ones of newer clients.
_OTHER_FIELDS = 64

_DATATYPES = {datatype.name: datatype for datatype in Datatype}
_STATES = {state.value: state for state in ModelState}
# Of a response: the limits of requests do not fit a list of names.
_LISTED = 10_000

_Tensor = pb.ModelMetadataResponse.TensorMetadata
_Entry = pb.RepositoryIndexResponse.ModelIndex


def checked_model(name: str, version: str, limits: MessageLimits) -> ModelRef:
    """Return the model in a message.

    Raises:
        InvalidRequest: A character in it is not allowed.
        TooLarge: It is too long.
    """
    check_name("model name", name, limits.model_name_bytes, "model_name_bytes")
    if version:
        check_name("model version", version, limits.name_bytes, "name_bytes")
    return ModelRef(name, version)


def check_size(method: str, view: memoryview, limits: MessageLimits) -> None:
    """Refuse a message of *method* that the library would parse for long.

    A request to load may hold files, so its fields are counted instead of its bytes.

    Raises:
        TooLarge: It is too long.
        MalformedMessage: It is no message.
    """
    if method != _LOAD:
        check_management_size(method.removeprefix(SERVICE), len(view))
    if len(view) <= MANAGEMENT_BYTES:
        return
    try:
        fields(view, limits.parameters + _OTHER_FIELDS)
    except TooManyFields as error:
        raise TooLarge(f"{error}, parameters included", limit="parameters") from error
    except WireError as error:
        raise MalformedMessage(f"request to load a model: {error}") from error


# Requests of clients.


def _read_plain(kind: type[Call[Any]], message: type[Message]) -> CallReader:
    """Return the reader of a request that is empty."""

    def read(view: memoryview, context: Context, _limits: MessageLimits) -> Call[Any]:
        parse(view, message)
        return kind(context=context)

    return read


def read_named(kind: type[Call[Any]], message: type[Any]) -> CallReader:
    """Return the reader of a request that has the name and the version of a model."""

    def read(view: memoryview, context: Context, limits: MessageLimits) -> Call[Any]:
        found = parse(view, message)
        return kind(model=checked_model(found.name, found.version, limits), context=context)

    return read


def _read_index(
    view: memoryview, context: Context, _limits: MessageLimits
) -> RepositoryIndexRequest:
    message = parse(view, pb.RepositoryIndexRequest)
    if message.repository_name:
        raise Unsupported(
            f"repository is {message.repository_name[:64]!r}: expected no repository_name, "
            "since the index has all models"
        )
    return RepositoryIndexRequest(ready_only=message.ready, context=context)


CALL_READERS: Mapping[str, CallReader] = {
    SERVICE + "ServerLive": _read_plain(ServerLiveRequest, pb.ServerLiveRequest),
    SERVICE + "ServerReady": _read_plain(ServerReadyRequest, pb.ServerReadyRequest),
    SERVICE + "ModelReady": read_named(ModelReadyRequest, pb.ModelReadyRequest),
    SERVICE + "ServerMetadata": _read_plain(ServerMetadataRequest, pb.ServerMetadataRequest),
    SERVICE + "ModelMetadata": read_named(ModelMetadataRequest, pb.ModelMetadataRequest),
    SERVICE + "RepositoryIndex": _read_index,
}


# Responses to clients.


def _model_metadata(_call: Call[Any], metadata: ModelMetadata) -> Message:
    return pb.ModelMetadataResponse(
        name=metadata.name,
        versions=metadata.versions,
        platform=metadata.platform,
        inputs=[_write_tensor(tensor) for tensor in metadata.inputs],
        outputs=[_write_tensor(tensor) for tensor in metadata.outputs],
    )


def _write_tensor(tensor: TensorMetadata) -> pb.ModelMetadataResponse.TensorMetadata:
    return _Tensor(
        name=tensor.name,
        datatype="" if tensor.datatype is None else tensor.datatype.name,
        shape=tensor.shape,
    )


def _index(_call: Call[Any], entries: Iterable[RepositoryEntry]) -> Message:
    return pb.RepositoryIndexResponse(
        models=[
            _Entry(
                name=entry.name,
                version=entry.version,
                state=entry.state.value,
                reason=entry.reason,
            )
            for entry in entries
        ]
    )


# Requests to an upstream: method and message.


def write_named(method: str, message: type[Message]) -> Callable[[Any, Any], CallMessage]:
    """Return the writer of a request that has the name and the version of a model."""

    def write(call: Call[Any], _dialect: GrpcDialect) -> CallMessage:
        model = required_model(call)
        return method, message(name=model.name, version=model.version)

    return write


def _index_call(call: RepositoryIndexRequest, dialect: GrpcDialect) -> CallMessage:
    if not dialect.has_index:
        raise Unsupported(f"the dialect {dialect.name!r} has no repository index")
    return "RepositoryIndex", pb.RepositoryIndexRequest(ready=call.ready_only)


# Responses of an upstream.


def _read_server_answer(
    _call: Call[Any], view: memoryview, limits: MessageLimits
) -> ServerMetadata:
    message = parse(view, pb.ServerMetadataResponse)
    check_count("extensions", len(message.extensions), _LISTED, "extensions")
    texts = (message.name, message.version, *message.extensions)
    for text in texts:
        check_name("server metadata", text, limits.name_bytes, "name_bytes")
    return ServerMetadata(message.name, message.version, tuple(message.extensions))


def _read_model_answer(_call: Call[Any], view: memoryview, limits: MessageLimits) -> ModelMetadata:
    message = parse(view, pb.ModelMetadataResponse)
    check_count("versions", len(message.versions), _LISTED, "versions")
    checked_model(message.name, "", limits)
    for text in (message.platform, *message.versions):
        check_name("a text of the model metadata", text, limits.name_bytes, "name_bytes")
    return ModelMetadata(
        name=message.name,
        versions=tuple(message.versions),
        platform=message.platform,
        inputs=_read_tensors("inputs", message.inputs, limits),
        outputs=_read_tensors("outputs", message.outputs, limits),
    )


def _read_tensors(
    kind: str,
    tensors: Iterable[pb.ModelMetadataResponse.TensorMetadata],
    limits: MessageLimits,
) -> tuple[TensorMetadata, ...]:
    found = list(tensors)
    check_count(kind, len(found), limits.tensors, "tensors")
    return tuple([_read_tensor(tensor, limits) for tensor in found])


def _read_tensor(
    tensor: pb.ModelMetadataResponse.TensorMetadata, limits: MessageLimits
) -> TensorMetadata:
    name = tensor.name
    check_name("tensor name", name, limits.name_bytes, "name_bytes")
    if len(tensor.shape) > limits.rank:
        raise TooLarge(
            f"tensor {name!r} has {len(tensor.shape)} dimensions, "
            f"at most {limits.rank} are allowed",
            limit="rank",
        )
    shape = tuple(tensor.shape)
    if any(dim < -1 for dim in shape):
        raise InvalidTensor(
            f"tensor {name!r} has shape {list(shape)}: expected dimensions of -1 or more"
        )
    # A server may omit types, or have names of its own for them: they are unknown then.
    is_unavailable = not tensor.datatype and not shape
    return TensorMetadata(name, _DATATYPES.get(tensor.datatype), None if is_unavailable else shape)


def _read_index_answer(
    _call: Call[Any], view: memoryview, limits: MessageLimits
) -> tuple[RepositoryEntry, ...]:
    message = parse(view, pb.RepositoryIndexResponse)
    check_count("models", len(message.models), _LISTED, "models")
    entries = []
    for entry in message.models:
        checked_model(entry.name, entry.version, limits)
        # MLServer writes the name of its enumeration before the state.
        state = _STATES.get(entry.state.removeprefix("State."), ModelState.UNKNOWN)
        reason = redact(entry.reason[: limits.error_text_bytes])
        entries.append(RepositoryEntry(entry.name, entry.version, state, reason))
    return tuple(entries)


MESSAGES: Mapping[type[Call[Any]], CallMessages] = {
    ServerLiveRequest: CallMessages(
        lambda _call, live: pb.ServerLiveResponse(live=live),
        lambda _call, _dialect: ("ServerLive", pb.ServerLiveRequest()),
        lambda _call, view, _limits: parse(view, pb.ServerLiveResponse).live,
    ),
    ServerReadyRequest: CallMessages(
        lambda _call, ready: pb.ServerReadyResponse(ready=ready),
        lambda _call, _dialect: ("ServerReady", pb.ServerReadyRequest()),
        lambda _call, view, _limits: parse(view, pb.ServerReadyResponse).ready,
    ),
    ModelReadyRequest: CallMessages(
        lambda _call, ready: pb.ModelReadyResponse(ready=ready),
        write_named("ModelReady", pb.ModelReadyRequest),
        lambda _call, view, _limits: parse(view, pb.ModelReadyResponse).ready,
    ),
    ServerMetadataRequest: CallMessages(
        lambda _call, reply: pb.ServerMetadataResponse(
            name=reply.name, version=reply.version, extensions=reply.extensions
        ),
        lambda _call, _dialect: ("ServerMetadata", pb.ServerMetadataRequest()),
        _read_server_answer,
    ),
    ModelMetadataRequest: CallMessages(
        _model_metadata,
        write_named("ModelMetadata", pb.ModelMetadataRequest),
        _read_model_answer,
    ),
    RepositoryIndexRequest: CallMessages(_index, _index_call, _read_index_answer),
}
