"""Messages of GraphPipe as values of JSON, and back; the codec has its own forms.

Bytes are in base64. The tables are those of schemas/graphpipe/graphpipe.fbs.
"""

import base64
from collections.abc import Mapping
from typing import Any, Final

from gateway.ir.limits import DEFAULT_LIMITS
from gateway.protocols.graphpipe.flatbuffer_reader import FlatbufferMessage, table
from gateway.protocols.graphpipe.flatbuffer_writer import (
    METADATA_REQUEST,
    WireTensor,
    infer_request,
)

_PORTS: Final = "[IOMetadata]"
_TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "Tensor": {"type": "ubyte", "shape": "[long]", "data": "[ubyte]", "string_val": "[string]"},
    "InferResponse": {"output_tensors": "[Tensor]", "errors": "[Error]"},
    "Error": {"code": "long", "message": "string"},
    "IOMetadata": {"name": "string", "description": "string", "shape": "[long]", "type": "ubyte"},
    "MetadataResponse": {
        **dict.fromkeys(("name", "version", "server", "description"), "string"),
        "inputs": _PORTS,
        "outputs": _PORTS,
    },
}
_WIDTHS: Final = {"ubyte": 1, "long": 8}
_FORMS: Final = {
    name: table(name, *(_WIDTHS.get(kind, 4) for kind in fields.values()))
    for name, fields in _TABLES.items()
}


def request_message(values: Mapping[str, Any]) -> bytes:
    """Return a request; *values* has its table, such as `InferRequest`, with all its fields."""
    fields = values.get("InferRequest")
    if fields is None:
        return METADATA_REQUEST
    tensors = [
        WireTensor(each["type"], tuple(each["shape"]), memoryview(base64.b64decode(each["data"])))
        for each in fields["input_tensors"]
    ]
    names = fields["input_names"], fields["output_names"]
    return b"".join(infer_request(fields["config"].encode(), names[0], tensors, names[1]))


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
