"""Messages of protobuf that pass as they came: which may, and with another value of one field.

Readers differ in what counts of a field that occurs twice, and of a value beyond its type. A
message without such fields says the same to all of them.

Source: Protocol Buffers, "Encoding", "Last One Wins".
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

from gateway.ir.calls import Call
from gateway.ir.context import Origin
from gateway.ir.errors import GatewayError
from gateway.ir.limits import MessageLimits
from gateway.wire.errors import TRACEBACK, clip, passed_failure, strip_traceback
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, Metadata
from gateway.wire.http import Buffer
from gateway.wire.opaque import is_passed
from gateway.wire.protobuf.wire_format import (
    I32,
    I64,
    LEN,
    SGROUP,
    VARINT,
    FieldCounter,
    WireError,
    fields,
    put_bytes,
    put_text,
    read_varint,
    tag,
    text,
    varint,
)

_KIND: Final = 7
_TYPES: Final = {
    **dict.fromkeys((FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FIXED64), I64),
    FieldDescriptor.TYPE_SFIXED64: I64,
    **dict.fromkeys((FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_FIXED32), I32),
    FieldDescriptor.TYPE_SFIXED32: I32,
    **dict.fromkeys((FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES), LEN),
    FieldDescriptor.TYPE_MESSAGE: LEN,
}
_ENDS: Final = {
    FieldDescriptor.TYPE_BOOL: 2,
    FieldDescriptor.TYPE_UINT32: 1 << 32,
    FieldDescriptor.TYPE_SINT32: 1 << 32,
    **dict.fromkeys((FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_ENUM), 1 << 31),
}
_REPEATED: Final = 3
_DETAILS: Final = "grpc-status-details-bin"
_NEGATIVE: Final = (1 << 64) - (1 << 31)


class _Known(NamedTuple):
    """What a field of a message may be.

    Attributes:
        once: What occurs at most once with it: its number, or the name of its `oneof`; None for a
            repeated field.
        inner: Its message; None for a scalar.
        is_text: It is text in UTF-8.
        end: The first value that its type does not have; 0 for no such value.
    """

    kinds: tuple[int, ...]
    once: int | str | None
    inner: Descriptor | None
    is_map: bool
    is_text: bool
    end: int


@cache
def _known(message: Descriptor) -> Mapping[int, _Known]:
    return {each.number: _known_field(each) for each in message.fields}


def _known_field(field: FieldDescriptor) -> _Known:
    kind, inner = _TYPES.get(field.type, VARINT), field.message_type
    # `label` of releases before 6, which later ones do not have.
    is_repeated = getattr(field, "is_repeated", None) or getattr(field, "label", 0) == _REPEATED
    of = field.containing_oneof
    return _Known(
        (kind, LEN) if is_repeated else (kind,),
        None if is_repeated else field.number if of is None else of.name,
        inner,
        inner is not None and inner.GetOptions().map_entry,
        field.type == FieldDescriptor.TYPE_STRING,
        _ENDS.get(field.type, 0),
    )


def is_plain_message(view: memoryview, message: Any) -> bool:
    """Return whether every reader reads the same in the bytes of a message of a descriptor.

    No field occurs twice that may occur once, no key of a map twice, and all values are of their
    types. Fields that the schema lacks are the server's own.
    """
    try:
        return _is_plain(view, message, FieldCounter())
    except WireError:
        return False


class ProtobufMessages:
    """How messages of services of protobuf over gRPC pass as they came.

    Args:
        file: The descriptor of the file with the services.
    """

    def __init__(self, file: FileDescriptor) -> None:
        self._methods = {
            f"/{service.full_name}/{method.name}": method
            for service in file.services_by_name.values()
            for method in service.methods
        }

    def is_plain(self, wire: GrpcRequest, /) -> bool:
        """Return whether all readers of a request read the same."""
        return is_plain_message(wire.view, self._methods[wire.method].input_type)

    def passed(self, reply: Origin, /) -> GrpcResponse:
        """Return the response of a server as the client gets it."""
        return GrpcResponse(reply.wire.message, metadata=passed_metadata(reply.wire))


def passed_metadata(response: GrpcResponse, most_bytes: int | None = None) -> Metadata:
    """Return the trailing metadata of a server as the client gets it.

    Args:
        response: The response of the server.
        most_bytes: Of a value of an error, which may also have no traceback; None for any value.
    """
    return tuple(
        [
            (name, value)
            for name, value in response.metadata
            if (name == _DETAILS or is_passed((name, value)))
            and (most_bytes is None or _is_short(value, most_bytes))
        ]
    )


def _is_short(value: str | bytes, most_bytes: int) -> bool:
    text = value.encode() if isinstance(value, str) else value
    return len(text) <= most_bytes and TRACEBACK.encode() not in text


def _is_plain(view: memoryview, message: Descriptor, counter: FieldCounter) -> bool:
    known, seen = _known(message), set[Any]()
    for key, value in fields(view, counter=counter):
        if key & _KIND == SGROUP:
            return False
        field = known.get(key >> 3)
        if field is None:
            continue
        if key & _KIND not in field.kinds:
            return False
        once: Any = field.once
        if field.is_map:
            keys = [each for number, each in fields(value) if number >> 3 == 1 and each]
            once = (key, *[each if type(each) is int else bytes(each) for each in keys])
        if once is not None and once in seen:
            return False
        seen.add(once)
        if not _is_plain_value(field, value, counter):
            return False
    return True


def _is_plain_value(field: _Known, value: Any, counter: FieldCounter) -> bool:
    if field.inner is not None:
        return _is_plain(value, field.inner, counter)
    if field.is_text:
        text(value, "a text")
    return not (field.end and type(value) is int and field.end <= value < _NEGATIVE)


def passed_message(
    call: Call[Any], error: GatewayError, limits: MessageLimits
) -> GrpcResponse | None:
    """Return the response with the error of a server, to a message that was sent on."""
    found = passed_failure(call, error, limits)
    if found is None or found.wire.status is not GrpcStatus.OK:
        return None
    metadata = passed_metadata(found.wire, limits.error_text_bytes)
    return GrpcResponse(found.wire.message, metadata=metadata)


def ended_call(error: GatewayError, name: str, limits: MessageLimits) -> GrpcResponse | None:
    """Return the status with which an upstream of codec *name* ended its call; None for others."""
    wire = error.origin.wire if error.origin is not None and error.origin.codec == name else None
    if not isinstance(wire, GrpcResponse) or wire.status is GrpcStatus.OK:
        return None
    most = limits.error_text_bytes
    details = clip(strip_traceback(wire.details), most)
    return GrpcResponse((), wire.status, details, passed_metadata(wire, most))


def with_texts(view: memoryview, texts: Mapping[int, str]) -> list[bytearray | memoryview]:
    """Return a plain message with other texts in fields, by their numbers; "" leaves one out.

    Raises:
        WireError: A text has lone surrogates.
    """
    head, rest = bytearray(), [view]
    for number, value in texts.items():
        rest = [piece for each in rest for piece in without_field(each, number)]
        if value:
            put_text(head, varint(tag(number, LEN)), value)
    return [head, *rest]


def with_name(wire: GrpcResponse, path: Sequence[int], name: str) -> Sequence[Buffer]:
    """Return a response with another text in an inner message; itself where it has it.

    Args:
        wire: The response. It stays where it has no such message, or is no message at all.
        path: The field of the message, and that of the text.
        name: The text.

    Raises:
        WireError: The text has lone surrogates.
    """
    view, (outer, inner) = wire.view, path
    try:
        found = [value for key, value in fields(view) if key == tag(outer, LEN)]
        merged = memoryview(b"".join(found))
        names = [bytes(value) for key, value in fields(merged) if key == tag(inner, LEN)]
    except WireError:
        return wire.message
    if not found or names == [name.encode()]:
        return wire.message
    head = bytearray()
    put_bytes(head, varint(tag(outer, LEN)), b"".join(with_texts(merged, {inner: name})))
    return [head, *without_field(view, outer)]


def without_field(view: memoryview, number: int) -> list[memoryview]:
    """Return the bytes of a plain message around the fields of a number, without copies."""
    pieces, begin, at = [], 0, 0
    while at < len(view):
        start = at
        key, at = read_varint(view, at)
        kind = key & _KIND
        if kind == VARINT:
            _, at = read_varint(view, at)
        elif kind == LEN:
            size, at = read_varint(view, at)
            at += size
        else:
            at += 8 if kind == I64 else 4
        if key >> 3 == number:
            pieces.append(view[begin:start])
            begin = at
    pieces.append(view[begin:])
    return [piece for piece in pieces if len(piece)]
