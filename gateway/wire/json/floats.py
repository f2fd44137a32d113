"""Arrays as JSON: long ones in pieces, and FP32's largest value in all its digits.

Its shortest decimal, 3.4028235e38, is above it when it is read as a double. Protocol Buffers' JSON
parsers compare as doubles and refuse it for a `float` field.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

_LARGEST: Final = np.finfo(np.float32).max
_DIGITS: Final = b"3.4028234663852886e38"
_EXACT: Final = {
    _LARGEST: orjson.Fragment(_DIGITS),
    -_LARGEST: orjson.Fragment(b"-" + _DIGITS),
}
# How orjson writes the largest value; a text without it needs no second look.
# More numbers than this, some 20 ms of work, are written in pieces: the library keeps the
# interpreter's lock meanwhile, and holds twice the text and 80 bytes for each row.
_WHOLE: Final = 1 << 18
_PIECE: Final = 1 << 16
_SHORTEST: Final = orjson.dumps(_LARGEST, None, orjson.OPT_SERIALIZE_NUMPY)


def dump_exact(document: Any) -> bytes:
    """Write a document as orjson does, the largest FP32 values in all their digits.

    Raises:
        TypeError: It holds what JSON cannot carry.
    """
    text = orjson.dumps(document, None, orjson.OPT_SERIALIZE_NUMPY)
    if _SHORTEST not in text:
        return text
    if isinstance(document, np.ndarray):
        return with_all_digits(text, document)
    return orjson.dumps(_with_exact_largest(document), None, orjson.OPT_SERIALIZE_NUMPY)


def array_json(array: npt.NDArray[Any]) -> bytes:
    """Write an array as nested lists, the largest FP32 values in all their digits.

    Args:
        array: It has one dimension at least, and a form that orjson writes.
    """
    if array.size <= _WHOLE:
        return with_all_digits(orjson.dumps(array, None, orjson.OPT_SERIALIZE_NUMPY), array)
    step = _PIECE * len(array) // array.size
    if step:
        rows = range(0, len(array), step)
        pieces = [array_json(array[at : at + step])[1:-1] for at in rows]
    else:  # one row is long, or all rows together have fewer lists than numbers
        pieces = [array_json(row) for row in array]
    pieces[0] = b"[" + pieces[0]
    pieces[-1] += b"]"
    return b",".join(pieces)


def with_all_digits(text: bytes, array: npt.NDArray[Any]) -> bytes:
    """Return orjson's text of *array*, the largest FP32 values in all their digits.

    No text of another FP32 value contains that of the largest one.
    """
    return text.replace(_SHORTEST, _DIGITS) if array.dtype == np.float32 else text


def _with_exact_largest(value: Any) -> Any:
    """Return *value*, a document for orjson, with the largest FP32 values in all their digits.

    Every other value keeps its own text.
    """
    if isinstance(value, np.ndarray):
        text = orjson.dumps(value, None, orjson.OPT_SERIALIZE_NUMPY)
        return orjson.Fragment(with_all_digits(text, value))
    if isinstance(value, np.float32):
        return _EXACT.get(value, value)
    if isinstance(value, dict):
        return {key: _with_exact_largest(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_exact_largest(each) for each in value]
    return value
