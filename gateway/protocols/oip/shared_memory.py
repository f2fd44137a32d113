"""Shared memory over Open Inference: regions, and tensors in them.

This module reads and writes references only; the listener decides how they are used.

Source: Triton shared memory extension; docs/protocols/open-inference.md, "13. Shared memory".
"""

import base64
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.ir.calls import SharedStatusRequest
from gateway.ir.context import Parameter
from gateway.ir.errors import InvalidRequest, RegionNotFound
from gateway.ir.limits import MessageLimits, check_name
from gateway.ir.metadata import SharedRegion
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.tensor import RequestedOutput, Tensor
from gateway.wire.errors import clip

REGION = "shared_memory_region"
OFFSET = "shared_memory_offset"
SIZE = "shared_memory_byte_size"
KEYS = frozenset({REGION, OFFSET, SIZE})

_HANDLE_BYTES = 64
_UINT63 = 1 << 63
_SHOWN = 64


def read_region(
    name: Any, members: Mapping[str, Any], *, cuda: bool, listed: bool = False
) -> SharedRegion:
    """Return the region in a JSON object.

    Args:
        name: The name of the region.
        members: key, offset and byte_size; for CUDA raw_handle, device_id and byte_size.
        cuda: Whether the region is CUDA's.
        listed: It is part of a list of regions, which has no handles.

    Raises:
        InvalidRequest: A member is missing or wrong.
    """
    if not isinstance(name, str):
        raise InvalidRequest(f"name of the region is {clip(repr(name), _SHOWN)}: expected a string")
    size = _unsigned(members, "byte_size")
    if not cuda:
        key = members.get("key")
        if not isinstance(key, str):
            raise InvalidRequest(
                f"'key' of the region is {clip(repr(key), _SHOWN)}: expected a string"
            )
        offset = _unsigned(members, "offset") if "offset" in members else 0
        return SharedRegion(name=name, key=key, offset=offset, size_bytes=size)
    device = _unsigned(members, "device_id")
    handle = b"" if listed else _handle(members)
    return SharedRegion(name=name, device=device, size_bytes=size, handle=handle)


def checked_region(
    region: SharedRegion, limits: MessageLimits, *, listed: bool = False
) -> SharedRegion:
    """Return *region* if its texts and its handle are allowed.

    Raises:
        InvalidRequest: A character in a name, or the size of the handle, is not allowed.
        TooLarge: A name is too long.
    """
    if not region.name:
        raise InvalidRequest("the region of shared memory has no name")
    check_name("region name", region.name, limits.name_bytes, "name_bytes")
    check_name("key of the region", region.key, limits.name_bytes, "name_bytes")
    if region.device is not None and not listed and len(region.handle) != _HANDLE_BYTES:
        raise InvalidRequest(
            f"the handle of CUDA region {region.name!r} has {len(region.handle)} bytes: "
            f"expected {_HANDLE_BYTES}"
        )
    return region


def wanted_regions(call: SharedStatusRequest, reply: Iterable[SharedRegion]) -> list[SharedRegion]:
    """Return the regions of *reply* with the kind and name that *call* requests.

    Raises:
        RegionNotFound: No region has this name.
    """
    found = [region for region in reply if (region.device is not None) is bool(call.is_cuda)]
    if not call.region:
        return found
    named = [region for region in found if region.name == call.region]
    if not named:
        raise RegionNotFound(f"no region of shared memory is registered as {call.region!r}")
    return named


def split_shared(
    what: str, parameters: Mapping[str, Parameter], limits: MessageLimits
) -> tuple[SharedMemoryData | None, dict[str, Parameter]]:
    """Return a tensor's place, None for the message itself, and its other parameters.

    Raises:
        InvalidRequest: The place is incomplete or wrong.
        TooLarge: The region's name is too long.
    """
    remaining = {key: value for key, value in parameters.items() if key not in KEYS}
    if len(remaining) == len(parameters):
        return None, remaining
    region = parameters.get(REGION)
    if not isinstance(region, str) or not region:
        raise InvalidRequest(
            f"{what} has {REGION} {clip(repr(region), _SHOWN)}: expected the name of a region"
        )
    check_name(REGION, region, limits.name_bytes, "name_bytes")
    offset = parameters.get(OFFSET, 0)
    size = parameters.get(SIZE)
    for key, value in ((OFFSET, offset), (SIZE, size)):
        if type(value) is not int or not 0 <= value < _UINT63:
            raise InvalidRequest(
                f"{what} has {key} {clip(repr(value), _SHOWN)}: expected a number of bytes"
            )
    assert type(offset) is int and type(size) is int  # noqa: PT018, S101  # checked above
    return SharedMemoryData(region, offset, size), remaining


def located(tensor: Tensor, limits: MessageLimits) -> Tensor | None:
    """Return an input in shared memory; None where its parameters name no region.

    Raises:
        InvalidRequest, TooLarge: As `split_shared`.
    """
    shared, remaining = split_shared(f"input {tensor.name!r}", tensor.parameters, limits)
    if shared is None:
        return None
    return Tensor(tensor.name, tensor.datatype, tensor.shape, shared, remaining)


def outputs_in_shared_memory(requested: Iterable[RequestedOutput]) -> dict[str, SharedMemoryData]:
    """Return the places of outputs by name, without those in the response itself."""
    return {output.name: output.shared for output in requested if output.shared is not None}


def join_shared(shared: SharedMemoryData) -> dict[str, Parameter]:
    """Return the parameters of a tensor's place."""
    found: dict[str, Parameter] = {REGION: shared.region, SIZE: shared.size_bytes}
    if shared.offset:
        found[OFFSET] = shared.offset
    return found


def _unsigned(members: Mapping[str, Any], key: str) -> int:
    value = members.get(key)
    if type(value) is not int or not 0 <= value < _UINT63:
        raise InvalidRequest(
            f"{key!r} of the region is {clip(repr(value), _SHOWN)}: expected a number"
        )
    return value


def _handle(members: Mapping[str, Any]) -> bytes:
    found = members.get("raw_handle")
    text = found.get("b64") if isinstance(found, dict) else None
    try:
        return base64.b64decode(text or "", validate=True)
    except (TypeError, ValueError) as error:
        raise InvalidRequest("'raw_handle' of the region has no base64 text in 'b64'") from error
