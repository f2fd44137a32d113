"""Writes messages of JSON: answers to clients, and requests to servers.

Source: docs/protocols/seldon.md, "5. Responses".
"""

import base64
from typing import Final

import orjson

from gateway.ir.calls import InferResponse
from gateway.ir.context import JsonParameter, Parameter
from gateway.ir.errors import InvalidOutput, MalformedMessage
from gateway.ir.tensors.data import ArrayData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, as_items, as_numpy, as_raw
from gateway.ir.work import BYTE, OBJECT_BYTE, charge
from gateway.protocols.seldon.messages import (
    MessageForm,
    PayloadKind,
    answer_kind,
    answer_tags,
    answering_output,
    column_names,
    flat_doubles,
    only_text,
)
from gateway.wire.json.values import load_json
from gateway.wire.protobuf.tensorflow_datatypes import NUMBERS, name_of
from gateway.wire.rows.write import RowStyle, columns_json, value_json

_OUTPUT: Final = "output"


def answer_json(reply: InferResponse, form: MessageForm, style: RowStyle, puid: str) -> bytes:
    """Return the message that answers an inference.

    Args:
        reply: The reply, complete.
        form: That of the request.
        style: How elements are written.
        puid: The id of the request.

    Raises:
        Unsupported: There are several outputs, and none is declared.
        InvalidOutput: An element cannot be written.
    """
    meta = meta_json(puid, answer_tags(form, reply))
    if form.declared.json_outputs:
        text = columns_json(reply.outputs, style)
        return b'{"jsonData":%b,"meta":%b}\n' % (text, meta)
    tensor = answering_output(reply, form.declared)
    kind = answer_kind(tensor, form.kind)
    if kind in _ELEMENTS:
        return _element_json(tensor, kind, meta)
    names = column_names(tensor, form.declared)
    data = _data_parts(tensor, kind, style, names)
    return b"".join((b'{"data":', *data, b',"meta":', meta, b"}\n"))


def meta_json(puid: str, tags: dict[str, Parameter]) -> bytes:
    """Return the meta of a message."""
    found: dict[str, object] = {"puid": puid} if puid else {}
    if tags:
        found["tags"] = {
            name: orjson.Fragment(value.encode()) if isinstance(value, JsonParameter) else value
            for name, value in tags.items()
        }
    return orjson.dumps(found)


def data_json(
    tensor: Tensor, kind: PayloadKind, style: RowStyle, names: tuple[str, ...], what: str = _OUTPUT
) -> bytes:
    """Return the value of `data`: names of columns, and an array.

    Args:
        tensor: What is written.
        kind: Whether it is a `tensor`, an `ndarray` or a `tftensor`.
        style: How elements are written.
        names: Names of columns.
        what: "output" or "input", for errors.

    Raises:
        InvalidOutput: An element cannot be written.
    """
    return b"".join(_data_parts(tensor, kind, style, names, what))


def _data_parts(
    tensor: Tensor, kind: PayloadKind, style: RowStyle, names: tuple[str, ...], what: str = _OUTPUT
) -> tuple[bytes, ...]:
    start = b'{"names":' + orjson.dumps(names)
    if kind is PayloadKind.TENSOR:
        shape = orjson.dumps(tensor.shape or ())
        values = value_json(flat_doubles(tensor, what), style)
        return start, b',"tensor":{"shape":', shape, b',"values":', values, b"}}"
    if kind is PayloadKind.TFTENSOR:
        return start, b',"tftensor":', _tensor_proto_json(tensor), b"}"
    text = value_json(tensor, style)
    return start, b',"ndarray":', text if tensor.shape else b"[%b]" % text, b"}"


def _tensor_proto_json(tensor: Tensor) -> bytes:
    """Return a TensorProto by the rules of proto3: numbers as content, BYTES as texts.

    Raises:
        GatewayError: The tensor cannot be written.
    """
    datatype = tensor.datatype
    if datatype is None:
        raise InvalidOutput(f"output {tensor.name!r} has no datatype")
    document: dict[str, object] = {
        "dtype": name_of(NUMBERS[datatype]),
        "tensorShape": {"dim": [{"size": str(dim)} for dim in tensor.shape or ()]},
    }
    if datatype is Datatype.BYTES:
        items = as_items(tensor)
        charge(len(items))
        document["stringVal"] = [base64.b64encode(each).decode() for each in items]
    else:
        content = bytes(as_raw(_with_bits(tensor)))
        charge(len(content) * BYTE)
        if content:
            document["tensorContent"] = base64.b64encode(content).decode()
    return orjson.dumps(document)


def _with_bits(tensor: Tensor) -> Tensor:
    """Return BOOL with bytes 0 and 1 only."""
    if tensor.datatype is not Datatype.BOOL:
        return tensor
    return Tensor(tensor.name, tensor.datatype, tensor.shape, ArrayData(as_numpy(tensor)))


def _element_json(tensor: Tensor, kind: PayloadKind, meta: bytes) -> bytes:
    """Return an answer of one element: text where it is UTF-8, otherwise bytes."""
    item = bytes(as_items(tensor)[0])
    charge(len(item) * OBJECT_BYTE)
    if kind is PayloadKind.JSON:
        value = _json_text(item)
        if value is not None:
            return b'{"jsonData":%b,"meta":%b}\n' % (value, meta)
    text = None if kind is PayloadKind.BYTES else only_text(tensor)
    if text is None:
        return b'{"binData":"%b","meta":%b}\n' % (base64.b64encode(item), meta)
    return b'{"meta":%b,"strData":%b}\n' % (meta, orjson.dumps(text))


def _json_text(item: bytes) -> bytes | None:
    """Return an element that is JSON as it stands; None for another text."""
    try:
        load_json(item, "an output of JSON")
    except MalformedMessage:
        return None
    return item


_ELEMENTS: Final = (PayloadKind.TEXT, PayloadKind.BYTES, PayloadKind.JSON)
