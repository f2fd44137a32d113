"""Reads and writes errors and metadata in GraphPipe messages.

Metadata of old servers is wrong, huge or empty, and some send broken errors with good outputs.
Fields that can be read are read; others stay unknown.

Source: docs/protocols/graphpipe.md, "5. Metadata", "6. Errors", "10. Upstreams".
"""

import re
from collections.abc import Sequence
from struct import Struct, pack
from typing import Final, NamedTuple

from gateway.ir.errors import GatewayError, InvalidTensor, MalformedMessage, TooLarge
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.protocols.graphpipe.datatypes import (
    DATATYPES,
    STRING,
    SUBSTITUTES,
    TYPE_NAMES,
    number_of,
)
from gateway.protocols.graphpipe.errors import text_of
from gateway.protocols.graphpipe.flatbuffer_reader import FlatbufferMessage, table
from gateway.protocols.graphpipe.flatbuffer_writer import add_shape, add_string, point

_ERROR: Final = table("an Error table", 8, 4)
_METADATA_RESPONSE: Final = table("the MetadataResponse table", 4, 4, 4, 4, 4, 4)
_IO_METADATA: Final = table("an IOMetadata table", 4, 4, 4, 1)

_CODE: Final = Struct("<q").unpack_from
_WORD: Final = Struct("<I")
_MOST_ERRORS: Final = 64
# A model has fewer outputs; longer lists are the dump of a complete graph (graphpipe-tf).
_GRAPH: Final = 64
# No signature has more tensors than this.
_SIGNATURE: Final = 256
_DEFAULTS: Final = re.compile(r"Default (Inputs|Outputs): \[([^\]]*)\]")
_TENSOR_VTABLE_AT, _SHAPELESS_VTABLE_AT = 20, 32
_TEXT_FIELDS: Final = range(48, 64, 4)
_INPUTS_FIELD, _OUTPUTS_FIELD = 64, 68
_METADATA_HEAD: Final = (
    pack("<I", 44)
    + pack("<8H", 16, 28, 4, 8, 12, 16, 20, 24)  # at 4: MetadataResponse
    + pack("<6H", 12, 20, 4, 8, 12, 16)  # at 20: IOMetadata
    + pack("<6H", 12, 20, 4, 8, 0, 16)  # at 32: IOMetadata of unknown shape
    + pack("<i6I", 44 - 4, *bytes(6))  # at 44: vtable, four texts, inputs, outputs
)
# How a description names the datatype of an input or output that is sent as a substitute.
STAND_IN_TEXTS: Final = {
    datatype: f"{datatype.value} as {TYPE_NAMES[number_of(substitute)]}"
    for datatype, substitute in SUBSTITUTES.items()
}
_DESCRIBED: Final = {text: datatype for datatype, text in STAND_IN_TEXTS.items()}


class ErrorMessage(NamedTuple):
    """One error of a response: its number, 0 when it was not set, and its text."""

    number: int
    text: str


class MetadataMessage(NamedTuple):
    """A metadata response.

    Attributes:
        name: The name of the model.
        version: The version of the server's software.
        server: Name of the server's software.
        description: The description of the model.
    """

    name: str
    version: str
    server: str
    description: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


def read_errors(message: FlatbufferMessage, at: int) -> list[ErrorMessage]:
    """Return the errors in the vector at the offset field *at*.

    Raises:
        MalformedMessage: They cannot be read, or one has no text.
    """
    start, count = message.vector(at, 4, "the errors")
    if count > _MOST_ERRORS:
        raise MalformedMessage(f"response has {count} errors: expected at most {_MOST_ERRORS}")
    return [_error(message, place) for place in range(start, start + 4 * count, 4)]


def read_honest_errors(message: FlatbufferMessage, at: int) -> list[ErrorMessage]:
    """Return the errors of a response with outputs; none when they cannot be read.

    Python servers on flatbuffers 2.0.7 or later declare as many errors as outputs, and send none.
    The outputs are good.
    """
    try:
        return read_errors(message, at)
    except GatewayError:
        return []


def read_metadata(message: FlatbufferMessage) -> MetadataMessage | None:
    """Return *message* as metadata; None when it has neither inputs nor outputs.

    Such a message may be an InferResponse with an error.

    Raises:
        GatewayError: It cannot be read.
    """
    at = message.root()
    name_at, version_at, server_at, description_at, inputs_at, outputs_at = message.fields(
        at, _METADATA_RESPONSE
    )
    if not inputs_at and not outputs_at:
        return None
    most = message.limits.error_text_bytes
    name, version, server, description = (
        text_of(message.data(at + field, "a text of the metadata"), most) if field else ""
        for field in (name_at, version_at, server_at, description_at)
    )
    defaults = {}
    if description_at and "Default " in description:
        whole = str(message.data(at + description_at, "the description"), "utf-8", "replace")
        defaults = {kind: _listed(names) for kind, names in _DEFAULTS.findall(whole)}
    inputs = _tensors(message, at + inputs_at if inputs_at else 0, defaults.get("Inputs"))
    outputs = _tensors(message, at + outputs_at if outputs_at else 0, defaults.get("Outputs"))
    return MetadataMessage(name, version, server, description, inputs, outputs)


