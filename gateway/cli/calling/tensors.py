"""Converts between JSON values on the command line and IR tensors.

Conversions are exact: a number that does not fit is an error, never rounded or overflowed.
"""

import base64
import binascii
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.ir.errors import InvalidTensor
from gateway.ir.tensors.datatypes import Datatype, bf16_of_fp32, fp32_of_bf16
from gateway.ir.tensors.tensor import Shape, Tensor, array_tensor, as_items, as_numpy, items_tensor

MAX_RANK = 32


def read_value(text: str) -> Any:
    """Return the value of NAME=VALUE: JSON, or @FILE for JSON in a file.

    Raises:
        ValueError: The file cannot be read, or the text is not JSON.
    """
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise ValueError(f"cannot read {text[1:]!r}: {reason}") from error
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{text[:40]!r} is not JSON ({error.msg}, character {error.pos + 1}); "
            "expected NAME=[1, 2], NAME='[\"text\"]' or NAME=@FILE"
        ) from error


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def tensor_of(name: str, value: Any, datatype: Datatype, declared: Shape | None = None) -> Tensor:
    """Return a JSON value as a tensor; its nesting is its shape.

    A flat list or a single value gets the declared shape if at most one dimension of it is
    variable.

    Args:
        name: Input name.
        value: Nested lists, or a single value.
        datatype: The datatype of the input.
        declared: The model's shape, -1 for a variable dimension; None if it is not known.

    Raises:
        InvalidTensor: Lists have different lengths, or an element does not fit the datatype.
    """
    shape = _nesting(name, value)
    elements = list(_leaves(name, value, shape))
    if declared is not None and len(shape) <= 1 and len(shape) != len(declared):
        resolved = _resolve_shape(declared, len(elements))
        shape = shape if resolved is None else resolved
    if datatype is Datatype.BYTES:
        return items_tensor(name, shape, [_bytes_of(name, element) for element in elements])
    return array_tensor(name, _array(name, elements, datatype).reshape(shape), datatype)


def _nesting(name: str, value: Any) -> Shape:
    shape: list[int] = []
    while isinstance(value, list):
        shape.append(len(value))
        if len(shape) > MAX_RANK:
            raise InvalidTensor(f"input {name!r} is nested deeper than {MAX_RANK}")
        if not value:
            break
        value = value[0]
    return tuple(shape)


def _leaves(name: str, value: Any, shape: Shape) -> Iterator[Any]:
    if not shape and not isinstance(value, list):
        yield value
        return
    if not shape or not isinstance(value, list) or len(value) != shape[0]:
        raise InvalidTensor(f"input {name!r} has lists of different lengths at the same level")
    for item in value:
        yield from _leaves(name, item, shape[1:])


def _resolve_shape(declared: Shape, count: int) -> Shape | None:
    """Return the declared shape for *count* elements; None if it does not fit or is ambiguous."""
    variable = sum(size < 0 for size in declared)
    fixed = math.prod(size for size in declared if size >= 0)
    if variable > 1 or fixed == 0:
        return None
    if not variable:
        return declared if fixed == count else None
    if count % fixed:
        return None
    return tuple(count // fixed if size < 0 else size for size in declared)


def _array(name: str, elements: Sequence[Any], datatype: Datatype) -> npt.NDArray[Any]:
    if datatype is Datatype.BOOL:
        _check(name, elements, bool, datatype)
        return np.array(elements, dtype=np.bool_)
    if datatype.is_integer:
        return _integers(name, elements, datatype)
    return _floats(name, elements, datatype)


def _integers(name: str, elements: Sequence[Any], datatype: Datatype) -> npt.NDArray[Any]:
    _check(name, elements, int, datatype)
    bounds = np.iinfo(datatype.numpy_dtype)
    for element in elements:
        if not bounds.min <= element <= bounds.max:
            raise InvalidTensor(
                f"input {name!r}: {element} is out of range; {datatype.name} is "
                f"{bounds.min} to {bounds.max}"
            )
    return np.array(elements, dtype=datatype.numpy_dtype)


def _floats(name: str, elements: Sequence[Any], datatype: Datatype) -> npt.NDArray[Any]:
    _check(name, elements, int | float, datatype)
    bf16 = datatype is Datatype.BF16
    with np.errstate(over="ignore"):
        try:
            values = np.array(elements, dtype=np.float64)
        except OverflowError as error:
            raise InvalidTensor(f"input {name!r} is out of range for {datatype.name}") from error
        narrow = values.astype(np.float32 if bf16 else datatype.numpy_dtype)
    array = bf16_of_fp32(narrow) if bf16 else narrow
    results = fp32_of_bf16(array) if bf16 else narrow
    for value, result in zip(values, results, strict=True):
        if not np.isfinite(result):
            raise InvalidTensor(f"input {name!r}: {value} is out of range for {datatype.name}")
    return array


def _check(name: str, elements: Sequence[Any], kind: Any, datatype: Datatype) -> None:
    for element in elements:
        # In Python, True is an int.
        if not isinstance(element, kind) or (kind is not bool and isinstance(element, bool)):
            text = json.dumps(element)[:40]
            raise InvalidTensor(f"input {name!r}: {text} is not an element of {datatype.name}")


def _bytes_of(name: str, element: Any) -> bytes:
    if isinstance(element, str):
        return element.encode("utf-8", "surrogatepass")
    if isinstance(element, dict) and set(element) == {"b64"}:
        try:
            return base64.b64decode(element["b64"], validate=True)
        except (binascii.Error, ValueError, TypeError) as error:
            raise InvalidTensor(f"input {name!r}: 'b64' is not base64: {error}") from error
    text = json.dumps(element)[:40]
    raise InvalidTensor(f'input {name!r}: {text} is invalid; expected text or {{"b64": "..."}}')


def json_of(tensor: Tensor) -> dict[str, Any]:
    """Return *tensor* as JSON values: name, datatype, shape, and nested data.

    Bytes that are not UTF-8 become {"b64": ...}. NaN and infinity, which JSON numbers cannot
    represent, become "NaN", "Infinity" and "-Infinity".

    Raises:
        InvalidTensor: The tensor has no datatype or shape.
    """
    if tensor.datatype is None or tensor.shape is None:
        raise InvalidTensor(f"output {tensor.name!r} has no datatype or shape")
    return {
        "name": tensor.name,
        "datatype": tensor.datatype.name,
        "shape": list(tensor.shape),
        "data": _nested(_elements(tensor), tensor.shape),
    }


def _elements(tensor: Tensor) -> list[Any]:
    if tensor.datatype is Datatype.BYTES:
        return [_text_of(bytes(item)) for item in as_items(tensor)]
    array = as_numpy(tensor)
    if tensor.datatype is Datatype.BF16:
        array = fp32_of_bf16(array)
    values: list[Any] = array.reshape(-1).tolist()
    if array.dtype.kind == "f":
        # The shortest decimal number for the dtype: 0.1 instead of 0.10000000149011612.
        return [
            float(str(element)) if math.isfinite(value) else _non_finite(value)
            for value, element in zip(values, array.reshape(-1), strict=True)
        ]
    return values


def _non_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _text_of(item: bytes) -> str | dict[str, str]:
    try:
        return item.decode("utf-8")
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(item).decode("ascii")}


def _nested(elements: list[Any], shape: Shape) -> Any:
    array = np.empty(len(elements), dtype=object)
    for index, element in enumerate(elements):
        array[index] = element
    return array.reshape(shape).tolist()
