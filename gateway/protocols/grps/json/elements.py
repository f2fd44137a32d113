"""Elements of tensors and arrays to and from JSON.

Numbers are read as the Python server reads them: integers also as `1.0` and as digits in a string,
floats also as the strings NaN, Infinity and -Infinity.  Nothing is rounded to an integer, wrapped
or guessed; booleans are numbers only in an ndarray.  Non-finite values are written as these
strings, so the document is always valid JSON.

Source: docs/protocols/grps.md, "9. JSON".
"""

import contextlib
import math
import re
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from gateway.ir.errors import InvalidRequest, InvalidTensor, TooLarge
from gateway.ir.limits import MessageLimits, check_shape
from gateway.ir.tensors.data import ArrayData, ItemsData, TensorData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Shape
from gateway.ir.values.nearest import may_lie_between, to_odd
from gateway.ir.work import JSON_NUMBER, charge
from gateway.protocols.grps.datatypes import WireType, narrowed
from gateway.protocols.grps.errors import Unconvertible
from gateway.wire.json.floats import dump_exact

FLOAT32_MAX: Final = float(np.finfo(np.float32).max)

_INTEGERS: Final = frozenset({int})
_NUMBERS: Final = frozenset({int, float})
_ARRAY_NUMBERS: Final = frozenset({int, float, bool})
_WORDS: Final = {"nan": math.nan, "infinity": math.inf, "-infinity": -math.inf}
_DIGITS: Final = re.compile(r"-?[0-9]{1,20}")
_ONLY_DIGITS: Final = re.compile(r"[-0-9]*")
_DECIMAL: Final = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][-+]?[0-9]{1,4})?")
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_SHOWN: Final = 40
# Numbers that are converted at once.
_PIECE: Final = 1 << 17
# Lists of an array without elements.
_MOST_LISTS: Final = 1_000_000


def read_data(
    name: str,
    kind: WireType,
    shape: Shape,
    flat: list[Any],
    limits: MessageLimits,
    reread: Callable[[], list[Any]],
    nearest: Datatype = Datatype.FP32,
) -> TensorData:
    """Read the elements of one tensor.

    Args:
        name: The name of the tensor, for errors.
        kind: Its datatype.
        shape: Its shape; *flat* has as many elements.
        flat: The elements that the JSON document has.
        limits: For the size of text.
        reread: Returns the elements, their decimals as `ir.nearest.to_odd` returns them.
        nearest: The float that they become, of those that are narrower than FP64.

    Raises:
        InvalidTensor: An element is of another kind or out of range; the error has the first index.
        TooLarge: A text exceeds the limit.
    """
    if kind.datatype is Datatype.BYTES:
        charge(len(flat))
        return ItemsData(_texts(name, flat, limits))
    values: npt.NDArray[Any]
    if kind.datatype.is_integer:
        values = _integers(name, flat)
    else:
        values = _floats(name, flat)
        is_narrowed = kind.datatype is not Datatype.FP64 or nearest is Datatype.BF16
        if is_narrowed and may_lie_between(values, nearest):
            values = _floats(name, reread(), to_odd)
        if kind.datatype is Datatype.FP16:
            # Through float32, as on the wire.
            with np.errstate(over="ignore"):
                values = values.astype("<f4")
    return ArrayData(narrowed(name, kind, values).reshape(shape))


def read_array(
    value: Any, limits: MessageLimits, reread: Callable[[], Any] | None
) -> npt.NDArray[np.float32]:
    """Read an ndarray: evenly nested lists of numbers, or a single number.

    *reread* returns the value, its decimals as `ir.nearest.to_odd` returns them; None for such a
    value.

    Raises:
        InvalidTensor: It is ragged, or an element is not a number.
        TooLarge: A limit is exceeded.
    """
    shape: list[int] = []
    flat: list[Any] = [value]
    while any(type(one) is list for one in flat):
        first = len(flat[0]) if type(flat[0]) is list else -1
        if any(type(one) is not list or len(one) != first for one in flat):
            raise InvalidTensor(
                f"ndarray is ragged at depth {len(shape)}: lists must be nested evenly"
            )
        shape.append(first)
        check_shape("ndarray", Datatype.FP32, tuple(shape), limits)
        if not first:
            flat = []
            break
        flat = list(chain.from_iterable(flat))
    if not _ARRAY_NUMBERS.issuperset(map(type, flat)):
        wrong = next(one for one in flat if type(one) not in _ARRAY_NUMBERS)
        raise InvalidTensor(f"ndarray has {_show(wrong)}: expected numbers in lists")
    try:
        # Values beyond float32 become infinity, as with numpy on the real server.
        doubles = _array(flat, np.float64)
        if reread is not None and may_lie_between(doubles, Datatype.FP32):
            return read_array(reread(), limits, None)
        with np.errstate(over="ignore"):
            array = doubles.astype("<f4")
    except OverflowError as error:
        raise InvalidTensor("ndarray has an integer beyond float") from error
    return array.reshape(shape)


