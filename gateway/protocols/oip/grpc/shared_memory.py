"""Regions of shared memory over gRPC: the same three calls for both kinds.

Source: Triton shared memory extension; docs/protocols/open-inference.md, "13. Shared memory".
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

from gateway.ir.calls import (
    Call,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
)
from gateway.ir.context import Context
from gateway.ir.limits import MessageLimits, check_count
from gateway.ir.metadata import SharedRegion
from gateway.protocols.oip.grpc.call_messages import CallMessage, CallMessages, CallReader
from gateway.protocols.oip.grpc.dialects import GrpcDialect
from gateway.protocols.oip.grpc.management import checked_model
from gateway.protocols.oip.shared_memory import checked_region, wanted_regions
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.protobuf.library import parse

_MOST = 10_000


def _read_system(
    view: memoryview, context: Context, limits: MessageLimits
) -> SharedRegisterRequest:
    message = parse(view, pb.SystemSharedMemoryRegisterRequest)
    region = SharedRegion(
        name=message.name, key=message.key, offset=message.offset, size_bytes=message.byte_size
    )
    return SharedRegisterRequest(context=context, region=checked_region(region, limits))


def _read_cuda(view: memoryview, context: Context, limits: MessageLimits) -> SharedRegisterRequest:
    message = parse(view, pb.CudaSharedMemoryRegisterRequest)
    region = SharedRegion(
        name=message.name,
        device=message.device_id,
        size_bytes=message.byte_size,
        handle=message.raw_handle,
    )
    return SharedRegisterRequest(context=context, region=checked_region(region, limits))


def _reads_name(
    kind: type[SharedUnregisterRequest | SharedStatusRequest], message: type[Any], *, is_cuda: bool
) -> tuple[type[Call[Any]], CallReader]:
    """Return a kind of call, and the reader of its request, which has the name of a region."""

    def read(view: memoryview, context: Context, limits: MessageLimits) -> Call[Any]:
        region = checked_model(parse(view, message).name, "", limits).name
        return kind(context=context, region=region, is_cuda=is_cuda)

    return kind, read


def _register_call(call: SharedRegisterRequest, _dialect: GrpcDialect) -> CallMessage:
    region = call.region
    if region.device is None:
        return "SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(
            name=region.name, key=region.key, offset=region.offset, byte_size=region.size_bytes
        )
    return "CudaSharedMemoryRegister", pb.CudaSharedMemoryRegisterRequest(
        name=region.name,
        raw_handle=region.handle,
        device_id=region.device,
        byte_size=region.size_bytes,
    )


def _unregister_call(call: SharedUnregisterRequest, _dialect: GrpcDialect) -> CallMessage:
    if call.is_cuda:
        cuda = pb.CudaSharedMemoryUnregisterRequest(name=call.region)
        return "CudaSharedMemoryUnregister", cuda
    return "SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(name=call.region)


def _status_call(call: SharedStatusRequest, _dialect: GrpcDialect) -> CallMessage:
    if call.is_cuda:
        return "CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest(name=call.region)
    return "SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name=call.region)


def _write_status(call: SharedStatusRequest, reply: tuple[SharedRegion, ...]) -> Message:
    regions = wanted_regions(call, reply)
    if not call.is_cuda:
        system = pb.SystemSharedMemoryStatusResponse()
        for region in regions:
            entry = system.regions[region.name]
            entry.name, entry.key = region.name, region.key
            entry.offset, entry.byte_size = region.offset, region.size_bytes
        return system
    cuda = pb.CudaSharedMemoryStatusResponse()
    for region in regions:
        listed = cuda.regions[region.name]
        listed.name, listed.device_id = region.name, region.device or 0
        listed.byte_size = region.size_bytes
    return cuda


def _read_regions(
    call: SharedStatusRequest, view: memoryview, limits: MessageLimits
) -> tuple[SharedRegion, ...]:
    if call.is_cuda:
        found = [
            SharedRegion(name=name, device=entry.device_id, size_bytes=entry.byte_size)
            for name, entry in parse(view, pb.CudaSharedMemoryStatusResponse).regions.items()
        ]
    else:
        found = [
            SharedRegion(name=name, key=entry.key, offset=entry.offset, size_bytes=entry.byte_size)
            for name, entry in parse(view, pb.SystemSharedMemoryStatusResponse).regions.items()
        ]
    check_count("regions", len(found), _MOST, "regions")
    found.sort(key=lambda region: region.name)  # a map has no order
    return tuple([checked_region(region, limits, listed=True) for region in found])


def _ok(_call: Call[Any], view: memoryview, _limits: MessageLimits) -> None:
    """Read a response without content."""
    parse(view, pb.ServerLiveRequest)


CALL_READERS: Mapping[str, tuple[type[Call[Any]], CallReader]] = {
    "SystemSharedMemoryStatus": _reads_name(
        SharedStatusRequest, pb.SystemSharedMemoryStatusRequest, is_cuda=False
    ),
    "SystemSharedMemoryRegister": (SharedRegisterRequest, _read_system),
    "SystemSharedMemoryUnregister": _reads_name(
        SharedUnregisterRequest, pb.SystemSharedMemoryUnregisterRequest, is_cuda=False
    ),
    "CudaSharedMemoryStatus": _reads_name(
        SharedStatusRequest, pb.CudaSharedMemoryStatusRequest, is_cuda=True
    ),
    "CudaSharedMemoryRegister": (SharedRegisterRequest, _read_cuda),
    "CudaSharedMemoryUnregister": _reads_name(
        SharedUnregisterRequest, pb.CudaSharedMemoryUnregisterRequest, is_cuda=True
    ),
}

EXTENSIONS: Mapping[type[Call[Any]], CallMessages] = {
    SharedRegisterRequest: CallMessages(
        lambda call, _reply: (
            pb.SystemSharedMemoryRegisterResponse()
            if call.region.device is None
            else pb.CudaSharedMemoryRegisterResponse()
        ),
        _register_call,
        _ok,
    ),
    SharedUnregisterRequest: CallMessages(
        lambda _call, _reply: pb.SystemSharedMemoryUnregisterResponse(), _unregister_call, _ok
    ),
    SharedStatusRequest: CallMessages(_write_status, _status_call, _read_regions),
}
