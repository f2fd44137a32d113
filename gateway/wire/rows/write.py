"""Writes tensors as JSON without datatypes: as values, as rows, or as an object of columns.

`read.py` reads them. A float keeps a point or an exponent and reads back equal; bytes are never
written raw.

Source: docs/protocols/rows.md, "5. Responses".
"""

import base64
import enum
import json
import math
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import orjson
from msgspec import Struct

from gateway.ir.errors import InvalidOutput
from gateway.ir.tensors.datatypes import Datatype, fp32_of_bf16
from gateway.ir.tensors.tensor import Shape, Tensor, as_items, as_numpy
from gateway.ir.work import JSON_NUMBER, charge
from gateway.wire.json.floats import array_json, dump_exact
from gateway.wire.rows.write_few import few_rows

_DOUBLE: Final = 8
# So many elements of BYTES are objects at a time.
_SOME_ITEMS: Final = 4096
_SHORT: Final = 1024
_SHORT_TEXT: Final = 1 << 16
_MATRIX_RANK: Final = 2
_NULL: Final = re.compile(b"null")
_WORDS: Final = {False: "NaN", True: "Infinity"}


class NonfiniteStyle(enum.Enum):
    """What is written for a float that is not finite."""

    WORDS = "words"
    """NaN, Infinity and -Infinity, which are not JSON."""
    NULL = "null"
    REFUSE = "refuse"


class RowStyle(Struct, frozen=True, kw_only=True):
    """How a protocol writes elements.

    Attributes:
        nonfinite: What is written for a float that is not finite.
        has_b64: Bytes that are not UTF-8 are an object with `b64`; otherwise they are refused.
        b64_suffix: Outputs whose name ends so are always objects with `b64`; "" for none.
        base64: Outputs that are base64 text.
    """

    nonfinite: NonfiniteStyle = NonfiniteStyle.WORDS
    has_b64: bool = False
    b64_suffix: str = ""
    base64: frozenset[str] = frozenset()


def value_json(tensor: Tensor, style: RowStyle) -> bytes:
    """Write a tensor as nested lists, a scalar as its element.

    Raises:
        InvalidOutput: An element cannot be written.
    """
    if tensor.datatype is Datatype.BYTES:
        items = as_items(tensor)
        charge(len(items))
        return _items_json(tensor.name, items, tensor.shape or (), style, 0)
    few = few_rows((tensor,), False)  # a keyword costs more
    if few is not None:
        return few
    array = _numbers(tensor)
    charge(array.size * JSON_NUMBER)
    text = array_json(array) if array.ndim else _scalar(array)
    # `null` stands for what is not finite. To look for it in a short text is cheaper than numpy.
    is_finite = b"null" not in text if len(text) < _SHORT_TEXT else np.isfinite(array).all()
    if array.dtype.kind != "f" or is_finite or style.nonfinite is NonfiniteStyle.NULL:
        return text
    words = _nonfinite_words(tensor.name, array, style)
    return _NULL.sub(lambda _found: next(words), text)


def columns_json(tensors: Sequence[Tensor], style: RowStyle) -> bytes:
    """Write an object of values, by the names of the tensors.

    Raises:
        InvalidOutput: An element cannot be written.
    """
    few = few_rows(tensors, True) if len(tensors) > 1 else None  # a keyword costs more
    if few is not None:
        return few
    members = [orjson.dumps(each.name) + b":" + value_json(each, style) for each in tensors]
    return b"{" + b",".join(members) + b"}"


def rows_json(tensors: Sequence[Tensor], style: RowStyle) -> bytes:
    """Write a list with one element of a single tensor, or one object of several, for each row.

    Raises:
        InvalidOutput: An output has no rows, the outputs have different numbers of rows, or an
            element cannot be written.
    """
    if len(tensors) == 1 and tensors[0].shape:
        return value_json(tensors[0], style)
    few = few_rows(tensors, False)  # a keyword costs more
    if few is not None:
        return few
    _check_rows(tensors)
    if all(map(_is_matrix, tensors)):
        return _joined_rows(tensors, style)
    # Some rows at a time: each of them is an object.
    has_words, rows, parts = _has_words(tensors, style), _rows(tensors, style), []
    while some := list(islice(rows, _SHORT)):
        parts.append(_dump(some, has_words=has_words)[1:-1])
    return b"[%b]" % b",".join(parts)


