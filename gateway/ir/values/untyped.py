"""JSON values without a datatype become tensors of the datatype and shape that a model declares.

Every value is exact or refused with its place in the message: no fraction becomes an integer, no
integer wraps, and true is no number. Decimals are rounded to the nearest value of a float.

Source: docs/protocols/rows.md, "2. Values".
"""

import math
import re
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from gateway.ir.errors import InvalidRequest, TooLarge
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.data import (
    ArrayData,
    ItemsData,
    JsonLayout,
    RawData,
    TensorData,
    UntypedData,
)
from gateway.ir.tensors.datatypes import Datatype, bf16_of_fp64
from gateway.ir.tensors.items import ItemViews, text_items
from gateway.ir.tensors.tensor import Shape, Tensor
from gateway.ir.values.doubles import MOST_EXACT, NotExact, exact_array, exact_list, reads_doubles
from gateway.ir.values.exact_values import base64_bytes
from gateway.ir.values.nearest import Reread, lies_between, loads_to_odd, may_lie_between, to_odd
from gateway.ir.values.number_lists import CODES, narrowed, nested_shape, packer, unnested
from gateway.ir.values.plain_numbers import plain_numbers
from gateway.ir.work import JSON_NUMBER, LIST, charge

_FIRST_LINE: Final = 2
"""Of the rows of a CSV text: the first one has the names."""
_SHOWN: Final = 40
# Work for a column of a table, in items.
_COLUMN: Final = 40
# Work for a cell of CSV, in items.
_CELL: Final = 2
# More elements of BYTES than that are views of one buffer.
_MANY: Final = 256
_B64: Final = frozenset({"b64"})
_INT, _FLOAT, _BOOL = frozenset({int}), frozenset({int, float}), frozenset({bool})
_STR: Final = frozenset({str})
_BF16_MOST: Final = float(np.uint32(0x7F7F0000).view(np.float32))
_EXACT_INTEGERS: Final = {
    Datatype.FP16: 1 << 11,
    Datatype.BF16: 1 << 8,
    Datatype.FP32: 1 << 24,
    Datatype.FP64: 1 << 53,
}


class RowsForm(Struct, frozen=True, kw_only=True):
    """What the configuration declares of a model for a protocol of rows.

    Attributes:
        is_matrix: Columns of a table form one input; None to decide by the inputs of the model.
        columns: Names of the columns of that input, in its order; empty where any names will do.
        binary: Inputs and outputs of BYTES that are base64 text in JSON.
        splits: The columns that each input has of one array, by the names of inputs.
    """

    is_matrix: bool | None = None
    columns: tuple[str, ...] = ()
    binary: frozenset[str] = frozenset()
    splits: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


NO_FORM: Final = RowsForm()


def parsed(data: UntypedData) -> UntypedData:
    """Return *data* with Python objects in place of a text."""
    value = data.value
    if type(value) is not bytes:
        return data
    return replace(
        data, value=orjson.loads(value), reread=Reread(value, partial(loads_to_odd, value))
    )


def adds_axis(data: TensorData) -> bool:
    """Return whether a value is one item, whose tensor gets a first axis of 1."""
    return type(data) is UntypedData and data.rules.adds_axis


def value_place(data: UntypedData, indices: Sequence[int]) -> str:
    """Return where the element at *indices* of a value stands in its message."""
    if data.layout is JsonLayout.LINES and indices:
        return f"line {indices[0] + _FIRST_LINE}, column {data.member!r}"
    if data.layout is JsonLayout.ELEMENT:
        return data.place
    if data.shape is not None and data.layout is JsonLayout.TABLE and indices:
        return f"{data.place}[{indices[0] * data.shape[1] + int(data.member)}]"
    if data.layout is JsonLayout.VALUE or not indices:
        return data.place + "".join([f"[{index}]" for index in indices])
    member = f"[{data.member}]" if data.layout is JsonLayout.TABLE else f".{data.member}"
    rest = "".join([f"[{index}]" for index in indices[1:]])
    return f"{data.place}[{indices[0]}]{member}{rest}"


