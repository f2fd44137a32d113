"""Replies in an upstream's status messages, for both carriers."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace  # noqa: TID251  # of an origin, not of a call

from gateway.ir.calls import (
    Call,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    RepositoryIndexRequest,
    ServerMetadataRequest,
    SharedRegisterRequest,
    SharedUnregisterRequest,
)
from gateway.ir.context import Origin
from gateway.ir.errors import GatewayError, ModelNotFound
from gateway.ir.limits import MessageLimits
from gateway.ir.metadata import ModelMetadata, RepositoryEntry
from gateway.protocols.trtis.errors import TrtisStatus, error_class_of
from gateway.protocols.trtis.model_names import required_model
from gateway.protocols.trtis.server_status import (
    is_ready,
    model_of,
    read_entries,
    read_model,
    read_server,
)
from gateway.protocols.trtis.statistics import read_counters
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.wire.errors import clip, strip_traceback

# Calls whose response has only a status.
MODEL_CONTROL_CALLS: frozenset[type[Call[Any]]] = frozenset(
    {ModelLoadRequest, ModelUnloadRequest, SharedRegisterRequest, SharedUnregisterRequest}
)

StatusReader = Callable[[Any, pb.ServerStatus, MessageLimits], Any]


def _model_ready(call: Call[Any], status: pb.ServerStatus, _limits: MessageLimits) -> bool:
    model = required_model(call)
    found = status.model_status
    return model.name in found and is_ready(found[model.name], model.version)


def _model_metadata(
    call: Call[Any], status: pb.ServerStatus, limits: MessageLimits
) -> ModelMetadata:
    model = required_model(call)
    metadata = read_model(model.name, model_of(status, model.name), limits)
    if model.version and model.version not in metadata.versions:
        raise ModelNotFound(
            f"model {model.name!r} has no version {model.version!r}: expected one of "
            f"{', '.join(metadata.versions)}",
            model=model,
        )
    return metadata


def _index(
    call: RepositoryIndexRequest, status: pb.ServerStatus, limits: MessageLimits
) -> tuple[RepositoryEntry, ...]:
    entries = read_entries(status, limits)
    if call.ready_only:
        return tuple([entry for entry in entries if entry.state.value == "READY"])
    return entries


# Calls whose reply is in a ServerStatus.
STATUS_READERS: Mapping[type[Call[Any]], StatusReader] = {
    ServerMetadataRequest: lambda _, status, limits: read_server(status, limits),
    RepositoryIndexRequest: _index,
    ModelReadyRequest: _model_ready,
    ModelMetadataRequest: _model_metadata,
    ModelStatisticsRequest: read_counters,
}


def error_of(call: Call[Any], status: pb.RequestStatus, origin: Origin, most: int) -> GatewayError:
    """Return the error in an upstream's request status, with at most *most* bytes of its text.

    The origin keeps code and text, for a caller of the same protocol.
    """
    text = clip(strip_traceback(status.msg), most)
    shown = text or f"upstream responded with request status {status.code} and no text"
    form = TrtisStatus(status.code if status.code in _KNOWN else pb.UNKNOWN, text)
    kind = error_class_of(call, status.code)
    return kind(shown, model=call.model, origin=replace(origin, form=form))


_KNOWN = frozenset(
    value.number
    for value in pb.DESCRIPTOR.enum_types_by_name["RequestStatusCode"].values
    if value.number not in (pb.INVALID, pb.SUCCESS)
)
