"""GrpsMessage to and from protobuf; float tensors are views in both directions.

Fields are scanned and written by hand, because a parsed message copies every tensor.  Where the
scan fails (a member twice, bytes that are not a message), the protobuf library parses the message,
and either refuses it or returns it in its canonical form.

Source: docs/protocols/grps.md, "4. Messages".
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidTensor, MalformedMessage, TooLarge, Unsupported
from gateway.ir.limits import (
    MessageLimits,
    check_count,
    check_element_size,
    check_name,
    check_rank,
    check_shape,
)
from gateway.ir.tensors.data import ArrayData, ItemsData, RawData, TensorData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.expected_inputs import compare_inputs, is_comparing
from gateway.ir.tensors.items import ItemViews, item_views, joined_views, longest_of
from gateway.ir.tensors.tensor import Shape, Tensor, as_items, as_raw
from gateway.ir.work import BYTE, FIELD, OBJECT_BYTE, POSITIONS, charge, reserve
from gateway.protocols.grps.datatypes import (
    BY_FIELD,
    WireType,
    carried,
    kind_and_shape,
    narrowed,
    wire_type,
)
from gateway.protocols.grps.errors import Unreadable
from gateway.protocols.grps.messages import (
    GMAP_FIELDS,
    SUCCESS,
    ContentFormat,
    GrpsMessage,
    GrpsStatus,
)
from gateway.schema import grps_pb2 as pb
from gateway.wire.protobuf.packed import fixed_run, packed_varints, varint_array
from gateway.wire.protobuf.wire_format import (
    LEN,
    MAX_FIELDS,
    TAIL_BYTES,
    VARINT,
    Field,
    FieldCounter,
    Parts,
    TooManyFields,
    WireError,
    field_blocks,
    fields,
    int32,
    put_bytes,
    put_int64s,
    put_message,
    put_tail,
    put_text,
    put_varint,
    read_varint,
    tag,
    text,
    uint32,
    varint,
)


def _key(number: int, kind: int = LEN) -> bytes:
    return varint(tag(number, kind))


_STATUS, _MODEL = tag(1, LEN), tag(2, LEN)
_FORMS: Final = {
    tag(3, LEN): ContentFormat.BIN_DATA,
    tag(4, LEN): ContentFormat.STR_DATA,
    tag(5, LEN): ContentFormat.GTENSORS,
    tag(6, LEN): ContentFormat.NDARRAY,
    tag(7, LEN): ContentFormat.GMAP,
}
_KEYS: Final = {form: varint(key) for key, form in _FORMS.items()}
_TENSORS = tag(1, LEN)
_NAME, _DTYPE, _SHAPE, _DIM = tag(1, LEN), tag(2, VARINT), tag(3, LEN), tag(3, VARINT)
_FIRST_FLAT, _LAST_FLAT = min(BY_FIELD), max(BY_FIELD)
_STRINGS = 12
_VARINT_BYTES = 10
_MAX_OTHER_FIELDS = 64
_KIND = 7
_MANY_BYTES = 1 << 16
_FEW_PARTS = 64
_MORE = 0x80
# Work of one byte of packed integers, in items.
_VARINT_BYTE = 10 * BYTE
# A library that keeps the interpreter's lock reads what the scan does not.
_LIBRARY_BYTES = 8 << 20

_STATUS_KEY, _MODEL_KEY, _TENSORS_KEY = _key(1), _key(2), _key(1)
_NAME_KEY, _DTYPE_KEY, _SHAPE_KEY = _key(1), _key(2, VARINT), _key(3)
_CODE_KEY, _MSG_KEY, _FLAG_KEY = _key(1, VARINT), _key(2), _key(3, VARINT)
_FLAT_KEYS: Final = {kind.field: _key(kind.field) for kind in BY_FIELD.values()}


def read_message(view: memoryview, limits: MessageLimits) -> GrpsMessage:
    """Read a GrpsMessage; bin_data and float tensors share *view*'s memory.

    Raises:
        Unreadable: The bytes are not such a message.
        InvalidTensor: A tensor's data, dtype and shape contradict each other.
        InvalidRequest: A name is not allowed.
        TooLarge: A limit is exceeded.
    """
    try:
        return _scan(view, limits)
    except TooManyFields as error:
        raise TooLarge(f"{error}; repeated numbers are to be packed") from error
    except WireError as error:
        if len(view) > _LIBRARY_BYTES:
            raise TooLarge(
                f"message of {len(view)} bytes is not in the form that protobuf's writers give "
                f"it: {error}; at most {_LIBRARY_BYTES} bytes are read then"
            ) from error
    charge(len(view) * OBJECT_BYTE)
    plain = _by_library(view)
    try:
        return _scan(plain, limits)
    except WireError as error:
        raise MalformedMessage(f"message is not a usable GrpsMessage: {error}") from error


def write_message(message: GrpsMessage) -> Parts:
    """Write a message as a small header and the raw data of large tensors, which is not copied.

    Tensors must be in datatypes of grps.

    Raises:
        Unsupported: A value does not fit the message.
    """
    head = bytearray()
    parts: Parts = [head]
    try:
        if message.status is not None:
            head += _status(message.status)
        if message.model:
            put_text(head, _MODEL_KEY, message.model)
        if message.form is not None:
            _put_data(parts, _KEYS[message.form], message)
    except (WireError, ValueError) as error:
        raise Unsupported(f"message cannot be written: {error}") from error
    return parts


def _scan(view: memoryview, limits: MessageLimits) -> GrpsMessage:
    form: ContentFormat | None = None
    data = memoryview(b"")
    model = ""
    status: GrpsStatus | None = None
    counter = FieldCounter()
    for key, value in fields(view, MAX_FIELDS, counter):
        found = _FORMS.get(key)
        if found is not None:
            if form is not None:
                raise WireError("data_oneof is set twice")
            form, data = found, value
        elif key == _MODEL:
            model = text(value, "model")
        elif key == _STATUS:
            if status is not None:
                raise WireError("status is set twice")
            status = _read_status(value, counter)
    return _with_data(form, data, model, status, limits, counter)


def _with_data(  # the parts of one message
    form: ContentFormat | None,
    data: memoryview,
    model: str,
    status: GrpsStatus | None,
    limits: MessageLimits,
    counter: FieldCounter,
) -> GrpsMessage:
    if form is ContentFormat.GTENSORS:
        tensors = _read_tensors(data, model, limits, counter)
        return GrpsMessage(form=form, model=model, status=status, tensors=tensors)
    if form is ContentFormat.STR_DATA:
        words = text(data, "str_data")
        return GrpsMessage(form=form, model=model, status=status, text=words)
    if form is ContentFormat.GMAP:
        entries = _read_map(data, limits, counter)
        return GrpsMessage(form=form, model=model, status=status, entries=entries)
    if form is ContentFormat.NDARRAY:
        fields(data, MAX_FIELDS, counter)
        return GrpsMessage(form=form, model=model, status=status)
    return GrpsMessage(form=form, model=model, status=status, data=data)


def _by_library(view: memoryview) -> memoryview:
    """Return the same message without repeated single fields and unknown fields; copies."""
    message = pb.GrpsMessage()
    try:
        message.ParseFromString(bytes(view))
    except DecodeError as error:
        raise Unreadable(f"{len(view)} bytes are not a GrpsMessage") from error
    message.DiscardUnknownFields()
    return memoryview(message.SerializeToString())


def _read_status(view: memoryview, counter: FieldCounter) -> GrpsStatus:
    code = flag = 0
    words = ""
    for key, value in fields(view, _MAX_OTHER_FIELDS, counter):
        if key == tag(1, VARINT):
            code = int32(value)
        elif key == tag(2, LEN):
            words = text(value, "status.msg")
        elif key == tag(3, VARINT):
            flag = int32(value)
    return GrpsStatus(code, words, flag)


def _read_tensors(
    view: memoryview, model: str, limits: MessageLimits, counter: FieldCounter
) -> tuple[Tensor, ...]:
    found = [value for key, value in fields(view, MAX_FIELDS, counter) if key == _TENSORS]
    check_count("tensors", len(found), limits.tensors, "tensors")
    if is_comparing():
        compare_inputs(ModelRef(model), map(_leading_name, found))
    # Each string is a field of its own, and their number is unknown before.
    counter.remaining += limits.bytes_elements
    return tuple([_read_tensor(value, limits, counter) for value in found])


def _leading_name(view: memoryview) -> str:
    """Return the name of a tensor where it is the first field, as writers put it; "" elsewhere."""
    if not len(view) or view[0] != _NAME:
        return ""
    size, at = read_varint(view, 1)
    return text(view[at : at + size], "tensor name")


def _read_tensor(view: memoryview, limits: MessageLimits, counter: FieldCounter) -> Tensor:
    name = ""
    number = 0
    dims: list[int] = []
    elements = _TensorElements()
    for some in _tensor_fields(view, limits, counter):
        for key, value in some:
            if key == _NAME:
                name = text(value, "tensor name")
            elif key == _DTYPE:
                number = int32(value)
            elif key == _SHAPE:
                dims += _dims(value, limits)
                check_rank(dims, limits)
            elif key == _DIM:
                dims.append(uint32(value))
                check_rank(dims, limits)
        elements.add(some)
    check_name("tensor name", name, limits.name_bytes, "name_bytes")
    kind = wire_type(name, number)
    shape = tuple(dims)
    count = check_shape(name, kind.datatype, shape, limits)
    values = elements.take(kind.field)
    flats = elements.others
    for place, others in flats.items():
        if place == _STRINGS or any(not isinstance(one, memoryview) or len(one) for one in others):
            raise InvalidTensor(
                f"tensor {name!r} is {kind.name} and has data in {BY_FIELD[place].member}: "
                f"expected {kind.member} alone"
            )
    return Tensor(name, kind.datatype, shape, _data(name, kind, shape, count, values, limits))


class _TensorElements:
    """The elements of one tensor, by the numbers of their fields; many of them in few buffers.

    Attributes:
        others: Those that were not taken.
    """

    def __init__(self) -> None:
        self.others: dict[int, list[Any]] = {}
        self._strings: list[ItemViews] = []

    def add(self, some: list[Field]) -> None:
        """Add those of some fields of the tensor."""
        found: dict[int, list[Any]] = {}
        for key, value in some:
            place = key >> 3
            if _FIRST_FLAT <= place <= _LAST_FLAT and _holds(place, key & 7):
                found.setdefault(place, []).append(value)
        for place, parts in found.items():
            if place == _STRINGS and len(parts) > _FEW_PARTS:
                self._strings.append(item_views([*self.others.pop(place, []), *parts]))
                continue
            self.others.setdefault(place, []).extend(_merged(place, parts))

    def take(self, field: int) -> Sequence[Any]:
        """Return the elements of the field that the tensor's datatype has."""
        if self._strings:
            last = self.others.pop(_STRINGS, [])
            strings = joined_views([*self._strings, item_views(last)])
            self.others[_STRINGS] = cast("list[Any]", strings)
        return self.others.pop(field, [])