def metadata_response(metadata: MetadataMessage) -> bytes:
    """Return *metadata* as a message; all texts are present, empty ones too."""
    head = bytearray(_METADATA_HEAD)
    texts = (metadata.name, metadata.version, metadata.server, metadata.description)
    for field, text in zip(_TEXT_FIELDS, texts, strict=True):
        add_string(head, field, text.encode())
    _add_tensors(head, _INPUTS_FIELD, metadata.inputs)
    _add_tensors(head, _OUTPUTS_FIELD, metadata.outputs)
    return bytes(head)


def _error(message: FlatbufferMessage, place: int) -> ErrorMessage:
    at = message.follow(place, "an error")
    code_at, text_at = message.fields(at, _ERROR)
    number = _CODE(message.view, at + code_at)[0] if code_at else 0
    data = message.data(at + text_at, "the text of an error") if text_at else memoryview(b"")
    text = text_of(data, message.limits.error_text_bytes)
    if not text:
        raise MalformedMessage(f"error with the number {number} has no text")
    return ErrorMessage(number, text)


def _listed(names: str) -> list[str]:
    """Return the names in a list as graphpipe-tf writes it in a description."""
    return [name.strip(" '\"") for name in re.split(r"[,\s]+", names) if name.strip(" '\"")]


def _tensors(
    message: FlatbufferMessage, field: int, defaults: list[str] | None
) -> tuple[TensorMetadata, ...]:
    """Return the tensors of a vector of IOMetadata; the *defaults* only, when it lists a graph."""
    if not field:
        return ()
    start, count = message.vector(field, 4, "inputs or outputs of the metadata")
    if count <= _GRAPH or defaults is None:
        most = min(message.limits.tensors, _SIGNATURE)
        if count > most:
            raise TooLarge(
                f"metadata has {count} tensors, at most {most} are allowed: the "
                "server lists its complete graph, configure inputs and outputs",
                limit="tensors",
            )
        message.visit(4 * count)
        return tuple([_tensor(message, place) for place in range(start, start + 4 * count, 4)])
    if len(defaults) > _GRAPH:
        raise TooLarge(f"metadata has {len(defaults)} default tensors", limit="tensors")
    for name in defaults:
        message.check_name("a default of the metadata", name)
    return tuple([TensorMetadata(name, None, None) for name in defaults])


def _tensor(message: FlatbufferMessage, place: int) -> TensorMetadata:
    at = message.follow(place, "an IOMetadata table")
    name_at, description_at, shape_at, type_at = message.fields(at, _IO_METADATA)
    if not name_at:
        raise MalformedMessage("metadata has an input or output without a name")
    name = message.text(at + name_at, "a name in the metadata")
    message.check_name("a name in the metadata", name)
    number = message.view[at + type_at] if type_at else 0
    if number > STRING:
        raise MalformedMessage(f"metadata has {name!r} of type {number}: expected 0 to {STRING}")
    datatype = DATATYPES[number]
    if description_at:
        datatype = _described_datatype(message.data(at + description_at, "a description"), datatype)
    shape = message.shape(at + shape_at, name) if shape_at else None
    if shape is not None and any(not -1 <= dim <= message.limits.dim for dim in shape):
        raise InvalidTensor(f"metadata has {name!r} of shape {list(shape)}")
    return TensorMetadata(name, datatype, shape)


def _described_datatype(description: memoryview, datatype: Datatype | None) -> Datatype | None:
    """Return the datatype that a description names; only another gateway writes it."""
    if len(description) > max(map(len, _DESCRIBED)):
        return datatype
    described = _DESCRIBED.get(str(description, "utf-8", "replace"))
    return datatype if described is None or SUBSTITUTES[described] is not datatype else described


def _add_tensors(head: bytearray, field: int, tensors: Sequence[TensorMetadata]) -> None:
    """Append the vector of IOMetadata for the offset at *field*."""
    point(head, field)
    count = len(tensors)
    vector = len(head)
    head += _WORD.pack(count) + bytes(4 * count)
    for index, tensor in enumerate(tensors):
        point(head, vector + 4 + 4 * index)
        _add_tensor(head, tensor)


def _add_tensor(head: bytearray, tensor: TensorMetadata) -> None:
    at = len(head)
    vtable = _SHAPELESS_VTABLE_AT if tensor.shape is None else _TENSOR_VTABLE_AT
    head += pack("<i4I", at - vtable, 0, 0, 0, number_of(tensor.datatype))
    add_string(head, at + 4, tensor.name.encode())
    add_string(head, at + 8, _description(tensor.datatype).encode())
    if tensor.shape is not None:
        add_shape(head, at + 12, tensor.shape)


def _description(datatype: Datatype | None) -> str:
    return "" if datatype is None else STAND_IN_TEXTS.get(datatype, "")