def typed_tensor(
    name: str, data: UntypedData, declared: TensorMetadata, form: RowsForm = NO_FORM
) -> Tensor:
    """Return the tensor that a JSON value is, as a model declares it.

    Args:
        name: Name of the tensor.
        data: The value of one tensor.
        declared: What the model declares; its shape may be unknown.
        form: What the configuration declares.

    Raises:
        InvalidRequest: A value is not one of the datatype, or the lists have another shape.
        TooLarge: An element of BYTES is too long.
    """
    datatype = declared.datatype
    if datatype is None:
        raise InvalidRequest(
            f"the metadata of the model declare no datatype for {declared.name!r}; expected "
            "models.NAME.signature"
        )
    data = parsed(data)
    if type(data.value) is list and data.shape is None:
        plain = plain_numbers(name, data, declared, datatype)
        if plain is not None:
            return plain
    found = nested_shape(data.value)
    shape = _declared_shape(data, declared, found)
    has_base64 = declared.name in form.binary
    return Tensor(name, datatype, shape, _elements(data, datatype, shape, has_base64, found))


def _declared_shape(data: UntypedData, declared: TensorMetadata, found: Shape) -> Shape:
    """Return *found*, if the model allows it; a column may have an axis of 1 more."""
    expected = declared.shape
    if data.layout is JsonLayout.ELEMENT:
        found = (1,) * (1 if expected is None else len(expected))
    elif data.shape is not None and data.layout is JsonLayout.VALUE:
        found = data.shape
    if expected is None:
        return found
    if found == () and data.rules.has_single_values and expected in ((-1,), (1,)):
        return (1,)
    if found == (0,) and data.rules.has_empty_tensors and expected[:1] in ((-1,), (0,)):
        return tuple([max(dim, 0) for dim in expected])
    is_column = data.layout not in (JsonLayout.VALUE, JsonLayout.MEMBERS, JsonLayout.ELEMENT)
    if is_column and len(found) == 1 and len(expected) > 1 and set(expected[1:]) <= {1, -1}:
        found = (*found, *(1 for _ in expected[1:]))
    if not _matches(found, expected):
        where = value_place(data, ())
        member = f" of {data.member!r}" if data.member else ""
        setting = data.rules.setting if abs(len(found) - len(expected)) == 1 else ""
        raise InvalidRequest(
            f"{where}{member} has shape {list(found)}: expected {list(expected)} for input "
            f"{declared.name!r}{setting and f' ({setting}.batch)'}"
        )
    return found


def _matches(found: Shape, expected: Shape) -> bool:
    """Return whether a shape is one that a model declares."""
    if len(found) != len(expected):
        return False
    for size, dim in zip(found, expected, strict=True):  # noqa: SIM110  # no generator for a row
        if dim not in (-1, size):
            return False
    return True


def _elements(
    data: UntypedData,
    datatype: Datatype,
    shape: Shape,
    has_base64: bool,
    nested: Shape | None = None,
) -> TensorData:
    """Return the elements of a value; *nested* is the shape of its lists, if it is at hand."""
    value = data.value
    if isinstance(value, np.ndarray):
        charge(value.size * JSON_NUMBER, 0)
        if not _must_be_reread(data, value, datatype):
            return ArrayData(_array_elements(data, value, datatype).reshape(shape))
        data = _reread(data)
        value = data.value
    flat = _flattened(data, value, nested)
    if datatype is Datatype.BYTES:
        return ItemsData(_encoded(data, flat, value, has_base64))
    if data.rules.has_texts:
        flat = _from_texts(data, flat, datatype)
    if reads_doubles(datatype, data.rules):
        if _must_be_reread(data, flat, datatype):
            data = _reread(data)
            flat = _flattened(data, data.value)
        numbers = exact_list(flat, datatype, data.rules)
        if isinstance(numbers, NotExact):
            raise _wrong(data, value, numbers.index, flat[numbers.index], numbers.expected)
        flat = numbers
    return _packed(data, flat, value, datatype)


def _must_be_reread(data: UntypedData, numbers: Any, datatype: Datatype) -> bool:
    """Return whether only the text tells what is nearest to numbers, or which are integers."""
    if data.reread is None:
        return False
    if datatype.is_float:
        return may_lie_between(numbers, datatype)
    is_array = isinstance(numbers, np.ndarray)
    has_floats = numbers.dtype.kind == "f" if is_array else float in set(map(type, numbers))
    return has_floats and reads_doubles(datatype, data.rules) and data.reread.has_long_numbers


def _reread(data: UntypedData) -> UntypedData:
    """Return *data* with numbers that are rounded to any narrower float correctly."""
    assert data.reread is not None  # noqa: S101  # `_must_be_reread` has looked
    return replace(data, value=data.reread(), reread=None)


