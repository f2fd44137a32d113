"""Inference messages of Open Inference over gRPC, read into the tensor IR.

Here lives which data belongs to which tensor, and the way out through the protobuf library.  Not
here: finding the fields (scan.py), typed contents (contents.py), writing (write.py), the small
messages (messages.py).  Tensors are views into the message.

What the scan does not follow goes through the protobuf library, which refuses it or gives the
same message back in plain form; that is then scanned.  So the library has the last word on what a
message says.

Source: Open Inference Protocol, gRPC API; dossier, section 6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from gateway.ir.data import RawData, TensorData, split_items
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import InvalidTensor, MalformedMessage, TooLarge, Unsupported
from gateway.ir.limits import MessageLimits
from gateway.ir.tensor import Tensor, raw_tensor
from gateway.protocols.oip.contents import typed_data
from gateway.protocols.oip.scan import RAW_INPUTS, RAW_OUTPUTS, Described, InferMessage, scan
from gateway.schema.open_inference_pb2 import ModelInferRequest, ModelInferResponse
from gateway.wire.protobuf import WireError

Read = tuple[InferMessage, tuple[Tensor, ...]]
M = TypeVar("M", bound=Message)

_SHARED_MEMORY = "shared_memory_region"
_NOTHING = memoryview(b"")


def read_request(view: memoryview, limits: MessageLimits) -> Read:
    """Read a ModelInferRequest; tensors share *view*'s memory.

    Raises:
        MalformedMessage: The bytes are no such message.
        InvalidTensor: A tensor's data, datatype and shape do not agree; contents are raw and
            typed at once, or too few or too many.
        InvalidRequest: A name or parameter is not allowed.
        TooLarge: A limit is exceeded.
        Unsupported: A tensor is in shared memory.
    """
    return _read(view, limits, ModelInferRequest, _request)


def read_response(view: memoryview, limits: MessageLimits) -> Read:
    """Read a ModelInferResponse; tensors share *view*'s memory.

    Raises as `read_request`, but raw and typed contents may be mixed: servers do so.
    """
    return _read(view, limits, ModelInferResponse, _response)


def parse(view: memoryview, kind: type[M]) -> M:
    """Read a message by the protobuf library; copies.

    Raises:
        MalformedMessage: The bytes are no such message.
    """
    message = kind()
    try:
        message.ParseFromString(bytes(view))
    except DecodeError as error:
        raise MalformedMessage(
            f"{len(view)} bytes are not a message of type {kind.DESCRIPTOR.full_name}"
        ) from error
    return message


def _read(
    view: memoryview,
    limits: MessageLimits,
    kind: type[Message],
    read: Callable[[memoryview, MessageLimits], Read],
) -> Read:
    try:
        return read(view, limits)
    except WireError:
        message = parse(view, kind)
    message.DiscardUnknownFields()
    try:
        return read(memoryview(message.SerializeToString()), limits)
    except WireError as error:
        raise MalformedMessage(f"message of type {kind.DESCRIPTOR.full_name}: {error}") from error


def _request(view: memoryview, limits: MessageLimits) -> Read:
    message = scan(view, RAW_INPUTS, limits)
    found, raws = message.tensors, message.raws
    for described in found:
        if described.parameters and _SHARED_MEMORY in described.parameters:
            raise Unsupported(
                f"tensor {described.name!r} is in shared memory, which the gateway does not read"
            )
        if raws and len(described.contents) and _data(described, limits) is not None:
            raise InvalidTensor(
                f"tensor {described.name!r} has contents and the message has {len(raws)} raw "
                "contents: needed is one of the two"
            )
    if not raws:
        return message, tuple([_typed(described, limits) for described in found])
    _check_raw_count(len(raws), len(found), "tensors")
    return message, tuple([_raw(one, raw, limits) for one, raw in zip(found, raws, strict=True)])


def _response(view: memoryview, limits: MessageLimits) -> Read:
    message = scan(view, RAW_OUTPUTS, limits)
    # Raw contents belong to the outputs without typed ones (MLServer puts an empty message of
    # contents beside raw ones), in order; those without an element may have been left out.
    found = [(one, _data(one, limits) if len(one.contents) else None) for one in message.tensors]
    bare = [one for one, data in found if data is None]
    if len(message.raws) != len(bare):
        bare = [one for one in bare if one.count]
        _check_raw_count(len(message.raws), len(bare), "outputs that have no typed contents")
    data_of = dict(zip([one.name for one in bare], message.raws, strict=True))
    return message, tuple(
        [
            _raw(one, data_of.get(one.name, _NOTHING), limits)
            if data is None
            else _tensor(one, data)
            for one, data in found
        ]
    )


def _check_raw_count(found: int, needed: int, what: str) -> None:
    if found != needed:
        raise InvalidTensor(f"message has {found} raw contents for {needed} {what}")


def _typed(described: Described, limits: MessageLimits) -> Tensor:
    data = _data(described, limits)
    if data is not None:
        return _tensor(described, data)
    if described.count:
        raise InvalidTensor(
            f"tensor {described.name!r} has neither contents nor raw contents, "
            f"shape {list(described.shape)} needs {described.count} elements"
        )
    return _tensor(described, RawData(_NOTHING))


def _data(described: Described, limits: MessageLimits) -> TensorData | None:
    return typed_data(
        described.name, described.datatype, described.count, described.contents, limits
    )


def _tensor(described: Described, data: TensorData) -> Tensor:
    return Tensor(described.name, described.datatype, described.shape, data, described.parameters)


def _raw(described: Described, raw: memoryview, limits: MessageLimits) -> Tensor:
    datatype = described.datatype
    tensor = raw_tensor(described.name, datatype, described.shape, raw, described.parameters)
    if datatype is Datatype.BYTES and len(raw) > limits.bytes_element_size:
        longest = max(map(len, split_items(described.name, raw)))
        if longest > limits.bytes_element_size:
            raise TooLarge(
                f"tensor {described.name!r} has an element of {longest} bytes, "
                f"at most {limits.bytes_element_size} are allowed",
                limit="bytes_element_size",
            )
    if datatype is Datatype.BOOL and len(raw) and np.frombuffer(raw, np.uint8).max() > 1:
        raise InvalidTensor(
            f"tensor {described.name!r} has a byte other than 0 and 1, BOOL needs one of these"
        )
    return tensor