def _tensor_fields(
    view: memoryview, limits: MessageLimits, counter: FieldCounter
) -> Iterable[list[Field]]:
    """Find the fields of a tensor: few, except for its strings and unpacked numbers."""
    few = limits.rank + _MAX_OTHER_FIELDS
    try:
        found: list[Field] = fields(view, few, counter)
    except TooManyFields:
        most = min(len(view) // 2, limits.bytes_elements)
        charge(most * FIELD * 2)
        reserve(len(view), most * POSITIONS)
        return field_blocks(view, limits.bytes_elements + few, counter)
    return (found,)


def _merged(place: int, parts: list[Any]) -> list[Any]:
    """Return the occurrences of a field with numbers; many that are bytes become one.

    Raises:
        WireError: One ends inside a number.
    """
    if len(parts) <= _FEW_PARTS or not all(type(part) is memoryview for part in parts):
        return parts
    datatype = BY_FIELD[place].datatype
    if datatype.is_float:
        return [fixed_run(parts, 8 if datatype is Datatype.FP64 else 4)]
    if any(len(part) and part[-1] & _MORE for part in parts):
        raise WireError("a packed field ends inside a number")
    return [memoryview(b"".join(parts))]


def _holds(place: int, kind: int) -> bool:
    """Return whether an element's field may have this wire type; others are unknown fields."""
    if kind == LEN:
        return True
    datatype = BY_FIELD[place].datatype
    if datatype is Datatype.BYTES:
        return False
    if datatype.is_integer:
        return kind == VARINT
    return kind == (1 if datatype is Datatype.FP64 else 5)


def _dims(view: memoryview, limits: MessageLimits) -> list[int]:
    # A longer field exceeds the limit, and the list would be many times its size.
    if len(view) > _VARINT_BYTES * limits.rank:
        raise TooLarge(
            f"a shape has {len(view)} bytes, at most {limits.rank} dimensions are allowed",
            limit="rank",
        )
    dims = []
    at = 0
    while at < len(view):
        value, at = read_varint(view, at)
        dims.append(uint32(value))
    return dims


def _data(
    name: str,
    kind: WireType,
    shape: Shape,
    count: int,
    values: Sequence[Any],
    limits: MessageLimits,
) -> TensorData:
    if kind.datatype is Datatype.BYTES:
        _check_found(name, kind, shape, count, len(values))
        return ItemsData(_strings(name, values, limits))
    if kind.datatype.is_float:
        size = 8 if kind.datatype is Datatype.FP64 else 4
        run = fixed_run(values, size) if values else memoryview(b"")
        _check_found(name, kind, shape, count, len(run) // size)
        if kind.datatype is not Datatype.FP16:
            return RawData(run)
        wide = np.frombuffer(run, "<f4")
    else:
        size = len(values[0]) if len(values) == 1 and type(values[0]) is memoryview else count
        if size > _MANY_BYTES:
            charge(size * _VARINT_BYTE)
        narrow = unpacked(values, kind.datatype)
        if narrow is not None:
            _check_found(name, kind, shape, count, narrow.size)
            return ArrayData(narrow.reshape(shape))
        wide = varint_array(values, kind.carrier)
        _check_found(name, kind, shape, count, wide.size)
    return ArrayData(narrowed(name, kind, wide).reshape(shape))


def _check_found(name: str, kind: WireType, shape: Shape, count: int, found: int) -> None:
    if found != count:
        raise InvalidTensor(
            f"tensor {name!r} has {found} elements in {kind.member}: "
            f"expected {count} for shape {list(shape)}"
        )


def _strings(
    name: str, values: Sequence[memoryview], limits: MessageLimits
) -> Sequence[memoryview]:
    _, longest = longest_of(values)
    check_element_size("tensor", name, longest, limits)
    # ASCII needs no check; other text may begin and end in the middle of a character.
    if not b"".join(values).isascii():
        charge(len(values))
        for value in values:
            text(value, "flat_string")
    return values


def _read_map(
    view: memoryview, limits: MessageLimits, counter: FieldCounter
) -> dict[str, dict[str, Any]]:
    parts = fields(view, MAX_FIELDS, counter)
    check_count("entries of gmap", len(parts), limits.parameters + limits.tensors, "parameters")
    for key, entry in parts:
        if key & _KIND == LEN:
            fields(entry, _MAX_OTHER_FIELDS, counter)
    try:
        found = pb.GenericMapData.FromString(bytes(view))
    except DecodeError as error:
        raise WireError("gmap is not a GenericMapData") from error
    entries = {member: dict(getattr(found, member)) for member in GMAP_FIELDS}
    return {member: values for member, values in entries.items() if values}


def _status(status: GrpsStatus) -> bytes:
    return _SUCCESS if status is SUCCESS else _written_status(status)


def _written_status(status: GrpsStatus) -> bytes:
    inner = bytearray()
    if status.code:
        put_varint(inner, _CODE_KEY, status.code)
    if status.msg:
        put_text(inner, _MSG_KEY, status.msg)
    if status.flag:
        put_varint(inner, _FLAG_KEY, status.flag)
    head = bytearray()
    put_bytes(head, _STATUS_KEY, inner)
    return bytes(head)


_SUCCESS: Final = _written_status(SUCCESS)


def _put_data(parts: Parts, key: bytes, message: GrpsMessage) -> None:
    if message.form is ContentFormat.GTENSORS:
        inner: Parts = []
        for tensor in message.tensors:
            put_message(inner, _TENSORS_KEY, _tensor(tensor))
        put_message(parts, key, inner)
    elif message.form is ContentFormat.BIN_DATA:
        put_tail(parts, key, memoryview(message.data))
    elif message.form is ContentFormat.STR_DATA:
        put_tail(parts, key, memoryview(message.text.encode()))
    elif message.form is ContentFormat.GMAP:
        entries: dict[str, Any] = dict(message.entries)
        found = pb.GenericMapData(**entries)
        put_tail(parts, key, memoryview(found.SerializeToString(deterministic=True)))
    else:
        raise WireError("ndarray exists in JSON only")


def _tensor(tensor: Tensor) -> Parts:
    kind, shape = kind_and_shape(tensor)
    head = bytearray()
    if tensor.name:
        put_text(head, _NAME_KEY, tensor.name)
    put_varint(head, _DTYPE_KEY, kind.number)
    if shape:
        put_int64s(head, _SHAPE_KEY, shape)
    key = _FLAT_KEYS[kind.field]
    parts: Parts = [head]
    if kind.datatype is Datatype.BYTES:
        items = as_items(tensor)
        charge(len(items))
        for item in items:
            if len(item) > TAIL_BYTES:
                put_tail(parts, key, memoryview(item))
            elif parts[-1] is head:
                put_bytes(head, key, item)
            else:
                head = bytearray()
                put_bytes(head, key, item)
                parts.append(head)
        return parts
    data = _packed(tensor, kind.datatype)
    if len(data):
        put_tail(parts, key, data)
    return parts


def _packed(tensor: Tensor, datatype: Datatype) -> memoryview:
    if datatype in (Datatype.FP32, Datatype.FP64):
        return as_raw(tensor)
    charge(tensor.nbytes * _VARINT_BYTE)
    flat = carried(tensor)
    if datatype is Datatype.FP16:
        return np.ascontiguousarray(flat).view(np.uint8).data
    return packed_varints(flat)


def unpacked(values: Sequence[Any], datatype: Datatype) -> npt.NDArray[Any] | None:
    """Read a repeated integer field with a fast path; None where there is none.

    Args:
        values: Its occurrences, packed (views) and not (ints).
        datatype: An integer datatype; the values of a fast path are always in its range.
    """
    if len(values) != 1 or isinstance(values[0], int):
        return None
    data = bytes(values[0])
    raw = np.frombuffer(data, np.uint8)
    if data.isascii():  # each varint has one byte
        return raw.astype(datatype.numpy_dtype)
    return _bytes(raw) if datatype is Datatype.UINT8 else None


def _bytes(raw: npt.NDArray[np.uint8]) -> npt.NDArray[Any] | None:
    """Read varints of values up to 255 in their shortest form; None for any other."""
    more = raw >= _MORE
    second = np.zeros_like(more)
    second[1:] = more[:-1]
    if more[-1] or (more & second).any() or (raw[second] != 1).any():
        return None
    return raw[~second]