def _array_elements(
    data: UntypedData, value: npt.NDArray[Any], datatype: Datatype
) -> npt.NDArray[Any]:
    """Return 64-bit numbers in the datatype's dtype."""
    if reads_doubles(datatype, data.rules):
        exact = exact_array(value, datatype, data.rules)
        if isinstance(exact, NotExact):
            found = value.reshape(-1)[exact.index].item()
            raise _wrong(data, value, exact.index, found, exact.expected)
        if datatype is Datatype.BOOL:
            return exact
        value = exact
    array = _narrow_array(value, datatype)
    if array is None and _rounds(data, datatype):
        array = _rounded(value)
    if array is None:
        raise _misfit(data, value, datatype)
    return array


def _flattened(data: UntypedData, value: Any, nested: Shape | None = None) -> list[Any]:
    if type(value) is not list:
        return [value]
    shape = nested_shape(value) if nested is None else nested
    charge(math.prod(shape[:-1]) * LIST + math.prod(shape) * JSON_NUMBER)
    found = value if len(shape) == 1 else unnested(value, shape)
    if found is None or list in set(map(type, found)):
        raise _ragged(data, value, shape)
    return found


def _ragged(data: UntypedData, value: Any, shape: Shape) -> InvalidRequest:
    """Return the error for lists that are nested differently, with the first of them."""
    found = _first_ragged(value, shape, ())
    assert found is not None  # noqa: S101  # the lists were nested differently
    indices, text, expected = found
    return InvalidRequest(f"{value_place(data, indices)} is {text}: expected {expected}")


def _first_ragged(
    value: Any, shape: Shape, indices: tuple[int, ...]
) -> tuple[tuple[int, ...], str, str] | None:
    """Return where the first difference from *shape* is, what is there, and what is expected."""
    depth = len(indices)
    if depth == len(shape):
        if type(value) is not list:
            return None
        expected = f"an element, because the first one has {depth} dimensions"
        return indices, "a list", expected
    expected = f"a list of {shape[depth]}, as the first one"
    if type(value) is not list:
        return indices, _show(value), expected
    if len(value) != shape[depth]:
        return indices, f"a list of {len(value)}", expected
    for at, each in enumerate(value):
        found = _first_ragged(each, shape, (*indices, at))
        if found is not None:
            return found
    return None


def _narrow_array(values: npt.NDArray[Any], datatype: Datatype) -> npt.NDArray[Any] | None:
    """Return 64-bit numbers in the datatype's dtype; None when one does not fit."""
    if datatype is Datatype.BYTES or datatype is Datatype.BOOL:
        return None if values.size else values.astype(datatype.numpy_dtype)
    if datatype.is_integer:
        if values.dtype.kind == "f" and values.size:
            return None
        return narrowed(values, datatype)
    if datatype is Datatype.BF16:
        return bf16_of_fp64(values.astype(np.float64))
    return narrowed(values, datatype)


def _misfit(data: UntypedData, values: npt.NDArray[Any], datatype: Datatype) -> InvalidRequest:
    """Return the error for the first of 64-bit numbers that is no value of the datatype."""
    index, expected = 0, f"a value in the range of {datatype.name}"
    flat = values.reshape(-1)
    if datatype is Datatype.BYTES:
        expected = "a string for BYTES"
    elif datatype is Datatype.BOOL:
        expected = f"{_WORDS['bool']} for BOOL"
    elif datatype.is_integer and values.dtype.kind == "f":
        index, expected = data.first_fraction, f"{_WORDS['integer']} for {datatype.name}"
    elif datatype.is_integer:
        limits = np.iinfo(datatype.numpy_dtype)
        index = int(np.argmax((flat < limits.min) | (flat > limits.max)))
    else:
        limit = _BF16_MOST if datatype is Datatype.BF16 else np.finfo(datatype.numpy_dtype).max
        candidates = np.flatnonzero(np.abs(flat.astype(np.float64)) > float(limit))
        # A value above the largest one may still be rounded to it.
        index = next(int(at) for at in candidates if not _is_in_range(flat[at].item(), datatype))
    return _wrong(data, values, index, flat[index].item(), expected)


