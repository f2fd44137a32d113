"""Messages of GraphPipe as values of JSON, and back; the codec has its own forms.

Bytes are in base64. The tables are those of schemas/graphpipe/graphpipe.fbs.
"""

import base64
from collections.abc import Mapping
from typing import Any, Final

import flatbuffers  # type: ignore[import-untyped]

from gateway.ir.limits import DEFAULT_LIMITS
from gateway.protocols.graphpipe.flatbuffer_reader import FlatbufferMessage, table

_PORTS: Final = "[IOMetadata]"
_TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "Tensor": {"type": "ubyte", "shape": "[long]", "data": "[ubyte]", "string_val": "[string]"},
    "InferRequest": {
        "config": "string",
        "input_names": "[string]",
        "input_tensors": "[Tensor]",
        "output_names": "[string]",
    },
    "MetadataRequest": {},
    "InferResponse": {"output_tensors": "[Tensor]", "errors": "[Error]"},
    "Error": {"code": "long", "message": "string"},
    "IOMetadata": {"name": "string", "description": "string", "shape": "[long]", "type": "ubyte"},
    "MetadataResponse": {
        **dict.fromkeys(("name", "version", "server", "description"), "string"),
        "inputs": _PORTS,
        "outputs": _PORTS,
    },
}
_REQUESTS: Final = ("", "InferRequest", "MetadataRequest")
_WIDTHS: Final = {"ubyte": 1, "long": 8}
_FORMS: Final = {
    name: table(name, *(_WIDTHS.get(kind, 4) for kind in fields.values()))
    for name, fields in _TABLES.items()
}


def request_message(values: Mapping[str, Any]) -> bytes:
    """Return a request; *values* has its table, such as `InferRequest`, with the fields."""
    ((name, fields),) = values.items()
    builder = flatbuffers.Builder()
    member = _add(builder, name, fields)
    builder.StartObject(2)
    builder.PrependUint8Slot(0, _REQUESTS.index(name), 0)
    builder.PrependUOffsetTRelativeSlot(1, member, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def _add(builder: Any, kind: str, value: Any) -> int:
    """Return the value of a scalar, or the place of what was added."""
    if kind in _WIDTHS:
        return int(value)
    if kind == "string":
        return int(builder.CreateString(value))
    if kind == "[ubyte]":
        return int(builder.CreateByteVector(base64.b64decode(value)))
    if kind in _TABLES:
        fields = _TABLES[kind]
        added = {name: _add(builder, fields[name], each) for name, each in value.items()}
        builder.StartObject(len(fields))
        for slot, (name, form) in enumerate(fields.items()):
            if name in added and form in _WIDTHS:
                builder.PrependUint8Slot(slot, added[name], 0)
            elif name in added:
                builder.PrependUOffsetTRelativeSlot(slot, added[name], 0)
        return int(builder.EndObject())
    inner = kind[1:-1]
    items = [_add(builder, inner, each) for each in value]
    width = _WIDTHS.get(inner, 4)
    builder.StartVector(width, len(items), width)
    for item in reversed(items):
        (builder.PrependInt64 if inner == "long" else builder.PrependUOffsetTRelative)(item)
    return int(builder.EndVector())


def message_values(data: memoryview, kind: str) -> dict[str, Any]:
    """Return the fields of a message whose root is a table of this kind.

    Raises:
        GatewayError: It is none.
    """
    message = FlatbufferMessage(data, DEFAULT_LIMITS)
    return _fields(message, message.root(), kind)


def _fields(message: FlatbufferMessage, at: int, kind: str) -> dict[str, Any]:
    message.visit(1)
    places = zip(_TABLES[kind].items(), message.fields(at, _FORMS[kind]), strict=True)
    return {name: _value(message, at + place, form) for (name, form), place in places if place}


def _value(message: FlatbufferMessage, at: int, kind: str) -> Any:
    if kind in _WIDTHS:
        return int.from_bytes(
            message.view[at : at + _WIDTHS[kind]], "little", signed=kind == "long"
        )
    if kind == "string":
        return message.text(at, "a text")
    if kind == "[ubyte]":
        return base64.b64encode(message.data(at, "data")).decode()
    if kind == "[long]":
        return list(message.shape(at, "a tensor"))
    start, count = message.vector(at, 4, "a list")
    message.visit(count)
    places = range(start, start + 4 * count, 4)
    if kind == "[string]":
        return [message.text(place, "a text") for place in places]
    return [_fields(message, message.follow(place, kind), kind[1:-1]) for place in places]
