"""FP32's largest value as JSON.

Its shortest decimal, 3.4028235e38, is above it when it is read as a double. Protocol Buffers' JSON
parsers compare as doubles and refuse it for a `float` field.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

_LARGEST: Final = np.finfo(np.float32).max
_EXACT: Final = {
    _LARGEST: orjson.Fragment(b"3.4028234663852886e38"),
    -_LARGEST: orjson.Fragment(b"-3.4028234663852886e38"),
}
SHORTEST: Final = orjson.dumps(_LARGEST, None, orjson.OPT_SERIALIZE_NUMPY)
"""How orjson writes the largest value; a text without it needs no second look."""


def dump_exact(document: Any) -> bytes:
    """Write a document as orjson does, the largest FP32 values in all their digits.

    Raises:
        TypeError: It holds what JSON cannot carry.
    """
    text = orjson.dumps(document, None, orjson.OPT_SERIALIZE_NUMPY)
    if SHORTEST not in text:
        return text
    return orjson.dumps(with_exact_largest(document), None, orjson.OPT_SERIALIZE_NUMPY)


def has_largest(array: npt.NDArray[Any]) -> bool:
    """Return whether *array* is FP32 and has the largest value, or its negative."""
    return bool(array.dtype == np.float32 and (np.abs(array) == _LARGEST).any())


def with_exact_largest(value: Any) -> Any:
    """Return *value*, a document for orjson, with the largest FP32 values in all their digits.

    Every other value keeps its own text. Arrays that have such a value become lists.
    """
    if isinstance(value, np.ndarray):
        if not has_largest(value):
            return value
        value = [*value] if value.ndim else value[()]
    if isinstance(value, np.float32):
        return _EXACT.get(value, value)
    if isinstance(value, dict):
        return {key: with_exact_largest(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [with_exact_largest(each) for each in value]
    return value