def _packed(data: UntypedData, flat: list[Any], value: Any, datatype: Datatype) -> TensorData:
    rules = data.rules
    allowed = _INT if datatype.is_integer else _FLOAT if datatype.is_float else _BOOL
    if not allowed.issuperset(map(type, flat)):
        if not (rules.has_nulls and datatype.is_float):
            raise _wrong_type(data, flat, value, datatype, allowed)
        flat = [math.nan if each is None else each for each in flat]
        if not allowed.issuperset(map(type, flat)):
            raise _wrong_type(data, flat, value, datatype, allowed)
    if datatype.is_float and not rules.has_nonfinite:
        for index, each in enumerate(flat):
            if not math.isfinite(_double(each)) and not _is_null(data, value, index):
                raise _wrong(data, value, index, each, "a finite number")
    if datatype.is_float:
        flat = _rounded_once(data, flat, value, datatype)
    if datatype is Datatype.BF16:
        found = _bf16_of(flat)
        if found is not None:
            return RawData(memoryview(found.tobytes()))
        raise _out_of_range(data, flat, value, datatype)
    return _pack(data, flat, value, datatype)


def _rounded_once(data: UntypedData, flat: list[Any], value: Any, datatype: Datatype) -> list[Any]:
    """Return numbers, those of a text read again where it alone tells what is nearest to them."""
    try:
        if not _must_be_reread(data, flat, datatype):
            return flat
    except OverflowError:  # an integer beyond FP64
        raise _out_of_range(data, flat, value, datatype) from None
    data = _reread(data)
    return [math.nan if each is None else each for each in _flattened(data, data.value)]


def _pack(data: UntypedData, flat: list[Any], value: Any, datatype: Datatype) -> TensorData:
    try:
        return RawData(memoryview(packer(datatype, len(flat))(*flat)))
    except (struct.error, OverflowError):
        if not _rounds(data, datatype):
            raise _out_of_range(data, flat, value, datatype) from None
        return ArrayData(_rounded(np.array([_double(each) for each in flat], np.float64)))


def _rounds(data: UntypedData, datatype: Datatype) -> bool:
    return datatype is Datatype.FP32 and data.rules.rounds_to_infinity


