"""The messages of predictions: found by a scan, so that bodies stay views, and written in parts.

Source: docs/protocols/torchserve.md, "7. gRPC".
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from gateway.ir.limits import MessageLimits, check_count, check_name
from gateway.protocols.torchserve.messages import Item
from gateway.wire.grpc import GrpcStatus
from gateway.wire.http import Buffer
from gateway.wire.protobuf import (
    LEN,
    VARINT,
    Parts,
    fields,
    map_entry,
    put_bytes,
    put_message,
    put_tail,
    put_text,
    put_varint,
    tag,
    text,
    varint,
)

_FIRST, _SECOND, _THIRD, _FOURTH = (tag(number, LEN) for number in (1, 2, 3, 4))
_NAME, _VERSION, _INPUT, _SEQUENCE = map(varint, (_FIRST, _SECOND, _THIRD, _FOURTH))
_KEY, _VALUE = varint(_FIRST), varint(_SECOND)
_PREDICTION, _REPLY_SEQUENCE, _STATUS = map(varint, (_FIRST, _SECOND, _THIRD))
_CODE: Final = varint(tag(1, VARINT))
_EMPTY: Final = memoryview(b"")


class PredictionsRequest(Struct, frozen=True):
    """A request for predictions.

    Attributes:
        name: Name of the model.
        version: Its version; "" for the default one.
        fields: The map of inputs.
        sequence: Id of the sequence; "" for none.
    """

    name: str
    version: str
    fields: Mapping[str, Item]
    sequence: str


def read_request(view: memoryview, limits: MessageLimits) -> PredictionsRequest:
    """Read a PredictionsRequest; its inputs are views into it.

    Raises:
        WireError: The bytes are not a message.
        InvalidRequest, TooLarge: A name is not allowed, or a limit is exceeded.
    """
    name = version = sequence = ""
    found: dict[str, Item] = {}
    for key, value in fields(view):
        if key == _FIRST:
            name = text(value, "model_name")
        elif key == _SECOND:
            version = text(value, "model_version")
        elif key == _THIRD:
            entry, data = map_entry(value, "name of an input")
            check_name("name of an input", entry, limits.name_bytes, "name_bytes")
            found[entry] = Item(data, place=f"input {entry!r}")
        elif key == _FOURTH:
            sequence = text(value, "sequence_id")
    check_count("inputs", len(found), limits.tensors, "tensors")
    check_name("sequence_id", sequence, limits.name_bytes, "name_bytes")
    return PredictionsRequest(name, version, found, sequence)


def write_request(name: str, version: str, inputs: Mapping[str, Buffer], sequence: str) -> Parts:
    """Write a PredictionsRequest.

    Raises:
        WireError: A name has lone surrogates.
    """
    head = bytearray()
    put_text(head, _NAME, name)
    if version:
        put_text(head, _VERSION, version)
    if sequence:
        put_text(head, _SEQUENCE, sequence)
    parts: Parts = [head]
    for key, value in inputs.items():
        entry = bytearray()
        put_text(entry, _KEY, key)
        inner: Parts = [entry]
        put_tail(inner, _VALUE, memoryview(value))
        put_message(parts, _INPUT, inner)
    return parts


def read_prediction(view: memoryview) -> memoryview:
    """Return the body in a PredictionResponse, as a view.

    Raises:
        WireError: The bytes are not a message.
    """
    found = _EMPTY
    for key, value in fields(view):
        if key == _FIRST:
            found = value
    return found


def write_prediction(body: Buffer, sequence: str) -> Parts:
    """Write a PredictionResponse."""
    parts: Parts = [bytearray()]
    put_tail(parts, _PREDICTION, memoryview(body))
    if sequence:
        tail = bytearray()
        put_text(tail, _REPLY_SEQUENCE, sequence)
        parts.append(tail)
    return parts


def write_failure(status: GrpcStatus, message: str, sequence: str) -> Parts:
    """Write a PredictionResponse that has an error."""
    inner, head = bytearray(), bytearray()
    put_varint(inner, _CODE, status)
    put_bytes(inner, _VALUE, message.encode("utf-8", "replace"))
    if sequence:
        put_text(head, _REPLY_SEQUENCE, sequence)
    put_bytes(head, _STATUS, inner)
    return [head]
