"""Messages of gRPC to and from JSON for HTTP, as Triton writes its extensions.

All defaults are written, fields have their original names, and 64-bit integers are numbers, which
the protobuf library would quote.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import Error, MessageToDict, ParseDict
from google.protobuf.message import Message

from gateway.ir.errors import MalformedMessage
from gateway.wire.errors import clip

M = TypeVar("M", bound=Message)

_WIDE = frozenset({FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64})
_SHOWN = 200


def text_of(message: Message) -> dict[str, Any]:
    """Return *message* as a JSON document."""
    document = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return _plain(document, message.DESCRIPTOR)


def message_of(document: Mapping[str, Any], kind: type[M]) -> M:
    """Return the message of a JSON document, without members that it does not have.

    Raises:
        MalformedMessage: The message cannot represent the value of a member.
    """
    message = kind()
    try:
        ParseDict(dict(document), message, ignore_unknown_fields=True)
    except Error as error:
        name = message.DESCRIPTOR.name
        raise MalformedMessage(f"JSON is not a {name}: {clip(str(error), _SHOWN)}") from error
    return message


def _plain(document: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    fields = kind.fields_by_name
    return {name: _value(fields[name], value) for name, value in document.items()}


def _value(field: FieldDescriptor, value: Any) -> Any:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        inner = kind.fields_by_name["value"]
        return {key: _value(inner, entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_value(field, entry) for entry in value]
    if kind is not None:
        return _plain(value, kind)
    return int(value) if field.cpp_type in _WIDE else value
