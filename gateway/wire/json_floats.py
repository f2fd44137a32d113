"""FP32's largest value as JSON.

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
