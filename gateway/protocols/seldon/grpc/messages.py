"""SeldonMessages: found by a scan, so that arrays stay views, and written in parts.

Source: docs/protocols/seldon.md, "4. gRPC".
"""

import base64
import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
from google.protobuf.message import DecodeError

from gateway.ir.calls import InferResponse
from gateway.ir.context import JsonParameter, Parameter
from gateway.ir.errors import InvalidRequest, MalformedMessage, Unsupported
from gateway.ir.limits import MessageLimits, check_count
from gateway.ir.tensors.data import JsonLayout, UntypedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, as_items
from gateway.ir.values.json_objects import reserve_objects
from gateway.ir.work import FIELD, OBJECT_BYTE, charge
from gateway.protocols.seldon.declarations import INPUTS, TEXT, SeldonForm
from gateway.protocols.seldon.grpc.values import ValueReader, list_value
from gateway.protocols.seldon.http.requests import check_numbers, read_tensor_proto
from gateway.protocols.seldon.messages import (
    MessageForm,
    Meta,
    Payload,
    PayloadKind,
    answer_kind,
    answer_tags,
    answering_output,
    checked_puid,
    column_names,
    element_tensor,
    exact_doubles,
    only_text,
    read_tags,
)
from gateway.protocols.seldon.options import ValueRules
from gateway.schema import seldon_pb2 as pb
from gateway.wire.protobuf.messages import FieldKind, MessageDescriptor, MessageField
from gateway.wire.protobuf.packed import fixed_run
from gateway.wire.protobuf.tensor_protos import tensor_message
from gateway.wire.protobuf.wire_format import (
    I64,
    LEN,
    MAX_FIELDS,
    VARINT,
    Field,
    Parts,
    TooManyFields,
    field_blocks,
    fields,
    int32,
    put_bytes,
    put_int64s,
    put_message,
    put_tail,
    put_text,
    read_varint,
    tag,
    varint,
)
from gateway.wire.rows.write import RowStyle, columns_json

_NAMES, _TENSOR, _NDARRAY, _TFTENSOR = (tag(n, LEN) for n in range(1, 5))
_ARRAYS: Final = (_TENSOR, _NDARRAY, _TFTENSOR)
_SHAPE, _VALUES = tag(1, LEN), tag(2, LEN)
_ONE_SIZE, _ONE_VALUE = tag(1, VARINT), tag(2, I64)
_DOUBLE_BYTES: Final = 8
_NUMBERS: Final = "data.tensor.values"


class SeldonParts(NamedTuple):
    """A SeldonMessage whose messages are not read yet; of the payloads, at most one is there."""

    status: list[memoryview]
    meta: list[memoryview]
    data: list[memoryview] | None
    binary: memoryview | None
    text: str | None
    json: list[memoryview] | None
    custom: list[memoryview] | None


_PAYLOAD: Final = "data_oneof"
SELDON_MESSAGE: Final = MessageDescriptor(
    "SeldonMessage",
    SeldonParts,
    [
        MessageField(1, FieldKind.CLOSED, "status"),
        MessageField(2, FieldKind.CLOSED, "meta"),
        MessageField(3, FieldKind.CLOSED, "data", choice=_PAYLOAD),
        MessageField(4, FieldKind.VIEW, "binary", choice=_PAYLOAD),
        MessageField(5, FieldKind.TEXT, "text", "strData", choice=_PAYLOAD),
        MessageField(6, FieldKind.CLOSED, "json", choice=_PAYLOAD),
        MessageField(7, FieldKind.CLOSED, "custom", choice=_PAYLOAD),
    ],
)


_META, _DATA = SELDON_MESSAGE.key("meta"), SELDON_MESSAGE.key("data")


