"""Small messages of TensorRT v1: regions, the index, and over gRPC all calls but inference.

The protobuf library reads and writes them, since they have no tensors.  `server_status.py` has
ServerStatus.

Source: docs/protocols/tensorrt-v1.md, "7. gRPC methods", "14. Shared memory" and
"16. Model control and index".
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from google.protobuf.message import Message

from gateway.ir.calls import (
    Call,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    ServerStatusRequest,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
)
from gateway.ir.context import Context
from gateway.ir.errors import InvalidRequest, Unsupported
from gateway.ir.limits import MessageLimits, check_count, check_name
from gateway.ir.metadata import RepositoryEntry, SharedRegion
from gateway.protocols.trtis.errors import UnknownMode
from gateway.protocols.trtis.model_names import checked_model, required_model
from gateway.protocols.trtis.options import TrtisOptions
from gateway.protocols.trtis.server_status import write_status
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.wire.protobuf.library import parse

SERVICE = "/nvidia.inferenceserver.GRPCService/"

_LISTED = 10_000
CUDA_HANDLE_BYTES = 64
_Control = pb.ModelControlRequest
_Register = pb.SharedMemoryControlRequest.Register


def write_index(entries: Iterable[RepositoryEntry]) -> pb.ModelRepositoryIndex:
    """Write the index of models, each name once."""
    names = dict.fromkeys(entry.name for entry in entries)
    return pb.ModelRepositoryIndex(
        models=[pb.ModelRepositoryIndex.ModelEntry(name=name) for name in names]
    )


def write_shared_status(regions: Iterable[SharedRegion]) -> list[pb.SharedMemoryRegion]:
    """Write the registered regions."""
    found = []
    for region in regions:
        entry = pb.SharedMemoryRegion(name=region.name, byte_size=region.size_bytes)
        if region.device is None:
            entry.system_shared_memory.shared_memory_key = region.key
            entry.system_shared_memory.offset = region.offset
        else:
            entry.cuda_shared_memory.device_id = region.device
        found.append(entry)
    return found


def read_shared_status(
    entries: Iterable[pb.SharedMemoryRegion], limits: MessageLimits
) -> tuple[SharedRegion, ...]:
    """Read an upstream's registered regions.

    Raises:
        InvalidRequest, TooLarge: A name is not allowed, or there are too many.
    """
    found = list(entries)
    check_count("regions", len(found), _LISTED, "regions")
    regions = []
    for entry in found:
        system = entry.system_shared_memory
        for text in (entry.name, system.shared_memory_key):
            check_name("region", text, limits.name_bytes, "name_bytes")
        device = (
            entry.cuda_shared_memory.device_id if entry.HasField("cuda_shared_memory") else None
        )
        regions.append(
            SharedRegion(
                name=entry.name,
                size_bytes=entry.byte_size,
                key=system.shared_memory_key,
                offset=system.offset,
                device=device,
            )
        )
    return tuple(regions)


# Requests to an upstream, over both carriers.


def model_to_load(call: ModelLoadRequest) -> str:
    """Return the name of the model that a call loads.

    Raises:
        Unsupported: The call names no model, or has a configuration or files.
    """
    if call.parameters:
        raise Unsupported(
            f"the load of a model has the parameter {next(iter(call.parameters))[:64]!r}: TensorRT "
            "v1 loads what is in the repository",
            model=call.model,
        )
    return required_model(call).name


def model_to_unload(call: ModelUnloadRequest) -> str:
    """Return the name of the model that a call unloads.

    Raises:
        Unsupported: The call names no model, or includes dependents.
    """
    if call.dependents:
        raise Unsupported(
            "the unload of a model includes its dependents: TensorRT v1 unloads one model",
            model=call.model,
        )
    return required_model(call).name


# Requests of clients over gRPC.


def _read_status(view: memoryview, context: Context, limits: MessageLimits) -> Call[Any]:
    name = parse(view, pb.StatusRequest).model_name
    about = checked_model(name, limits) if name else None
    return ServerStatusRequest(about=about, context=context)


def _read_health(view: memoryview, context: Context, _limits: MessageLimits) -> Call[Any]:
    mode = parse(view, pb.HealthRequest).mode
    if mode == "live":
        return ServerLiveRequest(context=context)
    if mode == "ready":
        return ServerReadyRequest(context=context)
    raise UnknownMode(f"health mode is {mode[:40]!r}: expected live or ready")


def _read_profile(view: memoryview, context: Context, _limits: MessageLimits) -> Call[Any]:
    """Do nothing, as servers do from 1.5 on; return a call that only needs a live server."""
    command = parse(view, pb.ProfileRequest).cmd
    if command not in ("start", "stop"):
        raise UnknownMode(f"profile command is {command[:40]!r}: expected start or stop")
    return ServerLiveRequest(context=context)


def _read_control(view: memoryview, context: Context, limits: MessageLimits) -> Call[Any]:
    message = parse(view, _Control)
    if message.type not in (_Control.LOAD, _Control.UNLOAD):
        raise UnknownMode(f"model control action is {message.type}: expected LOAD 1 or UNLOAD 0")
    model = checked_model(message.model_name, limits)
    if message.type == _Control.LOAD:
        return ModelLoadRequest(model=model, context=context)
    return ModelUnloadRequest(model=model, context=context)


def _read_repository(view: memoryview, context: Context, _limits: MessageLimits) -> Call[Any]:
    if parse(view, pb.RepositoryRequest).WhichOneof("request_type") != "index":
        raise UnknownMode("the repository request has no type: expected index")
    return RepositoryIndexRequest(context=context)


def _read_shared(view: memoryview, context: Context, limits: MessageLimits) -> Call[Any]:
    message = parse(view, pb.SharedMemoryControlRequest)
    which = message.WhichOneof("shared_memory_control")
    if which == "register":
        return SharedRegisterRequest(region=_region(message.register, limits), context=context)
    if which == "unregister":
        name = _region_name(message.unregister.name, limits)
        return SharedUnregisterRequest(region=name, context=context)
    if which == "unregister_all":
        return SharedUnregisterRequest(context=context)
    if which == "status":
        return SharedStatusRequest(context=context)
    raise UnknownMode(
        "the shared memory request has no type: expected register, unregister, unregister_all "
        "or status"
    )


def _region_name(name: str, limits: MessageLimits) -> str:
    if not name:
        raise InvalidRequest("the request names no region")
    check_name("region", name, limits.name_bytes, "name_bytes")
    return name


def _region(message: pb.SharedMemoryControlRequest.Register, limits: MessageLimits) -> SharedRegion:
    name = _region_name(message.name, limits)
    which = message.WhichOneof("shared_memory_types")
    if which == "system_shared_memory":
        system = message.system_shared_memory
        check_name("shared memory key", system.shared_memory_key, limits.name_bytes, "name_bytes")
        return SharedRegion(
            name=name,
            size_bytes=message.byte_size,
            key=system.shared_memory_key,
            offset=system.offset,
        )
    cuda = message.cuda_shared_memory
    if which is None or len(cuda.raw_handle) != CUDA_HANDLE_BYTES or cuda.device_id < 0:
        raise InvalidRequest(
            f"region {name!r} has neither a system key nor a CUDA handle of {CUDA_HANDLE_BYTES} "
            "bytes with a device of 0 or more"
        )
    return SharedRegion(
        name=name, size_bytes=message.byte_size, device=cuda.device_id, handle=cuda.raw_handle
    )


Read = Callable[[memoryview, Context, MessageLimits], Call[Any]]
CALL_READERS: Mapping[str, Read] = {
    SERVICE + "Status": _read_status,
    SERVICE + "Health": _read_health,
    SERVICE + "Profile": _read_profile,
    SERVICE + "ModelControl": _read_control,
    SERVICE + "Repository": _read_repository,
    SERVICE + "SharedMemoryControl": _read_shared,
}


# Responses to clients over gRPC, without their request_status, which is field 1 of all.


def _health(healthy: bool, _call: Call[Any], _options: TrtisOptions) -> Message:
    return pb.HealthResponse(health=healthy)


def _shared_status(regions: Any, _call: Call[Any], _options: TrtisOptions) -> Message:
    written = write_shared_status(regions)
    found = pb.SharedMemoryControlResponse.Status(
        declared_region=written, shared_memory_region=written
    )
    return pb.SharedMemoryControlResponse(shared_memory_status=found)


def _nothing(_reply: Any, _call: Call[Any], _options: TrtisOptions) -> Message:
    return pb.ModelControlResponse()


REPLY_WRITERS: Mapping[type[Call[Any]], Callable[[Any, Any, TrtisOptions], Message]] = {
    ServerLiveRequest: _health,
    ServerReadyRequest: _health,
    ServerStatusRequest: lambda status, call, options: pb.StatusResponse(
        server_status=write_status(status, options, only=call.about is not None)
    ),
    RepositoryIndexRequest: lambda entries, _call, _options: pb.RepositoryResponse(
        index=write_index(entries)
    ),
    SharedStatusRequest: _shared_status,
    SharedRegisterRequest: _nothing,
    SharedUnregisterRequest: _nothing,
    ModelLoadRequest: _nothing,
    ModelUnloadRequest: _nothing,
}


# Requests to an upstream over gRPC: method and message.


def _one_status(call: Any) -> Message:
    return pb.StatusRequest(model_name=required_model(call).name)


def _register(call: Any) -> Message:
    region: SharedRegion = call.region
    message = _Register(name=region.name, byte_size=region.size_bytes)
    if region.device is None:
        message.system_shared_memory.shared_memory_key = region.key
        message.system_shared_memory.offset = region.offset
    else:
        message.cuda_shared_memory.raw_handle = region.handle
        message.cuda_shared_memory.device_id = region.device
    return pb.SharedMemoryControlRequest(register=message)


def _unregister(call: Any) -> Message:
    message = pb.SharedMemoryControlRequest()
    if call.region:
        message.unregister.name = call.region
    else:
        message.unregister_all.SetInParent()
    return message


CALL_WRITERS: Mapping[type[Call[Any]], tuple[str, Callable[[Any], Message]]] = {
    ServerLiveRequest: (SERVICE + "Health", lambda _: pb.HealthRequest(mode="live")),
    ServerReadyRequest: (SERVICE + "Health", lambda _: pb.HealthRequest(mode="ready")),
    ServerMetadataRequest: (SERVICE + "Status", lambda _: pb.StatusRequest()),
    RepositoryIndexRequest: (SERVICE + "Status", lambda _: pb.StatusRequest()),
    ModelReadyRequest: (SERVICE + "Status", _one_status),
    ModelMetadataRequest: (SERVICE + "Status", _one_status),
    ModelStatisticsRequest: (
        SERVICE + "Status",
        lambda call: pb.StatusRequest() if call.model is None else _one_status(call),
    ),
    ModelLoadRequest: (
        SERVICE + "ModelControl",
        lambda call: _Control(model_name=model_to_load(call), type=_Control.LOAD),
    ),
    ModelUnloadRequest: (
        SERVICE + "ModelControl",
        lambda call: _Control(model_name=model_to_unload(call), type=_Control.UNLOAD),
    ),
    SharedRegisterRequest: (SERVICE + "SharedMemoryControl", _register),
    SharedUnregisterRequest: (SERVICE + "SharedMemoryControl", _unregister),
    SharedStatusRequest: (
        SERVICE + "SharedMemoryControl",
        lambda _: pb.SharedMemoryControlRequest(status=pb.SharedMemoryControlRequest.Status()),
    ),
}