def read_integer(what: str, value: Any, least: int, most: int) -> int:
    """Read one integer between *least* and *most*, both included.

    Raises:
        InvalidRequest: It is not an integer, or out of range.
    """
    found = _integer(value)
    if found is None or not least <= found <= most:
        raise InvalidRequest(
            f"{what} is {_show(value)}: expected an integer from {least} to {most}"
        )
    return found


def read_number(what: str, value: Any) -> float:
    """Read one number, or the string of a non-finite one.

    Raises:
        InvalidRequest: It is something else.
    """
    found = _float(value)
    if found is None:
        raise InvalidRequest(f"{what} is {_show(value)}: expected a number")
    return found


def written_elements(flat: npt.NDArray[Any], *, numbers: bool) -> Any:
    """Return elements for JSON: an array that orjson accepts, a list, or text for many elements.

    Args:
        flat: Of one dimension; FP16 has the digits of its float32 value.
        numbers: INT64 as numbers, else as text.
    """
    flat = _native(flat)
    if flat.size > _PIECE:
        charge(flat.size * JSON_NUMBER)
        pieces = [
            dump_exact(written_elements(flat[at : at + _PIECE], numbers=numbers))[1:-1]
            for at in range(0, flat.size, _PIECE)
        ]
        return orjson.Fragment(b"[%b]" % b",".join(pieces))
    if flat.dtype.kind == "f":
        if flat.dtype.itemsize == 2:  # noqa: PLR2004  # half
            flat = flat.astype(np.float32)
        if not np.isfinite(flat).all():
            return _worded(flat).tolist()
    elif flat.dtype == np.int64 and not numbers:
        return list(map(str, flat.tolist()))
    if not (flat.flags.aligned and flat.flags.c_contiguous):
        flat = flat.copy()
    return flat


def written_array(array: npt.NDArray[Any]) -> Any:
    """Return an array for JSON, nested as its shape; a single number without a shape.

    Long arrays are returned as text.

    Raises:
        Unconvertible: An array without elements would have too many lists.
    """
    _check_lists(array)
    if array.size > _PIECE:
        charge(array.size * JSON_NUMBER)
        return orjson.Fragment(_nested_text(array))
    if not np.isfinite(array).all():
        return _worded(array).tolist()
    array = _native(array)
    if not array.shape:
        return array[()]
    return np.array(array, order="C")


def listed_array(array: npt.NDArray[Any]) -> Any:
    """Return an array of numbers or text as nested lists; a single value without a shape.

    Non-finite values are strings.

    Raises:
        Unconvertible: An array without elements would have too many lists.
    """
    _check_lists(array)
    charge(array.size * JSON_NUMBER)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return _worded(array).tolist()
    return array.tolist()


def _check_lists(array: npt.NDArray[Any]) -> None:
    """Refuse a shape such as [4294967295, 0]: one list for each row, and not a single number."""
    if array.size:
        return
    lists = math.prod(array.shape[: array.shape.index(0)])
    if lists > _MOST_LISTS:
        raise Unconvertible(
            f"an array of shape {list(array.shape)} cannot be written as JSON: it has no elements "
            f"and {lists} lists, at most {_MOST_LISTS} are allowed"
        )


def _nested_text(array: npt.NDArray[Any]) -> bytes:
    """Return an array as JSON, written in pieces."""
    if array.size <= _PIECE:
        return dump_exact(written_array(array))
    step = _PIECE * len(array) // array.size
    if step <= 1:
        pieces = [_nested_text(row) for row in array]
    else:
        blocks = [array[at : at + step] for at in range(0, len(array), step)]
        pieces = [_nested_text(block)[1:-1] for block in blocks]
    return b"[%b]" % b",".join(pieces)