def _rounded(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return numbers as FP32, those that are too large as infinities."""
    with np.errstate(over="ignore"):
        return values.astype(Datatype.FP32.numpy_dtype)


def _bf16_of(flat: list[Any]) -> npt.NDArray[np.uint16] | None:
    try:
        return bf16_of_fp64(np.array(flat, np.float64))
    except OverflowError:
        return None


def _double(number: float) -> float:
    """Return the nearest double, an infinity for an integer of more than 308 digits."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _is_null(data: UntypedData, value: Any, index: int) -> bool:
    return data.rules.has_nulls and _element(value, _indices(value, index)) is None


def _encoded(
    data: UntypedData, flat: list[Any], value: Any, has_base64: bool
) -> list[bytes] | ItemViews:
    charge(len(flat))
    most = data.rules.bytes_element_size
    if len(flat) > _MANY and not has_base64 and _STR.issuperset(map(type, flat)):
        with suppress(UnicodeEncodeError):  # found below, with its place
            views = text_items(flat)
            if max(map(len, views)) <= most:
                return views
    items = []
    for index, each in enumerate(flat):
        if type(each) is str:
            item = _text_bytes(data, value, index, each, has_base64)
        elif type(each) is dict and data.rules.has_b64 and each.keys() == _B64:
            item = _decoded(data, value, index, each["b64"])
        else:
            expected = "a string or an object with 'b64'" if data.rules.has_b64 else "a string"
            raise _wrong(data, value, index, each, f"{expected} for BYTES")
        if len(item) > most:
            raise TooLarge(
                f"{value_place(data, _indices(value, index))} has {len(item)} bytes, at most "
                f"{most} are allowed",
                limit="bytes_element_size",
            )
        items.append(item)
    return items


def _text_bytes(data: UntypedData, value: Any, index: int, text: str, has_base64: bool) -> bytes:
    if has_base64:
        return _decoded(data, value, index, text)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _wrong(data, value, index, text, "text of Unicode") from None


def _decoded(data: UntypedData, value: Any, index: int, text: Any) -> bytes:
    try:
        return base64_bytes(text)
    except (ValueError, AttributeError):
        raise _wrong(data, value, index, text, "base64 text") from None


def _from_texts(data: UntypedData, flat: list[Any], datatype: Datatype) -> list[Any]:
    """Return the numbers and words that texts of CSV are."""
    charge(len(flat) * _CELL)
    found = []
    for index, text in enumerate(flat):
        try:
            found.append(_scalar(text, datatype))
        except ValueError:
            raise _wrong(
                data, flat, index, text, f"{_WORDS[_kind(datatype)]} for {datatype.name}"
            ) from None
    if not datatype.is_float:
        return found
    # The texts of few numbers are needed: those that may lie between two values.
    doubles = np.array([math.nan if each is None else each for each in found], np.float64)
    for at in np.flatnonzero(lies_between(doubles, datatype)).tolist():
        found[at] = to_odd(flat[at].strip(_BLANKS))
    return found


def _scalar(text: Any, datatype: Datatype) -> Any:
    if type(text) is not str:
        return text
    text = text.strip(_BLANKS)
    if datatype is Datatype.BOOL:
        return _BOOL_TEXTS.get(text.lower(), text)
    if not text:
        return None
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    number = float(text)
    if datatype.is_integer:
        # The digits are exact; those of a double need not be.
        if math.isinf(number) or abs(number) > MOST_EXACT or Decimal(text) % 1:
            return int(text)
        return int(Decimal(text))
    if math.isinf(number) and "inf" not in text.lower():
        raise ValueError(text)
    return number


_BLANKS: Final = " \t"
_NUMBER: Final = re.compile(
    r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?|[-+]?(?:nan|inf|infinity)",
    re.IGNORECASE | re.ASCII,
)
_BOOL_TEXTS: Final = {"true": True, "false": False}
_WORDS: Final = {"integer": "an integer", "number": "a number", "bool": "true or false"}


def _kind(datatype: Datatype) -> str:
    return "integer" if datatype.is_integer else "number" if datatype.is_float else "bool"


def _wrong_type(
    data: UntypedData, flat: list[Any], value: Any, datatype: Datatype, allowed: frozenset[type]
) -> InvalidRequest:
    index = next(at for at, each in enumerate(flat) if type(each) not in allowed)
    if index < data.first_fraction and type(flat[index]) is float:
        index = data.first_fraction  # integers beside a fraction were read as floats
    each = flat[index]
    return _wrong(data, value, index, each, f"{_WORDS[_kind(datatype)]} for {datatype.name}")


def _out_of_range(
    data: UntypedData, flat: list[Any], value: Any, datatype: Datatype
) -> InvalidRequest:
    for index, each in enumerate(flat):
        if not _is_in_range(each, datatype):
            return _wrong(data, value, index, each, f"a value in the range of {datatype.name}")
    raise AssertionError(flat)  # pragma: no cover  # each element alone fits, then all do


def _is_in_range(value: Any, datatype: Datatype) -> bool:
    if datatype is Datatype.BF16:
        return _bf16_of([value]) is not None
    try:
        struct.pack(f"<{CODES[datatype]}", value)
    except (struct.error, OverflowError):
        return False
    return True


def _wrong(data: UntypedData, value: Any, index: int, found: Any, expected: str) -> InvalidRequest:
    where = value_place(data, _indices(value, index))
    return InvalidRequest(f"{where} is {_show(found)}: expected {expected}")


def _indices(value: Any, index: int) -> tuple[int, ...]:
    """Return the indices of a flat one, in lists that are nested regularly."""
    return tuple([int(each) for each in np.unravel_index(index, nested_shape(value))])


def _element(value: Any, indices: Sequence[int]) -> Any:
    for index in indices:
        value = value[index]
    return value


def _show(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, str):
        value = value[: _SHOWN + 1]
    text = f"{value!r}"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def table_columns(data: UntypedData) -> dict[str, UntypedData]:
    """Return the columns of a table as values of one tensor each."""
    data = parsed(data)
    columns, value = data.columns or (), data.value
    if isinstance(value, np.ndarray):
        values: Sequence[Any] = [value[:, at] for at in range(len(columns))]
    else:
        charge(len(value) * len(columns) * JSON_NUMBER)
        values = (
            [list(each) for each in zip(*value, strict=True)] if value else [[] for _ in columns]
        )
    return {
        name: UntypedData(
            values[at],
            data.layout,
            data.place,
            data.rules,
            str(at) if data.layout is JsonLayout.TABLE else name,
            shape=data.shape,
            reread=None if data.reread is None else data.reread.then(partial(_column, at)),
        )
        for at, name in enumerate(columns)
    }


def _column(at: int, rows: list[list[Any]]) -> list[Any]:
    return [row[at] for row in rows]


def matrix_tensor(
    name: str, data: UntypedData, declared: TensorMetadata, columns: Sequence[str]
) -> Tensor:
    """Return a table as one tensor of rows and columns.

    Args:
        name: Name of the tensor.
        data: The table.
        declared: What the model declares of its input.
        columns: The columns in the order of the input.

    Raises:
        InvalidRequest: A value is not one of the datatype, an integer is not one of its values, or
            the table has another shape.
    """
    datatype = declared.datatype
    if datatype is None:
        return typed_tensor(name, data, declared)  # which refuses it
    data = parsed(data)
    found = table_columns(data)
    rows = len(data.value)
    for each in columns:
        if nested_shape(found[each].value) != (rows,):
            where = value_place(found[each], (0,))
            raise InvalidRequest(f"{where} is a list: expected one value for each row and column")
    whole = UntypedData(None, JsonLayout.VALUE, data.place, data.rules)
    shape = _declared_shape(whole, declared, (rows, len(columns)))
    if datatype is Datatype.BYTES:
        parts = [_elements(found[each], datatype, (rows,), False) for each in columns]
        items = [list(part.items) for part in parts if isinstance(part, ItemsData)]
        return Tensor(
            name,
            datatype,
            shape,
            ItemsData([each for row in zip(*items, strict=True) for each in row]),
        )
    value = data.value
    if (
        isinstance(value, np.ndarray)
        and tuple(columns) == data.columns
        and _is_exact(value, datatype)
        and not (value.dtype.kind == "f" and reads_doubles(datatype, data.rules))
        and not data.rules.has_doubles_only
        and not _must_be_reread(data, value, datatype)
    ):
        charge(value.size * JSON_NUMBER, 0)
        array = _narrow_array(value, datatype)
        if array is not None:
            return Tensor(name, datatype, shape, ArrayData(array))
    charge(len(columns) * _COLUMN)
    matrix = np.empty(shape, datatype.numpy_dtype)
    for at, each in enumerate(columns):
        column = found[each]
        _check_exact(column, datatype)
        part = _elements(column, datatype, (rows,), False)
        matrix[:, at] = (
            part.array
            if isinstance(part, ArrayData)
            else np.frombuffer(part.view, datatype.numpy_dtype)  # type: ignore[union-attr]  # numbers are raw
        )
    return Tensor(name, datatype, shape, ArrayData(matrix))


def _is_exact(values: npt.NDArray[Any], datatype: Datatype) -> bool:
    """Return whether a float holds every integer of an array."""
    most = _EXACT_INTEGERS.get(datatype)
    if most is None or values.dtype.kind == "f" or not values.size:
        return True
    return bool(values.max() <= most and int(values.min()) >= -most)


def _check_exact(column: UntypedData, datatype: Datatype) -> None:
    """Refuse an integer that would be rounded: columns of other types share the matrix with it."""
    most = _EXACT_INTEGERS.get(datatype)
    value = column.value
    if most is None or (isinstance(value, np.ndarray) and _is_exact(value, datatype)):
        return
    for index, each in enumerate(value):
        if type(each) is not int and not isinstance(each, np.integer):
            continue
        number = int(each)
        if abs(number) > most and not _holds(number, datatype):
            raise _wrong(
                column, list(value), index, number, f"an integer that {datatype.name} can hold"
            )


def _holds(number: int, datatype: Datatype) -> bool:
    if datatype is Datatype.BF16:
        return abs(number) <= _BF16_MOST and _significant_bits(number) <= 8  # noqa: PLR2004
    try:
        code = f"<{CODES[datatype]}"
        return bool(struct.unpack(code, struct.pack(code, number))[0] == number)
    except (struct.error, OverflowError):
        return True  # the range is checked with the elements


def _significant_bits(number: int) -> int:
    number = abs(number)
    return number.bit_length() - ((number & -number).bit_length() - 1)


def declared_form(declarations: Mapping[str, object], protocol: str) -> RowsForm:
    """Return what the configuration declares of a model for a protocol of rows."""
    found = declarations.get(protocol)
    return found if isinstance(found, RowsForm) else NO_FORM