def _is_matrix(tensor: Tensor) -> bool:
    """Return whether the text of a tensor is that of one or more rows of numbers."""
    shape = tensor.shape or ()
    return len(shape) == _MATRIX_RANK and shape[0] > 0 and tensor.datatype is not Datatype.BYTES


def _joined_rows(tensors: Sequence[Tensor], style: RowStyle) -> bytes:
    """Write a list with one object for each row of matrices, from the texts of their rows."""
    columns = [value_json(each, style)[2:-2].split(b"],[") for each in tensors]
    charge(sum(map(len, columns)))
    keys = [orjson.dumps(each.name) + b":[" for each in tensors]
    rows = [
        b"],".join([key + row for key, row in zip(keys, texts, strict=True)])
        for texts in zip(*columns, strict=True)
    ]
    return b"[{%b]}]" % b"]},{".join(rows)


def row_texts(tensors: Sequence[Tensor], style: RowStyle) -> Iterator[bytes]:
    """Yield the items of the list of `rows_json`, each of them alone.

    Raises:
        InvalidOutput: As `rows_json`.
    """
    _check_rows(tensors)
    has_words = _has_words(tensors, style)
    for row in _rows(tensors, style):
        yield _dump(row, has_words=has_words)


def _check_rows(tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        if not tensor.shape:
            raise InvalidOutput(
                f"output {tensor.name!r} is a scalar: expected an axis of rows, because the "
                "response has one item for each row"
            )
    counts = {(tensor.shape or (0,))[0] for tensor in tensors}
    if len(counts) > 1:
        shapes = "; ".join(f"{each.name!r} {list(each.shape or ())}" for each in tensors[:8])
        raise InvalidOutput(
            f"the outputs have different numbers of rows: {shapes}; expected the same first axis, "
            "because the response has one item for each row"
        )


def _rows(tensors: Sequence[Tensor], style: RowStyle) -> Iterator[Any]:
    columns = [_row_values(tensor, style) for tensor in tensors]
    charge(sum(map(len, columns)))
    if len(columns) == 1:
        yield from columns[0]
        return
    names = [tensor.name for tensor in tensors]
    for row in zip(*columns, strict=True):
        yield dict(zip(names, row, strict=True))


def _has_words(tensors: Sequence[Tensor], style: RowStyle) -> bool:
    return style.nonfinite is NonfiniteStyle.WORDS and any(map(_has_nonfinite, tensors))


def _dump(value: Any, *, has_words: bool) -> bytes:
    if not has_words:
        return dump_exact(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_list).encode()


def _row_values(tensor: Tensor, style: RowStyle) -> Sequence[Any]:
    """Return what stands in each row of one tensor."""
    shape = tensor.shape or ()
    if tensor.datatype is Datatype.BYTES:
        items = as_items(tensor)
        charge(len(items))
        found: list[Any] = _nested(_texts(tensor.name, items, style, 0), shape)
        return found
    array = _numbers(tensor)
    charge(array.size * JSON_NUMBER)
    if style.nonfinite is NonfiniteStyle.REFUSE and _has_nonfinite(tensor):
        next(_nonfinite_words(tensor.name, array, style))
    # orjson knows one class of each width, and numpy has two of some. It writes short lists faster
    # than many short arrays; the shortest digits of FP32 need arrays.
    is_exact = array.dtype.kind != "f" or array.dtype.itemsize == _DOUBLE
    if is_exact and (array.ndim == 1 or array.size <= _SHORT):
        return cast("list[Any]", array.tolist())
    return cast("Sequence[Any]", array)


def _list(value: Any) -> Any:
    """Return a row of an array, or an element of one, for Python's json."""
    return value.tolist()


def _has_nonfinite(tensor: Tensor) -> bool:
    if tensor.datatype is None or not tensor.datatype.is_float:
        return False
    return not bool(np.isfinite(_numbers(tensor)).all())


def _numbers(tensor: Tensor) -> npt.NDArray[Any]:
    """Return an array that orjson writes: contiguous, and without FP16 and BF16."""
    array = as_numpy(tensor)
    if tensor.datatype is Datatype.BF16:
        array = fp32_of_bf16(array)
    elif tensor.datatype is Datatype.FP16:
        array = array.astype(np.float32)
    flags = array.flags
    # `np.require` takes 5 us to find it out. A copy is contiguous and aligned.
    return array if flags.c_contiguous and flags.aligned else array.copy()


def _scalar(array: npt.NDArray[Any]) -> bytes:
    return dump_exact(array[()] if array.dtype.kind == "f" else array.item())


def _nonfinite_words(name: str, array: npt.NDArray[Any], style: RowStyle) -> Iterator[bytes]:
    """Yield the words of the numbers that are not finite, in their order.

    Raises:
        InvalidOutput: They are refused.
    """
    flat = array.reshape(-1)
    for index in np.flatnonzero(~np.isfinite(flat)):
        value = float(flat[index])
        sign = "-" if value < 0 else ""
        word = f"{sign}{_WORDS[math.isinf(value)]}"
        if style.nonfinite is NonfiniteStyle.REFUSE:
            raise InvalidOutput(
                f"output {name!r} has {word} at index {index}: JSON cannot represent it"
            )
        yield word.encode()


def _items_json(
    name: str, items: Sequence[bytes | memoryview], shape: Shape, style: RowStyle, start: int
) -> bytes:
    """Write elements of BYTES, the first of which is the *start*th, as lists nested as *shape*."""
    if len(items) <= _SOME_ITEMS or not shape:
        return orjson.dumps(_nested(_texts(name, items, style, start), shape))
    # Some at a time: each of them is an object.
    per_row = len(items) // shape[0]
    step = max(_SOME_ITEMS // per_row, 1)
    parts = []
    for row in range(0, shape[0], step):
        at, rows = row * per_row, min(step, shape[0] - row)
        some = items[at : at + rows * per_row]
        written = (
            _items_json(name, some, (rows, *shape[1:]), style, start + at)
            if step > 1
            else (b"[%b]" % _items_json(name, some, shape[1:], style, start + at))
        )
        parts.append(written[1:-1])
    return b"[%b]" % b",".join(parts)


def _texts(
    name: str, items: Sequence[bytes | memoryview], style: RowStyle, start: int
) -> list[Any]:
    """Return elements of BYTES as texts, or as objects with base64."""
    if name in style.base64:
        return [base64.b64encode(item).decode() for item in items]
    if style.b64_suffix and name.endswith(style.b64_suffix):
        return [_b64(item) for item in items]
    found: list[Any] = []
    for index, item in enumerate(items, start):
        try:
            found.append(str(item, "utf-8"))
        except UnicodeDecodeError:
            if not style.has_b64:
                raise InvalidOutput(
                    f"output {name!r} has bytes at index {index} that are not UTF-8: expected "
                    "text, or an output that is declared to be binary"
                ) from None
            found.append(_b64(item))
    return found


def _b64(item: bytes | memoryview) -> dict[str, str]:
    return {"b64": base64.b64encode(item).decode()}


def _nested(flat: list[Any], shape: Shape) -> Any:
    """Return elements as lists nested as *shape*."""
    if not shape:
        return flat[0]
    for dim in reversed(shape[1:]):
        count = len(flat) // dim if dim else math.prod(shape[:-1])
        flat = [flat[at * dim : (at + 1) * dim] for at in range(count)]
    return flat