def _native(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return *array* in this machine's byte order, which orjson requires."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _worded(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return *array* as objects, non-finite values as strings."""
    # Scalars of numpy, not of Python: a float32 keeps its own shortest digits.
    objects = np.array([*array.reshape(-1), None], dtype=object)[:-1].reshape(array.shape)
    objects[np.isnan(array)] = "NaN"
    objects[np.isposinf(array)] = "Infinity"
    objects[np.isneginf(array)] = "-Infinity"
    return objects


def _texts(name: str, flat: list[Any], limits: MessageLimits) -> list[bytes]:
    items = []
    for index, value in enumerate(flat):
        if type(value) is not str:
            raise _wrong(name, index, value, "a string")
        item = value.encode("utf-8", "replace")
        if len(item) > limits.bytes_element_size:
            raise TooLarge(
                f"tensor {name!r} has an element of {len(item)} bytes at index {index}, "
                f"at most {limits.bytes_element_size} are allowed",
                limit="bytes_element_size",
            )
        items.append(item)
    return items


def _integers(name: str, flat: list[Any]) -> npt.NDArray[np.int64]:
    kinds = _kinds(flat)
    if kinds == {str} and _ONLY_DIGITS.fullmatch("".join(flat)):
        # INT64 as servers write it, without the spellings that only int() accepts.
        with contextlib.suppress(ValueError, OverflowError):
            return _array(list(map(int, flat)), np.int64)
    if not kinds <= _INTEGERS:
        found = [_integer(value) for value in flat]
        if None in found:
            index = found.index(None)
            raise _wrong(name, index, flat[index], "an integer")
        flat = found
    try:
        return _array(flat, np.int64)
    except OverflowError:
        index = next(at for at, one in enumerate(flat) if not _INT64_MIN <= one <= _INT64_MAX)
        raise _wrong(name, index, flat[index], "an integer of 64 bits") from None


def _floats(
    name: str, flat: list[Any], read: Callable[[str], float] = float
) -> npt.NDArray[np.float64]:
    """Return elements as doubles; *read* reads those that are texts."""
    if not _kinds(flat) <= _NUMBERS:
        found = [_float(value, read) for value in flat]
        if None in found:
            index = found.index(None)
            raise _wrong(name, index, flat[index], "a number")
        flat = found
    try:
        return _array(flat, np.float64)
    except OverflowError as error:
        raise InvalidTensor(f"tensor {name!r} has an integer beyond float") from error


def _kinds(flat: list[Any]) -> set[type]:
    """Return the types of elements, in pieces as in `_array`."""
    kinds: set[type] = set()
    for at in range(0, len(flat), _PIECE):
        kinds.update(map(type, flat[at : at + _PIECE]))
    return kinds


def _array(flat: list[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return numbers as an array, in pieces, because each piece keeps the interpreter's lock."""
    if len(flat) <= _PIECE:
        return np.array(flat, dtype)
    array = np.empty(len(flat), dtype)
    for at in range(0, len(flat), _PIECE):
        array[at : at + _PIECE] = flat[at : at + _PIECE]
    return array


def _integer(value: Any) -> int | None:
    """Return *value* as an integer; None when it is not one."""
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is str and _DIGITS.fullmatch(value):
        return int(value)
    return None


def _float(value: Any, read: Callable[[str], float] = float) -> float | None:
    """Return *value* as a float; None when it is not one."""
    if type(value) is float:
        return value
    if type(value) is str:
        word = _WORDS.get(value.lower())
        if word is not None or not _DECIMAL.fullmatch(value):
            return word
    elif type(value) is not int:
        return None
    try:
        found = read(value) if type(value) is str else float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def _wrong(name: str, index: int, value: Any, needed: str) -> InvalidTensor:
    return InvalidTensor(f"tensor {name!r} has {_show(value)} at index {index}: expected {needed}")


def _show(value: Any) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = {None: "null", True: "true", False: "false"}.get(value) if _is_word(value) else None
    text = text or repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)
