"""Reads typed tensor contents of gRPC messages (InferTensorContents) as tensor data.

This module has the eight repeated fields and their datatypes; `decode.py` has raw contents and the
tensors.  Floats and BYTES elements are views into the message; numpy decodes integers and checks
them against the range of the datatype.

Source: Open Inference Protocol, "Tensor Data"; docs/protocols/open-inference.md, "2. Datatypes" and
"5. Tensors over gRPC".
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gateway.ir.errors import InvalidTensor
from gateway.ir.limits import MessageLimits, check_element_size
from gateway.ir.tensors.data import ArrayData, ItemsData, RawData, TensorData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.items import longest_of
from gateway.ir.work import FIELD, charge
from gateway.protocols.oip.datatypes import CONTENTS_FIELD, CONTENTS_NAMES
from gateway.wire.protobuf.packed import fixed_run, repeated_bytes, varint_elements
from gateway.wire.protobuf.wire_format import (
    I32,
    I64,
    LEN,
    MAX_FIELDS,
    VARINT,
    Field,
    FieldCounter,
    TooManyFields,
    WireError,
    fields,
    tag,
    varint,
)

_FP32, _FP64, _BYTES = 6, 7, 8

# dtype of the varint fields' elements, as protobuf declares them
_VARINT_DTYPE: dict[int, npt.DTypeLike] = {
    1: np.bool_,
    2: np.int32,
    3: np.int64,
    4: np.uint32,
    5: np.uint64,
}

# Packed and unpacked tags; any other tag is an unknown field.
_FIELD_OF_TAG: dict[int, int] = {
    **{tag(number, LEN): number for number in CONTENTS_NAMES},
    **{tag(number, VARINT): number for number in _VARINT_DTYPE},
    tag(_FP32, I32): _FP32,
    tag(_FP64, I64): _FP64,
}
_BYTES_TAG = tag(_BYTES, LEN)
_BYTES_KEY = varint(_BYTES_TAG)
_KIND = 7
_SPARE_FIELDS = 64


def typed_data(
    name: str,
    datatype: Datatype,
    count: int,
    contents: memoryview,
    limits: MessageLimits,
    counter: FieldCounter,
) -> TensorData | None:
    """Read the typed contents of one tensor; None when they have no element.

    FP32 and FP64 packed in one run, and BYTES elements, are views into *contents*.

    Args:
        name: For errors.
        datatype: The datatype of the tensor.
        count: Number of elements of its shape.
        contents: One InferTensorContents message.
        limits: Bounds the size of BYTES elements.
        counter: Counts the fields of the whole message.

    Raises:
        InvalidTensor: The field does not fit the datatype, there are two fields, the number of
            elements is not *count*, or an integer is out of the datatype's range.
        TooLarge: A BYTES element exceeds its limit.
        TooManyFields: There are more fields than elements.
        WireError: The bytes are not a message, or the scan does not support them.
    """
    if datatype is Datatype.BYTES:
        items = repeated_bytes(contents, _BYTES_KEY, count)
        if items is not None:
            return _items(name, count, items, limits)
    number, values = _occurrences(name, datatype, count, contents, counter)
    if not number:
        return None
    needed = CONTENTS_FIELD.get(datatype)
    if needed != number:
        place = "raw contents" if needed is None else CONTENTS_NAMES[needed]
        raise InvalidTensor(
            f"tensor {name!r} is {datatype.name} and has {CONTENTS_NAMES[number]}: expected {place}"
        )
    if number == _BYTES:
        return _items(name, count, values, limits)
    if number in _VARINT_DTYPE:
        return _integers(name, datatype, count, values)
    run = fixed_run(values, datatype.size_bytes)
    _check_count(name, len(run) // datatype.size_bytes, count)
    return RawData(run)


def _occurrences(
    name: str, datatype: Datatype, count: int, contents: memoryview, counter: FieldCounter
) -> tuple[int, list[memoryview]]:
    """Return the number of the one field with elements, 0 for none, and its occurrences."""
    number = 0
    values = []
    for key, value in _fields(datatype, contents, count, counter):
        found = _FIELD_OF_TAG.get(key)
        if found is None or (key & _KIND == LEN and key != _BYTES_TAG and not len(value)):
            continue  # unknown, or packed without an element
        if found != number:
            if number:
                raise InvalidTensor(
                    f"tensor {name!r} has both {CONTENTS_NAMES[number]} and "
                    f"{CONTENTS_NAMES[found]}: expected one"
                )
            number = found
        values.append(value)
    return number, values


def _fields(
    datatype: Datatype, contents: memoryview, count: int, counter: FieldCounter
) -> list[Field]:
    if datatype is Datatype.BYTES:  # each element is a field
        counter.remaining += count
        if count > _SPARE_FIELDS:
            charge(count * FIELD)
    try:
        return fields(contents, _SPARE_FIELDS + max(count, MAX_FIELDS), counter)
    except TooManyFields as error:
        if datatype is Datatype.BYTES or count < counter.remaining:
            raise
        # Elements that are not packed, up to the number of the shape: the library packs them.
        raise WireError(str(error)) from error


def _items(name: str, count: int, values: Sequence[memoryview], limits: MessageLimits) -> ItemsData:
    _check_count(name, len(values), count)
    _, longest = longest_of(values)
    check_element_size("tensor", name, longest, limits)
    return ItemsData(values)


def _integers(
    name: str, datatype: Datatype, count: int, values: Sequence[int | memoryview]
) -> ArrayData:
    return ArrayData(
        varint_elements(
            name,
            datatype,
            values,
            datatype.numpy_dtype,
            _VARINT_DTYPE[CONTENTS_FIELD[datatype]],
            lambda found: _check_count(name, found, count),
        )
    )


def _check_count(name: str, found: int, needed: int) -> None:
    if found != needed:
        raise InvalidTensor(f"tensor {name!r} has {found} elements: its shape needs {needed}")
