"""Reads shapes and elements of JSON as servers do that convert them with numpy.

MLServer and KServe are such servers: `null` is NaN, `1.0` and `"1"` are integers, 1 is true, a
shape may have one -1, and lists may be nested in any regular way.  `elements.py` reads strictly; a
request to these servers is read like this only where it is refused.

Source: docs/protocols/open-inference.md, "3. Tensors as JSON" and "17. Dialects of upstream
servers".
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson
import simdjson

from gateway.ir.errors import InvalidTensor
from gateway.ir.limits import MessageLimits, check_element_size
from gateway.ir.tensors.data import ArrayData, ItemsData, JsonItemsData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.items import text_items
from gateway.ir.tensors.tensor import Shape
from gateway.ir.values.number_lists import leaves
from gateway.ir.work import charge
from gateway.protocols.oip.datatypes import NOT_IN_JSON
from gateway.wire.json.values import plain_value

ConvertedData = ArrayData | ItemsData | JsonItemsData
"""The elements of a tensor whose datatype and shape they match."""

VARIABLE: Final = -1
"""The dimension that follows from the number of elements."""


def as_dimensions(shape: Any) -> list[int] | None:
    """Return a shape with each dimension as an integer, at most one of them -1; None if it cannot.

    `"2"`, `2.0` and `true` are integers.
    """
    if type(shape) is not list:
        return None
    try:
        dims = [int(dim) for dim in shape if type(dim) is not float or dim.is_integer()]
    except (TypeError, ValueError):
        return None
    is_whole = len(dims) == len(shape) and min(dims, default=0) >= VARIABLE
    return dims if is_whole and dims.count(VARIABLE) <= 1 else None


def with_dimension(name: str, shape: list[int], count: int) -> Shape:
    """Return *shape* with the dimension that -1 stands for.

    Args:
        name: The name of the tensor.
        shape: With one -1.
        count: Number of elements.

    Raises:
        InvalidTensor: No dimension fits.
    """
    rest = math.prod(dim for dim in shape if dim != VARIABLE)
    if not rest or count % rest:
        raise InvalidTensor(
            f"input {name!r} has {count} elements in data: they do not fill shape {shape}"
        )
    return tuple([count // rest if dim == VARIABLE else dim for dim in shape])


def convert_elements(
    name: str, datatype: Datatype, shape: list[int], data: Any, limits: MessageLimits, *, half: bool
) -> tuple[ConvertedData, Shape]:
    """Return the elements in *data*, and their shape.

    Args:
        name: The name of the tensor.
        datatype: The datatype of the elements.
        shape: With at most one -1.
        data: A value of JSON, or a simdjson Array.
        limits: `bytes_element_size` is enforced.
        half: FP16 may be numbers.

    Raises:
        InvalidTensor: An element cannot be converted, or the count is wrong.
        TooLarge: An element of BYTES exceeds the limit.
    """
    if type(data) is simdjson.Array:
        data = plain_value(data)
    if datatype is Datatype.BYTES:
        flat = list(leaves(data))
        charge(len(flat))
        filled = _filled(name, shape, len(flat))
        return _items(name, flat, limits), filled
    if datatype in NOT_IN_JSON and not (half and datatype is Datatype.FP16):
        raise InvalidTensor(f"input {name!r} is {datatype.name}, which JSON cannot represent")
    charge(_expected_count(data))
    try:
        with np.errstate(all="ignore"):  # 1e39 is an infinity in FP32
            array = np.array(data, datatype.numpy_dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidTensor(
            f"input {name!r} has elements that are no {datatype.name}: {error}"
        ) from error
    filled = _filled(name, shape, array.size)
    return ArrayData(array.reshape(filled)), filled


def _filled(name: str, shape: list[int], count: int) -> Shape:
    if VARIABLE in shape:
        return with_dimension(name, shape, count)
    if math.prod(shape) != count:
        raise InvalidTensor(
            f"input {name!r} has {count} elements in data: "
            f"expected {math.prod(shape)} for shape {shape}"
        )
    return tuple(shape)


def _expected_count(data: Any) -> int:
    """Return the number of elements in regularly nested lists."""
    count = 1
    while type(data) is list:
        count *= len(data)
        data = data[0] if data else None
    return count


def _items(name: str, flat: list[Any], limits: MessageLimits) -> ItemsData | JsonItemsData:
    try:
        if all(type(value) is str for value in flat):
            items: Sequence[bytes | memoryview] = text_items(flat)
            found: ItemsData | JsonItemsData = ItemsData(items)
        else:
            found = json_items(flat)
            items = found.values
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidTensor(f"input {name!r} has an element that is not JSON: {error}") from error
    longest = max(map(len, items), default=0)
    check_element_size("input", name, longest, limits)
    return found


def json_items(flat: Sequence[Any]) -> JsonItemsData:
    """Return elements of BYTES that are not all strings.

    Raises:
        TypeError: One cannot be written as JSON.
    """
    # orjson returns a text in a block of its own of 4 KiB: a copy takes what it needs.
    return JsonItemsData([b"%b" % orjson.dumps(value) for value in flat])