class SeldonMessageReader:
    """Reads one SeldonMessage; its array is a view of it.

    Args:
        view: The message.
        limits: The limits of a message.
        rules: What its values may be.

    Attributes:
        meta: Its meta.

    Raises:
        WireError: The bytes are not a message.
        GatewayError: The meta cannot be used.
    """

    def __init__(self, view: memoryview, limits: MessageLimits, rules: ValueRules) -> None:
        self._size = len(view)
        self._limits = limits
        self._rules = rules
        self._parts = SELDON_MESSAGE.read((view,), limits)
        self.meta = _read_meta(self._parts.meta, limits)

    @property
    def failure(self) -> str | None:
        """The text of a status that says that the call failed; None for any other message."""
        if not self._parts.status:
            return None
        status = pb.Status()
        try:
            status.ParseFromString(b"".join(self._parts.status))
        except DecodeError as error:
            raise MalformedMessage("the status of the message cannot be read") from error
        return status.info or status.reason if status.status == pb.Status.FAILURE else None

    def payload(self, declared: SeldonForm) -> Payload:
        """Return the payload.

        Raises:
            WireError: The bytes are not a message.
            GatewayError: There is none, or it cannot be used.
        """
        parts = self._parts
        if parts.data is not None:
            return self._data(_one_view(parts.data))
        if parts.text is not None:
            return Payload(PayloadKind.TEXT, (self._element("strData", parts.text),))
        if parts.binary is not None:
            value = {"b64": base64.b64encode(parts.binary).decode()}
            return Payload(PayloadKind.BYTES, (self._element("binData", value),))
        if parts.json is not None:
            return self._json(_one_view(parts.json), declared)
        if parts.custom is None:
            raise MalformedMessage(
                "the message has no payload: expected data, jsonData, strData or binData"
            )
        raise Unsupported("customData is not read: expected data, jsonData, strData or binData")

    def _data(self, view: memoryview) -> Payload:
        own = 0
        found: list[memoryview] = []
        for some in _many_fields(view, self._limits):
            for key, value in some:
                if key in _ARRAYS:
                    if key != own:
                        own, found = key, []
                    found.append(value)
            if len(found) > MAX_FIELDS:
                raise TooManyFields(f"data has an array more than {MAX_FIELDS} times")
        view_of_array = _one_view(found)
        if own == _TENSOR:
            return Payload(PayloadKind.TENSOR, (self._tensor(view_of_array),))
        if own == _TFTENSOR:
            return Payload(PayloadKind.TFTENSOR, (read_tensor_proto(view_of_array, self._limits),))
        place, value = "data", []
        if own == _NDARRAY:
            place = "data.ndarray"
            value = ValueReader(self._limits, place).array(view_of_array)
        data = UntypedData(
            value, JsonLayout.VALUE, place, self._rules.ndarray, size_bytes=self._size
        )
        return Payload(PayloadKind.NDARRAY, (Tensor("", None, None, data),))

    def _tensor(self, view: memoryview) -> Tensor:
        sizes: list[int] = []
        values: list[memoryview] = []
        for key, value in fields(view):
            if key == _SHAPE:
                sizes += _packed_sizes(value, self._limits)
            elif key == _ONE_SIZE:
                sizes.append(int32(value))
            elif key in (_VALUES, _ONE_VALUE):
                values.append(value)
        shape = tuple(sizes)
        for at, size in enumerate(shape):
            if size < 0:
                raise InvalidRequest(
                    f"data.tensor.shape[{at}] is {size}: expected a size that is not negative"
                )
        run = fixed_run(values, _DOUBLE_BYTES) if values else memoryview(b"")
        check_numbers(shape, len(run) // _DOUBLE_BYTES, self._limits)
        array = np.frombuffer(run, "<f8")
        data = UntypedData(
            array,
            JsonLayout.VALUE,
            _NUMBERS,
            self._rules.tensor,
            size_bytes=self._size,
            shape=shape,
        )
        return Tensor("", None, None, data)

    def _json(self, view: memoryview, declared: SeldonForm) -> Payload:
        value = ValueReader(self._limits, "jsonData").value(view)
        if declared.json == INPUTS and type(value) is dict and value:
            check_count("keys of jsonData", len(value), self._limits.tensors, "tensors")
            tensors = [
                Tensor(
                    name,
                    None,
                    None,
                    UntypedData(each, JsonLayout.VALUE, f"jsonData.{name}", self._rules.ndarray),
                )
                for name, each in value.items()
            ]
            return Payload(PayloadKind.JSON, tuple(tensors))
        if declared.json == TEXT:
            charge(self._size * OBJECT_BYTE)
            written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            return Payload(PayloadKind.JSON, (self._element("jsonData", written),))
        if isinstance(value, str) and not declared.json:
            return Payload(PayloadKind.TEXT, (self._element("jsonData", value),))
        raise InvalidRequest(
            "jsonData is no value that the model takes: expected data, or "
            "models.NAME.protocols.seldon.json"
        )

    def _element(self, member: str, value: Any) -> Tensor:
        return element_tensor(member, value, self._rules.element, self._size)


def _many_fields(view: memoryview, limits: MessageLimits) -> Iterable[list[Field]]:
    """Return the fields of a message with a name for each column, of which there may be many."""
    try:
        found: list[Field] = fields(view)
    except TooManyFields:
        charge(min(len(view) // 2, limits.bytes_elements) * FIELD * 2)
        return field_blocks(view, limits.bytes_elements)
    return (found,)


def _one_view(values: list[memoryview]) -> memoryview:
    """Return the occurrences of one message, which protobuf merges."""
    if len(values) == 1:
        return values[0]
    return memoryview(b"".join(values))


def _packed_sizes(view: memoryview, limits: MessageLimits) -> list[int]:
    check_count("sizes in data.tensor.shape", len(view) // 10, limits.rank, "rank")
    data = bytes(view)
    sizes: list[int] = []
    at = 0
    while at < len(data):
        value, at = read_varint(data, at)
        sizes.append(int32(value))
        check_count("sizes in data.tensor.shape", len(sizes), limits.rank, "rank")
    return sizes


def _read_meta(views: list[memoryview], limits: MessageLimits) -> Meta:
    if not views:
        return Meta()
    charge(sum(map(len, views)) * OBJECT_BYTE)
    found = pb.Meta()
    try:
        found.ParseFromString(b"".join(views))
    except DecodeError as error:
        raise MalformedMessage("the meta of the message cannot be read") from error
    check_count("tags", len(found.tags), limits.parameters, "parameters")
    tags = {
        name: ValueReader(limits, "meta.tags").value(memoryview(value.SerializeToString()))
        for name, value in found.tags.items()
        if value.WhichOneof("kind") is not None
    }
    return Meta(checked_puid(found.puid, limits), read_tags(tags, limits))


def answer(reply: InferResponse, form: MessageForm, style: RowStyle, puid: str) -> Parts:
    """Return the message that answers an inference; the data of large outputs are not copied.

    Raises:
        Unsupported: There are several outputs, and none is declared.
        InvalidOutput: An element cannot be written.
        WireError: A text has lone surrogates.
    """
    meta = answer_tags(form, reply)
    if form.declared.json_outputs:
        value = pb.SeldonMessage()
        _put_json(value, columns_json(reply.outputs, style))
        return [bytearray(), *_plain_message(value, puid, meta)]
    tensor = answering_output(reply, form.declared)
    kind = answer_kind(tensor, form.kind)
    return message(tensor, kind, puid, meta, column_names(tensor, form.declared))


def message(
    tensor: Tensor,
    kind: PayloadKind,
    puid: str,
    tags: dict[str, Parameter],
    names: tuple[str, ...] = (),
    what: str = "output",
) -> Parts:
    """Return a SeldonMessage in parts.

    Args:
        tensor: Its only array or element.
        kind: Its form.
        puid: The id of the request.
        tags: Its tags.
        names: Names of columns.
        what: "output" or "input", for errors.

    Raises:
        InvalidOutput: An element cannot be written.
        WireError: A text has lone surrogates.
    """
    if kind in (PayloadKind.TEXT, PayloadKind.BYTES, PayloadKind.JSON):
        return _plain_message(_element(tensor, kind), puid, tags)
    head = bytearray()
    put_bytes(head, _META, meta_message(puid, tags))
    data: Parts = [bytearray()]
    for name in names:
        put_text(data[0], varint(_NAMES), name)  # type: ignore[arg-type]  # the head
    if kind is PayloadKind.TFTENSOR:
        put_message(data, varint(_TFTENSOR), tensor_message(tensor.name, tensor))
    elif kind is PayloadKind.TENSOR:
        inner: Parts = [bytearray()]
        put_int64s(inner[0], varint(_SHAPE), tensor.shape or ())  # type: ignore[arg-type]  # the head
        doubles = np.ascontiguousarray(exact_doubles(tensor, what))
        if doubles.size:
            put_tail(inner, varint(_VALUES), doubles.reshape(-1).data.cast("B"))
        put_message(data, varint(_TENSOR), inner)
    else:
        is_plain = tensor.datatype in (Datatype.BYTES, Datatype.BOOL)
        values = list_value(tensor, None if is_plain else exact_doubles(tensor, what))
        put_tail(data, varint(_NDARRAY), memoryview(values))
    parts: Parts = [head]
    put_message(parts, _DATA, data)
    return parts


def meta_message(puid: str, tags: dict[str, Parameter]) -> bytes:
    """Return a Meta."""
    meta = pb.Meta(puid=puid)
    for name, value in tags.items():
        _put_value(meta.tags[name], value)
    return meta.SerializeToString()


def _put_value(target: Any, value: Parameter) -> None:
    if isinstance(value, JsonParameter):
        _put_plain(target, orjson.loads(value.encode()))
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, str):
        target.string_value = value
    else:
        target.number_value = value


def _put_plain(target: Any, value: Any) -> None:
    """Write any JSON value."""
    if value is None:
        target.null_value = 0
    elif type(value) is list:
        target.list_value.SetInParent()
        for each in value:
            _put_plain(target.list_value.values.add(), each)
    elif type(value) is dict:
        target.struct_value.SetInParent()
        for name, each in value.items():
            _put_plain(target.struct_value.fields[name], each)
    else:
        _put_value(target, value)


def _element(tensor: Tensor, kind: PayloadKind) -> pb.SeldonMessage:
    """Return a message with the only element: text where it is UTF-8, otherwise bytes."""
    item = bytes(as_items(tensor)[0])
    found = pb.SeldonMessage()
    if kind is PayloadKind.JSON and _put_json(found, item):
        return found
    text_value = None if kind is PayloadKind.BYTES else only_text(tensor)
    if text_value is None:
        found.binData = item
    else:
        found.strData = text_value
    return found


def _put_json(target: pb.SeldonMessage, written: bytes) -> bool:
    charge(len(written) * OBJECT_BYTE)
    try:
        reserve_objects(written)
        value = json.loads(written)
    except ValueError:
        return False
    _put_plain(target.jsonData, value)
    return True


def _plain_message(found: pb.SeldonMessage, puid: str, tags: dict[str, Parameter]) -> Parts:
    head = bytearray()
    put_bytes(head, _META, meta_message(puid, tags))
    head += found.SerializeToString()
    return [head]
